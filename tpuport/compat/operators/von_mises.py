"""Von Mises variables, which torch draws until all are accepted, in float64."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat import randomness
from tpuport.compat.convert import is_ported, to_jax, wrap
from tpuport.compat.operators.declarations import Method
from tpuport.compat.replacements import original


def sample(distribution: Any, sample_shape: Any = ()) -> torch.Tensor:
    """`VonMises.sample`."""
    if not (is_ported(distribution.loc) or randomness.is_traced()):
        return original("VonMises", "sample")(distribution, torch.Size(sample_shape))
    shape = (*sample_shape, *distribution.batch_shape)
    location, concentration = (
        to_jax(distribution.loc),
        to_jax(distribution.concentration),
    )
    return wrap(angles(randomness.next_key(), shape, location, concentration))


@functools.partial(jax.jit, static_argnums=(1,))
def angles(
    key: jax.Array,
    shape: tuple[int, ...],
    location: jax.Array,
    concentration: jax.Array,
) -> jax.Array:
    """Von Mises variables in [-pi, pi), by Best and Fisher's rejection (Applied
    Statistics 28, 1979, page 152).

    Their numbers r and f come near 1 where the concentration is large, so r - 1 and 1 -
    f are computed instead, which keeps float32 exact.
    """
    kappa = jnp.broadcast_to(concentration, shape).astype(jnp.float32)
    root = jnp.sqrt(1 + 4 * kappa * kappa)
    tau = 1 + root
    rho = 2 * kappa / (tau + jnp.sqrt(2 * tau))
    # sqrt(1 + 4 kappa^2) - 2 kappa, and with it 1 - rho.
    excess = 1 / (root + 2 * kappa)
    one_minus_rho = (jnp.sqrt(2 * tau) - 1 - excess) / (2 * kappa)
    one_minus_rho = jnp.where(kappa < 0.5, 1 - rho, one_minus_rho)
    r_minus_one = one_minus_rho * one_minus_rho / (2 * rho)

    def is_open(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return ~state[2].all()

    def draw(
        state: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        key, chord, is_done = state
        key, draw_key = jax.random.split(key)
        first, second = jax.random.uniform(
            draw_key, (2, *shape), minval=jnp.finfo(jnp.float32).tiny
        )
        sine, cosine = jnp.sin(jnp.pi / 2 * first), jnp.cos(jnp.pi / 2 * first)
        one_minus_f = (
            2 * r_minus_one * sine * sine / (r_minus_one + 2 * cosine * cosine)
        )
        c = kappa * (r_minus_one + one_minus_f)
        is_accepted = (c * (2 - c) > second) | (jnp.log(c / second) + 1 >= c)
        chord = jnp.where(is_accepted & ~is_done, one_minus_f, chord)
        return key, chord, is_done | is_accepted

    sign_key, draws_key = jax.random.split(key)
    start = draws_key, jnp.zeros(shape, jnp.float32), jnp.zeros(shape, bool)
    _, one_minus_f, _ = jax.lax.while_loop(is_open, draw, start)
    # acos(f), from 1 - f.
    size = 2 * jnp.arcsin(jnp.sqrt(jnp.clip(one_minus_f / 2, 0, 1)))
    angle = jnp.where(jax.random.bernoulli(sign_key, shape=shape), size, -size)
    turned = angle + location.astype(jnp.float32) + jnp.pi
    return (turned % (2 * jnp.pi) - jnp.pi).astype(location.dtype)


LOWERINGS = ()
METHODS = (
    Method(
        "VonMises",
        "sample",
        sample,
        "draws in float64, and asks whether all are accepted",
    ),
)
