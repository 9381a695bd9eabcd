"""A model's weights without values: shapes, dtypes and shardings on a described mesh,
as `port` would choose them.
"""

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, Final

import jax
import torch
from jax.sharding import Mesh, NamedSharding
from torch.overrides import TorchFunctionMode

from tpuport import compat
from tpuport.checkpoint import quantized_moves
from tpuport.checkpoint.device_layout import (
    dtype_overrides,
    parameter_groups,
    plan_shardings,
    replicated_sharding,
)
from tpuport.errors import PortError
from tpuport.internals.torch_internals import make_subclass
from tpuport.sharding import ShardingRules
from tpuport.topology.abstract_quantization import abstract_parts
from tpuport.trace_errors import first_line
from tpuport.trace_errors.libraries import Owner, is_installed
from tpuport.trace_errors.tracebacks import path_to

# Tensors of this many bytes are parameters-to-be; smaller ones may be buffers, whose
# values a model computes with.
_LARGE_BYTES: Final = 1 << 26


def build_model(model: Any) -> torch.nn.Module:
    """The model in evaluation mode. A function that builds one is called such that no
    parameter is allocated.

    Raises:
        PortError: it is neither a model nor a function, or the function fails or
            returns something else.
    """
    if not isinstance(model, torch.nn.Module):
        if not callable(model):
            raise PortError(
                f"an object of class {type(model).__name__} is neither a model nor a function that builds one",
                where="model", fix="compile_for(lambda: Model(**config), inputs, topology=...)",
            )  # fmt: skip
        model = _call_builder(model)
    if not isinstance(model, torch.nn.Module):
        raise PortError(
            f"the function built an object of class {type(model).__name__}, which is not a torch.nn.Module",
            where="model", fix="return the model from the function",
        )  # fmt: skip
    return model.eval().requires_grad_(False)


def _call_builder(build: Callable[[], Any]) -> Any:
    try:
        with unallocated_parameters():
            return build()
    except PortError:
        raise
    except Exception as error:
        raise PortError(
            f"the function that builds the model failed: {type(error).__name__}: {first_line(error)}",
            where=_innermost_line(error) or getattr(build, "__qualname__", "model"),
            fix="call it in Python: it fails there too",
        ) from error


def _innermost_line(error: Exception) -> str | None:
    """The innermost call in the user's code, or else in a library's, as "FILE, line N";
    never in tpuport itself.
    """
    outside = [frame for frame in path_to(error).frames if frame.owner > Owner.LIBRARY]
    users = [frame for frame in outside if not is_installed(frame.file)]
    frames = users or outside
    if not frames:
        return None
    return f"{frames[-1].file}, line {frames[-1].line}"


class _LargeTensorsOnMeta(TorchFunctionMode):
    """Large tensors without values go to the meta device. A parameter starts as such a
    tensor.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty and kwargs.get("device") is None:
            tensor = func(*args, **kwargs | {"device": "meta"})
            if tensor.nbytes >= _LARGE_BYTES:
                return tensor
        return func(*args, **kwargs)


@contextlib.contextmanager
def unallocated_parameters() -> Iterator[None]:
    """Put parameters of modules that are built inside on the meta device, and leave
    their buffers with values.

    A parameter that two modules share stays a single one. accelerate's
    `init_empty_weights` makes it two, which would count twice in the memory.
    """
    original: Any = torch.nn.Module.register_parameter

    def register_on_meta(
        module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None
    ) -> None:
        original(module, name, parameter)
        if parameter is None or parameter.device.type == "meta":
            return
        with torch.no_grad():
            values = parameter.to("meta")
        # Not `Parameter(values)`: subclasses and attributes of parameters matter, as
        # those of quantized weights do.
        on_meta: Any = make_subclass(type(parameter), values, parameter.requires_grad)
        vars(on_meta).update(vars(parameter))
        module._parameters[name] = on_meta

    torch.nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign]
    try:
        with _LargeTensorsOnMeta():
            yield
    finally:
        torch.nn.Module.register_parameter = original  # type: ignore[method-assign]


def abstract_weights(
    model: torch.nn.Module,
    mesh: Mesh,
    rules: ShardingRules | None,
    dtype: torch.dtype | None,
    allow: Any,
) -> dict[str, jax.ShapeDtypeStruct]:
    """Every parameter and buffer, named as by `compilation.collect_weights` and sharded
    as `port` would do it.

    A model that `quantize_abstract` has quantised has the parts of its weights.
    """
    saved_names = model.state_dict().keys()
    override = dtype_overrides(model, dtype) if dtype else None

    def shape_and_dtype(name: str, tensor: torch.Tensor) -> jax.ShapeDtypeStruct:
        weight_dtype = tensor.dtype
        # As `load` does: buffers that no checkpoint holds keep their dtype.
        if override and tensor.is_floating_point() and name in saved_names:
            weight_dtype = override(name) or dtype
        return jax.ShapeDtypeStruct(tuple(tensor.shape), device_dtype(weight_dtype))

    groups = parameter_groups(model)
    shapes: dict[str, jax.ShapeDtypeStruct] = {}
    for names in groups:
        shape = shape_and_dtype(names[0], model.get_parameter(names[0]))
        shapes.update(dict.fromkeys(names, shape))
    quantized_shapes = quantized_moves.weight_shapes(model, dtype)
    all_groups = [*groups, *([name] for name in quantized_shapes)]
    shardings = plan_shardings(
        model, all_groups, shapes | quantized_shapes, mesh, rules, allow
    )
    weights = {
        names[0]: abstract_array(shapes[names[0]], shardings[names[0]])
        for names in groups
    }
    parts = abstract_parts(model, shardings)
    whole = replicated_sharding(mesh)
    for name, buffer in model.named_buffers():
        weights[name] = parts.get(name) or abstract_array(
            shape_and_dtype(name, buffer), whole
        )
    return weights


def known_buffers(
    model: torch.nn.Module, weights: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array]:
    """The buffers that have values and keep them, because no checkpoint holds others,
    as arrays by name.

    Args:
        weights: as `abstract_weights` returned them.
    """
    saved_names = model.state_dict().keys()
    return {
        name: compat.to_jax(buffer).astype(weights[name].dtype)
        for name, buffer in model.named_buffers()
        if not (buffer.is_meta or name in saved_names)
    }


def abstract_array(array: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    """The array's shape and dtype with this sharding."""
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


def device_dtype(dtype: Any) -> Any:
    """The dtype that a tensor of a torch or jax dtype has on the device: 64 bits become
    32.
    """
    if isinstance(dtype, torch.dtype):
        dtype = compat.jax_dtype(dtype)
    return jax.dtypes.canonicalize_dtype(dtype)


def nbytes(array: Any) -> int:
    """Bytes of the whole array, all its shards together."""
    return _nbytes(array.shape, array.dtype)


def local_nbytes(array: Any) -> int:
    """Bytes of an array's shard on one device; of the whole array if it has no
    sharding.
    """
    if array.sharding is None:
        return nbytes(array)
    return _nbytes(array.sharding.shard_shape(tuple(array.shape)), array.dtype)


def _nbytes(shape: tuple[int, ...], dtype: Any) -> int:
    """Bytes on a device, where two numbers of four bits share one."""
    return prod(shape) * jax.dtypes.itemsize_bits(jax.numpy.dtype(dtype)) // 8


def bytes_by_dtype(weights: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of whole arrays by the name of their dtype, most first."""
    totals: collections.Counter[str] = collections.Counter()
    for weight in weights.values():
        totals[str(weight.dtype)] += nbytes(weight)
    return dict(totals.most_common())
