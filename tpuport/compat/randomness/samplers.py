"""torch's samplers, and the operators that are forms of each.

Shapes: R rows, K categories, N samples.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat.argument_checks import is_known, require, require_values
from tpuport.compat.convert import jax_dtype
from tpuport.compat.declarations import Lowering, overloads
from tpuport.compat.randomness import distributions
from tpuport.compat.randomness.operator_forms import (
    Draw,
    Operator,
    Sampler,
    constructor,
    filling,
    like,
    require_kind,
    type_name,
)

# What torch's messages call types.
_C_NAMES = {
    "uint8": "unsigned char",
    "int8": "signed char",
    "int16": "short int",
    "int32": "int",
}


def _unit(draw: Draw) -> jax.Array:
    return draw.numbers("check_uniform_bounds", distributions.unit)


def _uniform(draw: Draw, low: Any = 0.0, high: Any = 1.0, **bounds: Any) -> jax.Array:
    low, high = bounds.get("from", low), bounds.get("to", high)
    require(
        low <= high,
        f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}",
    )
    if jnp.issubdtype(draw.dtype, jnp.complexfloating):
        return draw.numbers("check_uniform_bounds", distributions.unit) * (
            high - low
        ) + low * (1 + 1j)
    return draw.numbers("check_uniform_bounds", distributions.uniform, low, high)


def _gaussian(draw: Draw) -> jax.Array:
    return draw.numbers("normal_kernel_cpu", distributions.gaussian)


def _normal(draw: Draw, mean: Any = 0.0, std: Any = 1.0) -> jax.Array:
    """Mean and standard deviation are numbers, or either is an array."""
    is_array = isinstance(std, jax.Array) and std.ndim > 0
    message = f"normal expects std >= 0.0, but found std {std}"
    if is_array:
        message = "normal expects all elements of std >= 0.0"
    require_values(lambda values: values >= 0, std, message=message)
    arrays = [value for value in (mean, std) if isinstance(value, jax.Array)]
    if arrays and draw.array is None:
        # The mean decides the dtype if it is a tensor.
        shape = jnp.broadcast_shapes(*(array.shape for array in arrays))
        draw = draw._replace(shape=shape, dtype=arrays[0].dtype)
    return (_gaussian(draw) * std + mean).astype(draw.dtype)


def _integers(draw: Draw, *bounds: Any, **named: Any) -> jax.Array:
    """Integers up to `high`, or in [low, high), or all of the dtype."""
    low, high = _bounds(bounds, **named)
    if high is None:
        high = _largest(draw.dtype) + 1
    if is_known(low, high):
        low, high = int(low), int(high)
        message = f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        require(low < high, message)
        _require_range(low, high, draw.dtype)
        if high > jnp.iinfo(jax_dtype(torch.int64)).max:
            # One beyond the last number can be no number of the type.
            high = np.uint32(high)
    return draw.numbers("random_kernel_cpu", distributions.integers, low, high)


def _bounds(positional: tuple, **named: Any) -> tuple[Any, Any]:
    """The bounds of a call, the first of which may be missing or has its name."""
    low, high = (
        named.get(name, named.get(other))
        for name, other in (("low", "from"), ("high", "to"))
    )
    match positional:
        case [end] if high is None:
            high = end
        case [start]:
            low = start
        case [start, end]:
            low, high = start, end
    return 0 if low is None else low, high


def _largest(dtype: np.dtype) -> int:
    """The largest number that `random_()` draws for a dtype: of floats, the largest
    integer up to which every one is a number of the type.
    """
    if dtype == jnp.bool_:
        return 1
    limit = int(jnp.iinfo(jax_dtype(torch.int64)).max)
    if jnp.issubdtype(dtype, jnp.integer):
        return min(int(jnp.iinfo(dtype).max), limit)
    return min(2 ** (jnp.finfo(dtype).nmant + 1), limit - 1)


def _require_range(low: int, high: int, dtype: np.dtype) -> None:
    """Check that integers are numbers of the dtype, and of the integers here."""
    limits = jnp.iinfo(jax_dtype(torch.int64))
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
    least, most = int(limits.min), int(limits.max)
    name = _C_NAMES.get(np.dtype(dtype).name, np.dtype(dtype).name)
    require(least <= low <= most, f"from is out of bounds for {name}")
    require(least <= high - 1 <= most, f"to - 1 is out of bounds for {name}")


def _permutation(draw: Draw, n: int) -> jax.Array:
    message = f"Trying to create tensor with negative dimension {n}: [{n}]"
    require(n >= 0, message)
    return jax.random.permutation(draw.key(), int(n)).astype(draw.dtype)


def _bernoulli(draw: Draw, p: Any = None) -> jax.Array:
    """The tensor's values are the probabilities, unless others are given."""
    if p is None:
        require_kind(draw.dtype, "bernoulli_tensor_cpu_p_", jnp.floating)
        p = draw.array
    return _coins(draw, p)


def _coins(draw: Draw, p: Any = 0.5) -> jax.Array:
    message = "Expected p_in >= 0 && p_in <= 1 to be true, but got false."
    if not isinstance(p, jax.Array):
        message = f"bernoulli_ expects p to be in [0, 1], but got p={p}"
    require_values(lambda values: (values >= 0) & (values <= 1), p, message=message)
    return draw.numbers("bernoulli_scalar_cpu_", distributions.coins, p)


def _exponential(draw: Draw, lambd: Any = 1.0) -> jax.Array:
    require(lambd > 0, f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    return draw.numbers("exponential", distributions.exponentials, lambd)


def _cauchy(draw: Draw, median: Any = 0.0, sigma: Any = 1.0) -> jax.Array:
    require(sigma > 0, f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    return draw.numbers("cauchy", distributions.cauchys, median, sigma)


def _log_normal(draw: Draw, mean: Any = 1.0, std: Any = 2.0) -> jax.Array:
    require(std > 0, f"log_normal_ expects std > 0.0, but found std={std}")
    return draw.numbers("log_normal", distributions.log_normals, mean, std)


def _geometric(draw: Draw, p: Any) -> jax.Array:
    require(0 < p < 1, f"geometric_ expects p to be in (0, 1), but got p={p}")
    return draw.numbers("geometric_cpu", distributions.geometrics, p)


def _multinomial(draw: Draw, num_samples: int, replacement: bool = False) -> jax.Array:
    """Indices by the weights in each row, each row with numbers of its own."""
    weights = draw.array
    require(weights.ndim in (1, 2), "prob_dist must be 1 or 2 dim")
    require(
        bool(jnp.issubdtype(weights.dtype, jnp.floating)),
        "multinomial only supports floating-point dtypes for input, got: "
        + type_name(weights.dtype),
    )
    require(num_samples > 0, f"cannot sample n_sample <= 0 samples, got {num_samples}")
    size = weights.shape[-1]
    require(
        replacement or num_samples <= size,
        "cannot sample n_sample > prob_dist.size(-1) samples without replacement",
    )
    weights_RK = weights.reshape(-1, size).astype(jnp.float32)
    _require_weights(weights_RK)
    sampler = (
        distributions.repeated_categories if replacement else distributions.categories
    )
    chosen_RN = sampler(draw.key(), weights_RK, num_samples)
    return chosen_RN.reshape(*weights.shape[:-1], num_samples)


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


# Of tensors that are the parameters. They take the generator by position, too.


def _poisson(draw: Draw, generator: Any = None) -> jax.Array:
    message = "invalid Poisson rate, expected rate to be non-negative"
    require_values(lambda values: values >= 0, draw.array, message=message)
    return _wide(draw, "poisson_cpu", jax.random.poisson, generator)


def _binomial(draw: Draw, prob: jax.Array, generator: Any = None) -> jax.Array:
    shape = jnp.broadcast_shapes(draw.shape, prob.shape)
    # jax gives NaN where torch takes the nearest number that makes sense.
    probabilities = jnp.clip(prob.astype(jnp.float32), 0.0, 1.0)

    def sample(key: jax.Array, trials: jax.Array) -> jax.Array:
        return jax.random.binomial(key, jnp.maximum(trials, 0.0), probabilities, shape)

    return _wide(draw, "binomial_cpu", sample, generator)


def _gamma(draw: Draw, generator: Any = None) -> jax.Array:
    return _wide(draw, "gamma_cpu", jax.random.gamma, generator)


def _dirichlet(draw: Draw, generator: Any = None) -> jax.Array:
    return _wide(draw, "dirichlet", jax.random.dirichlet, generator)


def _wide(draw: Draw, kernel: str, sampler: Sampler, generator: Any) -> jax.Array:
    """Numbers whose parameter is the tensor, drawn in float32."""
    require_kind(draw.dtype, kernel, jnp.floating)
    parameters = draw.array.astype(jnp.float32)
    return sampler(draw.key(generator), parameters).astype(draw.dtype)


# Of torch, and of aten.
OPERATORS: dict[str, Operator] = {
    "rand": constructor(_unit, is_plain=True),
    "rand_like": like(_unit),
    "uniform": like(_uniform),
    "uniform_": filling(_uniform),
    "randn": constructor(_gaussian, is_plain=True),
    "randn_like": like(_gaussian),
    "normal": constructor(_normal),
    "normal_": filling(_normal),
    "normal_functional": like(_normal),
    "randint": constructor(_integers, torch.int64),
    "randint_like": like(_integers),
    "random": like(_integers),
    "random_": filling(_integers),
    "randperm": constructor(_permutation, torch.int64),
    "bernoulli": like(_bernoulli),
    "bernoulli_": filling(_coins),
    "exponential": like(_exponential),
    "exponential_": filling(_exponential),
    "cauchy": like(_cauchy),
    "cauchy_": filling(_cauchy),
    "log_normal": like(_log_normal),
    "log_normal_": filling(_log_normal),
    "geometric": like(_geometric),
    "geometric_": filling(_geometric),
    "multinomial": like(_multinomial),
    "poisson": like(_poisson),
    "binomial": like(_binomial),
    "_standard_gamma": like(_gamma),
    "_sample_dirichlet": like(_dirichlet),
}
# Of those that also run for the host.
PLACED = ("randperm", "normal")

_REASON = "keeps its random key beside the program: each call draws the same numbers, and the next trace fails"
LOWERINGS = (
    *(
        Lowering(target, function, _REASON)
        for name, function in OPERATORS.items()
        if name not in PLACED
        for target in overloads(name)
    ),
    # torch's constructors do not reach aten.
    *(
        Lowering(getattr(torch, name), OPERATORS[name], _REASON)
        for name in ("rand", "randn", "randint")
    ),
)
METHODS = ()
