"""A model compiled for a TPU that is not there: no weights, no TPU, and the real compiler's verdict.

It is the program that `tpuport.port` with `tpuport.compile` or `tpuport.generate` would make: weights by the same
rules, attention by the same kernel, rotary tables among the arguments, the same decoding loop.
"""

import contextlib
import dataclasses
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import jax
import torch
from jax.errors import JaxRuntimeError
from jax.sharding import Mesh

from tpuport import trace_errors
from tpuport.hardware import GENERATIONS
from tpuport.sharding import ShardingRules
from tpuport.topology import hlo, kernels, roofline
from tpuport.topology.abstract_weights import bytes_by_dtype, local_nbytes, nbytes
from tpuport.topology.advice import CacheArray, Evidence, advise
from tpuport.topology.compile_report import Buffer, Costs, Failure, Memory, Report
from tpuport.topology.generation_tasks import Decode, Prefill
from tpuport.topology.lowering import Lowered, lower_for, shown, versions
from tpuport.topology.memory import (
    ALLOW_OVERSIZE,
    BufferAssignment,
    buffer_assignment,
    explain_oversize,
    requested_hbm,
)

logger = logging.getLogger("tpuport")

_BUFFERS: Final = 12
_WORTH_SAYING: Final = 1 << 16  # smaller temporaries are not listed


def compile_for(
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
    effort: float | None = None,
) -> Report:
    """Compile one step of a model for a described TPU. No weight is allocated, and no TPU is used.

    Options of attention are those of `tpuport.attention.register`, where it is in force.

    Args:
        model: a module, whose weights may be on the meta device and are not read; or a function that builds one, whose
            parameters are then not allocated. It is put in evaluation mode.
        inputs: arguments of the call by name. Tensors (those on the meta device will do) and jax.ShapeDtypeStruct are
            traced, the latter in the place that their sharding names; anything else is static. Or what of a generation
            is compiled: `Prefill` or `Decode`.
        topology: as `described` takes it.
        mesh: over the topology's devices; None makes one of dp, sp and tp, of which one may be -1.
        rules, allow: as in `tpuport.port`.
        dtype: for floating-point parameters; None keeps theirs.
        scan_layers: whether identical blocks are traced once and run in a loop; None where that wins.
        unit: what a step makes, and how many, for the estimate: ("images", 2); a task knows it.
        attention: "flash" or "xla"; None chooses by call.
        effort: the compiler's on speed, from -1 to 1; None is 0, which runs have. At -1 it is done several times sooner
            with a program that does the same and takes more memory, so that what fits then fits.

    Returns:
        The report. A program that does not fit into memory has one too, with `fits` False.

    Raises:
        PortError: an unknown topology, a mesh or rules that do not fit, or an input that cannot be an argument.
        CannotTrace: the model's code cannot be traced; says where, and what to do.
    """
    lowered = lower_for(
        model, inputs, topology=topology, mesh=mesh, dp=dp, sp=sp, tp=tp, rules=rules, dtype=dtype, allow=allow,
        scan_layers=scan_layers, unit=unit, attention=attention,
    )  # fmt: skip
    logger.info("lowered in %.1f s; compiling for %s", lowered.seconds, topology)
    return report(lowered, effort)


def report(lowered: Lowered, effort: float | None = None) -> Report:
    """Compile what was lowered, and say what the compiler made of it.

    What does not fit with its blocks in a loop, which nobody asked for, is compiled without.
    """
    started = time.perf_counter()
    program, refused = _compiled(lowered, effort)
    assigned: BufferAssignment | None = None
    if refused is not None and lowered.apart is not None:
        # A loop can take somewhat more memory, and nobody asked for it.
        logger.info("it does not fit with its blocks in a loop; trying without")
        return report(lowered.apart(), effort)
    if refused is not None:
        program, assigned = _unfit(lowered, effort, refused)
    seconds = {"lower": lowered.seconds, "compile": time.perf_counter() - started}
    parameters = {id(value): value for value in lowered.model.parameters()}.values()
    whole = {id(value): value for value in lowered.weights.values()}.values()
    memory, failure = _memory(lowered, program, assigned), None
    if refused is not None:
        failure, memory = _failure(refused, assigned, memory)
    written = program.as_text() if program else assigned.text if assigned else None
    text = hlo.parse(written) if written else None
    costs = _costs(lowered, program, text)
    collectives = hlo.list_collectives(text, lowered.mesh) if text else ()
    mesh = {str(axis): int(size) for axis, size in lowered.mesh.shape.items()}
    made = Report(
        topology=lowered.topology, generation=lowered.generation, devices=lowered.mesh.size, mesh=mesh,
        model=type(lowered.model).__name__, parameters=sum(value.numel() for value in parameters),
        weight_bytes=sum(nbytes(value) for value in whole), dtypes=bytes_by_dtype(lowered.weights),
        task=lowered.task, inputs={name: shown(value) for name, value in lowered.inputs.items()},
        memory=memory, costs=costs, collectives=collectives,
        attention=lowered.attention, buffers=_buffers(text, failure),
        estimate=None if costs is None or failure else roofline.estimate(
            lowered.generation, mesh, costs, collectives, *lowered.unit, topology=lowered.topology,
            placed=lowered.mesh,
        ),
        advice=(), failure=failure, scanned=lowered.scanned, effort=effort, versions=versions(),
        seconds=seconds, program=program,
    )  # fmt: skip
    return _advised(made, lowered, text)


def _compiled(lowered: Lowered, effort: float | None) -> tuple[Any, Exception | None]:
    """(the program, None), or (None, why there is none)."""
    try:
        return _compiled_anew(lowered, effort, {}), None
    except Exception as error:  # noqa: BLE001  kernels raise what they like; all of it is the compiler's verdict
        return None, error


def _compiled_anew(lowered: Lowered, effort: float | None, options: dict[str, Any]) -> Any:
    given: dict[str, Any] = {} if effort is None else {"exec_time_optimization_effort": float(effort)}
    with _without_cache():
        return lowered.stage.compile(compiler_options=given | options)


@contextlib.contextmanager
def _without_cache() -> Iterator[None]:
    """Let jax keep no program of a described TPU on disk: it could not read it again where there is no TPU."""
    settings: Any = jax.config
    before = settings.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)


def _unfit(lowered: Lowered, effort: float | None, refused: Exception) -> tuple[Any, BufferAssignment | None]:
    """Of what was refused for its memory: (the program although it does not fit, what the compiler sets aside for it).

    There is no code for addresses outside of the memory, and finding that out takes minutes: so a program is asked for
    only where each part of it alone has room.
    """
    wanted = requested_hbm(str(refused)) if "RESOURCE_EXHAUSTED" in str(refused) else None
    if wanted is None:
        return None, None
    logger.info("it does not fit; compiling once more for what takes the memory")
    capacity = GENERATIONS[lowered.generation].program_hbm
    possible = wanted - _given(lowered) <= capacity
    with tempfile.TemporaryDirectory(prefix="tpuport-", ignore_cleanup_errors=True) as directory:
        options = buffer_assignment.dump_options(directory)
        program = _although(lowered, effort, options | ALLOW_OVERSIZE if possible else options)
        assigned = buffer_assignment.read(directory)
    if program is None and not possible and (assigned is None or assigned.largest <= capacity):
        program = _although(lowered, effort, dict(ALLOW_OVERSIZE))
    return program, assigned


def _although(lowered: Lowered, effort: float | None, options: dict[str, Any]) -> Any:
    try:
        return _compiled_anew(lowered, effort, options)
    except JaxRuntimeError as error:
        logger.debug("compiling what does not fit: %s", error)
        return None


def _failure(error: Exception, assigned: BufferAssignment | None, memory: Memory) -> tuple[Failure, Memory]:
    """Why there is no program that fits, and what it takes as far as that is known."""
    text = str(error)
    if "RESOURCE_EXHAUSTED" not in text:
        return Failure(**vars(trace_errors.explain_refusal(error))), memory
    wanted = requested_hbm(text)
    if wanted is not None and (memory.used is None or memory.used <= memory.capacity):
        memory = dataclasses.replace(memory, used=max(wanted, memory.used or 0))
    return explain_oversize(text, memory, assigned), memory


def _buffers(text: Any, failure: Failure | None) -> tuple[Buffer, ...]:
    if failure is not None:
        return failure.buffers[:_BUFFERS]
    return tuple(one for one in hlo.list_buffers(text, _BUFFERS) if one.nbytes >= _WORTH_SAYING)


def _memory(lowered: Lowered, program: Any, assigned: BufferAssignment | None = None) -> Memory:
    capacity, step = GENERATIONS[lowered.generation].program_hbm, lowered.step
    weights = sum(local_nbytes(value) for value in lowered.weights.values())
    cache = sum(local_nbytes(value) for value in step.cache)
    given, made = (cache, 0) if step.cache_is_argument else (0, cache)
    code = program.memory_analysis().generated_code_size_in_bytes if program else None
    if assigned is not None:
        arguments, outputs, temporaries = assigned.arguments, assigned.outputs, assigned.temporaries
    elif program is not None:
        arguments, outputs, temporaries = _analysed(program.memory_analysis())
    else:
        others = max(0, _given(lowered) - weights - given)
        return Memory(capacity, weights, cache, others, None, None, None, None)
    return Memory(
        capacity=capacity, weights=weights, cache=cache, arguments=max(0, arguments - weights - given),
        outputs=max(0, outputs - made), temporaries=temporaries, code=code,
        used=arguments + outputs + temporaries + (code or 0),
    )  # fmt: skip


def _analysed(said: Any) -> tuple[int, int, int]:
    """Bytes of arguments, of outputs that are not in a donated argument, and of temporaries.

    The compiler's figure for temporaries has what lies unused between them twice: it is their room, and once more what
    is left of that when they take most. Of the room it holds against the capacity, that is once.
    """
    arguments = said.argument_size_in_bytes
    outputs = said.output_size_in_bytes - said.alias_size_in_bytes
    temporaries = said.temp_size_in_bytes
    live = getattr(said, "peak_memory_in_bytes", 0) - arguments - outputs
    return arguments, outputs, min(temporaries, (temporaries + live) // 2) if live > 0 else temporaries


def _given(lowered: Lowered) -> int:
    """Bytes of all arguments on one device, without what tiles add."""
    return sum(
        local_nbytes(one) for one in jax.tree.leaves(lowered.step.arguments) if hasattr(one, "sharding")
    )


def _costs(lowered: Lowered, program: Any, text: Any) -> Costs | None:
    if program is None:
        return None
    counted, traced = program.cost_analysis() or {}, kernels.count_work(lowered.jaxpr)
    hlo.apply_kernel_costs(text, traced.calls)
    rates = hlo.count_other_rate_flops(text)
    return Costs(
        flops=hlo.count_flops(text, float(counted.get("flops", 0.0))),
        hbm_bytes=float(hlo.count_hbm_bytes(text)),
        bytes_accessed=float(counted.get("bytes accessed", 0.0)),
        model_flops=traced.flops / lowered.mesh.size,
        product_flops=hlo.count_product_flops(text),
        kernels=hlo.list_kernels(text),
        expanded_flops=hlo.count_expanded_flops(text, traced.calls),
        int8_flops=rates.int8,
        fp8_flops=rates.fp8,
        pass_flops=rates.passes,
    )


def _advised(made: Report, lowered: Lowered, text: Any) -> Report:
    cache = tuple(
        CacheArray(tuple(one.shape), str(one.dtype), one.sharding, bool(lowered.step.donated))
        for one in lowered.step.cache
        if lowered.step.cache_is_argument
    )
    # By the names that they have in the program: stacked, where blocks are in a loop.
    given = lowered.step.arguments[0].items()
    weights = {name: value for name, value in given if isinstance(value, jax.ShapeDtypeStruct)}
    evidence = Evidence(
        report=made, program=text, weights=weights, mesh=lowered.mesh, model=lowered.model,
        jaxpr=lowered.jaxpr, cache=cache, inputs=lowered.inputs,
    )  # fmt: skip
    return dataclasses.replace(made, advice=advise(evidence))
