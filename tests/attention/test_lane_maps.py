"""Rotary embeddings as matrix products: the same numbers as the code that they replace, in every form that it takes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers.models.embeddings import apply_rotary_emb

from tpuport import compat
from tpuport.attention.lane_maps import rebuild_with_products, with_matrix_products
from tpuport.compat.jaxprs import without_dead_code

B, S, H, D = 2, 6, 3, 16
# x [B, S, H, D], and cosines and sines [S, D].
Rotation = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def neighbours_by_stack(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    tables: Any = cos, sin
    turned: Any = apply_rotary_emb(x, tables, use_real=True, use_real_unbind_dim=-1, sequence_dim=1)
    return turned


def halves_of_diffusers(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    tables: Any = cos, sin
    turned: Any = apply_rotary_emb(x, tables, use_real=True, use_real_unbind_dim=-2, sequence_dim=1)
    return turned


def neighbours_by_steps(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    rotated = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return x * cos[:, None].to(x.dtype) + rotated * sin[:, None].to(x.dtype)


def halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    rotated = torch.cat((-second, first), dim=-1)
    return x * cos[:, None].to(x.dtype) + rotated * sin[:, None].to(x.dtype)


def written_in_place(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[:, None, 0::2], sin[:, None, 1::2]
    out = torch.empty_like(x)
    out[..., 0::2] = first * cos - second * sin
    out[..., 1::2] = first * sin + second * cos
    return out.type_as(x)


def complex_numbers(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    angles = torch.complex(cos[:, None, 0::2].float(), sin[:, None, 0::2].float())
    numbers = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(numbers * angles).flatten(3).type_as(x)


def only_a_part(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    turned = neighbours_by_steps(x[..., : D // 2], cos[:, : D // 2], sin[:, : D // 2])
    return torch.cat((turned, x[..., D // 2 :]), dim=-1)


def text_before_it(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    turned = neighbours_by_stack(x[:, 2:], cos[2:], sin[2:])
    return torch.cat((x[:, :2], turned), dim=1)


FORMS: tuple[Rotation, ...] = (
    neighbours_by_stack, neighbours_by_steps, written_in_place, complex_numbers, text_before_it,
)  # fmt: skip


def rotated_query(rotate: Rotation, x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """[B, H, S, D], as attention gets it."""
    query = rotate(compat.as_torch(x), compat.as_torch(cos), compat.as_torch(sin))
    return compat.as_jax(query.transpose(1, 2))


def arguments(dtype: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    random = np.random.default_rng(0)
    angles = random.uniform(-3, 3, (S, D // 2)).repeat(2, axis=1)
    x = jnp.asarray(random.standard_normal((B, S, H, D)), dtype)
    return x, jnp.asarray(np.cos(angles), jnp.float32), jnp.asarray(np.sin(angles), jnp.float32)


def primitives(function: Callable[..., Any], *args: Any) -> list[str]:
    return [equation.primitive.name for equation in jax.make_jaxpr(function)(*args).eqns]


@pytest.mark.parametrize(
    "dtype", [jnp.float32, jnp.bfloat16, pytest.param(jnp.float16, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("form", [*FORMS, only_a_part], ids=lambda form: form.__name__)
def test_the_numbers_are_those_of_the_code(form: Rotation, dtype: Any) -> None:
    args = arguments(dtype)
    expected = jax.jit(lambda *args: rotated_query(form, *args))(*args)
    rebuilt = jax.jit(lambda *args: rebuild_with_products(rotated_query(form, *args)))(*args)
    # A fused multiplication and addition rounds once where two operations round twice.
    resolution = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(
        np.asarray(rebuilt, np.float64),
        np.asarray(expected, np.float64),
        atol=2 * resolution,
        rtol=resolution,
    )


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_nothing_of_the_exchange_is_left(form: Rotation) -> None:
    def run(*args: jax.Array) -> jax.Array:
        return rebuild_with_products(rotated_query(form, *args))

    closed = jax.make_jaxpr(run)(*arguments(jnp.bfloat16))
    live = without_dead_code(closed).jaxpr.eqns
    assert any(equation.primitive.name == "dot_general" for equation in live)
    large = B * S * H * D // 2
    for equation in live:
        for result in equation.outvars:
            if result.aval.size >= large and equation.primitive.name != "dot_general":
                assert result.aval.shape[-1] == D, equation


def test_what_exchanges_nothing_stays() -> None:
    def run(x: jax.Array) -> jax.Array:
        query = jnp.swapaxes(x * 2, 1, 2)
        assert with_matrix_products(query) is query
        return query

    jax.make_jaxpr(run)(arguments(jnp.float32)[0])
    x = arguments(jnp.float32)[0]
    assert with_matrix_products(x) is x, "not traced"


@pytest.mark.parametrize("form", [halves, halves_of_diffusers], ids=lambda form: form.__name__)
def test_halves_stay_as_they_are_written(form: Rotation) -> None:
    def run(*args: jax.Array) -> jax.Array:
        query = rotated_query(form, *args)
        assert rebuild_with_products(query) is query
        return query

    jax.make_jaxpr(run)(*arguments(jnp.bfloat16))


def test_a_cpu_computes_what_the_code_says() -> None:
    """The product is for TPUs: elsewhere the program is that of the code, to the bit."""
    args = arguments(jnp.float32)

    def run(*args: jax.Array) -> jax.Array:
        return with_matrix_products(rotated_query(neighbours_by_stack, *args))

    text = str(jax.jit(run).lower(*args).compile().as_text())
    assert " dot(" not in text
    assert "custom-call" not in text
    expected = jax.jit(lambda *args: rotated_query(neighbours_by_stack, *args))(*args)
    np.testing.assert_array_equal(jax.jit(run)(*args), expected)
