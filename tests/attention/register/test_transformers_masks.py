"""tpuport's masks against those that transformers makes of the same functions."""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from transformers import LlamaConfig
from transformers import masking_utils as masks

from tpuport import attention, compat
from tpuport.attention.register.lazy_mask import LazyMask
from tpuport.attention.register.mask_interface import transformers_mask

ROWS = 2


def on_device(value: Any) -> Any:
    return compat.wrap(compat.to_jax(value)) if isinstance(value, torch.Tensor) else value


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def both(make: Callable[[Callable], Callable], **sizes: Any) -> tuple[Any, np.ndarray]:
    """Our mask, and transformers' one; `make` gets what puts a tensor where the mask function needs it."""
    padding = sizes.pop("attention_mask", None)
    expected = masks.sdpa_mask(
        ROWS, mask_function=make(lambda x: x), attention_mask=padding, allow_is_causal_skip=False, **sizes
    )
    with compat.environment():
        got = transformers_mask(
            ROWS, mask_function=make(on_device), attention_mask=on_device(padding), allow_is_causal_skip=False, **sizes
        )  # fmt: skip
    assert expected is not None
    return got, expected.expand(ROWS, 1, *expected.shape[2:]).numpy()


def pattern(kind: str, window: int, left: torch.Tensor) -> Callable[[Callable], Callable]:
    return {
        "causal": lambda _: masks.causal_mask_function,
        "window": lambda _: masks.sliding_window_causal_mask_function(window),
        "both ways": lambda _: masks.bidirectional_mask_function,
        "window both ways": lambda _: masks.sliding_window_bidirectional_mask_function(window),
        "chunks": lambda put: masks.chunked_causal_mask_function(window, put(left)),
        "one of one": lambda _: masks.or_masks(masks.causal_mask_function),
    }[kind]


@settings(settings.get_profile("few"), deadline=None)
@given(
    seed=st.integers(0, 999), queries=st.integers(1, 6), keys=st.integers(6, 12), offset=st.integers(0, 6),
    kv_offset=st.integers(0, 3), window=st.integers(1, 5), padded=st.booleans(), traced=st.booleans(),
    kind=st.sampled_from(["causal", "window", "both ways", "window both ways", "chunks", "one of one"]),
)  # fmt: skip
def test_equals_transformers_mask_and_is_structure(
    seed: int, queries: int, keys: int, offset: int, kv_offset: int, window: int, padded: bool, traced: bool, kind: str
) -> None:  # fmt: skip
    random = torch.rand(ROWS, keys + kv_offset, generator=generator(seed))
    left = torch.randint(0, 3, (ROWS,), generator=generator(seed))
    sizes = {"q_length": queries, "kv_length": keys, "q_offset": offset, "kv_offset": kv_offset}
    sizes["attention_mask"] = random < 0.7 if padded else None
    make = pattern(kind, window, left)
    got, expected = both(make, **sizes)
    assert isinstance(got, LazyMask)
    assert got.structure is not None
    assert got.structure.dense is None
    np.testing.assert_array_equal(compat.as_jax(got), expected)
    if traced:
        with compat.environment():
            got = transformers_mask(
                ROWS, queries, keys, compat.wrap(jnp.int32(offset)), kv_offset, make(on_device),
                on_device(sizes["attention_mask"]), allow_is_causal_skip=False,
            )  # fmt: skip
        assert got.structure.dense is None
        np.testing.assert_array_equal(compat.as_jax(got), expected)


def packed(lengths: list[int], start: int = 0) -> torch.Tensor:
    """Positions that start anew with each sequence, [1, sum of lengths]."""
    return torch.cat([torch.arange(n) + start for n in lengths])[None]


def of_sequences(inner: Callable, positions: Any, sequences: Any, *, numbers_first: bool = True) -> Callable:
    """As transformers joins the two functions: releases differ in which comes first."""
    parts = [
        masks.packed_sequence_mask_function(sequences),
        masks.remap_positions_for_packed_sequence(inner, positions),
    ]
    return masks.and_masks(*(parts if numbers_first else parts[::-1]))


@settings(settings.get_profile("few"), deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), window=st.integers(1, 4), start=st.integers(0, 5),
    kind=st.sampled_from(["causal", "window", "both ways", "window both ways", "chunks"]), traced=st.booleans(),
    numbers_first=st.booleans(),
)  # fmt: skip
def test_packed_sequences_are_segments(
    lengths: list[int], window: int, start: int, kind: str, traced: bool, numbers_first: bool
) -> None:
    position_ids = packed(lengths, start).expand(ROWS, -1)
    total = sum(lengths)
    sequences = (torch.diff(position_ids, prepend=position_ids[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    inner = pattern(kind, window, torch.zeros(ROWS, dtype=torch.long))

    def make(put: Callable) -> Callable:
        tables = put(position_ids), put(sequences)
        return of_sequences(inner(put), *tables, numbers_first=numbers_first)

    got, expected = both(make, q_length=total, kv_length=total)
    assert got.structure.dense is None
    np.testing.assert_array_equal(compat.as_jax(got), expected)
    if not traced:
        return

    def program(positions: jax.Array, sequences: jax.Array) -> jax.Array:
        tables = compat.wrap(positions), compat.wrap(sequences)
        function = of_sequences(inner(on_device), *tables, numbers_first=numbers_first)
        mask = transformers_mask(ROWS, total, total, mask_function=function, allow_is_causal_skip=False)
        assert mask.structure.dense is None
        return compat.as_jax(mask)

    with compat.environment():
        traced_mask = jax.jit(program)(compat.to_jax(position_ids), compat.to_jax(sequences))
    np.testing.assert_array_equal(traced_mask, expected)


def test_sequences_that_do_not_follow_positions_are_seen() -> None:
    """Numbers of sequences that are not those of the positions have no structure, and are still right."""
    positions = torch.tensor([[0, 1, 2, 7, 8, 3, 4, 5]]).expand(ROWS, -1)
    sequences = torch.tensor([[0, 0, 0, 0, 1, 1, 0, 0]]).expand(ROWS, -1)
    got, expected = both(
        lambda put: of_sequences(masks.causal_mask_function, put(positions), put(sequences)),
        q_length=8,
        kv_length=8,
    )
    assert got.structure.dense is not None
    assert "increase by one" in got.reason
    np.testing.assert_array_equal(compat.as_jax(got), expected)


def prefix(batch: Any, head: Any, query: Any, key: Any) -> Any:
    """A mask function of a user."""
    return (key < 3) | (key <= query)


def two_by_two(batch: Any, head: Any, query: Any, key: Any) -> Any:
    """A mask function of a user: no band, no segments."""
    return (query * 5 + key * 3) % 7 > 2


@pytest.mark.parametrize("vmap", [False, True])
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda put: masks.or_masks(masks.causal_mask_function, prefix), "union"),
        (lambda put: masks.and_masks(masks.causal_mask_function, two_by_two), "two_by_two"),
        (
            lambda put: masks.or_masks(masks.causal_mask_function, masks.blockwise_overlay(put(GROUPS))),
            "union",
        ),
    ],
)
def test_functions_of_the_user_are_evaluated(function: Callable, reason: str, vmap: bool) -> None:
    padding = torch.rand(ROWS, 8, generator=generator(0)) < 0.7
    got, expected = both(function, q_length=8, kv_length=8, attention_mask=padding, use_vmap=vmap)
    np.testing.assert_array_equal(compat.as_jax(got), expected)
    assert got.structure.dense is not None
    assert reason in got.reason


GROUPS = torch.tensor([[-1, 0, 0, -1, 1, 1, 1, -1]]).expand(ROWS, -1)


def test_one_query_needs_keys_only() -> None:
    got, expected = both(lambda _: two_by_two, q_length=1, kv_length=8, q_offset=5)
    assert got.structure.keys_BT is not None
    assert got.structure.dense is None
    np.testing.assert_array_equal(compat.as_jax(got), expected)


@pytest.mark.parametrize(
    ("function", "sizes", "skipped"),
    [
        (masks.causal_mask_function, {"q_length": 6, "kv_length": 6}, True),
        (masks.causal_mask_function, {"q_length": 6, "kv_length": 8}, False),
        (masks.causal_mask_function, {"q_length": 2, "kv_length": 6, "q_offset": 4}, False),
        (masks.causal_mask_function, {"q_length": 6, "kv_length": 6, "allow_is_causal_skip": False}, False),
        (
            masks.sliding_window_causal_mask_function(4),
            {"q_length": 6, "kv_length": 6, "local_size": 4},
            False,
        ),
        (
            masks.sliding_window_causal_mask_function(9),
            {"q_length": 6, "kv_length": 6, "local_size": 9},
            True,
        ),
        (
            masks.bidirectional_mask_function,
            {"q_length": 6, "kv_length": 6, "allow_is_causal_skip": False},
            False,
        ),
        (
            masks.bidirectional_mask_function,
            {
                "q_length": 6,
                "kv_length": 9,
                "allow_is_causal_skip": False,
                "allow_is_bidirectional_skip": True,
            },
            True,
        ),
    ],
)
def test_none_stands_for_what_transformers_lets_it_stand_for(
    function: Callable, sizes: dict[str, Any], skipped: bool
) -> None:
    with compat.environment():
        assert (transformers_mask(ROWS, mask_function=function, **sizes) is None) == skipped


def test_a_ring_of_slots_is_masked_by_the_positions_it_holds() -> None:
    """Position p is in slot p mod 4; the query is at 9, so the slots hold 8, 9, 6, 7; row 1 starts at 7."""
    held = np.array([8, 9, 6, 7])
    padding = torch.arange(12)[None] >= torch.tensor([[0], [7]])
    with compat.environment():
        got = transformers_mask(
            2, 1, 4, compat.wrap(jnp.int32(9)), compat.wrap(jnp.asarray(held - np.arange(4))),
            masks.sliding_window_causal_mask_function(3), compat.wrap(compat.to_jax(padding)),
        )  # fmt: skip
    assert np.asarray(compat.as_jax(got))[:, 0, 0].tolist() == [
        [True, True, False, True],
        [True, True, False, True],
    ]
    assert got.structure.dense is None


def test_slots_never_written_are_masked() -> None:
    with compat.environment():
        got = transformers_mask(
            1, 1, 4, compat.wrap(jnp.int32(1)), compat.wrap(jnp.asarray([0, 0, -4, -4])),
            masks.causal_mask_function,
        )  # fmt: skip
    assert np.asarray(compat.as_jax(got)).ravel().tolist() == [True, True, False, False]


def test_a_mask_on_the_host_is_transformers_own() -> None:
    got = transformers_mask(1, 3, 3, allow_is_causal_skip=False, device=torch.device("cpu"))
    assert type(got) is torch.Tensor
    assert torch.equal(got[0, 0], torch.ones(3, 3).tril().bool())


@pytest.mark.parametrize("padded", [False, True])
def test_numbers_in_a_mask_are_those_of_eager_attention(padded: bool) -> None:
    config = LlamaConfig()
    config._attn_implementation_internal = "eager"
    sizes = {"batch_size": ROWS, "q_length": 5, "kv_length": 5, "dtype": torch.bfloat16}
    tokens = torch.tensor([[True] * 5, [False] * 2 + [True] * 3]) if padded else None
    expected = masks.eager_mask(**sizes, mask_function=masks.causal_mask_function, attention_mask=tokens)
    module = torch.nn.Module()
    module.config, module._can_set_attn_implementation = config, lambda: True
    with compat.environment(), attention.use_in_model(module):
        mask = transformers_mask(**sizes, attention_mask=on_device(tokens), config=config)
        assert isinstance(mask, LazyMask)
        assert mask.dtype == mask[:, :, 1:].dtype == torch.bfloat16
        sliced = compat.to_torch(compat.as_jax(mask[:, :, 1:, :4]))
        assert mask._dense is None
        shown = compat.to_torch(compat.as_jax(mask))
        assert compat.to_torch(compat.as_jax(mask.bool())).equal(expected.expand(2, -1, -1, -1).bool())
    torch.testing.assert_close(shown, expected.expand(2, -1, -1, -1), atol=0, rtol=0)
    torch.testing.assert_close(sliced, expected.expand(2, -1, -1, -1)[:, :, 1:, :4], atol=0, rtol=0)
