"""A mask that is structure until somebody computes with it, against the tensor that it stands for."""

import copy
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tpuport import compat
from tpuport.attention.mask import Mask
from tpuport.attention.register.lazy_mask import LazyMask, lazy_mask

B, Q, T = 2, 5, 7


@pytest.fixture(autouse=True)
def _environment() -> Any:
    with compat.environment():
        yield


def made(seed: int = 0, heads: int = 1) -> LazyMask:
    rng = np.random.default_rng(seed)
    structure = Mask(
        left=3,
        right=1,
        offset=1,
        keys_BT=jnp.asarray(rng.random((B, T)) < 0.8),
        query_segments_BQ=jnp.asarray(np.sort(rng.integers(0, 2, (1, Q)), 1)),
        key_segments_BT=jnp.asarray(np.sort(rng.integers(0, 2, (1, T)), 1)),
        queries_BQ=jnp.asarray(rng.random((B, Q)) < 0.9),
    )
    return lazy_mask(structure, (B, heads, Q, T))


def values(tensor: Any) -> np.ndarray:
    return np.asarray(compat.as_jax(tensor))


def dense(mask: LazyMask) -> np.ndarray:
    assert mask.structure is not None
    return np.broadcast_to(mask.structure.to_dense(*mask.shape[2:]), mask.shape)


def untouched(mask: Any) -> bool:
    return isinstance(mask, LazyMask) and mask.structure is not None and mask._dense is None


def test_its_looks_are_read_without_its_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = made()
    monkeypatch.setattr(Mask, "to_dense", None)
    assert torch.is_tensor(mask)
    assert mask is not None
    assert mask.shape == mask.size() == torch.Size([B, 1, Q, T])
    assert (mask.size(-1), mask.ndim, mask.dim(), len(mask.shape), mask.numel()) == (T, 4, 4, 4, B * Q * T)
    assert mask.dtype == torch.bool
    assert mask.device == compat.wrap(jnp.zeros(1)).device
    assert "LazyMask" in repr(mask)


@pytest.mark.parametrize(
    "same",
    [
        lambda m: m.to(torch.bool), lambda m: m.to(device=m.device), lambda m: m.bool(), lambda m: m.contiguous(),
        lambda m: m.clone(), lambda m: m.detach(), lambda m: m[:, :, :, :T], lambda m: m[..., :100], lambda m: m[:],
        lambda m: m.expand(B, -1, Q, T), copy.copy, copy.deepcopy,
    ],
)  # fmt: skip
def test_what_changes_nothing_leaves_it_structured(same: Any) -> None:
    mask = made()
    other = same(mask)
    assert untouched(other)
    assert untouched(mask)
    np.testing.assert_array_equal(values(other), dense(mask))


def test_heads_and_batch_rows_expand() -> None:
    mask = lazy_mask(Mask(right=0), (1, 1, Q, T)).expand(3, 2, -1, -1)
    assert untouched(mask)
    assert mask.shape == (3, 2, Q, T)
    assert values(mask).shape == (3, 2, Q, T)


_BOUND = st.none() | st.integers(-9, 9)
_SLICE = st.builds(slice, _BOUND, _BOUND)


@settings(settings.get_profile("few"), deadline=None)
@given(
    seed=st.integers(0, 99), key=st.tuples(_SLICE, _SLICE, _SLICE, _SLICE), short=st.integers(0, 4),
    heads=st.sampled_from([1, 3]), dots=st.booleans(),
)  # fmt: skip
def test_slices_are_those_of_the_tensor(seed: int, key: tuple, short: int, heads: int, dots: bool) -> None:
    mask = made(seed, heads)
    subscript = (Ellipsis, *key[4 - short :]) if dots else key[:short]
    part = mask[subscript]
    assert untouched(part)
    np.testing.assert_array_equal(values(part), dense(mask)[subscript])


def test_slices_of_dense_elements_too() -> None:
    elements = np.random.default_rng(0).random((1, 3, Q, T)) < 0.5
    mask = lazy_mask(Mask(dense=jnp.asarray(elements)), (B, 3, Q, T), "no structure")
    part = mask[1:, 1:, 2:4, -3:]
    assert part.reason == "no structure"
    np.testing.assert_array_equal(values(part), elements[:, 1:, 2:4, -3:])


@pytest.mark.parametrize(
    "operation",
    [
        lambda m: ~m, lambda m: m & True, lambda m: m.float(), lambda m: m[:, 0], lambda m: m[0], lambda m: m[:, None],
        lambda m: m[..., ::2], lambda m: m.sum(-1), lambda m: m.any(dim=-1), lambda m: m.masked_fill(m, False),
        lambda m: torch.where(m, 0.0, -1.0), lambda m: torch.ones(B, 3, Q, T, device=m.device).masked_fill(m, 0.0),
        lambda m: torch.cat([m, m], dim=-1), lambda m: m.expand(3, B, 1, Q, T), lambda m: m.repeat(1, 2, 1, 1),
        lambda m: m.to(torch.float32), lambda m: m.transpose(2, 3), lambda m: m.squeeze(1), lambda m: m == 0,
        lambda m: torch.zeros(B, 3, Q, T, device=m.device) + m, lambda m: m.view(B, -1), lambda m: m.type(torch.int32),
        lambda m: m.logical_not(), lambda m: torch.logical_and(m, m), lambda m: m.unsqueeze(2), lambda m: m.all(),
        lambda m: torch.zeros_like(m), lambda m: m.new_ones((2, 2)),
    ],
)  # fmt: skip
def test_any_other_operation_is_that_of_the_tensor(operation: Any) -> None:
    mask = made()
    expected = operation(compat.wrap(jnp.asarray(dense(mask))))
    got = operation(mask)
    assert not isinstance(got, LazyMask)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(values(got), values(expected))
    assert mask.structure is not None


def test_a_change_in_place_ends_the_structure() -> None:
    mask, twin = made(), made()
    clone = mask.clone()
    mask[:, :, 0] = True
    assert mask.structure is None
    assert mask[:, :, 0].all()
    np.testing.assert_array_equal(values(mask)[:, :, 1:], dense(twin)[:, :, 1:])
    np.testing.assert_array_equal(values(clone), dense(twin))
    mask = made()
    mask &= False
    assert not values(mask).any()


def test_it_crosses_into_jax_as_an_array() -> None:
    mask = made()
    array = jax.tree.leaves(compat.as_jax({"mask": mask}))[0]
    assert isinstance(array, jax.Array)
    np.testing.assert_array_equal(array, dense(mask))
    np.testing.assert_array_equal(jax.jit(lambda: compat.as_jax(made()))(), dense(mask))


def test_nested_traces_each_make_their_own_elements() -> None:
    """A checkpointed layer traces inside of the model's trace: no tracer may leak from one into the other."""

    def model(keys: jax.Array, x: jax.Array) -> jax.Array:
        mask = lazy_mask(Mask(right=0, keys_BT=keys), (B, 1, Q, T))
        layer = jax.checkpoint(lambda x: x * compat.as_jax(torch.where(mask, 2.0, 0.5)).sum())
        return layer(layer(x)) + compat.as_jax(mask.float()).sum()

    keys = jnp.asarray(np.random.default_rng(0).random((B, T)) < 0.5)
    gradient = jax.jit(jax.grad(model, argnums=1))(keys, jnp.float32(1.0))
    total = np.where(Mask(right=0, keys_BT=keys).to_dense(Q, T), 2.0, 0.5).sum()
    np.testing.assert_allclose(gradient, total**2, rtol=1e-6)


def test_a_program_that_only_reads_its_structure_makes_no_elements() -> None:
    def program(keys: jax.Array) -> jax.Array:
        mask = lazy_mask(Mask(right=0, keys_BT=keys), (1, 1, 64, 64))[:, :, :, :64].to(torch.bool)
        assert mask.structure.keys_BT is not None
        return mask.structure.keys_BT.sum()

    jaxpr = str(jax.make_jaxpr(program)(jnp.ones((1, 64), bool)))
    assert "64,64" not in jaxpr
