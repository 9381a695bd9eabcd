"""Move a model that is already in memory to the devices of a mesh, in place."""

import weakref
from collections.abc import Iterable
from typing import Any

import jax
import torch
from jax.sharding import Mesh

from tpuport import compat
from tpuport.checkpoint.device_layout import (
    as_torch_dtype,
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
from tpuport.errors import PortError
from tpuport.patches import registry
from tpuport.sharding import ShardingRules

_WIDE_INTEGERS = (torch.int64, torch.uint64)
# How often each model that lives was put on devices; its programs are made anew each time.
_ported: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()


def model_mesh(model: torch.nn.Module) -> Mesh | None:
    """The mesh that a ported model is on; None for a model that was not ported."""
    return getattr(model, "tpuport_mesh", None)


def port_count(model: torch.nn.Module) -> int:
    """How often `load` or `port` has put this model on devices."""
    return _ported.get(model, 0)


def ported_models() -> list[torch.nn.Module]:
    """Every model of this process that was put on devices and is still alive."""
    return list(_ported)


def record_port(model: Any, mesh: Mesh) -> None:
    """Note that `model` is on `mesh` now; programs that were compiled for it before serve no longer."""
    model.tpuport_mesh = mesh
    _ported[model] = port_count(model) + 1


def port(
    model: Any,
    *,
    mesh: Mesh | None = None,
    rules: ShardingRules | None = None,
    dtype: torch.dtype | str | None = None,
    allow: str | Iterable[str] = (),
) -> Any:
    """Move `model` to `mesh`, in place: parameters sharded, buffers on every device, in evaluation mode.

    Each parameter's host memory is given up once it is on the devices. A ported model may be ported again: to another
    mesh or dtype, or so that its programs are made anew after one of its modules has changed.

    Args:
        model: a `torch.nn.Module` on the CPU (or one already ported).
        mesh: None for one device (or, for a ported model, the mesh that it is on).
        rules: None for the model's own tensor-parallel plan.
        dtype: for floating-point parameters and saved buffers; None keeps theirs.
        allow: names of rules and parameters (or one name) that the sharding audit lets pass.

    Returns:
        The same module.

    Raises:
        PortError: a tensor that cannot be moved, or sharding rules that do not fit; nothing was moved then.
    """
    _check_module(model)
    check_mesh_and_rules(mesh, rules)
    registry.apply_all()  # of models that need one; nothing where `tpuport.enable` has done it
    mesh = mesh or model_mesh(model) or one_device_mesh()
    dtypes = _target_dtypes(model, as_torch_dtype(dtype))
    _check_movable(model, dtypes)
    groups = parameter_groups(model)
    shardings = plan_shardings(model, groups, _shapes(model, groups, dtypes), mesh, rules, allow)
    model.eval().requires_grad_(False)
    with compat.environment():
        for first, *others in groups:
            array = scatter(model.get_parameter(first), dtypes[first], shardings[first])
            put_parameter(model, [first, *others], array)
        move_buffers(model, mesh, dtypes)
    record_port(model, mesh)
    return model


def move_buffers(model: torch.nn.Module, mesh: Mesh, dtypes: dict[str, torch.dtype] | None = None) -> None:
    """Put every buffer of `model` on all devices of `mesh`, from the host or from other devices."""
    groups: dict[int, list[str]] = {}
    for name, buffer in model.named_buffers(remove_duplicate=False):
        groups.setdefault(id(buffer), []).append(name)
    for names in groups.values():
        buffer = model.get_buffer(names[0])
        target = (dtypes or {}).get(names[0], buffer.dtype)
        put_buffer(model, names, scatter(buffer, target, replicated_sharding(mesh)))


def _check_module(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise PortError(f"cannot port a {type(model).__name__}", where="model", fix="give a torch.nn.Module")
    if getattr(model, "hf_quantizer", None) is not None:
        method = getattr(getattr(model.config, "quantization_config", None), "quant_method", "unknown method")
        fix = "load it unquantised"
        raise PortError(f"the model is quantised ({method}), which is not supported", where="model", fix=fix)


def _shapes(
    model: torch.nn.Module, groups: list[list[str]], dtypes: dict[str, torch.dtype]
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape and dtype that each parameter will have; one object for all names of a group: tied weights."""
    shapes: dict[str, jax.ShapeDtypeStruct] = {}
    for names in groups:
        shape, dtype = tuple(model.get_parameter(names[0]).shape), compat.jax_dtype(dtypes[names[0]])
        shapes.update(dict.fromkeys(names, jax.ShapeDtypeStruct(shape, dtype)))
    return shapes


def _tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter and buffer, tied ones under each of their names."""
    tensors: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
    tensors.update(model.named_buffers(remove_duplicate=False))
    return tensors


def _target_dtypes(model: torch.nn.Module, dtype: torch.dtype | None) -> dict[str, torch.dtype]:
    """The dtype of every parameter and buffer once it is moved.

    Buffers that no checkpoint holds keep theirs: rotary frequencies are float32 in every model.
    """
    tensors = _tensors(model)
    if dtype is None:
        return {name: tensor.dtype for name, tensor in tensors.items()}
    if not dtype.is_floating_point:
        raise PortError(
            f"weights cannot be cast to {dtype}",
            where="dtype",
            fix="give a floating dtype, or none; quantising is more than a cast",
        )
    saved, keep = model.state_dict().keys(), dtype_overrides(model, dtype)
    return {
        name: (keep(name) or dtype) if tensor.is_floating_point() and name in saved else tensor.dtype
        for name, tensor in tensors.items()
    }


def _check_movable(model: torch.nn.Module, dtypes: dict[str, torch.dtype]) -> None:
    tensors = _tensors(model)
    empty = [name for name, tensor in tensors.items() if not compat.is_ported(tensor) and tensor.is_meta]
    if empty:
        raise PortError(
            f"{len(empty)} tensors have no values: they are on the meta device",
            where=", ".join(empty[:20]),
            fix="load the checkpoint with tpuport.load, or with from_pretrained",
        )
    for name, dtype in dtypes.items():
        try:
            compat.jax_dtype(dtype)
            if not compat.is_ported(tensors[name]):
                _try_crossing(tensors[name], dtype)
        except PortError as error:
            raise PortError(error.what, where=name, fix=error.fix) from None


def _try_crossing(tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """PortError for a tensor that cannot become an array; found out on none of its values where that is enough."""
    if tensor.dtype in _WIDE_INTEGERS:
        compat.to_jax(tensor)  # these are small, and may hold what 32 bits do not
        return
    if tensor.layout is not torch.strided or tensor.is_quantized:
        kind = "quantised" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        raise PortError(
            f"a {kind} tensor cannot be moved", fix="make it dense first: to_dense(), or dequantize()"
        )
    try:
        compat.to_jax(tensor.detach()[(slice(0, 0),) * tensor.ndim].to(dtype))
    except (RuntimeError, TypeError, NotImplementedError, AttributeError, ValueError) as error:
        raise PortError(f"a {type(tensor).__name__} cannot be moved: {error}") from error
