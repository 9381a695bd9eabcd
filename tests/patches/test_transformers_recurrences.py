"""Recurrences as loops on the device, against transformers' own, token by token on the CPU."""

import importlib
from typing import Any

import numpy as np
import pytest
import torch

import tpuport
from tpuport import compat
from tpuport.patches import registry

ROWS, CHANNELS, TOKENS, STATES = 2, 6, 5, 3


@pytest.fixture(scope="module", autouse=True)
def patched() -> Any:
    tpuport.enable()
    yield
    tpuport.disable()


def on_device(value: Any) -> Any:
    if isinstance(value, list):
        return [on_device(part) for part in value]
    return compat.wrap(compat.to_jax(value)) if isinstance(value, torch.Tensor) else value


def compare(
    module: str, name: str, patch: str, *arguments: Any, tolerance: float = 1e-6, **options: Any
) -> None:
    """The function of tensors on the device gives what the library's own gives on the host."""
    assert patch in registry.applied()
    function: Any = importlib.import_module(f"transformers.models.{module}")
    for part in name.split("."):
        function = getattr(function, part)
    expected = function(*arguments, **options)
    with compat.environment():
        actual = function(
            *map(on_device, arguments), **{key: on_device(value) for key, value in options.items()}
        )
    flat = lambda result: [part for item in result for part in (item if isinstance(item, list) else [item])]  # noqa: E731
    for mine, theirs in zip(flat(actual), flat(expected), strict=True):
        assert compat.to_torch(compat.as_jax(mine)).dtype == theirs.dtype
        np.testing.assert_allclose(
            np.asarray(compat.as_jax(mine), np.float32),
            theirs.float().numpy(),
            rtol=tolerance,
            atol=tolerance,
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mamba(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    hidden, dt, z = (torch.randn(ROWS, CHANNELS, TOKENS).to(dtype) for _ in range(3))
    gates = [torch.randn(ROWS, STATES, TOKENS).to(dtype) for _ in range(2)]
    importlib.import_module("transformers.models.mamba.modeling_mamba")
    compare(
        "mamba.modeling_mamba", "mamba_selective_scan", "mamba.scan", hidden, dt, -torch.rand(CHANNELS, STATES),
        *gates, D=torch.randn(CHANNELS), z=z, delta_bias=torch.randn(CHANNELS), delta_softplus=True,
        return_last_state=True, tolerance=1e-6 if dtype == torch.float32 else 2e-2,
    )  # fmt: skip


@pytest.mark.parametrize("with_state", [False, True])
def test_rwkv(with_state: bool) -> None:
    torch.manual_seed(1)
    importlib.import_module("transformers.models.rwkv.modeling_rwkv")
    decay, first = torch.randn(CHANNELS), torch.randn(CHANNELS)
    key, value = torch.randn(ROWS, TOKENS, CHANNELS), torch.randn(ROWS, TOKENS, CHANNELS)
    state = [torch.rand(ROWS, CHANNELS) for _ in range(3)] if with_state else None
    compare(
        "rwkv.modeling_rwkv", "rwkv_linear_attention_cpu", "rwkv.attention", decay, first, key, value, state=state,
        return_state=True,
    )  # fmt: skip


@pytest.mark.parametrize(("tokens", "with_state"), [(TOKENS, False), (1, True), (1, False)])
def test_recurrent_gemma(tokens: int, with_state: bool) -> None:
    torch.manual_seed(2)
    importlib.import_module("transformers.models.recurrent_gemma.modeling_recurrent_gemma")
    hidden, gate = torch.randn(ROWS, tokens, CHANNELS), torch.rand(ROWS, tokens, CHANNELS)
    reset = torch.zeros(ROWS, tokens, 1, dtype=torch.bool)
    reset[0, 0] = True
    state = torch.randn(ROWS, CHANNELS) if with_state else None
    compare(
        "recurrent_gemma.modeling_recurrent_gemma", "RecurrentGemmaRglru._rnn_scan", "recurrent-gemma.scan", None,
        hidden, gate, reset, state,
    )  # fmt: skip
