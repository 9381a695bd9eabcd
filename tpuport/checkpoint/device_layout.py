"""The dtype and sharding of each tensor of a model, and copying tensors there."""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuport import compat
from tpuport.base.mappings import names_of_each
from tpuport.errors import PortError
from tpuport.hardware.mesh import check_mesh, create_mesh
from tpuport.internals.diffusers_internals import modules_in_float32
from tpuport.internals.transformers_internals import insisted_dtypes
from tpuport.sharding import ShardingRules, audit


def as_torch_dtype(dtype: Any) -> torch.dtype | None:
    """A torch dtype from a torch dtype, a NumPy or jax one, its name, or None;
    PortError for anything else.
    """
    if isinstance(dtype, torch.dtype | None):
        return dtype
    name = str(dtype).removeprefix("torch.")
    if not isinstance(dtype, str):
        # It takes classes such as np.float16 too, and its names are torch's.
        with contextlib.suppress(TypeError):
            name = jnp.dtype(dtype).name
    torch_dtype = getattr(torch, name, None)
    if not isinstance(torch_dtype, torch.dtype):
        raise PortError(
            f"{dtype!r} is not a dtype",
            where="dtype",
            fix="give torch.bfloat16 or 'bfloat16', for example",
        )
    return torch_dtype


def dtype_overrides(model: Any, dtype: torch.dtype) -> Callable[..., Any]:
    """A function of a tensor's name and dtype: the dtype that a model insists on in
    `dtype`, or else the tensor's own.

    Models of both libraries list modules that lose too much precision in 16 bits.
    """
    plan = insisted_dtypes(model, dtype)
    if plan is not None:
        patterns = [
            (re.compile(name.replace("*", ".*")), required)
            for name, required in plan.items()
        ]
        return lambda name, own=None: next(
            (required for pattern, required in patterns if pattern.search(name)), own
        )
    # diffusers names modules, anywhere in a parameter's path.
    modules = modules_in_float32(model)
    return lambda name, own=None: (
        own if modules.isdisjoint(name.split(".")) else torch.float32
    )


def one_device_mesh() -> Mesh:
    """A mesh of this process's first device, with the axes that every mesh of tpuport
    has.
    """
    return create_mesh(devices=jax.local_devices()[:1])


def allowed_names(allow: Any) -> tuple[str, ...]:
    """The names that the argument `allow` gives, one or several; PortError for anything
    but strings.
    """
    if isinstance(allow, str) or not isinstance(allow, Iterable):
        allow = (allow,)
    names = tuple(allow)
    others = [repr(name) for name in names if not isinstance(name, str)]
    if others:
        raise PortError(
            f"{', '.join(others[:5])} is not a name",
            where="allow",
            fix='allow=("lm_head.weight",)',
        )
    return names


def check_mesh_and_rules(mesh: Any, rules: Any) -> None:
    """PortError unless these are a mesh that a model can live on, and sharding rules;
    None is fine for either.
    """
    check_mesh(mesh)
    if not isinstance(rules, ShardingRules | None):
        raise PortError(
            f"rules is a {type(rules).__name__}, not ShardingRules",
            where="rules",
            fix="rules=tpuport.ShardingRules({...}) for these alone, or "
            "tpuport.ShardingRules.from_model(model).override({...}) to keep the model's own plan under them, or "
            "tpuport.ShardingRules.infer(model, inputs) for a model without a plan",
        )


def plan_shardings(
    model: torch.nn.Module,
    groups: Iterable[list[str]],
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    mesh: Mesh,
    rules: ShardingRules | None,
    allow: str | Iterable[str],
) -> dict[str, NamedSharding]:
    """The audited sharding of every parameter; the names of a group (tied weights)
    share that of the first.

    Args:
        groups: the names of each parameter, more than one if weights are tied.
        shapes: shape and dtype of each parameter, by its name.
        rules: None for the model's own plan if the mesh has several devices.
        allow: names whose errors the audit accepts.

    Raises:
        PortError: the audit found rules that match nothing, axes that do not divide, or
            the like.
    """
    rules = rules_or_plan(rules, model, mesh)
    audit(rules, shapes, mesh, allow=allowed_names(allow)).raise_on_errors()
    shardings = rules.shardings(shapes, mesh)
    for names in groups:
        shardings.update(dict.fromkeys(names, shardings[names[0]]))
    return shardings


def rules_or_plan(
    rules: ShardingRules | None, model: torch.nn.Module, mesh: Mesh
) -> ShardingRules:
    """These rules; without any, the model's own plan."""
    if rules is not None:
        return rules
    # A single device needs no plan, and a model without one no warning.
    return ShardingRules.from_model(model) if mesh.size > 1 else ShardingRules({})


def replicated_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of an array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def parameter_groups(model: torch.nn.Module) -> list[list[str]]:
    """The names of each parameter of `model`: several in a group are tied weights."""
    return names_of_each(model.named_parameters(remove_duplicate=False))


def buffer_groups(model: torch.nn.Module) -> list[list[str]]:
    """The names of each buffer of `model`, grouped as those of parameters are."""
    return names_of_each(model.named_buffers(remove_duplicate=False))


def find_owner(model: torch.nn.Module, name: str) -> tuple[Any, str]:
    """The submodule that has the tensor called `name`, and the tensor's name in it."""
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


def put_parameter(
    model: torch.nn.Module, names: Iterable[str], tensor: torch.Tensor
) -> None:
    """Make `tensor` the parameter that the model has under each of `names`; it requires
    a gradient if the former one does.
    """
    owners = [find_owner(model, name) for name in names]
    former = owners[0][0]._parameters[owners[0][1]]
    requires_grad = former.requires_grad and tensor.dtype.is_floating_point
    parameter = torch.nn.Parameter(tensor, requires_grad=requires_grad)
    for module, leaf in owners:
        # Not setattr: torch refuses a parameter of another class there.
        module._parameters[leaf] = parameter


def put_buffer(
    model: torch.nn.Module, names: Iterable[str], tensor: torch.Tensor
) -> None:
    """Make `tensor` the buffer that the model has under each of `names`, of whose
    integers the former buffer says how wide they are.
    """
    former = model.get_buffer(next(iter(names)))
    if former.dtype is torch.int32:
        tensor = compat.wrap(compat.to_jax(tensor), torch.int32)
    for name in names:
        module, leaf = find_owner(model, name)
        module._buffers[leaf] = tensor


def scatter(
    tensor: torch.Tensor, dtype: torch.dtype, sharding: NamedSharding
) -> jax.Array:
    """Copy a tensor, cast to `dtype`, to the devices of `sharding`: each receives only
    its own slice.
    """
    if compat.is_ported(tensor):
        array = compat.as_jax(tensor)
        return jax.device_put(array.astype(compat.jax_dtype(dtype)), sharding)
    shape = tuple(tensor.shape)
    shards = []
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        # Cast and sliced on the host, so that each device receives only the bytes it
        # keeps.
        with jax.default_device(device):
            shards.append(compat.to_jax(tensor.detach()[index].to(dtype)))
    return jax.make_array_from_single_device_arrays(shape, sharding, shards)
