"""Move a model that is in memory to the devices of a mesh and back, in place; fetch
results to the host.
"""

import copy
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, cast

import jax
import torch
from jax.core import Tracer
from jax.sharding import Mesh
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils.weak import WeakTensorKeyDictionary

from tpuport import compat
from tpuport.checkpoint import quantized_moves
from tpuport.checkpoint.device_layout import (
    as_torch_dtype,
    buffer_groups,
    check_mesh_and_rules,
    dtype_overrides,
    one_device_mesh,
    parameter_groups,
    plan_shardings,
    put_buffer,
    put_parameter,
    replicated_sharding,
    scatter,
)
from tpuport.checkpoint.movable_tensors import (
    check_movable,
    kind_of,
    named_tensors,
)
from tpuport.errors import PortError
from tpuport.internals.torchax_internals import array_of
from tpuport.objects import object_graph, pytrees
from tpuport.patches import registry
from tpuport.quantization import (
    QuantizationRules,
    Scheme,
    as_quantization_rules,
    part_names,
    quantized_weights,
)
from tpuport.sharding import ShardingRules

logger = logging.getLogger("tpuport")

# How often each live model was put on devices; its programs are compiled again after
# each time.
_port_counts: weakref.WeakKeyDictionary[torch.nn.Module, int] = (
    weakref.WeakKeyDictionary()
)
# Of torch.nn.utils, with the end of the name of a parameter from which they compute a
# weight.
_NORMALIZATIONS: dict[type, str] = {WeightNorm: "_v", SpectralNorm: "_orig"}


def model_mesh(model: torch.nn.Module) -> Mesh | None:
    """The mesh that a ported model is on; None for a model that was not ported."""
    return getattr(model, "tpuport_mesh", None)


def port_count(model: torch.nn.Module) -> int:
    """How often `load` or `port` has put this model on devices."""
    return _port_counts.get(model, 0)


def ported_models() -> list[torch.nn.Module]:
    """Every model of this process that was put on devices and is still alive."""
    return list(_port_counts)


def record_port(model: Any, mesh: Mesh) -> None:
    """Note that `model` is on `mesh` now; programs that were compiled for it before are
    no longer used.
    """
    # Before the mesh, whose own error would be about a 'Device' object.
    model.tpuport_pickling = _PicklingRefusal()
    model.tpuport_mesh = mesh
    _port_counts[model] = port_count(model) + 1


def forget_mesh(model: torch.nn.Module) -> None:
    """Undo what `record_port` has noted in a model."""
    for name in ("tpuport_pickling", "tpuport_mesh"):
        vars(model).pop(name, None)


class _PicklingRefusal:
    """An attribute of a ported model that cannot be pickled: a mesh and compiled
    programs belong to their process.
    """

    def __reduce__(self) -> NoReturn:
        raise PortError(
            "a ported model cannot be pickled or saved as a whole",
            where="pickle, torch.save(model)",
            fix="tpuport.to_cpu(model) first, or save its tensors: torch.save(model.state_dict(), path)",
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "_PicklingRefusal":
        return self


def port(
    model: Any,
    *,
    mesh: Mesh | None = None,
    rules: ShardingRules | None = None,
    dtype: torch.dtype | str | None = None,
    allow: str | Iterable[str] = (),
    quantize: QuantizationRules | Mapping[str, Any] | str | None = None,
) -> Any:
    """Move `model` to `mesh`, in place: parameters sharded, buffers on every device, in
    evaluation mode.

    Each parameter's host memory is freed once it is on the devices. A ported model may
    be ported again: to another mesh or dtype, or so that its programs are compiled
    again after one of its modules has changed.

    Args:
        model: a `torch.nn.Module` on the CPU (or one already ported).
        mesh: None for one device (or, for a ported model, the mesh that it is on).
        rules: None for the model's own tensor-parallel plan.
        dtype: for floating-point parameters and saved buffers; None keeps theirs.
        allow: names of rules and parameters (or a single name) whose errors the
            sharding audit accepts.
        quantize: "int8", "int4", "fp8" or "w8a8" for linear layers (but not heads,
            routers and the like), or `QuantizationRules`; None leaves weights as they
            are. `to_cpu` gives back what the values stand for.

    Returns:
        The same module.

    Raises:
        PortError: a tensor that cannot be moved, or sharding rules that do not fit;
            nothing was moved then.
    """
    move = plan_port(
        model, mesh=mesh, rules=rules, dtype=dtype, allow=allow, quantize=quantize
    )
    move()
    return model


def plan_port(
    model: Any,
    *,
    mesh: Mesh | None = None,
    rules: ShardingRules | None = None,
    dtype: torch.dtype | str | None = None,
    allow: str | Iterable[str] = (),
    quantize: QuantizationRules | Mapping[str, Any] | str | None = None,
) -> Callable[[], None]:
    """A function that moves `model` as `port` does, whose errors are raised here.

    Raises:
        PortError: as of `port`.
    """
    _check_module(model)
    check_mesh_and_rules(mesh, rules)
    # Patches of models that need one; does nothing after `tpuport.enable`, which has
    # applied them.
    registry.apply_all()
    registry.apply_for(model)
    mesh = mesh or model_mesh(model) or one_device_mesh()
    dtypes = _target_dtypes(model, as_torch_dtype(dtype))
    check_movable(model, dtypes)
    quantization = as_quantization_rules(quantize)
    schemes = {} if quantization is None else _choose_schemes(model, quantization)
    groups = parameter_groups(model)
    quantized_shapes = quantized_moves.weight_shapes(model, as_torch_dtype(dtype))
    shapes = _parameter_shapes(model, groups, dtypes) | quantized_shapes
    all_groups = [*groups, *([name] for name in quantized_shapes)]
    # The audits are the last thing that can fail.
    shardings = plan_shardings(model, all_groups, shapes, mesh, rules, allow)
    move_quantized = quantized_moves.plan_moves(model, schemes, shapes, shardings)

    def move() -> None:
        with compat.environment():
            move_quantized()
            for names in parameter_groups(model):
                first = names[0]
                parameter = model.get_parameter(first)
                array = scatter(parameter, dtypes[first], shardings[first])
                tensor = compat.wrap(array, dtypes[first])
                put_parameter(model, names, tensor)
            move_buffers(model, mesh, dtypes)
            _move_computed_weights(model, mesh)
        record_port(model, mesh)

    return move


def _choose_schemes(
    model: torch.nn.Module, quantization: QuantizationRules
) -> dict[str, Scheme]:
    """The scheme of each weight that is to be quantised; PortError if any is
    already.
    """
    for name, _, _, weight in quantized_weights(model):
        raise PortError(
            f"the model has quantised weights already ({weight.scheme})",
            where=name,
            fix="port it without quantize=, and they stay as they are; tpuport.to_cpu(model) makes them ordinary first",
        )
    return quantization.schemes(model)


def move_buffers(
    model: torch.nn.Module, mesh: Mesh, dtypes: dict[str, torch.dtype]
) -> None:
    """Put every buffer of `model` on all devices of `mesh`, in its dtype of `dtypes` if
    that has its name.
    """
    parts = part_names(model)
    for names in buffer_groups(model):
        # They are there already, each with a sharding of its own.
        if names[0] in parts:
            continue
        buffer = model.get_buffer(names[0])
        if not compat.has_array_form(buffer):
            logger.warning(
                "%s stays on the host, as the device has no %s tensors: code that reads it cannot be compiled",
                names[0],
                kind_of(buffer),
            )
            continue
        dtype = dtypes.get(names[0], buffer.dtype)
        moved = compat.wrap(scatter(buffer, dtype, replicated_sharding(mesh)), dtype)
        _keep_if_narrowed(moved, buffer)
        put_buffer(model, names, moved)


def _move_computed_weights(model: torch.nn.Module, mesh: Mesh) -> None:
    """Put the weights that old normalizations compute before each call on all devices
    of `mesh`.

    They are attributes. On the host, the first program would replace them, and the
    second would be another one.
    """
    for module in model.modules():
        for hook in module._forward_pre_hooks.values():
            ending = _NORMALIZATIONS.get(type(hook))
            if ending is None:
                continue
            name = cast("WeightNorm | SpectralNorm", hook).name
            dtype = getattr(module, name + ending).dtype
            setattr(
                module,
                name,
                compat.wrap(
                    scatter(getattr(module, name), dtype, replicated_sharding(mesh))
                ),
            )


# Host tensors of float64 and complex128, such as rotary tables, by the tensors on the
# device that have half of their digits: with the array that each had at first.
_wide_originals: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _keep_if_narrowed(moved: Any, original: torch.Tensor) -> None:
    """Remember a buffer whose digits the device does not have, so that `to_cpu` can
    give it back.
    """
    if original in _wide_originals:  # of a model that was ported before
        original, _ = _wide_originals[original]
    if (
        original.dtype in (torch.float64, torch.complex128)
        and moved.dtype != original.dtype
    ):
        _wide_originals[moved] = original, array_of(moved)


def _fetch_attribute(tensor: Any) -> torch.Tensor:
    """A buffer as it was before it lost digits, if nothing has been written to it
    since; else as it is now.
    """
    wide = _wide_originals.get(tensor)
    if wide is None:
        return fetch(tensor)
    original, array = wide
    return original if array is compat.as_jax(tensor) else fetch(tensor)


def _check_module(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise PortError(
            f"cannot port a {type(model).__name__}",
            where="model",
            fix="give a torch.nn.Module",
        )
    if getattr(model, "hf_quantizer", None) is not None:
        config = getattr(model.config, "quantization_config", None)
        method = getattr(config, "quant_method", "unknown method")
        raise PortError(
            f"the model is quantised ({method}), which is not supported",
            where="model",
            fix="load it unquantised",
        )


def _parameter_shapes(
    model: torch.nn.Module, groups: list[list[str]], dtypes: dict[str, torch.dtype]
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape and dtype that each parameter will have; the same object for all names of
    tied weights.
    """
    shapes: dict[str, jax.ShapeDtypeStruct] = {}
    for names in groups:
        shape = tuple(model.get_parameter(names[0]).shape)
        description = jax.ShapeDtypeStruct(shape, compat.jax_dtype(dtypes[names[0]]))
        shapes.update(dict.fromkeys(names, description))
    return shapes


def _target_dtypes(
    model: torch.nn.Module, dtype: torch.dtype | None
) -> dict[str, torch.dtype]:
    """The dtype that every parameter and buffer will have on the devices.

    Buffers that no checkpoint holds keep theirs: rotary frequencies are float32 in
    every model.
    """
    dtypes = {name: tensor.dtype for name, tensor in named_tensors(model).items()}
    if dtype is None:
        return dtypes
    # An integer dtype would truncate every weight.
    if not dtype.is_floating_point:
        raise PortError(
            f"weights cannot be cast to {dtype}",
            where="dtype",
            fix="give a floating dtype, or none; quantising is more than a cast",
        )
    override = dtype_overrides(model, dtype)
    # A state dict may hold more than tensors.
    names = dtypes.keys() & model.state_dict().keys()
    return dtypes | {
        name: override(name, dtype) for name in names if dtypes[name].is_floating_point
    }


def to_cpu(value: Any) -> Any:
    """Copy what is on the devices to the host, as plain torch tensors of the same shape
    and dtype.

    Sharded arrays are gathered whole. Integers have the 64 bits that they have in
    torch. A module's buffers of float64 and complex128 are again what they were before
    the port, unless something has written to them.

    Args:
        value: a tensor on the device; any result of a compiled function, such as a
            transformers output, a cache, a list or dict of them, or an object of your
            own class; or a ported module, which is moved back in place, one tensor
            after the other.

    Returns:
        The same with tensors on the CPU, in new objects; tensors that are there
        already are returned unchanged, and so are modules in an object.

    Raises:
        PortError: a part of an array is on the devices of another process, or the value
            is being traced.
    """
    if isinstance(value, torch.nn.Module):
        return _move_module_to_cpu(value)
    pytrees.register()
    pytrees.register_used(value)
    leaves: list[Any] = []
    pytrees.map_leaves(leaves.append, value)
    if any(map(object_graph.is_own_object, leaves)):
        return _fetch_parts(value)
    return pytrees.map_leaves(fetch, value)


def _fetch_parts(value: Any) -> Any:
    """`to_cpu` of a value with objects of any class, which jax does not take apart. An
    object in two places remains one object.
    """
    parts = object_graph.Parts(caches_are_leaves=False)
    parts.add_root("value", value)
    graph = parts.graph()
    if not any(isinstance(compat.as_jax(leaf), jax.Array) for leaf in graph.leaves):
        return value
    # What is noted as copied already is taken as it is noted.
    return copy.deepcopy(value, {id(leaf): fetch(leaf) for leaf in graph.leaves})


def fetch(leaf: Any) -> Any:
    """A tensor or array on the devices as a host tensor; anything else unchanged.
    PortErrors as of `to_cpu`.
    """
    array = compat.as_jax(leaf)
    if not isinstance(array, jax.Array):
        return leaf
    _check_fetchable(array, f"{array.dtype} {list(array.shape)}")
    return compat.to_torch(leaf)


def _check_fetchable(array: jax.Array, where: str) -> None:
    if isinstance(array, Tracer):
        raise PortError(
            "a value inside a compiled function is not there yet",
            where=where,
            fix="return it, then fetch it",
        )
    if array.is_deleted():
        raise PortError(
            "this array was donated to an earlier call",
            where=where,
            fix="use that call's output",
        )
    if not (array.is_fully_addressable or array.is_fully_replicated):
        raise PortError(
            "a part of this array is on the devices of another process",
            where=where,
            fix="gather it first: jax.experimental.multihost_utils.process_allgather(array, tiled=True)",
        )


def _move_module_to_cpu(model: torch.nn.Module) -> torch.nn.Module:
    """Move every parameter, buffer and plain attribute of a module that is on the
    device to the host, in place.
    """
    # All are checked before any is moved, so that a failure leaves the module on the
    # devices.
    for name, tensor in named_tensors(model).items():
        if compat.is_ported(tensor):
            _check_fetchable(compat.as_jax(tensor), name)
    quantized_moves.make_dense(model, fetch)
    for names in parameter_groups(model):
        parameter = model.get_parameter(names[0])
        if compat.is_ported(parameter):
            put_parameter(model, names, fetch(parameter))
    # Modules hold tensors as plain attributes too, such as a cache of rotary tables.
    for module in model.modules():
        for attributes in (module._buffers, vars(module)):
            attributes |= {
                name: _fetch_attribute(value)
                for name, value in attributes.items()
                if compat.is_ported(value)
            }
    # From now on it is a model of the host, whatever else held tensors.
    forget_mesh(model)
    return model
