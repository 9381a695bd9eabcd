"""A model compiled for a TPU that is not there: no weights, no TPU, and the real compiler's verdict.

It is the program that `tpuport.port` with `tpuport.compile` or `tpuport.generate` would make: weights by the same
rules, attention by the same kernel, rotary tables among the arguments, the same decoding loop.
"""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import jax
import torch
from jax.errors import JaxRuntimeError
from jax.sharding import Mesh

from tpuport.sharding import ShardingRules
from tpuport.topology import failures, hlo, kernels, roofline
from tpuport.topology.advice import CacheArray, Evidence, advise
from tpuport.topology.lowering import Lowered, lower_for, shown, versions
from tpuport.topology.report import Buffer, Costs, Failure, Memory, Report
from tpuport.topology.tasks import Decode, Prefill
from tpuport.topology.weights import bytes_by_dtype, local_nbytes, nbytes

logger = logging.getLogger("tpuport")

GIB: Final = 1 << 30
# What the compiler lets one device's program have; tpu7x has two devices on a chip.
CAPACITY: Final = {
    "v4": int(30.75 * GIB),
    "v5e": int(15.75 * GIB),
    "v5p": int(95.74 * GIB),
    "v6e": int(31.25 * GIB),
    "tpu7x": int(94.75 * GIB),
}
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
        attention: "splash" or "xla"; None chooses by call.
        effort: the compiler's on speed, from -1 to 1; None is 0, which runs have. At -1 it is done several times sooner
            with a program that does the same and takes more memory, so that what fits then fits.

    Returns:
        The report. A program that does not fit into memory has one too, with `fits` False.

    Raises:
        PortError: an unknown topology, a mesh or rules that do not fit, or an input that cannot be an argument.
        failures.CannotTrace: the model's code cannot be traced; says where, and what to do.
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
    if refused is not None and lowered.apart is not None:
        # A loop can take somewhat more memory, and nobody asked for it.
        logger.info("it does not fit with its blocks in a loop; trying without")
        return report(lowered.apart(), effort)
    seconds = {"lower": lowered.seconds, "compile": time.perf_counter() - started}
    parameters = {id(value): value for value in lowered.model.parameters()}.values()
    whole = {id(value): value for value in lowered.weights.values()}.values()
    memory, failure = _memory(lowered, program), None
    if refused is not None:
        failure, memory = _failure(refused, program, memory)
    text = hlo.parse(program.as_text()) if program else None
    costs = _costs(lowered, program, text)
    collectives = hlo.collectives(text, lowered.mesh) if text else ()
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
    """(the program, None); with an error, the program that does not fit, or None where there is none."""
    options: dict[str, Any] = {} if effort is None else {"exec_time_optimization_effort": float(effort)}
    with _without_cache():
        return _compiled_anew(lowered, options)


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


def _compiled_anew(lowered: Lowered, options: dict[str, Any]) -> tuple[Any, Exception | None]:
    try:
        return lowered.stage.compile(compiler_options=options), None
    except Exception as error:  # noqa: BLE001  kernels raise what they like; all of it is the compiler's verdict
        if "RESOURCE_EXHAUSTED" not in str(error) or failures.used(str(error)) is None:
            return None, error
        refused = error
    logger.info("it does not fit; compiling once more for what takes the memory")
    try:
        return lowered.stage.compile(compiler_options=options | failures.UNFIT), refused
    except JaxRuntimeError:  # one array alone is larger than the memory
        return None, refused


def _failure(error: Exception, program: Any, memory: Memory) -> tuple[Failure, Memory]:
    """Why there is no program that fits, and what it takes as far as that is known."""
    text = str(error)
    if "RESOURCE_EXHAUSTED" not in text:
        return failures.refused(error), memory
    if program is not None:
        return failures.too_large(text, program.as_text(), memory), memory
    return failures.too_large(text), dataclasses.replace(memory, used=failures.used(text))


def _buffers(text: Any, failure: Failure | None) -> tuple[Buffer, ...]:
    if failure is not None:
        return failure.buffers[:_BUFFERS]
    return tuple(one for one in hlo.buffers(text, _BUFFERS) if one.nbytes >= _WORTH_SAYING)


def _memory(lowered: Lowered, program: Any) -> Memory:
    capacity, step = CAPACITY[lowered.generation], lowered.step
    weights = sum(local_nbytes(value) for value in lowered.weights.values())
    cache = sum(local_nbytes(value) for value in step.cache)
    if program is None:
        return Memory(capacity, weights, cache, 0, 0, 0, 0, None)
    said = program.memory_analysis()
    outputs = said.output_size_in_bytes - said.alias_size_in_bytes
    used = sum(
        (said.argument_size_in_bytes, outputs, said.temp_size_in_bytes, said.generated_code_size_in_bytes)
    )
    given, made = (cache, 0) if step.cache_is_argument else (0, cache)
    return Memory(
        capacity=capacity, weights=weights, cache=cache,
        arguments=max(0, said.argument_size_in_bytes - weights - given), outputs=max(0, outputs - made),
        temporaries=said.temp_size_in_bytes, code=said.generated_code_size_in_bytes, used=used,
    )  # fmt: skip


def _costs(lowered: Lowered, program: Any, text: Any) -> Costs | None:
    if program is None:
        return None
    counted, traced = program.cost_analysis() or {}, kernels.count(lowered.jaxpr)
    hlo.take_counts(text, traced.calls)
    rates = hlo.rates(text)
    return Costs(
        flops=hlo.flops(text, float(counted.get("flops", 0.0))),
        hbm_bytes=float(hlo.hbm_bytes(text)),
        bytes_accessed=float(counted.get("bytes accessed", 0.0)),
        model_flops=traced.flops / lowered.mesh.size,
        product_flops=hlo.products(text),
        kernels=hlo.kernels(text),
        expanded_flops=hlo.expanded(text, traced.calls),
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
