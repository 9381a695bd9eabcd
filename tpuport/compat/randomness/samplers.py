"""Samplers with torch's meaning: random numbers from torch's generators, each draw with
a key of its own.

Shapes: R rows, K categories, N samples.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat.argument_checks import is_known, require, require_values
from tpuport.compat.convert import as_jax, jax_dtype
from tpuport.compat.declarations import Lowering, overloads
from tpuport.compat.outputs import store
from tpuport.compat.randomness.distributions import (
    categories,
    coins,
    gaussian,
    integers,
    repeated_categories,
    unit,
)
from tpuport.compat.randomness.streams import next_key

# What torch's messages call types.
_C_NAMES = {
    "uint8": "unsigned char",
    "int8": "signed char",
    "int16": "short int",
    "int32": "int",
}
_NAMES = {
    "bool": "Bool",
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
}
_PLACEMENT = frozenset({"device", "layout", "pin_memory", "memory_format"})
# Largest integers up to which every one is a number of the type: the range of
# `random_()` of floats.
MANTISSA_BITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}


def shape_of(sizes: tuple, size: Any = None) -> tuple[int, ...]:
    """A shape that is given as its numbers, as one sequence of them, or as the keyword
    `size`.
    """
    if size is None:
        size = (
            sizes[0]
            if len(sizes) == 1 and isinstance(sizes[0], list | tuple)
            else sizes
        )
    shape = tuple(map(int, size))
    negative = next((number for number in shape if number < 0), 0)
    require(
        not negative,
        f"Trying to create tensor with negative dimension {negative}: {list(shape)}",
    )
    return shape


def check_placement(keywords: dict[str, Any]) -> None:
    """Let nothing among a constructor's keywords pass that is not about memory, which
    jax manages.
    """
    others = keywords.keys() - _PLACEMENT
    if others:
        raise TypeError(f"got an unexpected keyword argument {min(others)!r}")


def dtype_of(
    dtype: torch.dtype | None, out: Any = None, default: torch.dtype | None = None
) -> np.dtype:
    """The dtype asked for, that of the tensor `out`, or a default, as it is on the
    device.
    """
    if out is not None:
        default = out.dtype
    return jax_dtype(dtype or default or torch.get_default_dtype())


def require_floating(dtype: np.dtype, kernel: str) -> None:
    """Raise torch's error where integers cannot be drawn."""
    if not jnp.issubdtype(dtype, jnp.inexact):
        raise NotImplementedError(
            f'"{kernel}" not implemented for {_type_name(dtype)!r}'
        )


def _type_name(dtype: np.dtype) -> str:
    return _NAMES.get(np.dtype(dtype).name, np.dtype(dtype).name)


def _constructor(sampler: Callable[..., jax.Array], kernel: str) -> Callable[..., Any]:
    """`torch.rand` or `torch.randn`, by what they draw; `kernel` is what torch's error
    for integers names.
    """

    def construct(
        *sizes: Any,
        size: Any = None,
        generator: Any = None,
        out: Any = None,
        dtype: Any = None,
        requires_grad: bool = False,
        **placement: Any,
    ) -> Any:
        check_placement(placement)
        dtype = dtype_of(dtype, out)
        require_floating(dtype, kernel)
        numbers = sampler(next_key(generator), shape_of(sizes, size), dtype)
        return finished(store(out, numbers), requires_grad)

    return construct


rand = _constructor(unit, "check_uniform_bounds")
randn = _constructor(gaussian, "normal_kernel_cpu")


def finished(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """A new tensor, as the caller of a constructor wants it."""
    return tensor.requires_grad_() if requires_grad else tensor


def randint(
    *args: Any, low: Any = 0, high: Any = None, size: Any = None, generator: Any = None, out: Any = None,
    dtype: Any = None, requires_grad: bool = False, **placement: Any,
) -> Any:  # fmt: skip
    """`torch.randint`, by `high, size` or `low, high, size`, of which the last may be
    keywords.
    """
    check_placement(placement)
    bounds = list(args)
    if size is None:
        size = bounds.pop()
    low, high = _bounds(bounds, low, high)
    dtype = dtype_of(dtype, out, torch.int64)
    numbers = draw_integers(generator, shape_of((), size), dtype, low, high)
    return finished(store(out, numbers), requires_grad)


def _bounds(positional: Sequence[Any], low: Any, high: Any) -> tuple[Any, Any]:
    """The bounds of a call with `high` or `low, high` among its positional
    arguments.
    """
    match positional:
        case []:
            return low, high
        case [end] if high is None:
            return low, end
        case [start]:
            return start, high
    start, end = positional
    return start, end


def draw_integers(
    generator: Any, shape: tuple[int, ...], dtype: np.dtype, low: Any, high: Any
) -> jax.Array:
    """Integers in [low, high), which are numbers or tensors."""
    low, high = as_jax((low, high))
    if is_known(low, high):
        low, high = int(low), int(high)
        message = f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        require(low < high, message)
        _require_range(low, high, dtype)
        if high > jnp.iinfo(jax_dtype(torch.int64)).max:
            # One beyond the last number can be no number of the type.
            high = np.uint32(high)
    return integers(next_key(generator), shape, dtype, low, high)


def _require_range(low: int, high: int, dtype: np.dtype) -> None:
    """Check that integers are numbers of the dtype, and of the integers here."""
    limits = jnp.iinfo(jax_dtype(torch.int64))
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
    least, most = int(limits.min), int(limits.max)
    name = _C_NAMES.get(np.dtype(dtype).name, np.dtype(dtype).name)
    require(least <= low <= most, f"from is out of bounds for {name}")
    require(least <= high - 1 <= most, f"to - 1 is out of bounds for {name}")


def rand_like(
    tensor: Any,
    *,
    generator: Any = None,
    dtype: Any = None,
    out: Any = None,
    **options: Any,
) -> Any:
    """`torch.rand_like`."""
    size = tuple(tensor.shape)
    return rand(
        size, generator=generator, dtype=dtype or tensor.dtype, out=out, **options
    )


def randn_like(
    tensor: Any,
    *,
    generator: Any = None,
    dtype: Any = None,
    out: Any = None,
    **options: Any,
) -> Any:
    """`torch.randn_like`."""
    size = tuple(tensor.shape)
    return randn(
        size, generator=generator, dtype=dtype or tensor.dtype, out=out, **options
    )


def randint_like(
    tensor: Any, *bounds: Any, low: Any = 0, high: Any = None, generator: Any = None, dtype: Any = None,
    out: Any = None, requires_grad: bool = False, **placement: Any,
) -> Any:  # fmt: skip
    """`torch.randint_like`, by `high` or `low, high`."""
    check_placement(placement)
    low, high = _bounds(bounds, low, high)
    numbers = draw_integers(
        generator, tuple(tensor.shape), dtype_of(dtype, tensor), low, high
    )
    return finished(store(out, numbers), requires_grad)


def bernoulli(
    tensor: Any, p: Any = None, *, generator: Any = None, out: Any = None
) -> Any:
    """`torch.bernoulli`: the tensor's values are the probabilities, unless `p` is
    given.
    """
    array = tensor.jax()
    if p is None:
        require_floating(array.dtype, "bernoulli_tensor_cpu_p_")
        p = tensor
    probabilities = as_jax(p)
    require_probabilities(probabilities)
    return store(
        out, coins(next_key(generator), array.shape, array.dtype, probabilities)
    )


def require_probabilities(probabilities: Any) -> None:
    """Raise torch's error for what is not a probability."""
    message = "Expected p_in >= 0 && p_in <= 1 to be true, but got false."
    if not isinstance(probabilities, jax.Array):
        message = f"bernoulli_ expects p to be in [0, 1], but got p={probabilities}"
    require_values(
        lambda values: (values >= 0) & (values <= 1), probabilities, message=message
    )


def multinomial(
    tensor: Any,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Any = None,
    out: Any = None,
) -> Any:
    """`torch.multinomial`: indices by the weights in each row, each row with numbers of
    its own.
    """
    weights = tensor.jax()
    require(weights.ndim in (1, 2), "prob_dist must be 1 or 2 dim")
    is_floating = bool(jnp.issubdtype(weights.dtype, jnp.floating))
    name = _type_name(weights.dtype)
    require(
        is_floating,
        f"multinomial only supports floating-point dtypes for input, got: {name}",
    )
    require(num_samples > 0, f"cannot sample n_sample <= 0 samples, got {num_samples}")
    size = weights.shape[-1]
    require(
        replacement or num_samples <= size,
        "cannot sample n_sample > prob_dist.size(-1) samples without replacement",
    )
    weights_RK = weights.reshape(-1, size).astype(jnp.float32)
    _require_weights(weights_RK)
    sampler = repeated_categories if replacement else categories
    chosen_RN = sampler(next_key(generator), weights_RK, num_samples)
    return store(out, chosen_RN.reshape(*weights.shape[:-1], num_samples))


def _require_weights(weights_RK: jax.Array) -> None:
    require_values(
        lambda weights: jnp.isfinite(weights) & (weights >= 0),
        weights_RK,
        message="probability tensor contains either `inf`, `nan` or element < 0",
    )
    require_values(
        lambda weights: jnp.any(weights > 0, axis=1),
        weights_RK,
        message="invalid multinomial distribution (sum of probabilities <= 0)",
    )


def poisson(tensor: Any, generator: Any = None, *, out: Any = None) -> Any:
    """`torch.poisson`: the tensor's values are the rates."""
    rates = tensor.jax()
    require_floating(rates.dtype, "poisson_cpu")
    message = "invalid Poisson rate, expected rate to be non-negative"
    require_values(lambda values: values >= 0, rates, message=message)
    counts = jax.random.poisson(
        next_key(generator), rates.astype(jnp.float32), rates.shape
    )
    return store(out, counts.astype(rates.dtype))


def binomial(count: Any, prob: Any, generator: Any = None, *, out: Any = None) -> Any:
    """`torch.binomial`: successes among `count` trials of probability `prob`."""
    trials: jax.Array = count.jax()
    probabilities: jax.Array = prob.jax()
    require_floating(trials.dtype, "binomial_cpu")
    shape = jnp.broadcast_shapes(trials.shape, probabilities.shape)
    # jax gives NaN where torch takes the nearest number that makes sense.
    trials_wide = jnp.maximum(trials.astype(jnp.float32), 0.0)
    probabilities = jnp.clip(probabilities.astype(jnp.float32), 0.0, 1.0)
    numbers = jax.random.binomial(
        next_key(generator), trials_wide, probabilities, tuple(map(int, shape))
    )
    return store(out, numbers.astype(trials.dtype))


def standard_gamma(tensor: Any, generator: Any = None, *, out: Any = None) -> Any:
    """Gamma variables of rate 1 whose shapes are the tensor's values, for
    `torch.distributions`.
    """
    concentrations = tensor.jax()
    numbers = jax.random.gamma(next_key(generator), concentrations.astype(jnp.float32))
    return store(out, numbers.astype(concentrations.dtype))


def dirichlet(tensor: Any, generator: Any = None, *, out: Any = None) -> Any:
    """Dirichlet variables over the last dimension, for `torch.distributions`."""
    concentrations = tensor.jax()
    numbers = jax.random.dirichlet(
        next_key(generator), concentrations.astype(jnp.float32)
    )
    return store(out, numbers.astype(concentrations.dtype))


_REASON = "keeps its random key beside the program: each call draws the same numbers, and the next trace fails"

_aten = torch.ops.aten
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "rand": rand,
    "randn": randn,
    "randint": randint,
    "rand_like": rand_like,
    "randn_like": randn_like,
    "randint_like": randint_like,
    "bernoulli": bernoulli,
    "multinomial": multinomial,
    "poisson": poisson,
    "binomial": binomial,
    "_standard_gamma": standard_gamma,
    "_sample_dirichlet": dirichlet,
}


LOWERINGS = (
    *(
        Lowering(target, function, _REASON)
        for name, function in _FUNCTIONS.items()
        for target in overloads(name)
    ),
    # torch's constructors do not reach aten.
    Lowering(torch.rand, rand, _REASON),
    Lowering(torch.randn, randn, _REASON),
    Lowering(torch.randint, randint, _REASON),
)
METHODS = ()
