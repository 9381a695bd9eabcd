"""A model's step, traced and lowered for a described TPU: the program before it is
compiled.
"""

import collections
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict

import jax
import torch
from jax.sharding import Mesh

from tpuport import trace_errors
from tpuport.attention import attention_settings
from tpuport.attention.call_report import Call, call_counts
from tpuport.checkpoint.device_layout import (
    as_torch_dtype,
    check_mesh_and_rules,
    rules_or_plan,
)
from tpuport.compat.jaxprs import without_dead_code
from tpuport.compilation import layers
from tpuport.compilation.decisions.host_inputs import (
    Candidates,
    find_candidates,
    find_needed,
)
from tpuport.compilation.programs.capture import capture
from tpuport.compilation.programs.passes import Draft, run_passes
from tpuport.errors import PortError
from tpuport.hardware import assume_generation, described, generation_of, parse_slice
from tpuport.hardware.mesh import create_mesh
from tpuport.libraries.library_classes import is_library_model
from tpuport.patches import registry
from tpuport.quantization import QuantizationRules
from tpuport.sharding import ShardingRules
from tpuport.sharding.sequence import transformer_blocks
from tpuport.topology import abstract_steps
from tpuport.topology.abstract_quantization import quantize_abstract
from tpuport.topology.abstract_weights import abstract_weights, build_model
from tpuport.topology.compile_report import Scanned
from tpuport.topology.generation_tasks import Decode, Prefill
from tpuport.topology.module_scopes import module_scopes

# The packages that decide what a program is, and what the compiler makes of it.
_DECIDING_PACKAGES: Final = (
    "tpuport", "jax", "jaxlib", "libtpu", "torch", "torchax", "transformers", "diffusers",
)  # fmt: skip
# A line of source as a program's text names it: file, line and columns.
_LOCATION: Final = re.compile(r'loc\("([^"]+)":(\d+:\d+[^)]*)\)')
# Of a call stack, as jax keeps them from 0.10.1 on.
_FRAMES: Final = 100
_TASK_NAMES: Final = {Prefill: "prefill", Decode: "decode"}


class LoweringOptions(TypedDict, total=False):
    """Keyword arguments of `lower_for` and of `compile_for`; `lower_for` describes
    them.
    """

    topology: str
    mesh: Mesh | None
    dp: int
    sp: int
    tp: int
    rules: ShardingRules | None
    dtype: torch.dtype | str | None
    allow: str | tuple[str, ...]
    quantize: QuantizationRules | Mapping[str, Any] | str | None
    scan_layers: bool | None
    unit: tuple[str, float] | None
    attention: str | None


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A program before it is compiled.

    Attributes:
        topology: its full name; generation: of its chips.
        mesh: over its devices.
        model: whose weights have no values.
        task: "forward", "prefill" or "decode"; inputs: by name, as the caller passed
            them.
        step: what was traced; weights: by name, with their shardings.
        jaxpr: the traced program; stage: the jax.stages.Lowered.
        attention: the distinct calls that were traced, and how often.
        scanned: blocks that run in loops.
        seconds: that tracing and lowering took.
        sequences: lengths of the hidden states that enter the blocks of a diffusion
            transformer, which sp divides.
        lower_unrolled: lowers the same step without loops, if its loops are tpuport's
            choice and not the caller's.
        lower_with: lowers the same step with other sharding rules over those of the
            caller.
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
    lower_unrolled: Callable[[], "Lowered"] | None = None
    lower_with: Callable[[Mapping[str, Any]], "Lowered"] | None = None

    @functools.cached_property
    def key(self) -> str:
        """A digest of everything that decides on the report."""
        facts = [
            self.topology,
            [(str(axis), int(size)) for axis, size in self.mesh.shape.items()],
            self.task,
            self.unit,
            versions(),
            type(self.model).__name__,
            list(map(os.environ.get, ("LIBTPU_INIT_ARGS", "XLA_FLAGS"))),
            {name: describe_input(value) for name, value in self.inputs.items()},
            self._source_lines(),
            # A program with loops that does not fit is reported as the one without
            # them.
            self.lower_unrolled is not None,
        ]
        digest = hashlib.sha256(json.dumps(facts, default=str).encode())
        digest.update(_package_digest())
        digest.update(self.stage.as_text().encode())
        return digest.hexdigest()

    def _source_lines(self) -> list[tuple[str, str, str]]:
        """The program's lines of source in its order: file, position, and the text,
        which a report quotes.
        """
        # Not those of this package: its code is in the key as a whole, and the way of a
        # call through it does not matter. Nor those of code in no file.
        ignored = (f"{Path(__file__).parents[1]}{os.sep}", "<")
        linecache.checkcache()
        lines = []
        for file, position in _LOCATION.findall(self.stage.as_text(debug_info=True)):
            if not file.startswith(ignored):
                number = int(position.partition(":")[0])
                lines.append((file, position, linecache.getline(file, number)))
        return lines


@functools.cache
def _package_digest() -> bytes:
    """Of tpuport's own code: a report is not reused after the code that wrote it has
    changed.
    """
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.digest()


def versions() -> dict[str, str]:
    """The installed versions of the packages that decide what a program is."""
    installed = {}
    for name in _DECIDING_PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def describe_input(value: Any) -> str:
    """An input as a report shows it: dtype and shape, or the repr of a static value."""
    if isinstance(value, torch.Tensor | jax.ShapeDtypeStruct):
        return f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.shape))}]"
    return repr(value)


@contextlib.contextmanager
def _whole_stacks() -> Iterator[None]:
    """Let programs name the lines of the model: jax 0.10.0 keeps the ten innermost
    calls of each equation, which are the package's and torchax's.
    """
    name = "jax_traceback_in_locations_limit"
    former = getattr(jax.config, name)
    if 0 <= former < _FRAMES:
        jax.config.update(name, _FRAMES)
    try:
        yield
    finally:
        jax.config.update(name, former)


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
    quantize: QuantizationRules | Mapping[str, Any] | str | None = None,
    scan_layers: bool | None = None,
    unit: tuple[str, float] | None = None,
    attention: str | None = None,
) -> Lowered:
    """Trace and lower one step of a model for a described TPU. No weight is allocated.

    The options of `tpuport.attention.register` apply if it is in force.

    Args:
        model: a module, whose weights may be on the meta device and are not read; or a
            function that builds one, whose parameters are then not allocated. It is put
            in evaluation mode.
        inputs: arguments of the call by name. Tensors (also on the meta device) and
            jax.ShapeDtypeStruct are traced, the latter with the sharding that they
            have; anything else is static. Integers and masks whose values the code asks
            for are a part of the program, as in `tpuport.compile`, if these values are
            there; so is what follows from sizes and from buffers that no checkpoint
            holds. Or the part of a generation that is compiled: `Prefill` or `Decode`.
        topology: as `described` takes it.
        mesh: over the topology's devices; None makes one of dp, sp and tp, of which one
            may be -1.
        rules, allow, quantize: as in `tpuport.port`.
        dtype: for floating-point parameters; None keeps theirs.
        scan_layers: whether identical blocks are traced once and run in a loop; None if
            that wins.
        unit: what a step produces, and how many, for the estimate: ("images", 2); a
            task knows it.
        attention: "splash" or "xla"; None chooses by call.

    Raises:
        PortError: an unknown topology, a mesh or rules that do not fit, or an input
            that cannot be an argument.
        CannotTrace: the model's code cannot be traced; says where, and what to do.
    """
    owner = build_model(model)
    # As `port` does, so that the program is the one that a ported model runs.
    registry.apply_all()
    registry.apply_for(owner)
    chips = described(topology)
    if mesh is None:
        mesh = create_mesh(dp, sp, tp, devices=chips.devices)
    else:
        _check_devices(mesh, chips)
    check_mesh_and_rules(mesh, rules)
    weight_dtype = as_torch_dtype(dtype)
    quantize_abstract(owner, quantize, weight_dtype)
    # Once, and not for each trial: a model without a plan is warned of.
    rules = rules_or_plan(rules, owner, mesh)
    weights = abstract_weights(owner, mesh, rules, weight_dtype, allow)
    task = _TASK_NAMES.get(type(inputs), "forward")
    started = time.perf_counter()
    with (
        assume_generation(generation_of(chips)), _force_attention(attention),
        trace_errors.explained(owner, catch=trace_errors.is_explicable), _record_sequences(owner) as sequences,
    ):  # fmt: skip

        def trace(on_host: Sequence[str], *, decides: bool = False) -> _Traced:
            step = _step_of(owner, inputs, weights, mesh, tuple(on_host), decides)
            with abstract_steps.on_mesh(owner, mesh):
                return _trace(step, owner, task, scan_layers)

        traced = _trace_with_values(trace, inputs, is_library_model(owner))
        with _whole_stacks():
            stage = traced.program.lower(lowering_platforms=("tpu",))
    lower_unrolled = None
    if traced.draft.scanned and scan_layers is None:
        lower_unrolled = functools.partial(
            lower_for, owner, inputs, topology=topology, mesh=mesh, rules=rules, dtype=dtype, allow=allow,
            quantize=quantize, scan_layers=False, unit=unit, attention=attention,
        )  # fmt: skip

    def lower_with(overrides: Mapping[str, Any]) -> Lowered:
        return lower_for(
            owner, inputs, topology=topology, mesh=mesh, rules=rules.override(overrides), dtype=dtype, allow=allow,
            quantize=quantize, scan_layers=scan_layers, unit=unit, attention=attention,
        )  # fmt: skip

    return Lowered(
        topology=parse_slice(topology).name, generation=generation_of(chips), mesh=mesh, model=owner, task=task,
        inputs=inputs if isinstance(inputs, Mapping) else vars(inputs), step=traced.step, weights=weights,
        jaxpr=without_dead_code(traced.program.jaxpr), stage=stage, attention=traced.attention,
        scanned=tuple(Scanned(loop.name, loop.count) for loop in traced.draft.scanned), unit=unit or traced.step.units,
        seconds=time.perf_counter() - started, sequences=tuple(sorted(sequences)), lower_unrolled=lower_unrolled,
        lower_with=lower_with,
    )  # fmt: skip


def _check_devices(mesh: Mesh, chips: Any) -> None:
    """PortError unless the mesh consists of devices of this described TPU."""
    # Two descriptions of one slice have distinct device objects that mean the same.
    known = {(device.device_kind, device.id) for device in chips.devices}
    strangers = [
        device
        for device in mesh.devices.flat
        if (device.device_kind, device.id) not in known
    ]
    if strangers:
        raise PortError(
            f"devices of the mesh do not belong to the described TPU: {len(strangers)}, such as {strangers[0]}",
            where="mesh",
            fix="tpuport.create_mesh(tp=-1, devices=tpuport.topology.described('v5e:2x4').devices), or give dp, sp, tp",
        )


def _trace_with_values(
    trace: Callable[..., "_Traced"], inputs: Any, is_of_library: bool
) -> "_Traced":
    """The traced step; if it asks for values that follow from sizes and buffers, or
    for those of its inputs, with these in the program.

    Args:
        trace: traces the step with the values of inputs with these names; if it
            `decides`, also with those that follow from sizes and buffers.
        is_of_library: whether the model is. Code of the user's own may be meant for any
            values of its inputs.
    """
    try:
        return trace(())
    except Exception as error:
        if not isinstance(inputs, Mapping) or not trace_errors.asks_for_values(error):
            raise
        # The first error is the one that is raised.
        with contextlib.suppress(Exception):
            return trace((), decides=True)
        needed = _decisive_inputs(trace, inputs) if is_of_library else []
        if not needed:
            raise
    return trace(needed)


def _decisive_inputs(
    trace: Callable[..., "_Traced"], inputs: Mapping[str, Any]
) -> list[str]:
    def can_trace(names: Sequence[str]) -> bool:
        try:
            trace(names)
        except Exception:  # noqa: BLE001 - the first error is the one that is raised
            return False
        return True

    tensors = {
        name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)
    }
    candidates = find_candidates(tensors)
    # Values of the meta device are unknown, but its shapes tell which inputs belong to
    # tokens.
    known = [
        [name for name in names if not tensors[name].is_meta] for names in candidates
    ]
    return find_needed(Candidates(*known), can_trace)


def _step_of(
    model: Any,
    inputs: Any,
    weights: dict[str, Any],
    mesh: Mesh,
    on_host: tuple[str, ...],
    decides: bool,
) -> abstract_steps.Step:
    match inputs:
        case Prefill():
            return abstract_steps.prefill(model, inputs, weights, mesh)
        case Decode():
            return abstract_steps.decode(model, inputs, weights, mesh)
        case Mapping():
            return abstract_steps.forward(
                model, dict(inputs), weights, mesh, on_host, decides=decides
            )
    raise PortError(
        f"inputs must be arguments of the model by name, or a task, not a {type(inputs).__name__}",
        where="inputs",
        fix="compile_for(model, {'input': torch.empty(1, 8, device='meta')}, ...)",
    )


class _Traced(NamedTuple):
    """The jax.stages.Traced, what it was made of, the step, and its distinct attention
    calls with their counts.
    """

    program: Any
    draft: Draft
    step: abstract_steps.Step
    attention: tuple[tuple[Call, int], ...]


def _trace(
    step: abstract_steps.Step,
    model: torch.nn.Module,
    task: str,
    scan_layers: bool | None,
) -> _Traced:
    """Trace the step, with identical blocks in a loop if `scan_layers` is True, or if
    it is None and that wins.
    """
    if scan_layers is False:
        return _trace_step(step, model)
    weights, *others = step.arguments
    stacks = layers.find_stacks(model, weights)
    # The programs of `generate` have no loops over blocks, so those of its tasks have
    # none unless requested.
    may_win = task == "forward" and layers.decide_scan(stacks, task)
    if scan_layers or may_win:
        stacked = layers.stack_weights(weights, stacks)
        traced = _trace_step(step._replace(arguments=(stacked, *others)), model)
        if scan_layers or traced.draft.is_mostly_looped:
            return traced
    return _trace_step(step, model)


def _trace_step(step: abstract_steps.Step, model: torch.nn.Module) -> _Traced:
    earlier_calls: Mapping[Call, int] = {}

    @functools.wraps(step.function)
    def run(*arguments: Any) -> Any:
        nonlocal earlier_calls
        # Code that draws random numbers runs twice.
        earlier_calls = call_counts()
        return step.function(*arguments)

    with module_scopes(model), layers.record_calls() as blocks:
        captured = capture(
            run, step.arguments, run.__name__, checks_indices=False, has_keys=False
        )
    draft = run_passes(Draft(captured, blocks=blocks))
    captured = draft.captured
    # Weights that this step does not use take memory all the same.
    jitted = jax.jit(captured.function, donate_argnums=step.donated, keep_unused=True)
    traced = jitted.trace(*step.arguments, *captured.key_avals)
    # The difference of counters keeps what is positive.
    new_calls = collections.Counter(call_counts()) - collections.Counter(earlier_calls)
    return _Traced(traced, draft, step, tuple(new_calls.items()))


@contextlib.contextmanager
def _force_attention(implementation: str | None) -> Iterator[None]:
    """Let this implementation compute attention inside; None leaves the settings that
    are in force.
    """
    if implementation is None:
        yield
        return
    owner = object()
    settings = attention_settings.Settings(implementation=implementation)
    attention_settings.add_settings(owner, settings)
    try:
        yield
    finally:
        attention_settings.remove_settings(owner)


class _SequenceRecorder:
    """What `_record_sequences` finds; an object of tpuport's own, and so no part of the
    state that the model has again after a trace.
    """

    def __init__(self) -> None:
        self.lengths: set[int] = set()

    def record(self, block: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first_parameter = next(iter(inspect.signature(block.forward).parameters))
        # Blocks are called with the hidden states first, by position or by name.
        hidden = (*args, kwargs.get(first_parameter))[0]
        # What has other dimensions than [B, S, E] has no sequence for sp to divide.
        if isinstance(hidden, torch.Tensor) and hidden.ndim == 3:
            self.lengths.add(int(hidden.shape[1]))


@contextlib.contextmanager
def _record_sequences(model: torch.nn.Module) -> Iterator[set[int]]:
    """The lengths of the hidden states [B, S, E] that enter blocks inside: what
    `sequence_sharded` divides.
    """
    recorder = _SequenceRecorder()
    with contextlib.ExitStack() as stack:
        for block in transformer_blocks(model):
            hook = block.register_forward_pre_hook(recorder.record, with_kwargs=True)
            stack.callback(hook.remove)
        yield recorder.lengths
