"""Read a checkpoint from disk straight into sharded arrays."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import Mesh, NamedSharding
from tqdm import tqdm

from tpuport import compat
from tpuport.checkpoint import building, safetensors_files
from tpuport.checkpoint.device_layout import (
    allowed_names,
    as_torch_dtype,
    check_mesh_and_rules,
    dtype_overrides,
    one_device_mesh,
    parameter_groups,
    plan_shardings,
    put_buffer,
    put_parameter,
    replicated_sharding,
)
from tpuport.checkpoint.lazy import Converted, LazyTensor
from tpuport.checkpoint.matching import Match, match_tensors
from tpuport.checkpoint.mismatches import initialise_absent, misfits, raise_problems
from tpuport.checkpoint.moving import move_buffers, record_port
from tpuport.checkpoint.reading import Index, Reader, aligned_empty, bounded
from tpuport.errors import PortError
from tpuport.library_classes import is_diffusers_class
from tpuport.patches import registry
from tpuport.sharding import ShardingRules


@dataclass(frozen=True)
class Placement:
    """One array to be made: its names in the model, what to read, the type and place that it gets."""

    names: tuple[str, ...]
    source: LazyTensor
    dtype: np.dtype
    sharding: NamedSharding
    is_buffer: bool


def load(
    model_class: Any,
    directory: str | Path,
    *,
    mesh: Mesh | None = None,
    rules: ShardingRules | None = None,
    dtype: torch.dtype | str | None = None,
    trust_remote_code: bool = False,
    allow: str | Iterable[str] = (),
    **config_options: Any,
) -> Any:
    """Load a checkpoint from a local directory onto the devices of `mesh`.

    Every parameter is read by slices from safetensors straight to the devices that hold it, so that the host
    never has more than about one; a process reads only what its own devices hold.

    Args:
        model_class: a transformers `AutoModel...` or model class, or a diffusers model class.
        directory: as `save_pretrained` writes it: config.json, one safetensors file or an index of several.
        mesh: None for one device.
        rules: None for the model's own tensor-parallel plan.
        dtype: for floating-point weights; None for the config's, or where it has none, the checkpoint's.
        trust_remote_code: whether Python code in the checkpoint may run.
        allow: names that the sharding audit lets pass, and names (or patterns with `*`) of tensors in the
            checkpoint that the model has no place for; one may be given as it is.
        config_options: config fields to override, `attn_implementation` for example.

    Returns:
        The model, in evaluation mode; its parameters and buffers are torchax tensors.

    Raises:
        PortError: the checkpoint, the model and the mesh do not fit; all that was found is listed, and
            nothing was put on a device.
    """
    building.check_class(model_class)
    directory, allow = building.checked_path(directory), allowed_names(allow)
    check_mesh_and_rules(mesh, rules)
    registry.apply_all()
    wanted = as_torch_dtype(dtype)
    inventory, config = _survey(model_class, directory, trust_remote_code, config_options)
    model_dtype = wanted or _own_dtype(config, inventory)
    model: Any = building.build_empty(model_class, config, model_dtype, trust_remote_code, directory)
    match = match_tensors(model, inventory.tensors)
    raise_problems(directory, inventory.problems + misfits(model, match, allow))
    initialise_absent(model, match)
    mesh = mesh or one_device_mesh()
    placements = _plan(model, match, _target_dtype(model, model_dtype, wanted), mesh, rules, allow)
    with compat.environment():
        _read_all(model, placements)
        move_buffers(model, mesh)
    building.add_generation_config(model, directory)
    record_port(model, mesh)
    return model.eval().requires_grad_(False)


def _survey(
    model_class: Any, directory: Path, trust_remote_code: bool, options: dict[str, Any]
) -> tuple[safetensors_files.Inventory, Any]:
    """The tensors in the checkpoint's files, and its config; PortError where there is not even that."""
    building.check_directory(directory)
    stem = (
        safetensors_files.DIFFUSERS_STEM
        if is_diffusers_class(model_class)
        else safetensors_files.TRANSFORMERS_STEM
    )
    inventory = safetensors_files.take_inventory(directory, stem)
    try:
        config = building.read_config(model_class, directory, trust_remote_code, options)
    except PortError as error:
        if inventory.problems:
            raise_problems(directory, [*inventory.problems, building.brief(error, directory)])
        raise
    if not inventory.is_complete:
        raise_problems(directory, inventory.problems)
    return inventory, config


def _own_dtype(config: Any, inventory: safetensors_files.Inventory) -> torch.dtype:
    """The dtype that the config names, or else that of the first floating-point tensor."""
    named = getattr(config, "dtype", None)
    if named is not None:
        return as_torch_dtype(named) or torch.float32
    dtypes = [tensor.dtype for tensor in inventory.tensors.values() if tensor is not None]
    return next((d for d in map(compat.torch_dtype, dtypes) if d.is_floating_point), torch.float32)


def _target_dtype(
    model: Any, model_dtype: torch.dtype, wanted: torch.dtype | None
) -> Callable[[str, LazyTensor], np.dtype]:
    """A function to the dtype of the array that a tensor of the checkpoint becomes."""
    keep, expected = dtype_overrides(model, model_dtype), model.state_dict()
    diffusers = is_diffusers_class(type(model))

    def target(name: str, source: LazyTensor) -> np.dtype:
        dtype = expected[name].dtype
        if dtype.is_floating_point:
            # transformers' modules say their own dtype; diffusers' take the one asked for, or the stored one.
            dtype = keep(name) or ((wanted or compat.torch_dtype(source.dtype)) if diffusers else dtype)
        return compat.jax_dtype(dtype)

    return target


def _plan(
    model: Any,
    match: Match,
    target: Callable[[str, LazyTensor], np.dtype],
    mesh: Mesh,
    rules: ShardingRules | None,
    allow: Iterable[str],
) -> list[Placement]:
    """What to read and where to put it, in the order of the model; the sharding is audited on the way."""
    groups = parameter_groups(model)
    sources: dict[str, LazyTensor | None] = {}
    shapes: dict[str, jax.ShapeDtypeStruct] = {}
    for names in groups:
        source = next((match.sources[name] for name in names if name in match.sources), None)
        parameter = model.get_parameter(names[0])
        dtype = compat.jax_dtype(parameter.dtype) if source is None else target(names[0], source)
        # One object for all names of a group: that is how the audit knows tied weights.
        shapes.update(dict.fromkeys(names, jax.ShapeDtypeStruct(tuple(parameter.shape), dtype)))
        sources.update(dict.fromkeys(names, source))
    shardings = plan_shardings(model, groups, shapes, mesh, rules, allow)
    parameters = [
        Placement(tuple(names), source, shapes[names[0]].dtype, shardings[names[0]], False)
        for names in groups
        if (source := sources[names[0]]) is not None
    ]
    buffers = [
        Placement(
            (name,), match.sources[name], target(name, match.sources[name]), replicated_sharding(mesh), True
        )
        for name in model.state_dict()
        if name not in sources and name in match.sources
    ]
    return parameters + buffers


def _read_all(model: Any, placements: list[Placement]) -> None:
    """Read every placement and put it into the model; past a second, a bar shows the bytes."""
    total = sum(_bytes_here(placement) for placement in placements)
    with (
        tqdm(total=total, desc="Loading weights", unit="B", unit_scale=True, delay=1.0) as bar,
        Reader(bar.update) as reader,
    ):
        previous: jax.Array | None = None
        for placement in placements:
            array = place(reader, placement.source, placement.dtype, placement.sharding)
            put = put_buffer if placement.is_buffer else put_parameter
            put(model, placement.names, array)
            if previous is not None:
                # Else host copies of many parameters wait for the device at once.
                previous.block_until_ready()
            previous = array


def place(reader: Reader, source: LazyTensor, dtype: np.dtype, sharding: NamedSharding) -> jax.Array:
    """Make a sharded array of `source`, cast to `dtype`, reading only the slices of local devices."""
    shape, made = source.shape, {}

    def read(index: Index | None) -> np.ndarray:
        wanted = bounded(index or (), shape)
        key = tuple((part.start, part.stop) for part in wanted)
        if key not in made:
            out = aligned_empty(tuple(part.stop - part.start for part in wanted), dtype)
            source.read_into(reader, wanted, out)
            made[key] = out
        return made[key]

    return jax.make_array_from_callback(shape, sharding, read, dtype=dtype)


def _bytes_here(placement: Placement) -> int:
    """The stored bytes of the slices that this process reads for `placement`."""
    shape = placement.source.shape
    if isinstance(placement.source, Converted):
        return placement.source.stored_bytes
    indices = placement.sharding.addressable_devices_indices_map(shape).values()
    slices = {tuple((part.start, part.stop) for part in bounded(index or (), shape)) for index in indices}
    elements = sum(prod(stop - start for start, stop in one) for one in slices)
    return elements * placement.source.dtype.itemsize
