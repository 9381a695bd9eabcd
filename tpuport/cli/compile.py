"""`tpuport compile`: a model given to the compiler of a TPU, without a TPU."""

import argparse
import io
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tpuport.cli.compile_request import check_report, parser, recipe_of, requests_from
from tpuport.cli.console import print_text, say, write_file
from tpuport.cli.rules_file import rules_text
from tpuport.errors import PortError
from tpuport.sharding.rules_format import format_rules
from tpuport.topology import compile_process
from tpuport.topology.compile_messages import (
    CompileRequest,
    CompileResult,
    Event,
    LogMessage,
    Progress,
    RulesInForce,
    SplitRanking,
)
from tpuport.topology.reports import as_json, document, quantities
from tpuport.topology.whole_runs import whole_runs

__all__ = ["parser", "run"]

# Columns of text that goes into a file or a pipe, and the most that a terminal gets.
_FILE_COLUMNS: Final = 110
_MAX_TERMINAL_COLUMNS: Final = 120

_STAGES: Final = {
    "starting": "starting the compiler",
    "building": "reading the target",
    "tracing": "tracing and lowering",
    "compiling": "compiling",
}


def run(options: argparse.Namespace) -> int:
    """Run the command; the exit code is 0, 1 if there is no program that fits, 2 if
    something could not run.
    """
    if options.list_topologies or options.list_models:
        _print_report(_listing(options))
        return 0
    check_report(options.format, options.output)
    requests = requests_from(options)
    outcome = _Outcome(keep_tracebacks=options.traceback)
    with outcome.show_warnings():
        for request in requests:
            # For each topology, so that a later interruption keeps its programs.
            with _saved_programs(request, options.save_hlo) as saving:
                outcome.collect(saving)
    outcome.show_rules()
    if options.write_rules is not None:
        outcome.write_rules(options.write_rules)
    if outcome.results:
        _write_report(outcome, options)
        if options.trace is not None:
            outcome.write_trace(options.trace)
    return outcome.exit_code


class _Outcome:
    """The results of all topologies so far.

    Attributes:
        results: in the order of the requests.
        splits: ranked, or None if no suggestion was requested.
        has_stopped: whether a topology could not be worked on.
        warnings: each distinct one, in order.
        rules: of programs that the user gave none for, by the name of the target.
    """

    def __init__(self, *, keep_tracebacks: bool) -> None:
        self.keep_tracebacks = keep_tracebacks
        self.results: list[CompileResult] = []
        self.splits: list[dict[str, Any]] | None = None
        self.has_stopped = False
        self.warnings: dict[str, None] = {}
        self.rules: dict[str, RulesInForce] = {}

    @property
    def exit_code(self) -> int:
        # A defect is tpuport's, and says nothing about the model.
        kinds = [result.failure["kind"] for result in self.results if result.failure]
        if self.has_stopped or "defect" in kinds:
            return 2
        return int(not all(result.fits for result in self.results))

    @contextmanager
    def show_warnings(self) -> Iterator[None]:
        """Write each warning once, after all lines about progress."""
        try:
            yield
        finally:
            for warning in self.warnings:
                say(warning, "yellow")

    def show_rules(self) -> None:
        """Write the rules that were inferred, with their reasons."""
        for known in self.rules.values():
            if known.reasons:
                say(
                    f"{known.target} has no plan; sharding rules inferred from its code:"
                )
                say(rules_text(known.rules, known.reasons))

    def write_rules(self, file: Path) -> None:
        """Write the rules of all targets into a file.

        Raises:
            PortError: there are none, or the file cannot be written.
        """
        if not self.rules:
            raise PortError(
                "there are no rules: with one device in tp, or nothing to divide, all weights are whole",
                where=f"--write-rules {file}", fix="leave the option out, or give a mesh with --tp 2 or more",
            )  # fmt: skip
        rules: dict[str, list[Any]] = {}
        reasons: dict[str, str] = {}
        for known in self.rules.values():
            rules |= known.rules
            reasons |= known.reasons
        write_file(
            file, format_rules(file, rules, reasons), "the rules", "--write-rules"
        )

    def write_trace(self, file: Path) -> None:
        """Write when the instructions of all programs that fit run into a file.

        Raises:
            PortError: the file cannot be written.
        """
        from tpuport.topology.reports.trace_events import trace_file

        if all(result.trace is None for result in self.results):
            say(f"{file} is not written: there is no program that fits", "yellow")
            return
        trace = trace_file(self.results)
        write_file(file, trace.encoded(file), "the trace", "--trace")
        if trace.left_out:
            say(
                f"{file} leaves out {trace.left_out:,} events, of later rounds of loops",
                "yellow",
            )

    def collect(self, request: CompileRequest) -> None:
        """Compile for one topology. An error is shown, and the next topology gets its
        turn.
        """
        # An empty ranking, if nothing comes of it, still says that splits were tried.
        if request.fixed_axes is not None and self.splits is None:
            self.splits = []
        with _StageDisplay(request.topology) as stages:
            try:
                for event in compile_process.run_in_child(request):
                    self._handle(event, stages)
            except PortError as error:
                self.has_stopped = True
                stages.stop()
                say(str(error), "red")

    def _handle(self, event: Event, stages: "_StageDisplay") -> None:
        match event:
            case Progress():
                stages.show(event)
            case LogMessage(level, text):
                self.warnings[f"{level}: {text}"] = None
            case SplitRanking(splits):
                assert self.splits is not None
                self.splits += splits
            case RulesInForce():
                self.rules[event.target] = event
            case CompileResult() if self.keep_tracebacks:
                self.results.append(event)
            case CompileResult():
                self.results.append(event.without_traceback())


class _StageDisplay:
    """One changing line on a terminal; elsewhere a line for each stage. A context
    manager.
    """

    def __init__(self, topology: str) -> None:
        self.topology = topology
        self._progress: Any = None
        self._started = time.monotonic()

    def __enter__(self) -> "_StageDisplay":
        if sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as ProgressBar
            from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                TimeElapsedColumn(),
            )
            self._progress = ProgressBar(
                *columns, console=Console(stderr=True), transient=True
            )
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def show(self, progress: Progress) -> None:
        """A stage begins."""
        parts = [f"{self.topology}:", _STAGES[progress.stage], progress.target]
        if progress.mesh:
            parts.append(quantities.mesh_name(progress.mesh))
        text = " ".join(filter(None, parts))
        if self._progress is None:
            say(f"[{time.monotonic() - self._started:5.1f} s] {text}")
            return
        # A new task, so that the elapsed time is that of the stage.
        for task in self._progress.task_ids:
            self._progress.remove_task(task)
        self._progress.add_task(text)

    def stop(self) -> None:
        """Erase the line."""
        if self._progress is not None:
            self._progress.stop()


def _write_report(outcome: _Outcome, options: argparse.Namespace) -> None:
    # A file gets plain text, whatever the terminal shows.
    if options.output is None:
        _print_report(_render_report(outcome, options, sys.stdout))
    else:
        report = _render_report(outcome, options, None)
        write_file(options.output, report, "the report", "--output")


def _render_report(outcome: _Outcome, options: argparse.Namespace, stream: Any) -> str:
    runs = whole_runs(outcome.results, recipe_of(options))
    match options.format:
        case "json":
            results = outcome.results
            # It is large, and may be there for a file only.
            if not options.profile:
                results = [replace(result, trace=None) for result in results]
            return as_json(document(results, outcome.splits, runs))
        case "html":
            from tpuport.topology.reports.html import page

            return page(document(outcome.results, outcome.splits, runs))
        case _:
            from tpuport.topology.reports.text import render_results

            report = render_results(
                outcome.results, outcome.splits, runs, profile=options.profile
            )
            return _render_text(report, stream)


def _render_text(renderable: Any, stream: Any) -> str:
    """Text for this stream: with colours and as wide as it is on a terminal, plain
    elsewhere.
    """
    from rich.console import Console

    is_terminal = stream is not None and stream.isatty()
    buffer = io.StringIO()
    # Neither markup nor emoji: reports quote code, which may look like both.
    console = Console(
        file=buffer,
        force_terminal=is_terminal or None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    if is_terminal:
        # Longer lines are hard to read.
        console.width = min(Console().width, _MAX_TERMINAL_COLUMNS)
    # Otherwise rich itself takes the width from COLUMNS.
    elif not os.environ.get("COLUMNS"):
        console.width = _FILE_COLUMNS
    console.print(renderable)
    # rich pads lines to the width.
    return "\n".join(map(str.rstrip, buffer.getvalue().splitlines())) + "\n"


def _print_report(report: str) -> None:
    print_text(report, "the report", fix="give --output FILE")


def _listing(options: argparse.Namespace) -> str:
    from tpuport.topology.reports import known_models, topology_list

    subject, module = "models", known_models
    if options.list_topologies:
        subject, module = "topologies", topology_list
    match options.format:
        case "json":
            return module.as_json()
        case "text":
            return _render_text(module.listing(), sys.stdout)
    raise PortError(
        f"{subject} are listed as text or json",
        where="--format html",
        fix="--format json",
    )


@contextmanager
def _saved_programs(
    request: CompileRequest, directory: Path | None
) -> Iterator[CompileRequest]:
    """The request, writing its programs into a directory; an interruption leaves no
    half-written one.
    """
    if directory is None:
        yield request
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(
            prefix=".tpuport-", dir=directory, ignore_cleanup_errors=True
        )
    except OSError as error:
        raise PortError(
            f"programs cannot be written there: {error.strerror}",
            where=f"--save-hlo {directory}",
            fix="name a directory that can be written to",
        ) from None
    with scratch:
        yield replace(request, save_hlo=scratch.name)
        for file in sorted(Path(scratch.name).iterdir()):
            file.replace(directory / file.name)
