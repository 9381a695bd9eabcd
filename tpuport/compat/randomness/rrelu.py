"""`rrelu`, which draws the slope of each negative element."""

from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.argument_checks import require
from tpuport.compat.convert import wrap
from tpuport.compat.declarations import Lowering
from tpuport.compat.outputs import write
from tpuport.compat.randomness import distributions
from tpuport.compat.randomness.streams import next_key


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
LOWERINGS = (
    Lowering(_aten.rrelu_with_noise, rrelu_with_noise, _REASON),
    Lowering(_aten.rrelu_with_noise_.default, _rrelu_with_noise_in_place, _REASON),
    Lowering(_aten.rrelu_with_noise_functional, _rrelu_with_noise_functional, _REASON),
)
METHODS = ()
