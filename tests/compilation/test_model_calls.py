"""A ported model's own call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

import tpuport
from tests.cache_names import CACHE
from tpuport import PortError, compat


def test_token_ids_beyond_the_vocabulary_raise_torchs_error() -> None:
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config).eval()
    good, bad = torch.tensor([[0, 15]]), torch.tensor([[3, 16]])
    with pytest.raises(IndexError, match="index out of range in self"):
        model(bad)
    ported = tpuport.port(model)
    for wrong in (bad, torch.tensor([[-1, 3]])):
        with pytest.raises(IndexError, match="index out of range in self"):
            ported(wrong)
        with pytest.raises(IndexError, match="index out of range in self"):
            ported(input_ids=wrong)
    assert tpuport.to_cpu(ported(good)).logits.isfinite().all()


class Scale(torch.nn.Module):
    """Has a factor that is learned, or not."""

    def __init__(self, factor: torch.Tensor | torch.nn.Parameter) -> None:
        super().__init__()
        if isinstance(factor, torch.nn.Parameter):
            self.factor = factor
        else:
            self.register_buffer("factor", factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor + (10 if isinstance(self.factor, torch.nn.Parameter) else 20)


@pytest.mark.parametrize(
    "factor", [torch.ones(2), torch.nn.Parameter(torch.ones(2))], ids=["buffer", "weight"]
)
def test_weights_are_parameters_and_buffers_are_not(factor: torch.Tensor) -> None:
    model, x = Scale(factor).eval(), torch.arange(2.0)
    expected = model(x).detach()
    ported = tpuport.port(model)
    assert torch.equal(tpuport.to_cpu(ported(x)), expected)
    assert torch.equal(tpuport.to_cpu(tpuport.compile(ported)(x)), expected)


def _shifted(self: Scale, x: torch.Tensor) -> torch.Tensor:
    return x - self.factor


@pytest.mark.parametrize("forward", [_shifted, staticmethod(lambda x: 3 * x)], ids=["method", "static"])
def test_a_forward_that_its_class_gets_later_is_seen(monkeypatch: pytest.MonkeyPatch, forward: Any) -> None:
    """As libraries of faster kernels replace those of transformers' classes."""
    model, x = Scale(torch.ones(2)).eval(), torch.arange(2.0)
    ported = tpuport.port(Scale(torch.ones(2)).eval())
    calls: list[Callable] = [ported, tpuport.compile(ported), tpuport.compile(lambda x: ported(x))]
    for call in calls:
        assert torch.equal(tpuport.to_cpu(call(x)), model(x))
    with monkeypatch.context() as patches:
        patches.setattr(Scale, "forward", forward)
        for call in calls:
            assert torch.equal(tpuport.to_cpu(call(x)), model(x))
    for call in calls:
        assert torch.equal(tpuport.to_cpu(call(x)), model(x))
    assert ported.forward.compiled.program.compilations == 1


@pytest.mark.parametrize("cache", [transformers.DynamicCache, lambda: None], ids=["empty", "returned"])
def test_a_cache_whose_next_state_is_in_the_output_is_refused(cache: Callable) -> None:
    """The call leaves the caller's object as it was, and torch would have changed it."""
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    torch.manual_seed(0)
    reference = transformers.LlamaForCausalLM(config).eval()
    ids = torch.tensor([[3, 4, 5, 6]])
    expected = reference(ids).logits.detach()
    ported = tpuport.port(reference)
    past = cache() or ported(ids[:, :1])[CACHE]
    first = past.get_seq_length()
    output = ported(ids[:, first:2], **{CACHE: past})
    with pytest.raises(PortError, match=rf"given to an earlier call(.|\n)*{CACHE}"):
        ported(ids[:, 2:3], **{CACHE: past})
    output = ported(ids[:, 2:], **{CACHE: output[CACHE]})
    torch.testing.assert_close(tpuport.to_cpu(output.logits), expected[:, 2:], atol=1e-5, rtol=1e-5)


class Noted(Scale):
    """Notes each run of its code."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        runs.append(type(x))
        return super().forward(x) + super().forward(x)


runs: list[type] = []


def test_inside_of_the_environment_each_call_runs_operation_by_operation() -> None:
    ported = tpuport.port(Noted(torch.ones(2)).eval())
    x = torch.arange(2.0).to("jax")
    for count in (1, 2, 3):
        with compat.environment():
            y = ported(x) + 1
            assert torch.equal(ported(x).cpu() + 1, y.cpu())
        assert len(runs) == 2 * count
    assert ported.forward.compiled.program.compilations == 0
    assert torch.equal(tpuport.to_cpu(ported(x)) + 1, y.cpu())
    assert ported.forward.compiled.program.compilations == 1
