"""Values and settings as keys: equal only where the program would be the same."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

import tpuport
from tpuport import compat
from tpuport.compilation import settings_key
from tpuport.objects.static_values import StaticValue, exact_key


@dataclasses.dataclass(frozen=True)
class Pair:
    first: Any


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0), (1, True), (0.0, -0.0), (0j, -0j), ((1,), (1.0,)), (frozenset({1}), frozenset({True})),
        (Pair(1), Pair(1.0)), ([1], (1,)), ({"a": 1}, {"a": 1.0}), (torch.float32, torch.float16),
    ],
)  # fmt: skip
def test_values_that_programs_tell_apart(one: Any, other: Any) -> None:
    assert exact_key(one) != exact_key(other)
    assert exact_key(one) == exact_key(type(one)(one) if isinstance(one, int | float | tuple) else one)


def test_nan_is_one_value() -> None:
    assert StaticValue(float("nan")) == StaticValue(float("nan"))
    assert repr(StaticValue(0.5)) == "0.5"


def test_equal_values_of_different_types_are_different_programs() -> None:
    compiled = tpuport.compile(lambda x, n: x * n)
    numbers = torch.tensor([3, 4])
    assert [compat.as_jax(compiled(numbers, n)).dtype.name for n in (1, 1.0)] == ["int32", "float32"]
    signed = [np.signbit(compat.as_jax(compiled(torch.ones(2), n))).all() for n in (0.0, -0.0)]
    assert signed == [False, True]
    nested = tpuport.compile(lambda x, n: x * n["by"][0])
    assert [compat.as_jax(nested(numbers, {"by": [n]})).dtype.name for n in (1, 1.0)] == ["int32", "float32"]
    before = nested.program.compilations
    nested(numbers, {"by": [1.0]})
    assert nested.program.compilations == before


SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip


def test_settings_change_with_the_config_the_mode_and_the_port() -> None:
    model = tpuport.port(LlamaForCausalLM(LlamaConfig(**SIZES)).eval())
    seen = [settings_key(model)]
    assert settings_key(model) == seen[0]
    hash(seen[0])
    model.config.rms_norm_eps = 0.5
    seen.append(settings_key(model))
    model.config.rope_parameters["rope_theta"] = 7.0
    seen.append(settings_key(model))
    model.train()
    seen.append(settings_key(model))
    tpuport.port(model.eval())
    seen.append(settings_key(model))
    assert len(set(seen)) == 5


@pytest.mark.slow  # test_staleness.py
def test_a_window_that_changes_is_seen() -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        config = MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=64)
        models.append(MistralForCausalLM(config).eval())
    reference, ported = models[0], tpuport.port(models[1])
    compiled, ids = tpuport.compile(ported), torch.arange(20).reshape(1, 20)
    for window in (64, 3):
        reference.config.sliding_window = ported.config.sliding_window = window
        got = compat.to_torch(compat.as_jax(compiled(ids, use_cache=False).logits))
        torch.testing.assert_close(got, reference(ids, use_cache=False).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("with_keywords", [False, True])
def test_a_default_before_further_arguments_keeps_its_place(with_keywords: bool) -> None:
    def plain(x, mask=None, *args):
        return x + (0 if mask is None else mask) + sum((n + 1) * arg for n, arg in enumerate(args))

    def keywords(x, mask=None, *args, **kwargs):
        return plain(x, mask, *args) + sum(kwargs.values())

    function = keywords if with_keywords else plain
    compiled = tpuport.compile(function)
    x, y = torch.ones(2), torch.full((2,), 10.0)
    for args in [(x,), (x, None), (x, None, y), (x, y), (x, y, x), (x, None, y, x)]:
        torch.testing.assert_close(compiled(*args).cpu(), function(*args))
