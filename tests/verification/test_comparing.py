"""Runs compared event by event, on recordings written by hand."""

import pytest
import torch

from tpuport.verification.comparing import Runs, first_module
from tpuport.verification.recording import Event, ModuleCall, Recording, TensorNote

INNER = ModuleCall("inner", 0)


def recording(argument: torch.Tensor) -> Recording:
    """A run in which the model calls a module with an argument."""
    note = TensorNote("mask", argument.dtype, tuple(argument.shape), 0)
    model = Event("enter", ModuleCall("", 0), "", None, (), ())
    return Recording([model, Event("enter", INNER, "", None, (note,), ())], [argument])


@pytest.mark.parametrize(
    ("device", "is_compared"),
    [
        (torch.tensor([[0.0, 1.0]]), True),
        # Masks that tpuport passes on in another form.
        (torch.tensor([[True, False]]), False),
        (torch.tensor([0.0, 1.0]), False),
    ],
)
def test_arguments_of_the_same_form_are_compared_and_blamed_to_the_caller(
    device: torch.Tensor, is_compared: bool
) -> None:
    in_torch = torch.tensor([[0.0, torch.finfo(torch.float32).min]])
    mismatch = first_module(Runs(recording(device), recording(in_torch), None))
    assert (mismatch is not None) == is_compared
    if mismatch is not None:
        assert (mismatch.call.name, mismatch.path) == ("", "mask")
