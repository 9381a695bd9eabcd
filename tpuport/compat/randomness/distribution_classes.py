"""`torch.distributions`, which asks for values: whether arguments are valid, and
whether all Von Mises variables, which it draws in float64, are accepted.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat.argument_checks import is_known
from tpuport.compat.convert import is_ported, to_jax, wrap
from tpuport.compat.declarations import Lowering, Method
from tpuport.compat.host_callbacks import call_host, require_callback
from tpuport.compat.randomness import streams
from tpuport.compat.replacements import original


def sample(distribution: Any, sample_shape: Any = ()) -> torch.Tensor:
    """`VonMises.sample`."""
    if not (is_ported(distribution.loc) or streams.is_traced()):
        return original("VonMises", "sample")(distribution, torch.Size(sample_shape))
    location = to_jax(distribution.loc)
    shape = (*sample_shape, *distribution.batch_shape)
    return wrap(
        angles(streams.next_key(), shape, location, to_jax(distribution.concentration))
    )


def angles(
    key: jax.Array,
    shape: tuple[int, ...],
    location: jax.Array,
    concentration: jax.Array,
) -> jax.Array:
    """Traced or not. Von Mises variables in [-pi, pi), drawn by NumPy on the host.

    Raises:
        PortError: in a program that cannot call the host.
    """
    if not is_known(key, location, concentration):
        require_callback("VonMises.sample")
    dtype = location.dtype

    def draw(seed: Any, *parameters: Any) -> list[np.ndarray]:
        generator = np.random.default_rng(np.asarray(seed))
        mu, kappa = (np.asarray(parameter, np.float64) for parameter in parameters)
        return [generator.vonmises(mu, kappa, shape).astype(dtype)]

    parameters = map(jax.lax.stop_gradient, (location, concentration))
    result = jax.ShapeDtypeStruct(shape, dtype)
    return call_host(draw, [result], jax.random.bits(key, (4,)), *parameters)[0]


def is_all_true(tensor: Any) -> Any:
    """`torch._is_all_true`, by which `torch.distributions` checks its arguments:
    unknown values are taken for valid.
    """
    array = tensor.jax()
    return wrap(jnp.all(array)) if is_known(array) else torch.tensor(True)


class _ValidateKnownValues:
    """`Distribution._validate_args` where nobody has set it: not while a program is
    traced, which has no values yet.

    Not a property: torch assigns `self._validate_args` where a constructor is told to
    validate, or not to.
    """

    def __init__(self, default: bool) -> None:
        self._default = default

    def __get__(self, instance: Any, owner: type) -> bool:
        return self._default and not streams.is_traced()


LOWERINGS = (
    Lowering(torch.ops.aten._is_all_true.default, is_all_true, "has no lowering"),
)
METHODS = (
    Method(
        "Distribution",
        "_validate_args",
        _ValidateKnownValues(torch.distributions.Distribution._validate_args),
        "asks for the values of arguments",
    ),
    Method(
        "VonMises",
        "sample",
        sample,
        "draws in float64, and asks whether all are accepted",
    ),
)
