"""The stages of a check: a model run in torch and on the device, and everything that
differs, with its line.
"""

import contextlib
import functools
from collections.abc import Iterable
from typing import Any

import torch
from jax.sharding import Mesh

from tpuport import porting, trace_errors
from tpuport.base.plurals import count_noun
from tpuport.compat import narrowing
from tpuport.compilation import CompiledFunction
from tpuport.errors import PortError
from tpuport.gpu import gpu_shim
from tpuport.objects.state import left_as_it_was
from tpuport.sharding import ShardingRules
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
from tpuport.verification.recording import Recording, named_tensors
from tpuport.verification.reference_runs import ReferenceRuns
from tpuport.verification.stage_log import StageFailed, StageLog, StageSkipped


class Check(StageLog):
    """One check, stage by stage.

    Attributes:
        executed: the lines that ran in torch.
        traced: the lines that ran on the device.
        references: the first call on the host.
        changed: names of the arguments that it changes in torch.
        called_model: the copy that it was made with in torch.
        device_run: a recording of it on the device; None if there is none.
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
        self.runs_in_torch = False
        self.references = ReferenceRuns(self.model, arguments)
        self.changed: frozenset[str] = frozenset()
        self.called_model = self.model
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
        self.findings = compiler_faults.explain(
            self.findings, ported, self.arguments, self.references
        )

    def _run_torch(self) -> None:
        try:
            self._record_torch()
        except Exception as error:
            self.findings += torch_failures.findings(
                error, self.model, self.arguments, self.executed
            )
            raise StageFailed from error
        self.runs_in_torch = True
        self.findings += host_draws.findings(self.references.torch.host_draws)
        try:
            self.references.record_exact()
        except Exception as error:  # noqa: BLE001  of any code, in a dtype that it was not written for
            self.skip(
                "torch",
                f"the model does not run in float64 ({trace_errors.first_line(error)}), so that torch's own result "
                "counts as exact",
            )
        if not differences.has_comparable_result(self.references.torch):
            self.skip(
                "torch",
                "the model's own result is not compared, only those of its modules: it has no tensors in tuples, "
                "lists or mappings",
                "check a model whose forward returns the tensors of this one's result in a tuple",
            )
        operators = sum(event.kind == "op" for event in self.references.torch.events)
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
        self.called_model = self.references.fresh_model()
        inputs = self.arguments.copy()
        changes = further_calls.ArgumentChanges(inputs)
        with self.executed:
            run = model_runs.record_torch(self.called_model, inputs)
        self.references.torch, self.changed = run, changes.names()

    def _run_device(self) -> None:
        """Trace the model with torch's answers, so that one run collects every line
        that needs a value.
        """
        ported = porting.port(self.references.fresh_model())
        self.device_run = model_runs.run_device(
            ported, self.arguments, self.references.torch.answers
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
        ported = porting.port(self.references.fresh_model())
        with self.traced:
            model_runs.run_device(ported, self.arguments, self.references.torch.answers)

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
        references = self.references
        runs = comparing.Runs(self.device_run, references.torch, references.exact)
        self.findings += differences.dtype_findings(comparing.dtype_differences(runs))
        if self.device_run.error is not None:
            # Dtypes are known up to the failure, which may come of a wrong one. Values
            # are not known.
            raise StageFailed
        mismatch = self._first_mismatch(self.device_run, mesh=None)
        if mismatch is not None:
            self.findings.append(
                differences.result_finding(mismatch, self.model, "compare")
            )
            self._explain_results()
        if self.mesh is None:
            self.references.forget_values()

    def _first_mismatch(
        self, device_run: Recording, mesh: Mesh | None
    ) -> comparing.Mismatch | None:
        """The first result outside of the bound that no tie explains; ties are
        notes.
        """
        stage = "compare" if mesh is None else "mesh"
        comparison = self.references.compare(
            device_run,
            functools.partial(self._port_to, mesh),
            # What differs on one device differs on a mesh too, and is reported once.
            until=lambda: mesh is not None and self.has("result", "compiler"),
        )
        for tie in comparison.ties:
            self.findings.append(differences.tie_finding(tie, self.model, stage))
        if comparison.is_cut:
            ties = count_noun(len(comparison.ties), "choice")
            self.skip(
                stage,
                f"what follows the first {ties} among equal values was not compared",
            )
        self.summary = differences.summarize(comparison.runs)
        if mesh is None and comparison.mismatch is None:
            self.findings += differences.rounding_findings(comparison.runs)
        return comparison.mismatch

    def _port_to(self, mesh: Mesh | None) -> torch.nn.Module:
        """A ported copy of the model, on one device or on a mesh."""
        if mesh is None:
            return porting.port(self.references.fresh_model())
        # What inferred rules cannot divide is whole on each device; the user's own
        # rules have to fit.
        allow = tuple(self.inferred_rules or ())
        return porting.port(
            self.references.fresh_model(),
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
            ported, self.arguments, self.references.torch.answers
        )
        if device_run.error is not None:
            self._add_failure("mesh", device_run.error)
            raise StageFailed
        mismatch = self._first_mismatch(device_run, self.mesh)
        if mismatch is not None:
            self.findings.append(
                differences.result_finding(mismatch, self.model, "mesh")
            )

    def _compile(self) -> None:
        """Compile the model as its user would, without answers."""
        ported = porting.port(self.references.fresh_model())
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
        # Only what torch computes in halves can be wider here.
        if differences.has_halves(self.references.torch):
            products = model_runs.float32_products(compiled, self.arguments)
            self.findings += differences.float32_findings(
                products, self.references.torch
            )
        self._forgive_recording()
        # The device has drawn other numbers than torch, or chosen others of equal
        # values.
        if not self._may_differ():
            self.findings += differences.output_findings(outputs, self.references)
            self._explain_results()

    def _may_differ(self) -> bool:
        """Whether it is known why results differ, so that comparing tells nothing."""
        known = self.has("result", "compiler", "tie")
        return known or repeated_calls.draws_numbers(self.references.torch)

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
        if repeated_calls.draws_numbers(self.references.torch):
            self._check_draws()
            self._call_again_equally(compiled)
            self._call_further()
            self.summary = "random numbers; results and flags are not compared, because those differ anyway"
            return
        outputs = self._call_again_equally(compiled)
        # What differs in the first call differs in the second too, and is not what the
        # first has written.
        if not self._may_differ():
            self.findings += repeated_calls.state_findings(
                outputs, self.called_model, self.arguments, self.references
            )
        self._call_further()
        # Last: a changed flag makes new programs.
        self.findings += changed_flags.stale_findings(
            compiled, ported, self.model, self.arguments
        )

    def _call_again_equally(self, compiled: CompiledFunction) -> list[torch.Tensor]:
        """What the second call gives."""
        outputs, findings = repeated_calls.call_again(
            compiled, self.arguments, self.programs, self.executed
        )
        self.findings += findings
        return outputs

    def _call_further(self) -> None:
        """Go on with caches and objects that a call has changed, as a loop does."""
        if self.changed:
            exact_model = self.references.fresh_exact_model()
            self.findings += further_calls.findings(
                self.model, exact_model, self.arguments, self.executed,
                compare=not self._may_differ(), changed=self.changed,
            )  # fmt: skip
        self.findings += number_arguments.findings(self.model, self.arguments)

    def _check_draws(self) -> None:
        """Whether the random numbers of several calls on the device are as independent
        as in torch.
        """
        drawing = porting.port(self.references.fresh_model())
        answers = self.references.torch.answers
        runs = model_runs.run_draws(
            drawing, self.arguments, answers, repeated_calls.CALLS
        )
        if runs[0].error is not None:
            self._add_failure("repeat", runs[0].error)
            raise StageFailed
        torch_runs = [
            model_runs.run_torch(self.references.fresh_model(), self.arguments)
            for _ in range(repeated_calls.CALLS)
        ]
        self.findings += repeated_calls.draw_findings(runs, torch_runs)
