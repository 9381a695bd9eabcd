"""Compiling the targets of a `CompileRequest`, with reports from the cache and with the
best mesh split on request.
"""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from tpuport.errors import PortError
from tpuport.quantization import quantized_weights
from tpuport.sharding import ShardingRules
from tpuport.topology import report_cache
from tpuport.topology.abstract_weights import build_model
from tpuport.topology.compile_messages import (
    CompileRequest,
    CompileResult,
    Event,
    Progress,
    RulesInForce,
    SplitRanking,
    WarningEvents,
    unescape_patterns,
)
from tpuport.topology.compile_report import Failure, Report
from tpuport.topology.compiling import compile_lowered
from tpuport.topology.inferred_rules import infer_missing_rules, rules_as_placed
from tpuport.topology.lowering import Lowered, lower_for
from tpuport.topology.mesh_splits import Split
from tpuport.topology.split_search import suggest_splits
from tpuport.topology.targets import Target
from tpuport.topology.targets.user_code import check_arguments
from tpuport.trace_errors import CannotTrace

# Targets whose model is the user's to shard.
_INFERRED_KINDS: Final = ("code", "causal-lm")
_INFERRED_NOTE: Final = (
    "there is no plan, and sharding rules were inferred: "
    "give ShardingRules.infer(model, inputs) to port too"
)
_MATRIX_RANK: Final = 2
# Who chooses which expert is known when the program runs.
_EXPERTS_NOTE: Final = (
    "experts in few bits are counted as if all that the tokens choose were on one chip, in as many blocks as there may "
    "be: their FLOPs, HBM traffic and times are at most these"
)

# Where nothing fits, the one that loses least first.
_SCHEMES_TO_TRY: Final = ("int8", "int4")


class CompiledProgram(NamedTuple):
    """A report as plain values, the seconds that it took, whether it comes from the
    cache, and its trace.
    """

    report: dict[str, Any]
    seconds: dict[str, float]
    cached: bool = False
    trace: dict[str, Any] | None = None


class TargetCompiler:
    """Compiles targets as a request says.

    Args:
        request: how to compile.
        emit: receives events of progress.
        warnings: the handler of tpuport's log.
    """

    def __init__(
        self,
        request: CompileRequest,
        emit: Callable[[Event], None],
        warnings: WarningEvents,
    ) -> None:
        self.request = request
        self.emit = emit
        self.warnings = warnings
        # Programs that this run compiled. They are not in the cache "from an earlier
        # run", though written to it.
        self._compiled: dict[str, CompiledProgram] = {}
        # By the name of the target; None if its model has a plan.
        self._inferred: dict[str, ShardingRules | None] = {}

    def compile(self, target: Target) -> CompileResult:
        """The target on the requested mesh, or on the best of the splits that suit
        it.
        """
        request = self.request
        result = CompileResult(
            target.name, request.topology, notes=[*request.notes, *target.notes], kind=target.kind,
            product=target.product, rows=target.rows, is_distilled=target.is_distilled,
        )  # fmt: skip
        try:
            if request.fixed_axes is None:
                lowered = self._lower(target, request.mesh, request.quantize)
            else:
                lowered, note = self._lower_best_split(target, request.fixed_axes)
                result.notes.extend(note)
        except CannotTrace as error:
            return dataclasses.replace(
                result, failure=dataclasses.asdict(Failure(**vars(error.failure)))
            )
        result.notes.extend(self._report_rules(target, lowered))
        result.notes.extend(_describe_counting(lowered.model))
        compiled = self._compile_lowered(
            target, lowered, request.effort, request.save_hlo
        )
        if not request.wants_trace:
            compiled = compiled._replace(trace=None)
        return dataclasses.replace(result, **compiled._asdict())

    def _lower(
        self, target: Target, mesh: dict[str, int], quantize: str | None
    ) -> Lowered:
        request = self.request
        self.emit(Progress("tracing", target.name, mesh))
        model = self._build(target)
        rules = _sharding_rules(request.rules)
        if rules is None and mesh["tp"] > 1:
            rules = self._infer_rules(target, model)
        try:
            return lower_for(
                model, target.inputs, topology=request.topology, dp=mesh["dp"], sp=mesh["sp"],
                tp=mesh["tp"], rules=rules, dtype=target.dtype,
                scan_layers=request.scan_layers, unit=target.unit, attention=request.attention,
                allow=tuple(request.allow), quantize=quantize,
            )  # fmt: skip
        except PortError as error:
            raise _name_options(error, request.rules_source) from error

    def _infer_rules(
        self, target: Target, model: torch.nn.Module | Callable[[], Any]
    ) -> ShardingRules | None:
        """Rules from the structure of a model without a plan; None if it has one, or is
        a part of a pipeline.

        Parts of a pipeline are moved with the rules of their classes, and what has none
        stays whole.
        """
        if target.kind not in _INFERRED_KINDS:
            return None
        if target.name not in self._inferred:
            # Once for all meshes, because rules do not depend on them.
            self._inferred[target.name] = infer_missing_rules(
                build_model(model), target.inputs
            )
        return self._inferred[target.name]

    def _report_rules(self, target: Target, lowered: Lowered) -> list[str]:
        """Emit the rules if they were inferred, or requested; the notes about them."""
        inferred = None
        if lowered.mesh.shape["tp"] > 1:
            inferred = self._inferred.get(target.name)
        if inferred is not None:
            reasons = {rule.pattern: rule.reason for rule in inferred.rules}
            self.emit(
                RulesInForce(
                    target.name, rules_as_placed(inferred, lowered.weights), reasons
                )
            )
            return [_INFERRED_NOTE]
        if self.request.wants_rules and self.request.rules is None:
            rules = ShardingRules.from_model(lowered.model)
            self.emit(
                RulesInForce(target.name, rules_as_placed(rules, lowered.weights), {})
            )
        return []

    def _build(self, target: Target) -> torch.nn.Module | Callable[[], Any]:
        """The model or what builds it, after a check of the user's own inputs against
        the model's `forward`.
        """
        inputs_option = self.request.options.get("inputs")
        if inputs_option is None and target.kind != "code":
            return target.build
        model = build_model(target.build)
        source = f"the inputs of {self.request.target}"
        if inputs_option:
            source = f"--inputs {inputs_option}"
        check_arguments(model, target.inputs, source)
        return model

    def _lower_best_split(
        self, target: Target, fixed_axes: dict[str, int]
    ) -> tuple[Lowered, list[str]]:
        """The program of the best split, after an event with the ranking of all; and a
        note about its weights.

        If nothing fits, weights in few bits are tried.
        """
        requested = self.request.quantize
        ranking = self._rank_splits(target, fixed_axes, requested)
        others: list[dict[str, Any]] = []
        schemes = _SCHEMES_TO_TRY if requested is None else ()
        for scheme in schemes:
            if ranking.fits:
                break
            try:
                quantized = self._rank_splits(target, fixed_axes, scheme)
            except PortError:
                # No weight of this model can be quantised, or none once more, or its
                # groups do not fit the mesh.
                continue
            if quantized.fits:
                ranking, quantized = quantized, ranking
            others += quantized.rows
        self.emit(SplitRanking([*ranking.rows, *others]))
        for event in ranking.warnings:
            self.emit(event)
        if ranking.quantize == requested:
            return ranking.lowered, []
        return ranking.lowered, [
            f"nothing fits with the weights as they are: this is --quantize {ranking.quantize}"
        ]

    def _rank_splits(
        self, target: Target, fixed_axes: dict[str, int], quantize: str | None
    ) -> "_Ranking":
        """Compile the splits of a program with weights by this scheme."""
        warnings: dict[Split, list[Event]] = {}

        def lower(**mesh: int) -> Lowered:
            with self.warnings.collect() as warnings[Split(**mesh)]:
                return self._lower(target, mesh, quantize)

        def compile(lowered: Lowered, effort: float | None) -> dict[str, Any]:
            return self._compile_lowered(target, lowered, effort).report

        # Warnings about splits that were merely tried would confuse; only those about
        # the best split are emitted.
        with self.warnings.collect():
            suggestion = suggest_splits(
                lower,
                self.request.mesh,
                fixed=fixed_axes,
                effort=self.request.effort,
                compile=compile,
            )
        topology = suggestion.lowered.topology
        rows = [
            outcome.to_dict(target.name, topology, quantize)
            for outcome in suggestion.outcomes
        ]
        return _Ranking(quantize, rows, suggestion.lowered, warnings[suggestion.best])

    def _compile_lowered(
        self,
        target: Target,
        lowered: Lowered,
        effort: float | None,
        save_hlo: str | None = None,
    ) -> CompiledProgram:
        # Reports quote paths of the user's code relative to the working directory.
        key = json.dumps([lowered.key, effort, str(Path.cwd())])
        known = self._read_report(key)
        # A report is not enough to save the programs, nor to show when its instructions
        # run.
        if known is not None and save_hlo is None and not self._lacks_trace(known):
            return known
        self.emit(Progress("compiling", target.name, dict(lowered.mesh.shape)))
        report = compile_lowered(lowered, effort)
        # Through JSON, so that it equals what a later run reads from the cache.
        plain, trace = json.loads(json.dumps([report.to_dict(), report.plain_trace()]))
        compiled = CompiledProgram(plain, report.seconds, trace=trace)
        self._compiled[key] = compiled
        if self.request.use_cache:
            report_cache.write(
                key, {"report": plain, "seconds": compiled.seconds, "trace": trace}
            )
        if save_hlo is not None:
            _save_programs(
                Path(save_hlo),
                f"{target.name}-{report.task}-{report.topology}",
                lowered,
                report,
            )
        return compiled

    def _lacks_trace(self, known: CompiledProgram) -> bool:
        """Whether a trace is requested of a program that has one, and is not there."""
        return (
            self.request.wants_trace
            and known.trace is None
            and known.report["profile"] is not None
        )

    def _read_report(self, key: str) -> CompiledProgram | None:
        if key in self._compiled:
            return self._compiled[key]
        if self.request.use_cache and (entry := report_cache.read(key)):
            return CompiledProgram(
                entry["report"], entry["seconds"], cached=True, trace=entry.get("trace")
            )
        return None


class _Ranking(NamedTuple):
    """The splits of a program, as `SplitOutcome.to_dict` gives them, and the best one's
    program and warnings.
    """

    quantize: str | None
    rows: list[dict[str, Any]]
    lowered: Lowered
    warnings: list[Event]

    @property
    def fits(self) -> bool:
        return any(row["fits"] for row in self.rows)


def _describe_counting(model: torch.nn.Module) -> list[str]:
    """A note about work that depends on values, if the model has any."""
    has_experts = any(
        weight.ndim > _MATRIX_RANK for *_, weight in quantized_weights(model)
    )
    return [_EXPERTS_NOTE] if has_experts else []


def _sharding_rules(rules: dict[str, list[Any]] | None) -> ShardingRules | None:
    if rules is None:
        return None
    return ShardingRules.of_entries(rules)


def _name_options(error: PortError, rules_source: str | None) -> PortError:
    """An error about sharding rules in the words of the command line; any other error
    unchanged.
    """
    what = unescape_patterns(error.what)
    if "allow=" in (error.fix or ""):
        correction = "them with --rules FILE"
        if rules_source:
            correction = "the rules"
        fix = (
            f"correct {correction}, change the mesh, or accept an error: --allow NAME, several times for several, with "
            "the parameter's name or the rule's pattern; what is allowed is whole on every device"
        )
        return PortError(what, where=rules_source or error.where, fix=fix)
    if rules_source and "sharding rule" in f"{error.what} {error.where}":
        parts = filter(None, (rules_source, unescape_patterns(error.where or "")))
        return PortError(what, where=": ".join(parts), fix=error.fix)
    return error


def _save_programs(
    directory: Path, name: str, lowered: Lowered, report: Report
) -> None:
    """Write the program as the compiler received it, and as it compiled it."""
    stem = re.sub(r"[^\w.=-]+", "-", name)
    (directory / f"{stem}.stablehlo.txt").write_text(
        lowered.stage.as_text(), encoding="utf-8"
    )
    if report.program is not None:
        (directory / f"{stem}.hlo.txt").write_text(
            report.program.as_text(), encoding="utf-8"
        )
