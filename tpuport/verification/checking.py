"""`tpuport.check`: a model run in torch and on the device, and everything that differs, with its line."""

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

import torch
from jax.sharding import Mesh

from tpuport import porting, trace_errors
from tpuport.errors import PortError
from tpuport.sharding import ShardingRules
from tpuport.verification import comparing, differences, model_runs, value_reads
from tpuport.verification.check_result import CheckFinding, CheckResult, Severity, Stage, order_findings
from tpuport.verification.model_runs import Arguments
from tpuport.verification.recording import Recording, named_tensors

logger = logging.getLogger("tpuport")


def check(
    model: Any,
    inputs: Any,
    *,
    mesh: Mesh | None = None,
    rules: ShardingRules | None = None,
) -> CheckResult:
    """Run a model in torch and compiled on the device, and report everything that stops it, or differs.

    The model itself is not changed: copies of it run, in evaluation mode.

    Args:
        model: on the CPU, with weights.
        inputs: of one call: a mapping of arguments by name, a tuple or list of positional ones, or a single tensor.
        mesh: also compare the model on the devices of this mesh.
        rules: for the mesh; None for the model's own plan.

    Returns:
        The result; its `ok` says whether nothing has to be changed, and its `findings` what to do, in order.

    Raises:
        PortError: the model cannot be copied, or fails in torch with these inputs.
    """
    if not isinstance(model, torch.nn.Module):
        raise PortError(f"cannot check a {type(model).__name__}", where="model", fix="give a torch.nn.Module")
    return _Check(model, Arguments.of(inputs), mesh, rules).run()


class _StageFailed(Exception):
    """A stage found that it, and what needs its results, cannot go on."""


class _Check:
    """One check, stage by stage."""

    def __init__(
        self, model: torch.nn.Module, arguments: Arguments, mesh: Mesh | None, rules: ShardingRules | None
    ) -> None:
        self.model = model_runs.copy_model(model)
        self.arguments = arguments
        self.mesh = mesh
        self.rules = rules
        self.stages: list[Stage] = []
        self.findings: list[CheckFinding] = []
        self.summary = ""
        # None until its stage has run, or if it failed.
        self.ported: torch.nn.Module | None = None
        self.exact_model: torch.nn.Module | None = None
        self.torch_run = Recording()
        self.exact_run: Recording | None = None
        self.device_run: Recording | None = None

    def run(self) -> CheckResult:
        """Carry out all stages."""
        with self._stage("torch"):
            self._run_torch()
        with self._stage("values"):
            self._run_device()
        with self._stage("compile"):
            self._compile()
        with self._stage("compare"):
            self._compare()
        tensors = named_tensors(self.arguments.named())
        mesh = None if self.mesh is None else dict(self.mesh.shape)
        return CheckResult(
            type(self.model).__name__,
            {name: model_runs.describe(tensor) for name, tensor in tensors},
            tuple(self.stages),
            order_findings(self.findings),
            mesh,
        )

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Time a stage, and turn what it cannot do into a finding: later stages may still say something."""
        started, known = time.monotonic(), len(self.findings)
        self.summary = ""
        status: Any = "passed"
        try:
            yield
        except _StageFailed:
            status = "failed"
        except PortError as error:
            if name == "torch":
                raise
            status = "failed"
            self._add("failure", name, error.what, error.fix or "", details={"where": error.where})
        new = self.findings[known:]
        if status == "passed" and any(finding.severity != "note" for finding in new):
            status = "findings"
        self.stages.append(Stage(name, status, self.summary, time.monotonic() - started))

    def _add(
        self, kind: str, stage: str, message: str, remedy: str = "", severity: Severity = "error", **more: Any
    ) -> None:
        self.findings.append(CheckFinding(kind, stage, severity, message, remedy, **more))

    def _run_torch(self) -> None:
        try:
            self.torch_run = model_runs.run_torch(self.model, self.arguments)
        except Exception as error:
            raise PortError(
                f"the model fails in torch: {type(error).__name__}: {trace_errors.first_line(error)}",
                where=type(self.model).__name__,
                fix="give inputs that model(**inputs) takes on the CPU",
            ) from error
        try:
            self.exact_model = model_runs.widen_model(self.model)
            self.exact_run = model_runs.run_exact(self.exact_model, self.arguments, self.torch_run.answers)
        except Exception as error:  # noqa: BLE001  of any code, in a dtype that it was not written for
            self._add(
                "skipped",
                "torch",
                f"the model does not run in float64 ({trace_errors.first_line(error)}), so that torch's own result "
                "counts as exact",
                severity="note",
            )
        operators = sum(event.kind == "op" for event in self.torch_run.events)
        self.summary = f"{operators} operators"

    def _run_device(self) -> None:
        self.ported = porting.port(model_runs.copy_model(self.model))
        self.device_run = model_runs.run_device(self.ported, self.arguments, self.torch_run.answers)
        self.findings += value_reads.findings(self.device_run, self.model)
        if self.device_run.error is not None:
            self._add_failure("values", self.device_run.error)
            raise _StageFailed

    def _add_failure(self, stage: str, error: Exception) -> None:
        """A finding about an error that tracing raised."""
        failure = trace_errors.explain(error, self.model)
        self._add(
            "trace", stage, failure.message, failure.remedy, source=failure.source, rule=failure.rule,
            details={"traceback": failure.traceback},
        )  # fmt: skip

    def _compile(self) -> None:
        if self.ported is None:
            raise _StageFailed
        try:
            model_runs.call_compiled(self.ported, self.arguments)
        except Exception as error:
            known = {
                (finding.source.file, finding.source.line) for finding in self.findings if finding.source
            }
            source = trace_errors.explain(error, self.model).source
            if source is None or (source.file, source.line) not in known:
                self._add_failure("compile", error)
            raise _StageFailed from error

    def _compare(self) -> None:
        if self.device_run is None or self.ported is None:
            raise _StageFailed
        runs = comparing.Runs(self.device_run, self.torch_run, self.exact_run)
        self.findings += differences.dtype_findings(comparing.dtype_differences(runs))
        if self.device_run.error is not None:
            # Dtypes are known up to the failure, which may come of a wrong one, and values are not.
            raise _StageFailed
        place = comparing.first_module(runs)
        if place is not None:
            place = self._narrow(place)
            self.findings.append(differences.result_finding(place, self.model, "compare"))
        self.summary = differences.summarize(runs)

    def _narrow(self, place: comparing.Place) -> comparing.Place:
        """The operator in the module of a place, from runs that keep the values of its operators."""
        assert self.ported is not None
        answers = self.torch_run.answers
        exact = None
        if self.exact_run is not None and self.exact_model is not None:
            exact = model_runs.run_exact(self.exact_model, self.arguments, answers, place.call)
        runs = comparing.Runs(
            model_runs.run_device(self.ported, self.arguments, answers, place.call),
            model_runs.run_torch(self.model, self.arguments, place.call),
            exact,
        )
        return comparing.first_operator(runs, place.call) or place
