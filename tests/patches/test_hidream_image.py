"""HiDream-I1's experts and sizes, against diffusers' own code, for a square image and one that is not."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tpuport
from benchmarks import tiny_diffusers


@pytest.fixture(scope="module")
def built() -> Iterator[Any]:
    """A tiny model with inputs of two rows, and what diffusers' own code makes of each."""
    torch.manual_seed(0)
    model, (inputs, *_) = tiny_diffusers.build("HiDreamImageTransformer2DModel")
    narrow = {**inputs, "hidden_states": torch.randn(2, 16, 16, 8)}
    calls = [inputs, narrow]
    with torch.no_grad():
        expected = [model(**call).sample for call in calls]
    tpuport.enable()
    yield model, calls, expected
    tpuport.disable()


def test_on_the_host(built: Any) -> None:
    model, calls, expected = built
    for call, theirs in zip(calls, expected, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(model(**call).sample, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_on_the_device_as_one_program(built: Any) -> None:
    model, calls, expected = built
    compiled = tpuport.compile(tpuport.port(model))
    for call, theirs in zip(calls, expected, strict=True):
        ours = tpuport.to_cpu(compiled(**call).sample)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert compiled.program.compilations == 2  # one for each size
