"""Quantise weights of a model in memory on their way to the devices, and move those
that are quantised already.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import NamedSharding

from tpuport import compat
from tpuport.checkpoint.device_layout import dtype_overrides, find_owner
from tpuport.checkpoint.lazy_tensors import Converted, LazyTensor, Reader
from tpuport.checkpoint.quantized_layout import make_weight
from tpuport.checkpoint.quantized_tensors import QuantizedTensor, quantizing
from tpuport.checkpoint.sharded_arrays import make_sharded_array
from tpuport.errors import PortError
from tpuport.quantization import (
    QuantizedWeight,
    Scheme,
    install,
    is_transposed,
    quantized_weights,
    restore_dense,
)
from tpuport.sharding.quantized_parts import plan_parts

Arrays = Mapping[str, jax.Array]
Shardings = Mapping[str, NamedSharding]


def weight_shapes(
    model: torch.nn.Module, dtype: torch.dtype | None
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape and dtype that each weight of `model` that is quantised already stands for,
    by the weight's name.
    """
    override = None if dtype is None else dtype_overrides(model, dtype)
    shapes: dict[str, jax.ShapeDtypeStruct] = {}
    for name, _, _, weight in quantized_weights(model):
        weight_dtype = weight.dtype if override is None else override(name, dtype)
        shapes[name] = jax.ShapeDtypeStruct(
            weight.shape, compat.jax_dtype(weight_dtype)
        )
    return shapes


def plan_moves(
    model: torch.nn.Module,
    schemes: Mapping[str, Scheme],
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    shardings: Shardings,
) -> Callable[[], None]:
    """A function that puts every quantised weight on the devices.

    Args:
        schemes: of the dense weights that are to be quantised, by name.
        shapes: shape and dtype of every weight.
        shardings: of every weight as a whole.

    Raises:
        PortError: an axis of the mesh cuts a group, or a weight is not finite.
    """
    sources: dict[str, QuantizedTensor] = {}
    for name, scheme in schemes.items():
        dense = _as_lazy(model.get_parameter(name), name)
        transposed = is_transposed(find_owner(model, name)[0])
        sources[name] = quantizing(
            dense, scheme, shapes[name].dtype, transposed=transposed
        )
    moved = {name: weight for name, _, _, weight in quantized_weights(model)}
    plans = plan_parts({**sources, **moved}, shardings)

    def run() -> None:
        for name, weight in moved.items():
            _move(weight, plans[name], compat.torch_dtype(shapes[name].dtype))
        with Reader() as reader:
            for name, source in sources.items():
                _install(
                    model,
                    name,
                    source,
                    plans[name],
                    reader,
                    compat.torch_dtype(shapes[name].dtype),
                )

    return run


def make_dense(model: torch.nn.Module, fetch: Callable[[Any], torch.Tensor]) -> None:
    """Give `model` ordinary weights on the host, with the numbers that its quantised
    ones stand for.
    """
    for _, module, name, weight in list(quantized_weights(model)):
        restore_dense(module, name, fetch(weight()))


def _install(
    model: torch.nn.Module,
    name: str,
    source: QuantizedTensor,
    shardings: Shardings,
    reader: Reader,
    dtype: torch.dtype,
) -> None:
    module, leaf = find_owner(model, name)
    arrays = {
        part: compat.wrap(
            make_sharded_array(reader, tensor, tensor.dtype, shardings[part])
        )
        for part, tensor in source.parts.items()
    }
    install(module, leaf, make_weight(source, arrays, dtype))


def _move(weight: QuantizedWeight, shardings: Shardings, dtype: torch.dtype) -> None:
    for part, array in weight.part_arrays.items():
        weight._buffers[part] = compat.wrap(jax.device_put(array, shardings[part]))
    weight.dtype = dtype


def _as_lazy(tensor: torch.Tensor, name: str) -> LazyTensor:
    """A weight in memory; the values are taken from it when they are read."""
    if not tensor.dtype.is_floating_point:
        raise PortError(f"a weight of {tensor.dtype} cannot be quantised", where=name)
    if not bool(torch.isfinite(tensor).all()):
        raise PortError("a weight that is not finite cannot be quantised", where=name)

    def numbers(reader: Reader) -> np.ndarray:
        if compat.is_ported(tensor):
            return np.asarray(compat.to_jax(tensor))
        return compat.to_numpy(tensor)

    return Converted(tuple(tensor.shape), compat.jax_dtype(tensor.dtype), numbers)
