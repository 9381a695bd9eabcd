"""The kernel itself, in interpret mode, with everything that `flash` puts around it, against torch in float64."""

import functools
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tpuport import PortError
from tpuport.attention.flash import flash
from tpuport.attention.mask import Mask

BLOCKS = (128, 256, 128)
TOLERANCE = {jnp.float32: 2e-5, jnp.bfloat16: 2e-2}


@functools.partial(jax.jit, static_argnames=("band", "options"))
def _flash(operands: tuple, masks: dict, band: tuple, options: tuple) -> tuple[jax.Array, jax.Array]:
    """Compiled once for problems of one kind; without jit, each call of the interpreted kernel would be compiled."""
    return flash(*operands, Mask(**dict(band), **masks), **dict(options))


def _run(problem: Any, **options: Any) -> tuple[jax.Array, jax.Array]:
    chosen = {
        "scale": problem.scale,
        "softcap": problem.softcap,
        "blocks": BLOCKS,
        "interpret": True,
    } | options
    masks = {name: part for name, part in problem.parts.items() if isinstance(part, np.ndarray)}
    band = tuple((name, part) for name, part in problem.parts.items() if name not in masks)
    return _flash(problem.arrays(), masks, band, tuple(chosen.items()))


def _check(got: tuple, problem: Any) -> None:
    expected, near = problem.torch(), TOLERANCE[problem.dtype]
    np.testing.assert_allclose(np.asarray(got[0], np.float64), expected["out"].detach(), atol=near)
    np.testing.assert_allclose(got[1], expected["lse"].detach(), atol=near, rtol=near)


@settings(settings.get_profile("few"), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shape=st.tuples(
        st.integers(1, 3), st.integers(1, 2), st.integers(1, 3), st.integers(1, 400), st.integers(1, 600)
    ),
    dims=st.tuples(st.sampled_from([32, 40, 64, 128]), st.sampled_from([32, 72, 128])),
    dtype=st.sampled_from([jnp.float32, jnp.bfloat16]),
    softcap=st.sampled_from([None, 2.0]),
    padding=st.sampled_from(["exact", "segment_ids"]),
    band=st.tuples(
        st.sampled_from([None, 0, 3, 90, 400]), st.sampled_from([None, 0, 2, 150]), st.integers(-300, 300)
    ),
    parts=st.frozensets(st.sampled_from(["keys", "queries", "segments", "bias"]), max_size=3),
)
def test_equals_float64(problem: Callable, seed: int, padding: str, **kinds: Any) -> None:
    example = problem(seed, **kinds)
    if "keys_BT" in example.parts and seed % 3 == 0:
        example.parts["keys_BT"][0] = False
    _check(_run(example, padding=padding), example)


@pytest.mark.parametrize(
    "band",
    [
        (None, 0, 0), (40, 0, -17), pytest.param((10, 300, 5), marks=pytest.mark.slow),
        pytest.param((30, None, 90), marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_an_offset_may_be_traced(problem: Callable, band: tuple) -> None:
    example = problem(0, shape=(1, 1, 2, 300, 500), dims=(64, 64), band=band)

    @jax.jit
    def run(offset: jax.Array) -> tuple[jax.Array, jax.Array]:
        mask = Mask(left=band[0], right=band[1], offset=offset)
        return flash(*example.arrays(), mask, scale=example.scale, blocks=BLOCKS, interpret=True)

    for offset in (band[2], band[2] + 200, band[2] - 500):
        example.parts["offset"] = offset
        _check(run(jnp.int32(offset)), example)


@pytest.mark.parametrize(
    "parts",
    [pytest.param({}, marks=pytest.mark.slow), {"right": 0}, {"bias_BT": np.zeros((1, 300), np.float32)}],
)
@pytest.mark.parametrize("padding", ["exact", pytest.param("segment_ids", marks=pytest.mark.slow)])
def test_what_padding_holds_does_not_matter(problem: Callable, parts: dict, padding: str) -> None:
    example = problem(1, shape=(2, 2, 1, 200, 300), dims=(64, 64))
    real = np.random.default_rng(1).random((2, 300)) < 0.5
    example.parts |= {"keys_BT": real} | parts
    expected = example.torch()["out"].detach()
    example.k, example.v = (np.where(real[:, None, :, None], x, np.nan) for x in (example.k, example.v))
    np.testing.assert_allclose(_run(example, padding=padding)[0], expected, atol=2e-5)


def _hard(problem: Callable, case: str, dtype: Any) -> Any:
    """A problem of 256 queries and 512 keys whose scores or padding are extreme."""
    example = problem(3, shape=(2, 1, 1, 256, 512), dims=(64, 64), dtype=dtype)
    real = np.random.default_rng(2).random((2, 512)) < 0.6
    if case == "far below zero":
        example.q, example.k = np.abs(example.q) * 10 + 10, -np.abs(example.k) - 5
    elif case == "one valid key":
        real = np.arange(512)[None] == np.array([[7], [300]])
    elif case == "all padded":
        real[1] = False
    elif case == "huge":
        example.q, example.k = example.q * 100, example.k * 100
    elif case == "huge padding":
        example.k = example.k * np.where(np.arange(512) == 5, 1e4, 1.0)[:, None]
        real[:, 5] = False
    example.q, example.k = (np.asarray(jnp.asarray(x, dtype), np.float32) for x in (example.q, example.k))
    example.parts["keys_BT"] = real
    return example


@pytest.mark.parametrize("dtype", [pytest.param(jnp.float32, marks=pytest.mark.slow), jnp.bfloat16])
@pytest.mark.parametrize(
    "case", ["random", "far below zero", "one valid key", "all padded", "huge", "huge padding"]
)
def test_exact_padding_is_no_worse_than_segment_ids(problem: Callable, case: str, dtype: Any) -> None:
    example = _hard(problem, case, dtype)
    expected = example.torch()["out"].detach().numpy()
    exact, segments = (
        np.abs(np.asarray(_run(example, padding=mode)[0], np.float64) - expected).max()
        for mode in ("exact", "segment_ids")
    )
    assert exact <= 2 * segments


def test_exact_padding_equals_the_sequence_without_it(problem: Callable) -> None:
    example = problem(4, shape=(1, 2, 1, 256, 512), dims=(64, 64), dtype=jnp.bfloat16)
    example.parts["keys_BT"] = np.arange(512)[None] < 300
    padded = _run(example)
    q, k, v = example.arrays()
    cut = flash(q, k[:, :, :300], v[:, :, :300], Mask(), scale=example.scale, blocks=BLOCKS, interpret=True)
    np.testing.assert_array_equal(padded[0], cut[0])


@pytest.mark.parametrize("interpret", [True, False])
def test_zeroed_padding_is_off_by_the_share_of_the_padding(problem: Callable, interpret: bool) -> None:
    example = problem(4, shape=(1, 2, 1, 256, 512), dims=(64, 64))
    example.parts["keys_BT"] = np.arange(512)[None] < 300
    expected = {name: x.detach().numpy() for name, x in example.torch().items()}
    share = np.exp(expected["lse"] - np.logaddexp(expected["lse"], np.log(212)))
    got, _ = _run(example, padding="zero", interpret=interpret)
    np.testing.assert_allclose(got, expected["out"] * share[..., None], atol=2e-5)
    assert np.abs(np.asarray(got) - expected["out"]).max() > 0.02


@pytest.mark.parametrize(
    ("band", "parts", "interpret"),
    [
        pytest.param((None, None, 0), {"keys"}, True, marks=pytest.mark.slow),
        pytest.param((None, 0, 3), {"keys", "queries"}, True, marks=pytest.mark.slow),
        ((60, 40, 50), {"bias", "keys"}, True), ((None, 0, 0), {"segments"}, True),
        # Without the kernel, the gradients are the same function's.
        ((60, 40, 50), {"bias", "keys"}, False), pytest.param((None, None, 0), {"keys"}, False, marks=pytest.mark.slow),
        pytest.param((None, 0, 3), {"keys", "queries"}, False, marks=pytest.mark.slow),
        pytest.param((None, 0, 0), {"segments"}, False, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_gradients_equal_torch(problem: Callable, band: tuple, parts: set, interpret: bool) -> None:
    example = problem(5, shape=(2, 2, 2, 150, 270), dims=(64, 32), band=band, parts=parts, softcap=3.0)
    rng = np.random.default_rng(6)
    d_out, d_lse = rng.normal(size=(2, 4, 150, 32)), rng.normal(size=(2, 4, 150))
    mask, bias = example.mask(), example.parts.get("bias_BT")

    def loss(leaves: dict[str, jax.Array]) -> jax.Array:
        given = {n: getattr(mask, n) for n in ("left", "right", "offset", "keys_BT", "queries_BQ")}
        given |= {n: getattr(mask, n) for n in ("query_segments_BQ", "key_segments_BT")}
        out, lse = flash(
            leaves["q"], leaves["k"], leaves["v"], Mask(**given, bias_BT=leaves.get("bias")),
            scale=example.scale, softcap=3.0, blocks=BLOCKS, interpret=interpret,
        )  # fmt: skip
        return jnp.sum(out * d_out) + jnp.sum(jnp.where(jnp.isinf(lse), 0.0, lse) * d_lse)

    leaves = dict(zip("qkv", example.arrays(), strict=True)) | (
        {} if bias is None else {"bias": jnp.asarray(bias)}
    )
    got = jax.jit(jax.grad(loss))(leaves)
    theirs = example.torch()
    lse = torch.where(torch.isinf(theirs["lse"]), 0.0, theirs["lse"])
    total = (theirs["out"] * torch.from_numpy(d_out)).sum() + (lse * torch.from_numpy(d_lse)).sum()
    total.backward()
    for name, mine in got.items():
        np.testing.assert_allclose(mine, theirs[name].grad, atol=1e-4, rtol=1e-4, err_msg=name)


def test_what_the_kernel_does_not_take_is_refused(problem: Callable) -> None:
    q, k, v = problem(0).arrays()
    with pytest.raises(PortError, match="no such way to mask padding"):
        flash(q, k, v, Mask(), scale=1.0, padding="approximate")
    with pytest.raises(PortError, match="structure"):
        flash(q, k, v, Mask(dense=jnp.ones((1, 1, 13, 11), bool)), scale=1.0)


def test_queries_that_fill_no_block_are_neither_copied_nor_cut_off() -> None:
    """A copy of a video's queries takes as long as a norm of them."""
    query = jax.ShapeDtypeStruct((1, 2, 300, 64), jnp.float32)
    key = jax.ShapeDtypeStruct((1, 2, 512, 64), jnp.float32)
    run = functools.partial(flash, mask=Mask(), scale=1.0, blocks=BLOCKS, interpret=True)
    text = str(jax.make_jaxpr(run)(query, key, key))
    assert "f32[1,2,384,64]" not in text, "three blocks of 128"


@pytest.mark.parametrize("rounds", [2, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "parts", [{}, *(pytest.param({part}, marks=pytest.mark.slow) for part in ("keys", "segments")), {"bias"}]
)
def test_a_step_may_go_through_its_keys_in_rounds(
    problem: Callable, monkeypatch: pytest.MonkeyPatch, parts: set, rounds: int
) -> None:
    monkeypatch.setattr("tpuport.attention.flash._choose_rounds", lambda *_: rounds)
    # Six blocks of keys, the last of them padded.
    case = problem(5, shape=(2, 1, 2, 200, 1500), dims=(32, 40), parts=parts)
    # Not `_run`, whose programs are kept.
    got = flash(*case.arrays(), case.mask(), scale=case.scale, blocks=BLOCKS, interpret=True)
    _check(got, case)
