"""Attention of text joined with video on eight devices: equal to its definition, and nothing sent to join them."""

import collections
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec

from tpuport import compat
from tpuport.attention import register, unregister
from tpuport.attention.attention_settings import Settings
from tpuport.attention.mask import Mask
from tpuport.attention.mesh_attention import attention_on_mesh
from tpuport.attention.provenance.joined_sequences import as_part, parts_along
from tpuport.attention.reference import attention
from tpuport.compat.jaxprs import walk_equations, without_dead_code
from tpuport.hardware.mesh import create_mesh

SCALE = 0.3
COLLECTIVES = r"(all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("


def _draw(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32))


def _primitives(function: Any, *arrays: jax.Array) -> collections.Counter:
    program = without_dead_code(jax.make_jaxpr(function)(*arrays))
    return collections.Counter(visit.equation.primitive.name for visit in walk_equations(program))


def _model_like(video: jax.Array, text: jax.Array) -> jax.Array:
    """[B, S, H, D] and [B, T, H, D], joined as models do it: in another layout, and in another dtype."""
    joined = jnp.concatenate([video, text], axis=1)
    # Rotary tables, say, are of the whole sequence.
    table = jnp.arange(joined.shape[1], dtype=jnp.float32)[:, None, None]
    return (joined * table + 1).astype(jnp.bfloat16).swapaxes(1, 2)


def test_parts_are_found_behind_what_changes_no_order() -> None:
    video, text = _draw(0, 2, 6, 4, 8), _draw(1, 2, 3, 4, 8)

    def parts(video: jax.Array, text: jax.Array) -> Any:
        return parts_along(_model_like(video, text), 2)

    first, second = jax.jit(parts)(video, text)
    expected = _model_like(video, text)
    np.testing.assert_array_equal(first, expected[:, :, :6])
    np.testing.assert_array_equal(second, expected[:, :, 6:])
    assert "concatenate" not in _primitives(parts, video, text)


@pytest.mark.parametrize(
    ("cut", "is_part"), [((0, 6), True), ((6, 9), True), ((0, 5), False), ((3, 9), False), ((5, 9), False)]
)
def test_a_slice_is_a_part_only_where_it_ends_with_it(cut: tuple[int, int], is_part: bool) -> None:
    video, text = _draw(0, 2, 6, 4, 8), _draw(1, 2, 3, 4, 8)

    def sliced(video: jax.Array, text: jax.Array) -> jax.Array:
        flat = _model_like(video, text).swapaxes(1, 2).reshape(2, 9, 32)
        return as_part(flat[:, slice(*cut)])

    expected = _model_like(video, text).swapaxes(1, 2).reshape(2, 9, 32)[:, slice(*cut)]
    np.testing.assert_array_equal(jax.jit(sliced)(video, text), expected)
    assert ("concatenate" not in _primitives(sliced, video, text)) == is_part


def test_the_last_of_many_blocks_gets_parts_as_the_first_does() -> None:
    """Each block joins what the one before it gave, so that the parts of the last come from all before it."""

    def run(video: jax.Array, text: jax.Array) -> tuple[jax.Array, jax.Array]:
        for _ in range(30):
            joined = jnp.concatenate([video, text], axis=1)
            added = joined + jnp.flip(joined, axis=1)
            video, text = as_part(added[:, :6]), as_part(added[:, 6:])
        return video, text

    video, text = _draw(0, 2, 6, 4), _draw(1, 2, 3, 4)
    # One for each part: what was joined is not added up as a whole.
    assert _primitives(run, video, text)["add"] == 2 * 30
    first, second = jax.jit(run)(video, text)
    joined = jnp.concatenate([video, text], axis=1)
    for _ in range(30):
        joined = joined + jnp.flip(joined, axis=1)
    np.testing.assert_array_equal(jnp.concatenate([first, second], axis=1), joined)


def test_what_was_not_joined_is_one_part() -> None:
    array = _draw(0, 2, 4, 6, 8)
    assert parts_along(array, 2) == (array,)
    seen = []
    jax.jit(lambda x: seen.append(parts_along(x * 2, 2)) or x)(array)
    assert len(seen[0]) == 1


@pytest.mark.parametrize(
    ("shape", "sequence", "lengths"),
    [
        ((2, 4, 1), "gather", (12, 5)),
        ((1, 2, 4), "ring", (7, 3)),
        pytest.param((2, 4, 1), "ulysses", (9, 3), marks=pytest.mark.slow),
        pytest.param((1, 8, 1), "gather", (16, 8), marks=pytest.mark.slow),
        pytest.param((2, 2, 2), "ring", (8, 4, 1), marks=pytest.mark.slow),
    ],
)
def test_equals_one_device(shape: tuple, sequence: str, lengths: tuple) -> None:
    rng = np.random.default_rng(0)
    heads, total = 8, sum(lengths)
    parts = [
        [_draw(10 * seed + number, 2, heads, length, 8) for number, length in enumerate(lengths)]
        for seed in range(3)
    ]
    visible = rng.random((2, total)) < 0.8
    visible[1] = False
    mask = Mask(
        keys_BT=jnp.asarray(visible), queries_BQ=jnp.asarray(rng.random((1, total)) < 0.9),
        query_segments_BQ=jnp.asarray(rng.integers(0, 2, (1, total))),
        key_segments_BT=jnp.asarray(rng.integers(0, 2, (1, total))), bias_BT=_draw(3, 2, total),
    )  # fmt: skip
    settings = Settings(mesh=create_mesh(*shape), sequence=sequence)
    options = {"scale": SCALE, "softcap": 2.0, "sinks_H": _draw(4, heads)}

    def on_mesh(parts: Any, mask: Mask) -> jax.Array:
        return attention_on_mesh(*(jnp.concatenate(part, 2) for part in parts), mask, settings, **options)

    got = jax.jit(lambda parts: on_mesh(parts, mask))(parts)
    whole = [jnp.concatenate(part, 2) for part in parts]
    expected = jax.jit(lambda *args: attention(*args, mask.to_dense(total, total), **options))(*whole)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)
    # Without a mask, what is added to make shares equal has to be hidden all the same.
    got = jax.jit(lambda parts: on_mesh(parts, Mask()))(parts)
    expected = jax.jit(lambda *args: attention(*args, None, **options))(*whole)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


def _program(sequence: str) -> str:
    """Of attention whose result is the video's part, of arrays as blocks have them: text on every device of sp."""
    mesh = create_mesh(2, 4, 1)
    settings = Settings(mesh=mesh, sequence=sequence)

    def run(video: jax.Array, text: jax.Array) -> jax.Array:
        joined = jnp.concatenate([video, text], axis=1).swapaxes(1, 2)
        out = attention_on_mesh(joined, joined + 1, joined * 2, Mask(), settings, scale=SCALE)
        return as_part(out.swapaxes(1, 2)[:, :64])

    def argument(length: int, axis: str | None) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, PartitionSpec("dp", axis))
        return jax.ShapeDtypeStruct((2, length, 8, 16), jnp.float32, sharding=sharding)

    return jax.jit(run).lower(argument(64, "sp"), argument(12, None)).compile().as_text()


@pytest.mark.parametrize(
    ("sequence", "expected"), [("gather", {"all-gather": 2}), ("ulysses", {"all-to-all": 4})]
)
def test_nothing_is_sent_to_join_or_to_divide(sequence: str, expected: dict[str, int]) -> None:
    assert collections.Counter(re.findall(COLLECTIVES, _program(sequence))) == expected


def test_torch_code_that_joins_and_cuts_gets_the_parts() -> None:
    video, text = _draw(0, 1, 160, 2, 32), _draw(1, 1, 32, 2, 32)

    def attend(video: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([video, text], dim=1).transpose(1, 2)
        out = torch.nn.functional.scaled_dot_product_attention(joined, joined, joined)
        out = out.transpose(1, 2).flatten(2, 3)
        first, second = out[:, : -text.shape[1]], out[:, -text.shape[1] :]
        *_, third = out.split([video.shape[1], text.shape[1]], dim=1)
        return torch.cat([first * 2, second + third], dim=1)

    def traced(video: jax.Array, text: jax.Array) -> jax.Array:
        return compat.as_jax(attend(*compat.as_torch((video, text))))

    expected = attend(*(torch.from_numpy(np.array(array)) for array in (video, text)))
    register(mesh=create_mesh(1, 8, 1))
    try:
        with compat.environment():
            got = jax.jit(traced)(video, text)
            program = without_dead_code(jax.make_jaxpr(traced)(video, text))
    finally:
        unregister()
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)
    # Outside of what a device computes, the result alone is joined.
    joined = [equation for equation in program.eqns if equation.primitive.name == "concatenate"]
    assert [equation.outvars[0].aval.shape for equation in joined] == [(1, 192, 64)]
