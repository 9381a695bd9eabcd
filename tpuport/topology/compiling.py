"""A model compiled for a TPU that is not there: no weights, no TPU, and the real compiler's verdict.

It is the program that `tpuport.port` and `tpuport.compile` would make: weights by the same rules, attention by the same
kernel, rotary tables among the arguments.
"""

import contextlib
import logging
import re
import time
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Final, NamedTuple

import jax
import torch
from accelerate import init_empty_weights
from jax.errors import JaxRuntimeError
from jax.sharding import Mesh, NamedSharding

from tpuport import compat, pytrees, rotary
from tpuport.attention.blocks import assume_generation
from tpuport.attention.calls import Call, seen
from tpuport.checkpoint.dtypes import as_torch_dtype, kept_dtype
from tpuport.checkpoint.layout import check_placing, lay_out, one_device_mesh, parameter_groups, replicated
from tpuport.compilation import in_place, prepared
from tpuport.errors import PortError
from tpuport.mesh import create_mesh
from tpuport.sharding import ShardingRules
from tpuport.topology import hlo
from tpuport.topology.describe import described, full_name, generation_of
from tpuport.topology.report import Buffer, Collective, Memory, Report

logger = logging.getLogger("tpuport")

GIB: Final = 1 << 30
# What the compiler lets one device's program have; v4 and tpu7x have two devices on a chip.
CAPACITY: Final = {
    "v4": int(15.25 * GIB),
    "v5e": int(15.75 * GIB),
    "v5p": int(95.74 * GIB),
    "v6e": int(31.25 * GIB),
    "tpu7x": int(94.75 * GIB),
}
_BUFFERS: Final = 12
_SIZE: Final = re.compile(r"\(?([\d.]+)([KMGT]?)\)? ?(?:exceeds|of [\d.]+[KMGT]? hbm)")
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": GIB, "T": 1 << 40}


class Lowered(NamedTuple):
    """A program before it is compiled.

    Attributes:
        stage: jax.stages.Lowered.
        weight_bytes: of the weights on one device.
        attention: the calls that were traced, and how often.
        seconds: that it took.
    """

    stage: Any
    weight_bytes: int
    attention: tuple[tuple[Call, int], ...]
    seconds: float


def compile_for(
    model: Any,
    inputs: Mapping[str, Any],
    *,
    topology: str = "v6e:2x4",
    mesh: Mesh | None = None,
    dp: int = 1,
    sp: int = 1,
    tp: int = 1,
    rules: ShardingRules | None = None,
    dtype: torch.dtype | str | None = None,
    allow: str | tuple[str, ...] = (),
    effort: float | None = None,
) -> Report:
    """Compile one call of a model for a described TPU. No weight is allocated, and no TPU is used.

    Options of attention are those of `tpuport.attention.register`, where it is in force.

    Args:
        model: a module, whose weights may be on the meta device and are not read; or a function that builds one, whose
            parameters are then not allocated. It is put in evaluation mode.
        inputs: arguments of the call by name. Tensors (those on the meta device will do) and jax.ShapeDtypeStruct are
            traced, anything else is static.
        topology: as `described` takes it.
        mesh: over the topology's devices; None makes one of dp, sp and tp, of which one may be -1.
        rules, allow: as in `tpuport.port`.
        dtype: for floating-point parameters; None keeps theirs.
        effort: the compiler's on speed, from -1 to 1; None is 0, which runs have. At -1 it is done several times sooner
            with a program that does the same and takes more memory, so that what fits then fits.

    Returns:
        The report. A program that does not fit into memory has one too, with `fits` False.

    Raises:
        PortError: an unknown topology, a mesh or rules that do not fit, or an input that cannot be an argument.
    """
    built, chips = _built(model), described(topology)
    mesh = mesh or create_mesh(dp, sp, tp, devices=chips.devices)
    check_placing(mesh, rules)
    weights = _weights(built, mesh, rules, as_torch_dtype(dtype), allow)
    generation = generation_of(chips)
    with assume_generation(generation):
        lowered = _lowered(built, dict(inputs), weights, mesh)
    logger.info("lowered in %.1f s; compiling for %s", lowered.seconds, topology)
    started = time.perf_counter()
    program, refused = _compiled(lowered, effort)
    seconds = {"lower": lowered.seconds, "compile": time.perf_counter() - started}
    parameters = {id(value): value for value in built.parameters()}.values()
    whole = {id(value): value for value in weights.values()}.values()
    return Report(
        topology=full_name(topology), generation=generation, devices=mesh.size,
        mesh={str(axis): int(size) for axis, size in mesh.shape.items()}, model=type(built).__name__,
        parameters=sum(value.numel() for value in parameters), weight_bytes=sum(_nbytes(value) for value in whole),
        inputs={name: _shown(value) for name, value in inputs.items()},
        memory=_memory(program, refused, lowered.weight_bytes, CAPACITY[generation]), refused=refused,
        attention=lowered.attention, effort=effort, seconds=seconds, program=program, **_counted(program),
    )  # fmt: skip


def _built(model: Any) -> torch.nn.Module:
    if not isinstance(model, torch.nn.Module):
        if not callable(model):
            raise PortError(
                f"this is a {type(model).__name__}, neither a model nor a function that builds one",
                where="model", fix="compile_for(lambda: Model(**config), inputs, topology=...)",
            )  # fmt: skip
        with init_empty_weights(include_buffers=False):
            model = model()
    if not isinstance(model, torch.nn.Module):
        raise PortError(
            f"the function built a {type(model).__name__}, which is no torch.nn.Module", where="model"
        )
    return model.eval().requires_grad_(False)


def _weights(
    model: torch.nn.Module,
    mesh: Mesh,
    rules: ShardingRules | None,
    dtype: torch.dtype | None,
    allow: Any,
) -> dict[str, jax.ShapeDtypeStruct]:
    """Every parameter and buffer as `compilation.arrays_of` names them, with the place that `port` would give it."""
    keep, saved = kept_dtype(model, dtype) if dtype else None, model.state_dict().keys()

    def described_as(name: str, tensor: torch.Tensor) -> tuple[tuple[int, ...], Any]:
        cast = keep and dtype and tensor.is_floating_point() and name in saved
        return tuple(tensor.shape), _dtype((keep(name) or dtype) if keep and cast else tensor.dtype)

    groups = parameter_groups(model)
    shapes: dict[str, jax.ShapeDtypeStruct] = {}
    for names in groups:
        shape = jax.ShapeDtypeStruct(*described_as(names[0], model.get_parameter(names[0])))
        shapes.update(dict.fromkeys(names, shape))
    shardings = lay_out(model, groups, shapes, mesh, rules, allow)
    placed = {names[0]: _placed(shapes[names[0]], shardings[names[0]]) for names in groups}
    for name, buffer in model.named_buffers():
        shape, kind = described_as(name, buffer)
        placed[name] = jax.ShapeDtypeStruct(shape, kind, sharding=replicated(mesh))
    return placed


def _placed(shape: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)


def _dtype(dtype: Any) -> Any:
    """The dtype that a tensor has on the device: 64 bits become 32."""
    found = compat.jax_dtype(dtype) if isinstance(dtype, torch.dtype) else dtype
    return jax.dtypes.canonicalize_dtype(found)


def _nbytes(value: Any) -> int:
    return prod(value.shape) * value.dtype.itemsize


def _lowered(model: Any, inputs: dict[str, Any], weights: dict[str, Any], mesh: Mesh) -> Lowered:
    """Traced here: the call, with the weights and the tensors among its inputs as arguments."""
    started = time.perf_counter()
    pytrees.register()
    _, named = prepared(model, (), {name: _described(value, name) for name, value in inputs.items()})
    leaves, tree = jax.tree_util.tree_flatten(named)
    dynamic = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [
        jax.ShapeDtypeStruct(tuple(leaves[place].shape), _dtype(leaves[place].dtype)) for place in dynamic
    ]

    def call(weights: list[dict[str, Any]], tensors: list[Any]) -> Any:
        values = list(leaves)
        for place, array in zip(dynamic, tensors, strict=True):
            values[place] = compat.as_torch(array)
        with in_place([model], weights):
            out = model(**jax.tree_util.tree_unflatten(tree, values))
            pytrees.register_used(out)
            return compat.as_jax(out)

    with _on(
        model, one_device_mesh()
    ):  # tables are computed, and no device of the mesh is there to hold them
        [arguments] = rotary.Tables().beside([weights], None, [model], call, tensors)
    # Those of the weights come as they are; tables, on every device.
    arguments = {
        name: value if name in weights else jax.tree.map(lambda x: _placed(x, replicated(mesh)), value)
        for name, value in arguments.items()
    }
    before = seen(clear=False)[0]
    placed = [_placed(tensor, replicated(mesh)) for tensor in tensors]
    with _on(model, mesh):
        stage = jax.jit(call).lower([arguments], placed)
    calls = {one: times - before.get(one, 0) for one, times in seen(clear=False)[0].items()}
    held = sum(_local_bytes(value) for value in weights.values())
    made = tuple((one, times) for one, times in calls.items() if times > 0)
    return Lowered(stage, held, made, time.perf_counter() - started)


def _described(value: Any, name: str) -> Any:
    """A tensor of the meta device for what is described; anything else as it is."""
    if not isinstance(value, jax.ShapeDtypeStruct):
        return value
    dtype = as_torch_dtype(value.dtype)
    if dtype is None:
        raise PortError(f"torch has no {value.dtype}", where=f"inputs[{name!r}]")
    return torch.empty(value.shape, dtype=dtype, device="meta")


def _local_bytes(value: Any) -> int:
    return prod(value.sharding.shard_shape(value.shape)) * value.dtype.itemsize


@contextlib.contextmanager
def _on(model: Any, mesh: Mesh) -> Iterator[None]:
    """Let the model be on a mesh for as long as it is traced."""
    before = getattr(model, "tpuport_mesh", None)
    model.tpuport_mesh = mesh
    try:
        yield
    finally:
        model.tpuport_mesh = before


def _compiled(lowered: Lowered, effort: float | None) -> tuple[Any, str | None]:
    """(the program, None), or (None, what the compiler said) where it does not fit."""
    options = {} if effort is None else {"exec_time_optimization_effort": float(effort)}
    try:
        return lowered.stage.compile(compiler_options=options), None
    except JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None, "\n".join(str(error).splitlines()[:12])


def _memory(program: Any, refused: str | None, weights: int, capacity: int) -> Memory:
    if program is None:
        found = _SIZE.search(refused or "")
        used = int(float(found[1]) * _UNITS[found[2]]) if found else None
        return Memory(capacity, weights, 0, 0, 0, 0, used)
    said = program.memory_analysis()
    outputs = said.output_size_in_bytes - said.alias_size_in_bytes
    sizes = said.argument_size_in_bytes, outputs, said.temp_size_in_bytes, said.generated_code_size_in_bytes
    return Memory(capacity, weights, max(0, sizes[0] - weights), *sizes[1:], used=sum(sizes))


def _counted(program: Any) -> dict[str, Any]:
    """The fields of a report that the program's text and the compiler's costs give."""
    if program is None:
        return {"flops": None, "bytes_accessed": None, "collectives": (), "buffers": ()}
    costs = program.cost_analysis() or {}
    lines = list(hlo.instructions(program.as_text()))
    collectives = sorted(hlo.collectives(lines).items())
    buffers = hlo.largest(lines, _BUFFERS)
    return {
        "flops": costs.get("flops"),
        "bytes_accessed": costs.get("bytes accessed"),
        "collectives": tuple(Collective(kind, len(sizes), sum(sizes)) for kind, sizes in collectives),
        "buffers": tuple(Buffer(str(array), array.nbytes, made, times) for array, made, times in buffers),
    }


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor | jax.ShapeDtypeStruct):
        return f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.shape))}]"
    return repr(value)
