"""A model compiled for a described TPU: no weights, no TPU, and the real compiler's
verdict.

The program is the one that `tpuport.port` with `tpuport.compile` or `tpuport.generate`
would make: weights by the same rules, attention by the same kernel, rotary tables among
the arguments, the same decoding loop.
"""

import dataclasses
import functools
import logging
import tempfile
import time
from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Unpack

import jax
import torch
from jax.errors import JaxRuntimeError

from tpuport import trace_errors
from tpuport.errors import PortError
from tpuport.hardware import (
    GENERATIONS,
    compiler_options,
    schedules,
    without_compilation_cache,
)
from tpuport.hardware.schedules import KernelSchedule
from tpuport.quantization import quantized_weights
from tpuport.topology import abstract_steps, hlo, kernels, roofline, timing
from tpuport.topology.abstract_weights import bytes_by_dtype, local_nbytes
from tpuport.topology.advice import CacheArray, Evidence, advise
from tpuport.topology.compile_report import (
    Buffer,
    Costs,
    Failure,
    Memory,
    Profile,
    Report,
)
from tpuport.topology.generation_tasks import Decode, Prefill
from tpuport.topology.lowering import (
    Lowered,
    LoweringOptions,
    describe_input,
    lower_for,
    versions,
)
from tpuport.topology.memory import (
    ALLOW_OVERSIZE,
    BufferAssignment,
    buffer_assignment,
    explain_oversize,
    requested_hbm,
)

logger = logging.getLogger("tpuport")

_MAX_BUFFERS: Final = 12
# Smaller temporaries are not worth a line of the report.
_SMALLEST_BUFFER: Final = 1 << 16


class Compilation(NamedTuple):
    """What the compiler returned for a program.

    Attributes:
        program: the jax.stages.Compiled; of a program that does not fit, None or the
            one that the compiler makes if it is told to ignore the memory.
        refusal: the error of the compiler, or None.
        assignment: of a program that does not fit, the memory that the compiler assigns
            to it, if that is known.
        schedules: of the kernels of a program that fits, as far as the compiler wrote
            them.
    """

    program: Any
    refusal: Exception | None = None
    assignment: BufferAssignment | None = None
    schedules: Mapping[str, KernelSchedule] = MappingProxyType({})

    @property
    def text(self) -> str | None:
        """The program as HLO text."""
        if self.program is not None:
            return self.program.as_text()
        if self.assignment is not None:
            return self.assignment.text
        return None


class MemorySizes(NamedTuple):
    """Bytes of all arguments, of outputs that are not in a donated argument, and of
    temporaries.
    """

    arguments: int
    outputs: int
    temporaries: int


def compile_for(
    model: Any,
    inputs: Mapping[str, Any] | Prefill | Decode,
    *,
    effort: float | None = None,
    **options: Unpack[LoweringOptions],
) -> Report:
    """Compile one step of a model for a described TPU. No weight is allocated, and no
    TPU is used.

    Args:
        model, inputs, options: as `lower_for` describes them.
        effort: the compiler's on speed, from -1 to 1; None is 0, as when tpuport runs a
            program. At -1 compiling is several times faster, and the program computes
            the same and takes more memory, so that what fits then fits.

    Returns:
        The report. A program that does not fit into memory has one too, with `fits`
        False.

    Raises:
        PortError: an unknown topology, a mesh or rules that do not fit, or an input
            that cannot be an argument.
        CannotTrace: the model's code cannot be traced; says where, and what to do.
    """
    lowered = lower_for(model, inputs, **options)
    logger.info(
        "lowered in %.1f s; compiling for %s", lowered.seconds, lowered.topology
    )
    return compile_lowered(lowered, effort)


def estimate(
    model: Any,
    inputs: Mapping[str, Any] | Prefill | Decode,
    *,
    effort: float | None = None,
    **options: Unpack[LoweringOptions],
) -> Profile:
    """How long a step of a model takes on a described TPU, and where its time goes. No
    TPU is used.

    Args:
        model, inputs, options: as `lower_for` describes them.
        effort: as in `compile_for`.

    Raises:
        PortError: as `compile_for`; or the program does not fit into memory.
        CannotTrace: the model's code cannot be traced.
    """
    report = compile_lowered(lower_for(model, inputs, **options), effort, advised=False)
    if report.profile is None:
        why = (
            report.failure.message
            if report.failure is not None
            else "the compiler made no program"
        )
        raise PortError(
            f"there is no program to estimate: {why}", where=f"topology {report.topology}",
            fix="tpuport.topology.compile_for reports what takes the memory",
        )  # fmt: skip
    return report.profile


def _count_parameters(model: torch.nn.Module) -> int:
    """The numbers that the model's parameters stand for, those of quantised weights
    too.
    """
    quantized = sum(prod(weight.shape) for _, _, _, weight in quantized_weights(model))
    return quantized + sum(map(torch.numel, model.parameters()))


def compile_lowered(
    lowered: Lowered, effort: float | None = None, *, advised: bool = True
) -> Report:
    """Compile a lowered program, and report what the compiler made of it; `effort` as
    in `compile_for`.

    If a program with loops over blocks does not fit, and the caller did not ask for the
    loops, it is compiled without.
    """
    started = time.perf_counter()
    compilation = _compile(lowered, effort)
    if compilation.refusal is not None:
        # A loop can take somewhat more memory than its blocks one by one.
        if lowered.lower_unrolled is not None:
            logger.info("it does not fit with its blocks in a loop; trying without")
            return compile_lowered(lowered.lower_unrolled(), effort, advised=advised)
        compilation = _compile_despite_memory(lowered, effort, compilation.refusal)
    seconds = {"lower": lowered.seconds, "compile": time.perf_counter() - started}
    memory = _memory(lowered, compilation)
    failure = _failure(compilation, memory, lowered.weights)
    program, collectives = None, ()
    if compilation.text:
        program = hlo.parse(compilation.text)
        collectives = hlo.list_collectives(program, lowered.mesh)
    costs = _costs(lowered, compilation.program, program)
    dtypes = bytes_by_dtype(lowered.weights)
    report = Report(
        topology=lowered.topology, generation=lowered.generation, devices=lowered.mesh.size,
        mesh={str(axis): int(size) for axis, size in lowered.mesh.shape.items()},
        model=type(lowered.model).__name__, parameters=_count_parameters(lowered.model),
        weight_bytes=sum(dtypes.values()), dtypes=dtypes, task=lowered.task,
        inputs={name: describe_input(value) for name, value in lowered.inputs.items()}, memory=memory, costs=costs,
        collectives=collectives, attention=lowered.attention, buffers=_largest_buffers(program, failure),
        estimate=None, advice=(), failure=failure, scanned=lowered.scanned, effort=effort, versions=versions(),
        seconds=seconds, program=compilation.program,
    )  # fmt: skip
    if program is not None and costs is not None and failure is None:
        estimate = roofline.estimate(
            report.generation, report.mesh, costs, collectives, *lowered.unit, topology=report.topology,
            device_mesh=lowered.mesh,
        )  # fmt: skip
        times = timing.time_program(
            program,
            compilation.schedules,
            report.generation,
            report.topology,
            lowered.mesh,
        )
        report = dataclasses.replace(report, estimate=estimate, **times._asdict())
    if not advised:
        return report
    return dataclasses.replace(
        report, advice=advise(_evidence(report, lowered, program, effort))
    )


def _compile(lowered: Lowered, effort: float | None) -> Compilation:
    try:
        with schedules.record() as recorded:
            program = _run_compiler(lowered, effort, {})
        return Compilation(program, schedules=recorded)
    except Exception as error:  # noqa: BLE001  kernels raise what they like; all of it is the compiler's verdict
        return Compilation(None, error)


def _run_compiler(
    lowered: Lowered, effort: float | None, options: dict[str, Any]
) -> Any:
    updates_cache = lowered.task == "decode"
    options = {
        **compiler_options(lowered.generation, updates_cache=updates_cache),
        **options,
    }
    if effort is not None:
        options = {"optimization_level": _optimization_level(effort), **options}
    with without_compilation_cache():
        return lowered.stage.compile(compiler_options=options)


def _optimization_level(effort: float) -> int:
    """XLA's O0, O1, O2 (which is usual) and O3 are 9, 19, 29 and 39."""
    return 9 + 10 * min(3, round(2 * (effort + 1)))


def _compile_despite_memory(
    lowered: Lowered, effort: float | None, refusal: Exception
) -> Compilation:
    """What can be learnt about a program that was refused because it does not fit.

    The compiler cannot generate code for addresses beyond the memory, and takes minutes
    to find out: so it is asked for a program only if each part of the program on its
    own has room.
    """
    required = _required_bytes(refusal)
    if required is None:
        return Compilation(None, refusal)
    logger.info("it does not fit; compiling once more for what takes the memory")
    capacity = GENERATIONS[lowered.generation].program_hbm
    has_room = required - _argument_bytes(lowered) <= capacity
    with tempfile.TemporaryDirectory(
        prefix="tpuport-", ignore_cleanup_errors=True
    ) as directory:
        options = buffer_assignment.dump_options(directory)
        if has_room:
            options |= ALLOW_OVERSIZE
        program = _try_compiler(lowered, effort, options)
        assignment = buffer_assignment.read(directory)
    # The estimate of `has_room` was too pessimistic if no single array exceeds the
    # memory.
    if (
        program is None
        and not has_room
        and (assignment is None or assignment.largest <= capacity)
    ):
        program = _try_compiler(lowered, effort, dict(ALLOW_OVERSIZE))
    return Compilation(program, refusal, assignment)


def _try_compiler(
    lowered: Lowered, effort: float | None, options: dict[str, Any]
) -> Any:
    try:
        return _run_compiler(lowered, effort, options)
    except JaxRuntimeError as error:
        logger.debug("compiling what does not fit: %s", error)
        return None


def _required_bytes(refusal: Exception | None) -> int | None:
    """The memory that a program would need; None if it was refused for another reason,
    or nothing states it.
    """
    if not _is_out_of_memory(refusal):
        return None
    return requested_hbm(str(refusal))


def _is_out_of_memory(refusal: Exception | None) -> bool:
    return "RESOURCE_EXHAUSTED" in str(refusal)


def _used_bytes(
    compilation: Compilation, known: int | None, capacity: int
) -> int | None:
    """The bytes that a program takes: those of its known parts or, if they alone would
    fit, by the refusal.
    """
    required = _required_bytes(compilation.refusal)
    known_bytes = known or 0
    if required is None or known_bytes > capacity:
        return known
    return max(required, known_bytes)


def _failure(
    compilation: Compilation, memory: Memory, weights: Mapping[str, Any]
) -> Failure | None:
    refusal = compilation.refusal
    if refusal is None:
        return None
    if not _is_out_of_memory(refusal):
        return Failure(**vars(trace_errors.explain_refusal(refusal)))
    return explain_oversize(str(refusal), memory, compilation.assignment, weights)


def _largest_buffers(program: Any, failure: Failure | None) -> tuple[Buffer, ...]:
    if failure is not None:
        return failure.buffers[:_MAX_BUFFERS]
    buffers = hlo.list_buffers(program, _MAX_BUFFERS)
    return tuple(buffer for buffer in buffers if buffer.nbytes >= _SMALLEST_BUFFER)


def _memory(lowered: Lowered, compilation: Compilation) -> Memory:
    capacity = GENERATIONS[lowered.generation].program_hbm
    weights = sum(map(local_nbytes, lowered.weights.values()))
    cache = sum(map(local_nbytes, lowered.step.cache))
    # The cache is an argument of a decoding step, and an output of a prefill.
    cache_arguments, cache_outputs = 0, cache
    if lowered.step.cache_is_argument:
        cache_arguments, cache_outputs = cache, 0
    sizes = _memory_sizes(compilation)
    if sizes is None:
        arguments = max(0, _argument_bytes(lowered) - weights - cache_arguments)
        return Memory(
            capacity, weights, cache, arguments, outputs=None, temporaries=None, code=None,
            used=_used_bytes(compilation, None, capacity),
        )  # fmt: skip
    code = None
    if compilation.program is not None:
        code = compilation.program.memory_analysis().generated_code_size_in_bytes
    return Memory(
        capacity, weights, cache, max(0, sizes.arguments - weights - cache_arguments),
        outputs=max(0, sizes.outputs - cache_outputs), temporaries=sizes.temporaries, code=code,
        used=_used_bytes(compilation, sum(sizes) + (code or 0), capacity),
    )  # fmt: skip


def _memory_sizes(compilation: Compilation) -> MemorySizes | None:
    assignment = compilation.assignment
    if assignment is not None:
        return MemorySizes(
            assignment.arguments, assignment.outputs, assignment.temporaries
        )
    if compilation.program is not None:
        return read_memory_analysis(compilation.program.memory_analysis())
    return None


def read_memory_analysis(analysis: Any) -> MemorySizes:
    """The sizes in jax's `CompiledMemoryStats`.

    The compiler's figure for temporaries counts unused gaps between them twice: it is
    the room that they span, plus the part of that room that is unused when they take
    most. It compares the room with the capacity, without the gaps.
    """
    arguments = analysis.argument_size_in_bytes
    outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    temporaries = analysis.temp_size_in_bytes
    live = analysis.peak_memory_in_bytes - arguments - outputs
    if live > 0:
        temporaries = min(temporaries, (temporaries + live) // 2)
    return MemorySizes(arguments, outputs, temporaries)


def _argument_bytes(lowered: Lowered) -> int:
    """Bytes of all arguments on one device, without the padding of tiles."""
    arguments = jax.tree.leaves(lowered.step.arguments)
    return sum(
        local_nbytes(argument)
        for argument in arguments
        if hasattr(argument, "sharding")
    )


def _costs(lowered: Lowered, compiled: Any, program: Any) -> Costs | None:
    if compiled is None:
        return None
    analysis = compiled.cost_analysis() or {}
    traced = kernels.count_work(lowered.jaxpr)
    hlo.apply_kernel_costs(program, traced.calls)
    rates = hlo.count_other_rate_flops(program)
    return Costs(
        flops=hlo.count_flops(program, float(analysis.get("flops", 0.0))),
        hbm_bytes=float(hlo.count_hbm_bytes(program)),
        bytes_accessed=float(analysis.get("bytes accessed", 0.0)),
        model_flops=traced.flops / lowered.mesh.size,
        product_flops=hlo.count_product_flops(program),
        kernels=hlo.list_kernels(program),
        expanded_flops=hlo.count_expanded_flops(program, traced.calls),
        digit_flops=traced.digit_flops / lowered.mesh.size,
        int8_flops=rates.int8,
        fp8_flops=rates.fp8,
        pass_flops=rates.passes,
    )


def _evidence(
    report: Report, lowered: Lowered, program: Any, effort: float | None
) -> Evidence:
    step = lowered.step
    arrays = []
    if step.cache_is_argument:
        arrays = [
            CacheArray(
                tuple(array.shape), str(array.dtype), array.sharding, bool(step.donated)
            )
            for array in step.cache
        ]
    # By their names in the program, where blocks in a loop have their weights stacked.
    # Rotary tables are not weights.
    arguments = step.arguments[0].items()
    weights = {
        name: value
        for name, value in arguments
        if isinstance(value, jax.ShapeDtypeStruct)
    }
    return Evidence(
        report=report, program=program, weights=weights, mesh=lowered.mesh, model=lowered.model,
        jaxpr=lowered.jaxpr, cache=tuple(arrays), inputs=lowered.inputs,
        retrace=functools.partial(_retrace, lowered), recompile=functools.partial(_recompile, lowered, effort),
    )  # fmt: skip


def _retrace(lowered: Lowered, inputs: Mapping[str, Any]) -> None:
    """Trace a call with some other inputs; raises if that cannot be."""
    step = abstract_steps.forward(
        lowered.model,
        {**lowered.inputs, **inputs},
        lowered.weights,
        lowered.mesh,
        lowered.step.on_host,
        decides=lowered.step.decided is not None,
    )
    with abstract_steps.on_mesh(lowered.model, lowered.mesh):
        jax.eval_shape(step.function, *step.arguments)


def _recompile(
    lowered: Lowered, effort: float | None, overrides: Mapping[str, Any]
) -> Report | None:
    """The report on the same program with other sharding rules; None if it cannot be
    lowered.
    """
    if lowered.lower_with is None:
        return None
    try:
        return compile_lowered(lowered.lower_with(overrides), effort, advised=False)
    except PortError:
        return None
