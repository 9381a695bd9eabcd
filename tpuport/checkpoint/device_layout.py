"""Where the tensors of a model go: its parameters by rule, its buffers everywhere; and putting them there."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuport import compat
from tpuport.errors import PortError
from tpuport.mesh import check_mesh, create_mesh
from tpuport.sharding import ShardingRules, audit


def one_device_mesh() -> Mesh:
    """A mesh of this process's first device, with the axes that every mesh here has."""
    return create_mesh(devices=jax.local_devices()[:1])


def allowed_names(allow: Any) -> tuple[str, ...]:
    """The names that `allow=` gives, one of them or several; anything but names is a PortError."""
    names = (allow,) if isinstance(allow, str) else tuple(allow) if isinstance(allow, Iterable) else (allow,)
    if strangers := [repr(name) for name in names if not isinstance(name, str)]:
        raise PortError(
            f"{', '.join(strangers[:5])} is not a name", where="allow", fix='allow=("lm_head.weight",)'
        )
    return names


def check_mesh_and_rules(mesh: Any, rules: Any) -> None:
    """PortError unless these are a mesh that a model can live on and sharding rules, or None."""
    check_mesh(mesh)
    if not isinstance(rules, ShardingRules | None):
        raise PortError(
            f"rules is a {type(rules).__name__}, not ShardingRules",
            where="rules",
            fix="rules=tpuport.ShardingRules({...}) for these alone, or "
            "tpuport.ShardingRules.from_model(model).override({...}) to keep the model's own plan under them",
        )


def plan_shardings(
    model: torch.nn.Module,
    groups: Iterable[list[str]],
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    mesh: Mesh,
    rules: ShardingRules | None,
    allow: str | Iterable[str],
) -> dict[str, NamedSharding]:
    """The sharding of every parameter; the names of one group (tied weights) share that of the first.

    Args:
        groups: the names of each parameter, more than one where weights are tied.
        shapes: shape and dtype of each parameter, by its name.
        rules: None for the model's own plan where the mesh has several devices.
        allow: names that the audit lets pass.

    Raises:
        PortError: the audit found rules that match nothing, axes that do not divide, or the like.
    """
    if rules is None:
        rules = ShardingRules.from_model(model) if mesh.size > 1 else ShardingRules({})
    audit(rules, shapes, mesh, allow=allowed_names(allow)).raise_on_errors()
    shardings = rules.shardings(shapes, mesh)
    return {name: shardings[group[0]] for group in groups for name in group}


def replicated_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of what every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def parameter_groups(model: torch.nn.Module) -> list[list[str]]:
    """The names of each parameter of `model`, together where several names have one parameter."""
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return list(groups.values())


def put_parameter(model: torch.nn.Module, names: Iterable[str], array: jax.Array) -> None:
    """Make `array` the parameter that the model has under each of `names`."""
    parameter = torch.nn.Parameter(compat.wrap(array), requires_grad=False)
    for name in names:
        module, leaf = find_owner(model, name)
        module._parameters[leaf] = parameter


def put_buffer(model: torch.nn.Module, names: Iterable[str], array: jax.Array) -> None:
    """Make `array` the buffer that the model has under each of `names`."""
    buffer = compat.wrap(array)
    for name in names:
        module, leaf = find_owner(model, name)
        module._buffers[leaf] = buffer


def scatter(tensor: torch.Tensor, dtype: torch.dtype, sharding: NamedSharding) -> jax.Array:
    """Copy a tensor, cast to `dtype`, to the devices of `sharding`: each takes only its own slice."""
    if compat.is_ported(tensor):
        array = compat.as_jax(tensor)
        return jax.device_put(array.astype(compat.jax_dtype(dtype)), sharding)
    shape = tuple(tensor.shape)
    shards = []
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        with jax.default_device(device):
            shards.append(compat.to_jax(tensor.detach()[index].to(dtype)))
    return jax.make_array_from_single_device_arrays(shape, sharding, shards)


def find_owner(model: torch.nn.Module, name: str) -> tuple[Any, str]:
    """The submodule that has the tensor called `name`, and the tensor's name there."""
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


def as_torch_dtype(dtype: Any) -> torch.dtype | None:
    """A torch dtype from a torch dtype, a NumPy or jax one, its name, or None."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    name = dtype.removeprefix("torch.") if isinstance(dtype, str) else _name(dtype)
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise PortError(
            f"{dtype!r} is not a dtype", where="dtype", fix="give torch.bfloat16 or 'bfloat16', for example"
        )
    return found


def _name(dtype: Any) -> str:
    try:
        return jnp.dtype(dtype).name
    except TypeError:
        return ""


def dtype_overrides(model: Any, dtype: torch.dtype) -> Callable[[str], torch.dtype | None]:
    """A function from a tensor's name to the dtype that the model insists on, or None for `dtype`.

    Models of both libraries list modules that lose too much in 16 bits.
    """
    if hasattr(model, "_get_dtype_plan"):
        plan = {
            re.compile(name.replace("*", ".*")): kept for name, kept in model._get_dtype_plan(dtype).items()
        }
        return lambda name: next((kept for pattern, kept in plan.items() if pattern.search(name)), None)
    modules = set(getattr(model, "_keep_in_fp32_modules", None) or ())
    return lambda name: torch.float32 if modules.intersection(name.split(".")) else None
