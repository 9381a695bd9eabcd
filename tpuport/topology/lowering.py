"""A model's step, traced and lowered for a described TPU: the program before it is compiled."""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import linecache
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import torch
from jax.sharding import Mesh

from tpuport import layers, trace_errors
from tpuport.attention import attention_settings
from tpuport.attention.call_report import Call, call_counts
from tpuport.checkpoint.device_layout import as_torch_dtype, check_mesh_and_rules
from tpuport.errors import PortError
from tpuport.hardware import assume_generation, described, generation_of, parse_slice
from tpuport.mesh import create_mesh
from tpuport.sharding import ShardingRules
from tpuport.sharding.sequence import transformer_blocks
from tpuport.topology import abstract_steps
from tpuport.topology.abstract_weights import abstract_weights, built
from tpuport.topology.compile_report import Report, Scanned
from tpuport.topology.generation_tasks import Decode, Prefill

# Packages that decide what a program is, and what the compiler makes of it.
_DECIDING = ("tpuport", "jax", "jaxlib", "libtpu", "torch", "torchax", "transformers", "diffusers")
# A line of source as a program's text names it: file, line and columns.
_PLACE = re.compile(r'loc\("([^"]+)":(\d+:\d+[^)]*)\)')


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A program before it is compiled.

    Attributes:
        topology: its full name; generation: of its chips.
        mesh: over its devices.
        model: with weights that are not there.
        task: "forward", "prefill" or "decode"; inputs: as they were given.
        step: what was traced; weights: by name, with their shardings.
        jaxpr: the traced program; stage: the jax.stages.Lowered.
        attention: the calls that were traced, and how often.
        scanned: blocks that run in loops.
        seconds: that tracing and lowering took.
        sequences: lengths of the hidden states that enter the blocks of a diffusion transformer, which sp shares out.
        apart: lowers the same with each block for itself, where nobody asked for the loops; None otherwise.
    """

    topology: str
    generation: str
    mesh: Mesh
    model: torch.nn.Module
    task: str
    inputs: Mapping[str, Any]
    step: abstract_steps.Step
    weights: dict[str, jax.ShapeDtypeStruct]
    jaxpr: Any
    stage: Any
    attention: tuple[tuple[Call, int], ...]
    scanned: tuple[Scanned, ...]
    unit: tuple[str, float]
    seconds: float
    sequences: tuple[int, ...] = ()
    apart: Callable[[], "Lowered"] | None = None

    @functools.cached_property
    def key(self) -> str:
        """What decides on the report: the program with its source lines, the mesh, and the packages' versions."""
        mesh = [(str(axis), int(size)) for axis, size in self.mesh.shape.items()]
        flags = [os.environ.get(name) for name in ("LIBTPU_INIT_ARGS", "XLA_FLAGS")]
        inputs = {name: shown(value) for name, value in self.inputs.items()}
        about = [
            self.topology,
            mesh,
            self.task,
            self.unit,
            versions(),
            type(self.model).__name__,
            flags,
            inputs,
            self._places(),
            self.apart is not None,  # of what does not fit, the report is then that of another program
        ]
        digest = hashlib.sha256(json.dumps(about, default=str).encode())
        digest.update(_own_code())
        digest.update(self.stage.as_text().encode())
        return digest.hexdigest()

    def _places(self) -> list[tuple[str, str, str]]:
        """Lines of source that the program is from, in its order: file, number, and the text that a report quotes.

        Those of this package are none: who asked for the program, and from where, is no part of it; and neither is code
        that is in no file.
        """
        own = f"{Path(__file__).parent}{os.sep}"
        found = _PLACE.findall(self.stage.as_text(debug_info=True))
        linecache.checkcache()
        return [
            (file, line, linecache.getline(file, int(line.partition(":")[0])))
            for file, line in found
            if not file.startswith((own, "<"))
        ]

    def report(self, effort: float | None = None) -> Report:
        """Compile it, and say what the compiler made of it; `effort` as in `compile_for`."""
        from tpuport.topology.compiling import report

        return report(self, effort)


@functools.cache
def _own_code() -> bytes:
    """A digest of this package, so that no report outlives the code that made it."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.digest()


def versions() -> dict[str, str]:
    """Of the packages that decide, those that are installed."""
    found = {}
    for name in _DECIDING:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def shown(value: Any) -> str:
    """An input as a report shows it: dtype and shape, or a static value."""
    if isinstance(value, torch.Tensor | jax.ShapeDtypeStruct):
        return f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.shape))}]"
    return repr(value)


def lower_for(
    model: Any,
    inputs: Mapping[str, Any] | Prefill | Decode,
    *,
    topology: str = "v6e:2x4",
    mesh: Mesh | None = None,
    dp: int = 1,
    sp: int = 1,
    tp: int = 1,
    rules: ShardingRules | None = None,
    dtype: torch.dtype | str | None = None,
    allow: str | tuple[str, ...] = (),
    scan_layers: bool | None = None,
    unit: tuple[str, float] | None = None,
    attention: str | None = None,
) -> Lowered:
    """Trace and lower one step of a model for a described TPU; the arguments are those of `compile_for`.

    Raises:
        PortError: an unknown topology, a mesh or rules that do not fit, or an input that cannot be an argument.
        CannotTrace: the model's code cannot be traced; says where, and what to do.
    """
    implementation = attention_settings.Settings(implementation=attention or "auto")
    owner, chips = built(model), described(topology)
    generation = generation_of(chips)
    mesh = _checked_mesh(mesh, chips) if mesh is not None else create_mesh(dp, sp, tp, devices=chips.devices)
    check_mesh_and_rules(mesh, rules)
    weights = abstract_weights(owner, mesh, rules, as_torch_dtype(dtype), allow)
    started = time.perf_counter()
    with (
        assume_generation(generation), _attention(implementation if attention else None),
        trace_errors.explained(owner, catch=trace_errors.is_explicable),
        _sequences(owner) as sequences,
    ):  # fmt: skip
        step = _step(owner, inputs, weights, mesh)
        traced, step, calls = _traced(step, owner, mesh, _task(inputs), scan_layers)
        stage = traced.lower(lowering_platforms=("tpu",))
    scanned = tuple(Scanned(one.name, one.count) for one in getattr(step.function, "scanned", ()))
    return Lowered(
        topology=parse_slice(topology).name, generation=generation, mesh=mesh, model=owner, task=_task(inputs),
        inputs=inputs if isinstance(inputs, Mapping) else vars(inputs), step=step, weights=weights,
        jaxpr=traced.jaxpr, stage=stage,
        attention=tuple((one, times) for one, times in calls.items() if times > 0), scanned=scanned,
        sequences=tuple(sorted(sequences)), unit=unit or step.units, seconds=time.perf_counter() - started,
        apart=functools.partial(
            lower_for, owner, inputs, topology=topology, mesh=mesh, rules=rules, dtype=dtype, allow=allow,
            scan_layers=False, unit=unit, attention=attention,
        ) if scanned and scan_layers is None else None,
    )  # fmt: skip


def _task(inputs: Any) -> str:
    return {Prefill: "prefill", Decode: "decode"}.get(type(inputs), "forward")


def _step(model: Any, inputs: Any, weights: dict[str, Any], mesh: Mesh) -> abstract_steps.Step:
    if isinstance(inputs, Prefill):
        return abstract_steps.prefill(model, inputs, weights, mesh)
    if isinstance(inputs, Decode):
        return abstract_steps.decode(model, inputs, weights, mesh)
    if not isinstance(inputs, Mapping):
        raise PortError(
            f"inputs are arguments of the model by name, or a task, and this is a {type(inputs).__name__}",
            where="inputs", fix="compile_for(model, {'input': torch.empty(1, 8, device='meta')}, ...)",
        )  # fmt: skip
    return abstract_steps.forward(model, dict(inputs), weights, mesh)


def _traced(
    step: abstract_steps.Step, model: torch.nn.Module, mesh: Mesh, task: str, scan_layers: bool | None
) -> tuple[Any, abstract_steps.Step, dict[Call, int]]:
    """(the jax.stages.Traced, the step as it was traced, its attention calls and how often they were traced).

    Without a word on `scan_layers`, blocks of a forward call are in a loop where that wins. The programs of `generate`
    have none, so that of a prompt has none either.
    """
    weights, *rest = step.arguments
    found = layers.find_stacks(model, weights)
    wanted = scan_layers if scan_layers is not None else task == "forward"
    if wanted and (scan_layers or layers.decide_scan(found, task)):
        function: Any = layers.scan_blocks(step.function)
        looped = step._replace(function=function, arguments=(layers.stack_weights(weights, found), *rest))
        made = _trace(looped, model, mesh)
        if scan_layers or function.is_mostly_scanned:
            return made[0], looped, made[1]
    made = _trace(step, model, mesh)
    return made[0], step, made[1]


def _trace(step: abstract_steps.Step, model: torch.nn.Module, mesh: Mesh) -> tuple[Any, dict[Call, int]]:
    before = call_counts()
    with abstract_steps.on(model, mesh):
        # Weights that this step does not use are on the device all the same.
        program = jax.jit(step.function, donate_argnums=step.donated, keep_unused=True)
        traced = program.trace(*step.arguments)
    return traced, {one: times - before.get(one, 0) for one, times in call_counts().items()}


def _checked_mesh(mesh: Mesh, chips: Any) -> Mesh:
    # Each description has devices of its own: those of the caller's are others, and mean the same.
    known = {(device.device_kind, device.id) for device in chips.devices}
    strangers = [device for device in mesh.devices.flat if (device.device_kind, device.id) not in known]
    if strangers:
        raise PortError(
            f"{len(strangers)} devices of the mesh are not of the described TPU, such as {strangers[0]}",
            where="mesh",
            fix="tpuport.create_mesh(tp=-1, devices=tpuport.topology.described('v5e:2x4').devices), or give dp, sp, tp",
        )
    return mesh


@contextlib.contextmanager
def _attention(chosen: attention_settings.Settings | None) -> Iterator[None]:
    """Let these settings count inside, where there are any."""
    if chosen is None:
        yield
        return
    owner = object()
    attention_settings.add_settings(owner, chosen)
    try:
        yield
    finally:
        attention_settings.remove_settings(owner)


@contextlib.contextmanager
def _sequences(model: torch.nn.Module) -> Iterator[set[int]]:
    """The lengths of the hidden states [B, S, E] with which blocks are called inside: what `sequence_sharded` cuts."""
    found: set[int] = set()

    def note(block: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first = next(iter(inspect.signature(block.forward).parameters))
        hidden = args[0] if args else kwargs.get(first)
        if isinstance(hidden, torch.Tensor) and hidden.ndim == 3:
            found.add(int(hidden.shape[1]))

    with contextlib.ExitStack() as stack:
        for block in transformer_blocks(model):
            stack.callback(block.register_forward_pre_hook(note, with_kwargs=True).remove)
        yield found
