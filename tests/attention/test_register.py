"""tpuport's mask function against transformers' own."""

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import torch
from hypothesis import given, settings
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import (
    and_masks,
    causal_mask_function,
    sdpa_mask,
    sliding_window_overlay,
)

from tpuport import attention, compat
from tpuport.attention.register.transformers import NAME, transformers_mask


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 999), queries=st.integers(1, 6), keys=st.integers(6, 12), offset=st.integers(0, 6),
    kv_offset=st.integers(0, 3), window=st.sampled_from([None, 3]), padded=st.booleans(),
)  # fmt: skip
def test_equals_transformers_mask(
    seed: int, queries: int, keys: int, offset: int, kv_offset: int, window: int | None, padded: bool
) -> None:
    function = (
        causal_mask_function
        if window is None
        else and_masks(sliding_window_overlay(window), causal_mask_function)
    )
    padding = (
        torch.rand(2, keys + kv_offset, generator=torch.Generator().manual_seed(seed)) < 0.7
        if padded
        else None
    )
    sizes = {
        "batch_size": 2,
        "q_length": queries,
        "kv_length": keys,
        "q_offset": offset,
        "kv_offset": kv_offset,
    }
    expected = sdpa_mask(
        **sizes, mask_function=function, attention_mask=padding, local_size=window, allow_is_causal_skip=False
    )
    with compat.environment():
        got = transformers_mask(
            **sizes, mask_function=function, local_size=window, allow_is_causal_skip=False,
            attention_mask=None if padding is None else compat.wrap(compat.to_jax(padding)),
        )  # fmt: skip
    np.testing.assert_array_equal(compat.as_jax(got), expected.numpy())


def test_a_ring_of_slots_is_masked_by_the_positions_it_holds() -> None:
    """Position p is in slot p mod 4; the query is at 9, so the slots hold 8, 9, 6, 7; row 1 starts at 7."""
    held = np.array([8, 9, 6, 7])
    padding = torch.arange(12)[None] >= torch.tensor([[0], [7]])
    with compat.environment():
        got = transformers_mask(
            2, 1, 4, compat.wrap(jnp.int32(9)), compat.wrap(jnp.asarray(held - np.arange(4))),
            and_masks(sliding_window_overlay(3), causal_mask_function), compat.wrap(compat.to_jax(padding)),
        )  # fmt: skip
    assert np.asarray(compat.as_jax(got))[:, 0, 0].tolist() == [
        [True, True, False, True],
        [True, True, False, True],
    ]


def test_slots_never_written_are_masked() -> None:
    with compat.environment():
        got = transformers_mask(
            1, 1, 4, compat.wrap(jnp.int32(1)), compat.wrap(jnp.asarray([0, 0, -4, -4])), causal_mask_function
        )
    assert np.asarray(compat.as_jax(got)).ravel().tolist() == [True, True, False, False]


def test_use_is_undone_at_the_end_of_the_block() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes))
    before = model.config._attn_implementation
    with attention.use(model):
        assert model.config._attn_implementation == NAME
    assert model.config._attn_implementation == before
