"""Samplers that fill a tensor, the forms of them that give a new one, and `rrelu`,
which is one of them inside.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.argument_checks import require
from tpuport.compat.convert import as_jax, jax_dtype, wrap
from tpuport.compat.declarations import Lowering, overloads
from tpuport.compat.outputs import write
from tpuport.compat.randomness import distributions, samplers
from tpuport.compat.randomness.streams import next_key

# Each: (array that is filled, generator, parameters of the distribution) -> new array.


def _normal(
    array: jax.Array, generator: Any, mean: Any = 0.0, std: Any = 1.0
) -> jax.Array:
    require(std >= 0, f"normal expects std >= 0.0, but found std {std}")
    numbers = distributions.gaussian(
        next_key(generator), array.shape, _floating(array, "normal_kernel_cpu")
    )
    return (numbers * std + mean).astype(array.dtype)


def _uniform(
    array: jax.Array, generator: Any, low: Any = 0.0, high: Any = 1.0, **bounds: Any
) -> jax.Array:
    low, high = bounds.get("from", low), bounds.get("to", high)
    require(
        low <= high,
        f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}",
    )
    dtype = _floating(array, "check_uniform_bounds")
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return distributions.unit(next_key(generator), array.shape, dtype) * (
            high - low
        ) + low * (1 + 1j)
    return distributions.uniform(next_key(generator), array.shape, dtype, low, high)


def _random(array: jax.Array, generator: Any, *bounds: Any, **named: Any) -> jax.Array:
    low, high = named.get("from", 0), named.get("to")
    if len(bounds) == 2:
        low, high = bounds
    elif bounds:
        [high] = bounds
    if high is None:
        high = _largest(array.dtype) + 1
    return samplers.draw_integers(generator, array.shape, array.dtype, low, high)


def _largest(dtype: Any) -> int:
    """The largest number that `random_()` draws for a dtype."""
    if dtype == jnp.bool_:
        return 1
    limit = int(jnp.iinfo(jax_dtype(torch.int64)).max)
    if jnp.issubdtype(dtype, jnp.integer):
        return min(int(jnp.iinfo(dtype).max), limit)
    return min(2 ** samplers.MANTISSA_BITS[jnp.dtype(dtype).name], limit - 1)


def _bernoulli(array: jax.Array, generator: Any, p: Any = 0.5) -> jax.Array:
    probabilities = as_jax(p)
    samplers.require_probabilities(probabilities)
    return distributions.coins(
        next_key(generator), array.shape, array.dtype, probabilities
    )


def _exponential(array: jax.Array, generator: Any, lambd: Any = 1.0) -> jax.Array:
    require(lambd > 0, f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    dtype = _floating(array, "exponential")
    return distributions.exponentials(next_key(generator), array.shape, dtype, lambd)


def _cauchy(
    array: jax.Array, generator: Any, median: Any = 0.0, sigma: Any = 1.0
) -> jax.Array:
    require(sigma > 0, f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    dtype = _floating(array, "cauchy")
    return distributions.cauchys(next_key(generator), array.shape, dtype, median, sigma)


def _log_normal(
    array: jax.Array, generator: Any, mean: Any = 1.0, std: Any = 2.0
) -> jax.Array:
    require(std > 0, f"log_normal_ expects std > 0.0, but found std={std}")
    dtype = _floating(array, "log_normal")
    return distributions.log_normals(next_key(generator), array.shape, dtype, mean, std)


def _geometric(array: jax.Array, generator: Any, p: Any) -> jax.Array:
    require(0 < p < 1, f"geometric_ expects p to be in (0, 1), but got p={p}")
    return distributions.geometrics(next_key(generator), array.shape, array.dtype, p)


def _floating(array: jax.Array, name: str) -> Any:
    samplers.require_floating(array.dtype, name)
    return array.dtype


def _filling(sampler: Callable[..., jax.Array]) -> Callable[..., Any]:
    """The operator that fills its first argument, a tensor or a view."""

    @functools.wraps(sampler)
    def fill(tensor: Any, *parameters: Any, generator: Any = None, **named: Any) -> Any:
        return write(tensor, sampler(tensor.jax(), generator, *parameters, **named))

    return fill


def _functional(sampler: Callable[..., jax.Array]) -> Callable[..., Any]:
    """The operator that gives a new tensor like its first argument, or fills `out`."""

    @functools.wraps(sampler)
    def draw(
        tensor: Any,
        *parameters: Any,
        generator: Any = None,
        out: Any = None,
        **named: Any,
    ) -> Any:
        numbers = sampler(tensor.jax(), generator, *parameters, **named)
        return wrap(numbers) if out is None else write(out, numbers)

    return draw


# rrelu


def rrelu_with_noise(
    tensor: Any, noise: Any, lower: Any = 0.125, upper: Any = 1 / 3, training: bool = False, generator: Any = None,
    *, out: Any = None,
) -> Any:  # fmt: skip
    """Leaky ReLU whose slopes are drawn while training; they are stored in `noise`."""
    result, slopes = _rrelu(tensor.jax(), lower, upper, training, generator)
    if training:
        write(noise, slopes)
    return wrap(result) if out is None else write(out, result)


def _rrelu_with_noise_in_place(
    tensor: Any, noise: Any, *args: Any, **kwargs: Any
) -> Any:
    return write(tensor, rrelu_with_noise(tensor, noise, *args, **kwargs).jax())


def _rrelu_with_noise_functional(
    tensor: Any,
    noise: Any,
    lower: Any = 0.125,
    upper: Any = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    result, slopes = _rrelu(tensor.jax(), lower, upper, training, generator)
    return wrap(result), wrap(slopes) if training else noise


def _rrelu(
    array: jax.Array, lower: Any, upper: Any, training: bool, generator: Any
) -> tuple[jax.Array, jax.Array]:
    """The result, and the slope of each element, which is 1 above zero."""
    require(
        lower <= upper,
        f"Lower bound should be less than or equal to the upper bound, got {lower} and {upper}",
    )
    if not training:
        return jnp.where(array >= 0, array, array * ((lower + upper) / 2)).astype(
            array.dtype
        ), array
    drawn = distributions.uniform(
        next_key(generator), array.shape, array.dtype, lower, upper
    )
    slopes = jnp.where(array > 0, jnp.ones_like(array), drawn)
    return array * slopes, slopes


_REASON = "draws the same numbers each time, or in each call of a program"
_aten = torch.ops.aten
_SAMPLERS: dict[str, Callable[..., jax.Array]] = {
    "normal": _normal,
    "uniform": _uniform,
    "random": _random,
    "bernoulli": _bernoulli,
    "exponential": _exponential,
    "cauchy": _cauchy,
    "log_normal": _log_normal,
    "geometric": _geometric,
}
# Those whose form without underscore means something else.
_OWN_FUNCTIONS = frozenset({"normal", "bernoulli"})

LOWERINGS = (
    *(
        Lowering(target, _filling(sampler), _REASON)
        for name, sampler in _SAMPLERS.items()
        for target in overloads(f"{name}_")
    ),
    *(
        Lowering(target, _functional(sampler), _REASON)
        for name, sampler in _SAMPLERS.items()
        if name not in _OWN_FUNCTIONS
        for target in overloads(name)
    ),
    Lowering(_aten.normal_functional, _functional(_normal), _REASON),
    Lowering(_aten.rrelu_with_noise, rrelu_with_noise, _REASON),
    Lowering(_aten.rrelu_with_noise_.default, _rrelu_with_noise_in_place, _REASON),
    Lowering(_aten.rrelu_with_noise_functional, _rrelu_with_noise_functional, _REASON),
)
METHODS = ()
