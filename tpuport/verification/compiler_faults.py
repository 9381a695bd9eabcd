"""Whether a result differs from torch's because the compiler is wrong: the same program
is right when each operation is compiled by itself.
"""

import bisect
import dataclasses
import functools
from collections.abc import Callable, Generator, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax.extend.core import ClosedJaxpr

from tpuport import checkpoint, compat
from tpuport.compat.jaxprs import (
    Equation,
    run_operations,
    source_frames,
    without_dead_code,
)
from tpuport.compat.tracing import trace_lock
from tpuport.compilation import CompiledFunction
from tpuport.compilation.results.call_results import OutputAndWrites
from tpuport.topology.hlo.source_lines import innermost_source
from tpuport.verification import differences, model_runs
from tpuport.verification.bounds import deviation
from tpuport.verification.check_result import CheckFinding
from tpuport.verification.model_runs import Arguments
from tpuport.verification.reference_runs import ReferenceRuns


class _Program(NamedTuple):
    """A traced program, and the arrays that it is called with."""

    closed: ClosedJaxpr
    arrays: list[Any]
    structure: Any

    @classmethod
    def of(cls, compiled: CompiledFunction, arguments: Arguments) -> "_Program":
        inputs = arguments.copy()
        function, arrays = compiled.traced_parts(inputs.positional, inputs.keywords)
        with trace_lock:
            closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arrays)
        return cls(
            without_dead_code(closed),
            jax.tree.leaves(arrays),
            jax.tree.structure(shapes),
        )

    def outputs_by_operation(self) -> list[torch.Tensor]:
        """The tensors of the result, each operation compiled by itself."""
        results = _last(run_operations(self.closed, self.arrays))
        output = jax.tree.unflatten(self.structure, results)
        if isinstance(output, OutputAndWrites):
            output = output.returned
        return list(map(_on_host, jax.tree.leaves(output)))

    def first_wrong(self) -> Equation | None:
        """The first operation whose result is wrong when all before it are compiled
        with it; None if only several results together bring the fault about.
        """
        operations = [
            equation for equation, _ in run_operations(self.closed, self.arrays)
        ]
        # Right before the first, and wrong from there on.
        first = bisect.bisect_left(range(len(operations)), True, key=self._is_wrong)
        return operations[first] if first < len(operations) else None

    def _is_wrong(self, number: int) -> bool:
        run = functools.partial(self._results_of, number)
        together, alone = jax.jit(run)(self.arrays), run(self.arrays)
        return any(map(_differ, together, alone))

    def _results_of(self, number: int, arrays: list[Any]) -> list[Any]:
        """Traced. The results of one of the program's operations."""
        steps = enumerate(run_operations(self.closed, arrays))
        return next(results for index, (_, results) in steps if index == number)


def explain(
    findings: Sequence[CheckFinding],
    ported: Callable[[], torch.nn.Module],
    arguments: Arguments,
    references: ReferenceRuns,
) -> list[CheckFinding]:
    """The findings, with a fault of the compiler in place of a result that differs
    because of it.

    Args:
        ported: makes a copy of the model on the device.
        references: the call with these arguments on the host.
    """
    programs = {"compare": _recorded_program, "compile": _compiled_program}

    def explained(finding: CheckFinding) -> CheckFinding:
        if finding.kind != "result" or finding.stage not in programs:
            return finding
        program = programs[finding.stage](ported(), arguments, references)
        return finding if program is None else _fault(finding, program)

    return list(map(explained, findings))


def _recorded_program(
    model: torch.nn.Module, arguments: Arguments, references: ReferenceRuns
) -> _Program | None:
    """The program whose modules were compared, if its operations one by one agree with
    torch.
    """
    answers = references.torch.answers
    compiled, prepared, recordings = model_runs.recorded_program(
        model, arguments, answers
    )
    program = _Program.of(compiled, prepared)
    values = program.outputs_by_operation()
    device = dataclasses.replace(recordings[-1], values=values)
    return program if references.agree_with(device) else None


def _compiled_program(
    model: torch.nn.Module, arguments: Arguments, references: ReferenceRuns
) -> _Program | None:
    """The program that a user compiles, under the same condition."""
    program = _Program.of(CompiledFunction(model), arguments)
    outputs = program.outputs_by_operation()
    differing = differences.output_findings(outputs, references)
    return None if differing else program


def _fault(finding: CheckFinding, program: _Program) -> CheckFinding:
    """About a compiler that is wrong, at the operation where that shows first."""
    equation = program.first_wrong()
    operation, source = "", finding.source
    if equation is not None:
        operation = equation.primitive.name
        source = innermost_source(source_frames(equation)) or source
    version = f"jaxlib {metadata.version('jaxlib')} on {jax.default_backend()}"
    where = f" at `{operation}`" if operation else ""
    return dataclasses.replace(
        finding,
        kind="compiler",
        message=f"the compiler of {version} is wrong{where}: operations that are right one by one are wrong when it "
        f"compiles them together. {finding.message}",
        remedy="install another release of jaxlib, or write the line with other operations, which the compiler joins "
        "in another way; nothing is wrong with the model",
        source=source,
        details=finding.details | {"operation": operation, "compiler": version},
    )


def _last(steps: Generator[Any, None, list[Any]]) -> list[Any]:
    """What a generator returns in the end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def _on_host(array: Any) -> torch.Tensor:
    return checkpoint.to_cpu(compat.wrap(array))


def _differ(ours: Any, theirs: Any) -> bool:
    """Whether two results differ by more than rounding; keys of random numbers have no
    values.
    """
    if jnp.issubdtype(ours.dtype, jax.dtypes.extended):
        return False
    difference = deviation(_on_host(ours), _on_host(theirs), None)
    return difference is not None and not difference.is_rounding
