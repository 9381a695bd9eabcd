"""The cache of the loop: its layers, the ring, and what XLA does with it."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from transformers import BltConfig, Gemma3TextConfig, GPT2Config, LlamaConfig, MistralConfig

import tpuport
from tpuport import compat
from tpuport.generation import decoder_for, sampling
from tpuport.generation.decoding_cache import RingLayer, has_fixed_cache, make_cache
from tpuport.generation.generation_options import read_options
from tpuport.generation.prompts import Prompt, pad_prompts


def test_the_kinds_of_layers() -> None:
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    names = lambda config, length: [type(x).__name__ for x in make_cache(config, length).layers]  # noqa: E731
    assert names(LlamaConfig(**sizes), 64) == ["FixedLayer"] * 2
    assert names(MistralConfig(**sizes, sliding_window=16), 64) == ["RingLayer"] * 2
    assert names(MistralConfig(**sizes, sliding_window=64), 64) == ["WindowLayer"] * 2
    assert names(GPT2Config(n_layer=2), 64) == ["FixedLayer"] * 2
    assert has_fixed_cache(GPT2Config(n_layer=2))
    assert not has_fixed_cache(BltConfig())  # has no number of layers of its own
    mixed = Gemma3TextConfig(**sizes, sliding_window=16, layer_types=["full_attention", "sliding_attention"])
    assert names(mixed, 64) == ["FixedLayer", "RingLayer"]


@pytest.mark.parametrize("prompt", [1, 3, 4, 5, 11])
def test_the_ring_holds_the_last_positions(prompt: int) -> None:
    layer = RingLayer(4)
    states = lambda first, n: jnp.arange(first, first + n, dtype=jnp.float32).reshape(1, 1, n, 1)  # noqa: E731
    with compat.environment():
        layer.update(*(compat.wrap(states(0, prompt)) for _ in range(2)))
        for position in range(prompt, prompt + 6):
            _, offset = layer.get_mask_sizes(1)
            layer.update(*(compat.wrap(states(position, 1)) for _ in range(2)))
            held = np.asarray(compat.as_jax(layer.keys)).ravel()
            claimed = np.asarray(compat.as_jax(offset)) + np.arange(4)
            written = claimed >= 0
            assert sorted(claimed[written]) == list(range(max(0, position - 3), position + 1))
            np.testing.assert_array_equal(held[written], claimed[written])


def test_two_caches_of_one_shape_are_one_program() -> None:
    tpuport.enable()
    first, second = (make_cache(LlamaConfig(num_hidden_layers=2), 64) for _ in range(2))
    assert jax.tree_util.tree_structure(first) == jax.tree_util.tree_structure(second)


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_the_loop_copies_no_cache(llama: tuple, prompts: tuple, rows: int) -> None:
    """The cache is written in place and read where it is; a copy would cost its size in every step."""
    model = llama[1]
    decoder = decoder_for(model)
    options = read_options(model, None, {"max_new_tokens": 8}, 20)
    ids, mask = (x.numpy()[:rows] for x in prompts)
    ready = pad_prompts(Prompt(ids.astype(np.int32), mask.astype(bool)), options, seed=0, row_multiple=1)
    chosen, columns = sampling.sampling_settings(options), np.int32(32)
    state = decoder.prefill(
        decoder.arrays, ready.tokens, ready.mask, ready.keys, columns, np.int32(rows), chosen, slots=64
    )
    program = decoder.advance.lower(
        decoder.arrays, state, ready.keys, columns, np.int32(40), chosen
    ).compile()
    text = program.as_text()
    assert ("f32[2,64,8]" if rows == 1 else "f32[3,2,64,8]") in text, "the cache has another form here"
    assert not re.findall(r"= f32\[(?:6|2|1,2|3,2),64,8\]\S* copy\(", text)
