"""PEFT's adapters, in every state that they can be in, are those of torch in compiled calls."""

import contextlib
import copy
import os
from typing import Any

import pytest
import torch
from torch import nn

import tpuport
from tpuport import compat

os.environ.setdefault("HF_HUB_OFFLINE", "1")
peft = pytest.importorskip("peft")

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def _config(**options: Any) -> Any:
    return peft.LoraConfig(r=2, target_modules=["first", "second"], init_lora_weights=False, **options)


def _adapted() -> Any:
    torch.manual_seed(0)
    model = peft.get_peft_model(Network(), _config())
    model.add_adapter("other", _config(lora_alpha=32))
    return model.eval()


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any, Any]:
    reference = _adapted()
    model = tpuport.port(copy.deepcopy(reference))
    return reference, model, tpuport.compile(model)


def _check(pair: tuple[Any, Any, Any]) -> torch.Tensor:
    reference, _, compiled = pair
    expected = reference(X).detach()
    torch.testing.assert_close(compiled(X).cpu(), expected, atol=1e-5, rtol=1e-5)
    return expected


def test_disabled_switched_scaled_merged_and_deleted(pair: tuple[Any, Any, Any]) -> None:
    *models, _ = pair
    plain = _check(pair)
    with contextlib.ExitStack() as stack:
        for model in models:
            stack.enter_context(model.disable_adapter())
        assert not torch.equal(_check(pair), plain)
    assert torch.equal(_check(pair), plain)
    seen = [plain]
    changes = [
        lambda model: model.set_adapter("other"),
        lambda model: model.base_model.first.scale_layer(3.0),
        lambda model: model.base_model.first.unscale_layer(),
        lambda model: model.base_model.set_adapter(["default", "other"]),
        lambda model: model.merge_adapter(),
        lambda model: model.unmerge_adapter(),
        lambda model: model.set_adapter("default"),
        lambda model: model.delete_adapter("other"),
    ]
    for change in changes:
        for model in models:
            with torch.no_grad(), compat.environment():
                change(model)
        seen.append(_check(pair))
    assert len({round(float(result.sum()), 4) for result in seen}) >= 4


def test_an_adapter_that_is_added_after_compiling(pair: tuple[Any, Any, Any]) -> None:
    torch.manual_seed(0)
    base = Network().eval()
    model = tpuport.port(copy.deepcopy(base))
    compiled = tpuport.compile(model)
    torch.testing.assert_close(compiled(X).cpu(), base(X).detach(), atol=1e-5, rtol=1e-5)
    reference = peft.inject_adapter_in_model(_config(), base)
    adapted = peft.inject_adapter_in_model(_config(), model)
    adapted.load_state_dict(reference.state_dict())
    torch.testing.assert_close(compiled(X).cpu(), reference(X).detach(), atol=1e-5, rtol=1e-5)
