"""The stages of a check: a model run in torch and on the device, and everything that
differs, with its line.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, Final

import torch
from jax.sharding import Mesh

from tpuport import porting, trace_errors
from tpuport.compat import narrowing
from tpuport.compilation import CompiledFunction
from tpuport.errors import PortError
from tpuport.patches.gpu import gpu_shim
from tpuport.sharding import ShardingRules
from tpuport.state import left_as_it_was
from tpuport.verification import (
    changed_flags,
    comparing,
    compiler_faults,
    confirming,
    differences,
    further_calls,
    host_draws,
    model_runs,
    number_arguments,
    repeated_calls,
    torch_failures,
    value_reads,
)
from tpuport.verification.check_result import (
    CheckResult,
    order_findings,
)
from tpuport.verification.executed_lines import ExecutedLines
from tpuport.verification.mesh_rules import divided_rules, infer_rules
from tpuport.verification.model_runs import Arguments
from tpuport.verification.recording import Answer, Recording, named_tensors
from tpuport.verification.stage_log import StageFailed, StageLog, StageSkipped

# Choices among equal values after which a comparison goes on; each takes another run.
_MOST_TIES: Final = 8


class Check(StageLog):
    """One check, stage by stage.

    Attributes:
        executed: the lines that ran in torch.
        traced: the lines that ran on the device.
        exact_model: the model in float64 before any call; None if it does not run in
            float64.
        torch_run, exact_run, device_run: recordings of the first call; None if there is
            none.
        inferred_rules: for the mesh, if the model has no plan and the user gave no
            rules.
        used_rules: of these what divides weights on this mesh, as a file has it; None
            without inferred rules.
        compiled, ported: the program and the model as a user compiles it, called once;
            None if that failed.
        programs: how many programs the first call made.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        arguments: Arguments,
        mesh: Mesh | None,
        rules: ShardingRules | None,
    ) -> None:
        super().__init__()
        self.model = model_runs.copy_model(model)
        self.arguments = arguments
        self.mesh = mesh
        self.rules = rules
        self.executed = ExecutedLines()
        self.traced = ExecutedLines()
        self.exact_model: torch.nn.Module | None = None
        self.runs_in_torch = False
        self.torch_run = Recording()
        self.exact_run: Recording | None = None
        self.device_run: Recording | None = None
        self.inferred_rules: ShardingRules | None = None
        self.used_rules: dict[str, list[Any]] | None = None
        self.compiled: CompiledFunction | None = None
        self.ported: torch.nn.Module | None = None
        self.programs = 0
        # What the stages leave to be undone.
        self._cleanup = contextlib.ExitStack()

    def run(self) -> CheckResult:
        """Carry out all stages."""
        # The lint stage holds the linter's findings against what the stages before it
        # have found.
        names = ["torch", "values", "compare", "lint", "compile", "repeat"]
        mesh = None
        if self.mesh is not None:
            names.append("mesh")
            mesh = {str(axis): size for axis, size in self.mesh.shape.items()}
        self.carry_out(names)
        tensors = named_tensors(self.arguments.named())
        return CheckResult(
            type(self.model).__name__,
            {name: model_runs.describe(tensor) for name, tensor in tensors},
            tuple(self.stages),
            order_findings(self.findings),
            mesh,
            self.used_rules,
        )

    def carry_out(self, names: Iterable[str]) -> None:
        """Carry out some stages, in this order; "torch" comes first, and without it
        nothing means anything.
        """
        stages = {
            "torch": self._run_torch,
            "values": self._run_device,
            "lint": self._lint,
            "compare": self._compare,
            "compile": self._compile,
            "repeat": self._call_again,
            "mesh": self._compare_on_mesh,
        }
        # The copies share what their code keeps in globals.
        with left_as_it_was(self.model), self._cleanup:
            for name in names:
                # A stage that finds another result says so, and the linter names the
                # line in any case.
                with self.stage(name), narrowing.silenced():
                    if name != "torch" and not self.runs_in_torch:
                        raise StageSkipped
                    stages[name]()

    def _explain_results(self) -> None:
        """Ask of each result that differs whether the compiler is to blame."""
        ported = functools.partial(self._port_to, None)
        runs = self.arguments, self.torch_run, self.exact_run
        self.findings = compiler_faults.explain(self.findings, ported, *runs)

    def _fresh_model(self) -> torch.nn.Module:
        """A copy that was never called: a call may write to the model."""
        return model_runs.copy_model(self.model)

    def _fresh_exact_model(self) -> torch.nn.Module | None:
        if self.exact_model is None:
            return None
        return model_runs.copy_model(self.exact_model)

    def _run_torch(self) -> None:
        try:
            self._record_torch()
        except Exception as error:
            self.findings += torch_failures.findings(
                error, self.model, self.arguments, self.executed
            )
            raise StageFailed from error
        self.runs_in_torch = True
        self.findings += host_draws.findings(self.torch_run.host_draws)
        try:
            self.exact_model = model_runs.widen_model(self.model)
            # A copy, as for any run: it may write to the model.
            exact_model = model_runs.copy_model(self.exact_model)
            self.exact_run = model_runs.run_exact(
                exact_model, self.arguments, self.torch_run.answers
            )
        except Exception as error:  # noqa: BLE001  of any code, in a dtype that it was not written for
            self.exact_model = None
            self.skip(
                "torch",
                f"the model does not run in float64 ({trace_errors.first_line(error)}), so that torch's own result "
                "counts as exact",
            )
        if not differences.has_comparable_result(self.torch_run):
            self.skip(
                "torch",
                "the model's own result is not compared, only those of its modules: it has no tensors in tuples, "
                "lists or mappings",
                "check a model whose forward returns the tensors of this one's result in a tuple",
            )
        operators = sum(event.kind == "op" for event in self.torch_run.events)
        self.summary = f"{operators} operators"
        if self.has("cuda"):
            self.summary += ", with tpuport.gpu_shim"

    def _record_torch(self) -> None:
        """Run the model in torch; a model that names CUDA, with the GPU shim from here
        to the end of the check.
        """
        try:
            self._record_torch_once()
        except Exception as error:
            if not torch_failures.needs_cuda(error):
                raise
            self._record_torch_with_shim(error)

    def _record_torch_with_shim(self, failure: Exception) -> None:
        """As `_record_torch`; raises the failure without the shim if the shim does not
        help.
        """
        shim = self._cleanup.enter_context(gpu_shim())
        try:
            self._record_torch_once()
        except Exception:  # noqa: BLE001  the lines that name CUDA come first, and this may follow from them
            shim.disable()
            raise failure from None
        self.findings += torch_failures.shim_findings(shim, self.executed, self.model)

    def _record_torch_once(self) -> None:
        # Lines are noted here alone: compiled code does not run line by line.
        with self.executed:
            self.torch_run = model_runs.run_torch(self._fresh_model(), self.arguments)

    def _run_device(self) -> None:
        """Trace the model with torch's answers, so that one run collects every line
        that needs a value.
        """
        ported = porting.port(self._fresh_model())
        self.device_run = model_runs.run_device(
            ported, self.arguments, self.torch_run.answers
        )
        self.findings += value_reads.findings(self.device_run, self.model)
        self.traced = self.executed
        if self.device_run.error is not None:
            self._add_failure("values", self.device_run.error)
            self._note_traced_lines()
            raise StageFailed

    def _note_traced_lines(self) -> None:
        """Trace once more, up to where it stops, and note the lines; noting them slows
        a trace down.
        """
        self.traced = ExecutedLines()
        ported = porting.port(self._fresh_model())
        with self.traced:
            model_runs.run_device(ported, self.arguments, self.torch_run.answers)

    def _add_failure(self, stage: str, error: Exception) -> None:
        """A finding about an error that tracing raised."""
        failure = trace_errors.explain(error, self.model)
        self.add(
            "trace", stage, failure.message, failure.remedy, source=failure.source, rule=failure.rule,
            details={"traceback": failure.traceback},
        )  # fmt: skip

    def _lint(self) -> None:
        reached = confirming.reached_findings(self.executed, self.model)
        advice, self.summary = confirming.lint_findings(
            reached, self.traced, self.findings
        )
        self.findings += advice

    def _compare(self) -> None:
        if self.device_run is None:
            raise StageSkipped
        runs = comparing.Runs(self.device_run, self.torch_run, self.exact_run)
        self.findings += differences.dtype_findings(comparing.dtype_differences(runs))
        if self.device_run.error is not None:
            # Dtypes are known up to the failure, which may come of a wrong one. Values
            # are not known.
            raise StageFailed
        runs, mismatch = self._first_mismatch(runs, mesh=None)
        if mismatch is None:
            self.findings += differences.rounding_findings(runs)
        else:
            self.findings.append(
                differences.result_finding(mismatch, self.model, "compare")
            )
            self._explain_results()
        self.summary = differences.summarize(runs)

    def _first_mismatch(
        self, runs: comparing.Runs, mesh: Mesh | None
    ) -> tuple[comparing.Runs, comparing.Mismatch | None]:
        """The first result outside of the bound that no tie explains; and the runs,
        which take torch's side in ties.

        After a tie everything may differ. So all run again with torch's choice; what
        differs then has another cause.
        """
        stage = "compare" if mesh is None else "mesh"
        for _ in range(_MOST_TIES):
            mismatch = comparing.first_module(runs)
            # What differs on one device differs on a mesh too, and is reported once.
            if mismatch is None or (mesh and self.has("result", "compiler")):
                return runs, None
            mismatch = self._narrow(mismatch, mesh)
            if mismatch.tie is None:
                return runs, mismatch
            self.findings.append(differences.tie_finding(mismatch, self.model, stage))
            self.torch_run.answers[mismatch.tie.key] = Answer(
                None, False, mismatch.tie.indices
            )
            runs = self._run_again(runs, mesh)
            if runs.device.error is not None:
                return runs, None
        self.skip(
            stage,
            f"what follows the first {_MOST_TIES} choices among equal values was not compared",
        )
        return runs, None

    def _run_again(self, runs: comparing.Runs, mesh: Mesh | None) -> comparing.Runs:
        """The runs on the device and in float64 with the answers that there are now."""
        answers = self.torch_run.answers
        device_run = model_runs.run_device(self._port_to(mesh), self.arguments, answers)
        exact_model = self._fresh_exact_model()
        if exact_model is not None:
            self.exact_run = model_runs.run_exact(exact_model, self.arguments, answers)
        return dataclasses.replace(runs, device=device_run, exact=self.exact_run)

    def _narrow(
        self, mismatch: comparing.Mismatch, mesh: Mesh | None
    ) -> comparing.Mismatch:
        """The operator to blame in a module, from runs that keep the values of its
        operators.

        Only now, and only of one call: the values of all operators of a model would not
        fit in memory.
        """
        answers, call = self.torch_run.answers, mismatch.call
        ported = self._port_to(mesh)
        device_run = model_runs.run_device(ported, self.arguments, answers, call)
        if device_run.error is not None:
            return mismatch
        torch_run = model_runs.run_torch(self._fresh_model(), self.arguments, call)
        exact_run = None
        exact_model = self._fresh_exact_model()
        if exact_model is not None:
            exact_run = model_runs.run_exact(exact_model, self.arguments, answers, call)
        runs = comparing.Runs(device_run, torch_run, exact_run)
        return comparing.first_operator(runs, call) or mismatch

    def _port_to(self, mesh: Mesh | None) -> torch.nn.Module:
        """A ported copy of the model, on one device or on a mesh."""
        if mesh is None:
            return porting.port(self._fresh_model())
        # What inferred rules cannot divide is whole on each device; the user's own
        # rules have to fit.
        allow = tuple(self.inferred_rules or ())
        return porting.port(
            self._fresh_model(),
            mesh=mesh,
            rules=self.rules or self.inferred_rules,
            allow=allow,
        )

    def _infer_rules(self, mesh: Mesh) -> None:
        """Rules from the structure of a model that has no plan; a note if its code
        cannot be traced for that.
        """
        if self.rules is not None:
            return
        try:
            self.inferred_rules = infer_rules(self.model, self.arguments, mesh)
        except PortError as error:
            self.skip(
                "mesh",
                f"no rules were inferred, so that weights are whole: {error.what}",
            )

    def _note_rules(self, rules: ShardingRules, mesh: Mesh) -> None:
        """Keep the rules that divide weights on the mesh, and say why it leaves others
        whole.
        """
        weights = dict(self.model.named_parameters())
        self.used_rules, reasons = divided_rules(rules, weights, mesh)
        whole = "; ".join(f"{pattern}: {reason}" for pattern, reason in reasons.items())
        if whole:
            self.skip(
                "mesh",
                f"what the inferred rules divide is whole on each device of this mesh: {whole}",
            )

    def _compare_on_mesh(self) -> None:
        """The comparison of modules once more, with the weights and inputs divided."""
        assert self.mesh is not None
        self._infer_rules(self.mesh)
        ported = self._port_to(self.mesh)
        if self.inferred_rules is not None:
            self._note_rules(self.inferred_rules, self.mesh)
        device_run = model_runs.run_device(
            ported, self.arguments, self.torch_run.answers
        )
        if device_run.error is not None:
            self._add_failure("mesh", device_run.error)
            raise StageFailed
        runs = comparing.Runs(device_run, self.torch_run, self.exact_run)
        runs, mismatch = self._first_mismatch(runs, self.mesh)
        if mismatch is not None:
            self.findings.append(
                differences.result_finding(mismatch, self.model, "mesh")
            )
        self.summary = differences.summarize(runs)

    def _compile(self) -> None:
        """Compile the model as its user would, without answers."""
        ported = porting.port(self._fresh_model())
        compiled = CompiledFunction(ported)
        self.summary = "as tpuport.compile does it"
        try:
            outputs = model_runs.call_compiled(compiled, self.arguments)
        except Exception as error:
            self._add_new_failure(error)
            raise StageFailed from error
        self.compiled, self.ported = compiled, ported
        # Also those after a line at which a trace that records values stops.
        self.traced = self.executed
        self.programs = compiled.program.compilations
        products = model_runs.float32_products(compiled, self.arguments)
        self.findings += differences.float32_findings(products, self.torch_run)
        self._forgive_recording()
        # The device has drawn other numbers than torch, or chosen others of equal
        # values.
        if not self._may_differ():
            self.findings += differences.output_findings(
                outputs, self.torch_run, self.exact_run
            )
            self._explain_results()

    def _may_differ(self) -> bool:
        """Whether it is known why results differ, so that comparing tells nothing."""
        known = self.has("result", "compiler", "tie")
        return known or repeated_calls.draws_numbers(self.torch_run)

    def _add_new_failure(self, error: Exception) -> None:
        """A finding about what stops compiling, unless the line has one already."""
        found = [finding.source for finding in self.findings if finding.source]
        known = {(source.file, source.line) for source in found}
        source = trace_errors.explain(error, self.model).source
        if source is None or (source.file, source.line) not in known:
            self._add_failure("compile", error)

    def _forgive_recording(self) -> None:
        """Withdraw the finding of a stage of values that failed: the model compiles
        without recording its values.
        """
        if self.device_run is None or self.device_run.error is None:
            return
        self.withdraw("trace", "values")
        reason = trace_errors.first_line(self.device_run.error)
        message = f"modules were not compared, only the result: their values cannot be recorded ({reason})"
        self.skip("compare", message)

    def _call_again(self) -> None:
        compiled, ported = self.compiled, self.ported
        if compiled is None or ported is None:
            raise StageSkipped
        if repeated_calls.draws_numbers(self.torch_run):
            self._check_draws()
            self._call_again_equally(compiled)
            self._call_further()
            self.summary = "random numbers; results and flags are not compared, because those differ anyway"
            return
        # What differs in the first call differs in the second too, and is not what the
        # first has written.
        if not self._may_differ():
            self.findings += repeated_calls.state_findings(
                compiled, self._fresh_model(), self._fresh_exact_model(), self.arguments
            )
        self._call_again_equally(compiled)
        self._call_further()
        # Last: a changed flag makes new programs.
        self.findings += changed_flags.stale_findings(
            compiled, ported, self._fresh_model(), self.arguments
        )

    def _call_again_equally(self, compiled: CompiledFunction) -> None:
        self.findings += repeated_calls.recompilation_findings(
            compiled, self.arguments, self.programs, self.executed
        )

    def _call_further(self) -> None:
        """Go on with caches and objects that a call has changed, as a loop does."""
        self.findings += further_calls.findings(
            self.model, self.exact_model, self.arguments, self.executed,
            compare=not self._may_differ(),
        )  # fmt: skip
        self.findings += number_arguments.findings(self.model, self.arguments)

    def _check_draws(self) -> None:
        """Whether the random numbers of several calls on the device are as independent
        as in torch.
        """
        drawing = porting.port(self._fresh_model())
        answers = self.torch_run.answers
        runs = model_runs.run_draws(
            drawing, self.arguments, answers, repeated_calls.CALLS
        )
        if runs[0].error is not None:
            self._add_failure("repeat", runs[0].error)
            raise StageFailed
        torch_runs = [
            model_runs.run_torch(self._fresh_model(), self.arguments)
            for _ in range(repeated_calls.CALLS)
        ]
        self.findings += repeated_calls.draw_findings(runs, torch_runs)
