"""Keys and values in int8: transformers' own generate with a cache that rounds as the definition says."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    MambaConfig,
    MambaForCausalLM,
    T5Config,
    cache_utils,
)

import tpuport
from tpuport import PortError
from tpuport.generation import decoder_for
from tpuport.generation.rounded_states import dequantize_states, quantize_states

slow = pytest.mark.slow
NEW = 16
OPTIONS: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def rounded(states: torch.Tensor) -> torch.Tensor:
    """To 255 levels, a scale for each position and head."""
    scales = states.abs().amax(-1, keepdim=True) / 127
    return torch.where(scales == 0, 0.0, (states / scales).round()) * scales


@contextlib.contextmanager
def rounding_caches() -> Iterator[None]:
    """The layers of transformers' growing cache get rounded keys and values."""
    with pytest.MonkeyPatch.context() as patch:
        for cls in (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer):

            def update(
                self: Any, keys: Any, values: Any, *args: Any, _update: Any = cls.update, **kwargs: Any
            ) -> Any:
                return _update(self, rounded(keys), rounded(values), *args, **kwargs)

            patch.setattr(cls, "update", update)
        yield


def expected_tokens(reference: Any, ids: torch.Tensor, mask: torch.Tensor, **options: Any) -> torch.Tensor:
    with rounding_caches():
        return reference.generate(ids, attention_mask=mask, **OPTIONS | options)


def mesh_of(**sizes: int) -> Mesh:
    return tpuport.create_mesh(**sizes, devices=jax.devices()[: int(np.prod(list(sizes.values())))])


FAMILIES = [
    "llama",
    pytest.param("gemma3", marks=slow),
    pytest.param("mistral", marks=slow),
    pytest.param("gpt2", marks=slow),
    pytest.param("gpt_oss", marks=slow),
]


@pytest.mark.slow  # the logits below, of which they are the largest
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rows", [3, pytest.param(1, marks=slow)])
def test_tokens_are_those_of_a_rounding_cache(
    family: str, rows: int, make_pair: Callable, prompts: tuple
) -> None:
    reference, ported = make_pair(family)
    ids, mask = (x[:rows] for x in prompts)
    expected = expected_tokens(reference, ids, mask)
    assert torch.equal(ported.generate(ids, attention_mask=mask, kv_cache="int8", **OPTIONS), expected)


def test_logits_are_those_of_a_rounding_cache(llama: tuple, prompts: tuple) -> None:
    """And not those of a cache that does not round, from which they are further away than rounding in float32."""
    reference, ported = llama
    ids, mask = prompts
    options = OPTIONS | {"return_dict_in_generate": True, "output_logits": True}
    exact = reference.generate(ids, attention_mask=mask, **options)
    with rounding_caches():
        expected = reference.generate(ids, attention_mask=mask, **options)
    actual = ported.generate(ids, attention_mask=mask, kv_cache="int8", **options)
    # One level of rounding that falls to the other side changes a logit by about this much.
    torch.testing.assert_close(torch.stack(actual.logits), torch.stack(expected.logits), atol=2e-3, rtol=0)
    assert (torch.stack(exact.logits)[0] - torch.stack(expected.logits)[0]).abs().max() > 5e-3


@pytest.mark.slow  # test_sharded.py, with this cache on one device above
@pytest.mark.parametrize("sizes", [{"dp": 2, "tp": 2}, {"tp": 2}, {"tp": 8}])
def test_meshes(sizes: dict[str, int], make_pair: Callable, prompts: tuple) -> None:
    reference, ported = make_pair("llama", mesh=mesh_of(**sizes))
    expected = expected_tokens(reference, *prompts)
    actual = ported.generate(prompts[0], attention_mask=prompts[1], kv_cache="int8", **OPTIONS)
    assert torch.equal(actual, expected)


@pytest.mark.slow  # test_partial_prompts.py, test_beam_search.py and others, with a prompt's columns above
@pytest.mark.parametrize(
    "options",
    [
        {"prefill_chunk_size": 9},
        {"num_beams": 3},
        # Several columns at once are those of a chunk, and rows that move those of beams.
        {"prompt_lookup_num_tokens": 3},
        {"guidance_scale": 1.5},
    ],
    ids=str,
)
def test_with_other_options(options: dict[str, Any], llama: tuple, prompts: tuple) -> None:
    """What writes several columns at once, or moves rows of the cache."""
    reference, ported = llama
    ids, mask = prompts
    if "prompt_lookup_num_tokens" in options:
        ids, mask = ids[:1], mask[:1]
    plain = {name: value for name, value in options.items() if name != "prefill_chunk_size"}
    expected = expected_tokens(reference, ids, mask, **plain)
    assert torch.equal(
        ported.generate(ids, attention_mask=mask, kv_cache="int8", **OPTIONS | options), expected
    )


# Chunks above write several columns too, and test_partial_prompts.py shares prefixes.
@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_shared_prefix(family: str, make_pair: Callable, prompts: tuple) -> None:
    reference, ported = make_pair(family)
    ids = torch.cat([prompts[0][:1, :17].expand(3, 17), prompts[0][:, -3:]], dim=1)
    mask = torch.ones_like(ids)
    expected = expected_tokens(reference, ids, mask)
    options = OPTIONS | {"share_prefix": True}
    assert torch.equal(ported.generate(ids, attention_mask=mask, kv_cache="int8", **options), expected)


def test_both_caches_have_their_programs(llama: tuple, prompts: tuple) -> None:
    ported = llama[1]
    ids, mask = prompts
    plain = ported.generate(ids, attention_mask=mask, **OPTIONS)
    ported.generate(ids, attention_mask=mask, kv_cache="int8", **OPTIONS)
    decoder = decoder_for(ported)
    rounding = decoder.with_kv_cache("int8")
    before = decoder.advance.compilations, rounding.advance.compilations
    assert torch.equal(ported.generate(ids, attention_mask=mask, **OPTIONS), plain)
    ported.generate(ids, attention_mask=mask, kv_cache="int8", **OPTIONS)
    assert (decoder.advance.compilations, rounding.advance.compilations) == before


@given(
    shape=st.sampled_from([(1, 1, 1, 1), (2, 3, 5, 40)]),
    exponent=st.integers(-30, 30),
    dtype=st.sampled_from([jnp.float32, jnp.bfloat16]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=30, deadline=None)
def test_rounding_loses_half_a_level(shape: tuple, exponent: int, dtype: Any, seed: int) -> None:
    generator = np.random.default_rng(seed)
    numbers = generator.standard_normal(shape) * 10.0**exponent
    numbers[generator.random(shape[:3]) < 0.2] = 0
    states = jnp.asarray(numbers, dtype)
    values, scales = quantize_states(states)
    assert values.dtype == jnp.int8
    assert scales.shape == shape[:3]
    assert scales.dtype == dtype
    exact = np.asarray(states, np.float64)
    result = np.asarray(dequantize_states(values, scales, jnp.float32), np.float64)
    level = np.abs(exact).max(-1, keepdims=True) / 127
    # The scale is rounded to the dtype, so that the largest of a position may be beyond the last level.
    slack = 0.51 if dtype == jnp.float32 else 0.51 + 127 * 2.0**-8
    assert (np.abs(result - exact) <= slack * level).all()
    assert (result[exact == 0] == 0).all()


def test_a_product_in_bfloat16_is_rounded_once() -> None:
    values = jnp.arange(-127, 128, dtype=jnp.int8).reshape(1, 1, 1, -1).repeat(64, axis=2)
    scales = jnp.asarray(np.geomspace(1e-3, 10, 64), jnp.bfloat16).reshape(1, 1, -1)
    wide = values.astype(jnp.float32) * scales[..., None].astype(jnp.float32)
    result = dequantize_states(values, scales, jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(result), np.asarray(wide.astype(jnp.bfloat16)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(value: float) -> None:
    states = jnp.ones((1, 1, 3, 4)).at[0, 0, 1, 2].set(value)
    result = np.asarray(dequantize_states(*quantize_states(states), jnp.float32))
    np.testing.assert_allclose(result[0, 0, [0, 2]], 1, rtol=1e-6)
    assert not np.isfinite(result[0, 0, 1, 2])


def test_bytes() -> None:
    config = CONFIG_MAPPING["llama"](
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8
    )
    wide = tpuport.kv_cache_bytes(config, 2, 4096, torch.bfloat16)
    assert tpuport.kv_cache_bytes(config, 2, 4096, torch.bfloat16, kv_cache="int8") * 256 == wide * 130


REFUSED: dict[str, Callable[[], Any]] = {
    "mamba": lambda: MambaForCausalLM(
        MambaConfig(vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=1)
    ),
    "t5": lambda: AutoModelForSeq2SeqLM.from_config(
        T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    ),
    "qwen3_next": lambda: AutoModelForCausalLM.from_config(
        CONFIG_MAPPING["qwen3_next"](
            vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, linear_num_key_heads=1, linear_num_value_heads=1,
            linear_key_head_dim=8, linear_value_head_dim=8, num_experts=2, num_experts_per_tok=1,
            moe_intermediate_size=8, shared_expert_intermediate_size=8,
            layer_types=["linear_attention", "full_attention"],
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_caches_are_refused(name: str, prompts: tuple) -> None:
    model = tpuport.port(REFUSED[name]())
    with pytest.raises(PortError, match="kv_cache"):
        model.generate(prompts[0] % 64, kv_cache="int8", **OPTIONS)


@pytest.mark.parametrize("value", ["int4", "fp8", 8, True, torch.int8])
def test_unknown_values(value: Any, llama: tuple, prompts: tuple) -> None:
    with pytest.raises(PortError, match="kv_cache"):
        llama[1].generate(prompts[0], attention_mask=prompts[1], kv_cache=value, **OPTIONS)
    with pytest.raises(PortError, match="kv_cache"):
        tpuport.kv_cache_bytes(llama[0].config, 1, 64, torch.float32, kv_cache=value)
