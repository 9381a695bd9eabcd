"""Convolutions: torchax mixes up the channels of transposed ones in groups, and XLA
divides groups wrongly.
"""

import contextlib
import math
import operator
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from tpuport.compat.argument_checks import require
from tpuport.compat.declarations import Lowering, on_arrays

_mesh: ContextVar[Mesh | None] = ContextVar("tpuport_operators_mesh", default=None)


@contextlib.contextmanager
def operators_on_mesh(mesh: Mesh | None) -> Iterator[None]:
    """Trace operators in this thread for a mesh, which traced arrays do not know; None:
    for one device.
    """
    token = _mesh.set(mesh)
    try:
        yield
    finally:
        _mesh.reset(token)


def convolution(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> jax.Array:
    """Traced or not. `aten::convolution`.

    Args:
        x: [channels, *spatial], or a batch of it.
        weight: [outputs, channels / groups, *kernel]; if transposed,
            [channels, outputs / groups, *kernel].
        bias: [outputs].
        stride, padding, dilation, output_padding: an item for each spatial dimension,
            or one for all.

    Raises:
        RuntimeError: torch's, for an option that it refuses, or a bias of another size.
    """
    rank = weight.ndim - 2
    stride, padding, dilation, output_padding = (
        tuple(items) * rank if len(items) == 1 else tuple(items)
        for items in (stride, padding, dilation, output_padding)
    )
    require(all(step > 0 for step in stride), "non-positive stride is not supported")
    require(all(size >= 0 for size in padding), "negative padding is not supported")
    require(all(step > 0 for step in dilation), "dilation should be greater than zero")
    require(groups > 0, "non-positive groups is not supported")
    require(all(weight.shape[2:]), "kernel size should be greater than zero")
    ends = padding
    steps: dict[str, Any] = {"window_strides": stride}
    outputs = weight.shape[0]
    if transposed:
        _require_output_padding(output_padding, stride, dilation)
        _require_channels(x.shape[-rank - 1], weight, groups)
        outputs = weight.shape[1] * groups
        reach = [
            step * (size - 1)
            for step, size in zip(dilation, weight.shape[2:], strict=True)
        ]
        padding = tuple(map(operator.sub, reach, padding))
        ends = tuple(map(operator.add, padding, output_padding))
        steps = {"window_strides": (1,) * rank, "lhs_dilation": stride}
        weight = _outputs_first(jnp.flip(weight, range(2, weight.ndim)), groups)
    # jax would take the only number of a bias for all.
    require(
        bias is None or bias.shape == (outputs,),
        f"expected bias to be 1-dimensional with {outputs} elements, but got another for a weight of {weight.shape}",
    )
    leading = x.shape[: -rank - 1]
    batch = x.reshape(math.prod(leading), *x.shape[-rank - 1 :])
    # XLA's partitioner (jaxlib 0.9) gives wrong values, or ends the process, where
    # channels are divided that are in groups of several, and where positions are
    # divided that a transposed convolution spreads out.
    whole = []
    # Without input channels, torch gives none, whatever the weight's.
    if not batch.shape[1]:
        weight, bias = weight[:0], None
    if groups > 1 and not batch.shape[1] == weight.shape[0] == groups:
        whole = [1]
        weight = undivided(weight, [0, 1])
    if transposed:
        whole += range(2, batch.ndim)
    batch = undivided(batch, whole)
    result = jax.lax.conv_general_dilated(
        batch, weight, padding=tuple(zip(padding, ends, strict=True)), rhs_dilation=dilation,
        feature_group_count=groups, **steps,
    )  # fmt: skip
    result = undivided(result, whole)
    if bias is not None:
        result += bias.reshape(-1, *[1] * rank)
    return result.reshape(*leading, *result.shape[1:])


def _require_channels(channels: int, weight: jax.Array, groups: int) -> None:
    """Raise torch's error for a transposed weight of other channels."""
    require(
        channels == weight.shape[0] and channels % groups == 0,
        f"Given transposed=1, groups={groups}, weight of size {list(weight.shape)}, expected input to have "
        f"{weight.shape[0]} channels, but got {channels} channels instead",
    )


def _require_output_padding(
    output_padding: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> None:
    """Raise torch's error for what the end of an output cannot be extended by."""
    require(
        all(size >= 0 for size in output_padding),
        "negative output_padding is not supported",
    )
    require(
        all(map(operator.lt, output_padding, map(max, stride, dilation))),
        f"output padding must be smaller than either stride or dilation, but got output_padding {output_padding}, "
        f"stride {stride}, dilation {dilation}",
    )


def _outputs_first(weight: jax.Array, groups: int) -> jax.Array:
    """The weight of a transposed convolution [channels, outputs / groups, *kernel] as
    that of another.
    """
    channels, outputs, *kernel = weight.shape
    of_groups = weight.reshape(groups, channels // groups, outputs, *kernel).swapaxes(
        1, 2
    )
    return of_groups.reshape(groups * outputs, channels // groups, *kernel)


def convolution_2d(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> jax.Array:
    """Traced or not. `aten::conv2d`, as `convolution`."""
    return convolution(
        x, weight, bias, stride, padding, dilation, False, (0, 0), groups
    )


def mesh_of(array: jax.Array) -> Mesh | AbstractMesh | None:
    """The mesh that an array is on; of a traced one, the mesh that operators are traced
    for.
    """
    if isinstance(array, Tracer):
        return _mesh.get()
    return array.sharding.mesh if isinstance(array.sharding, NamedSharding) else None


def undivided(array: jax.Array, dimensions: Sequence[int]) -> jax.Array:
    """The array with these dimensions whole on each device of its mesh, and the others
    as they are.
    """
    mesh = mesh_of(array)
    if mesh is None or mesh.size == 1 or not dimensions:
        return array
    spec: list[Any] = [PartitionSpec.UNCONSTRAINED] * array.ndim
    for dimension in dimensions:
        spec[dimension] = None
    return jax.lax.with_sharding_constraint(
        array, NamedSharding(mesh, PartitionSpec(*spec))
    )


_aten = torch.ops.aten
_REASON = (
    "mixes up the channels of groups, or lets XLA divide them wrongly among devices"
)
LOWERINGS = (
    Lowering(_aten.convolution, on_arrays(convolution), _REASON),
    Lowering(_aten.conv2d, on_arrays(convolution_2d), _REASON),
)
METHODS = ()
