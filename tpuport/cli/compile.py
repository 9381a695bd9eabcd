"""`tpuport compile`: a model given to the compiler of a TPU that is not there."""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tpuport.cli.stages import Stages, say
from tpuport.errors import PortError

if TYPE_CHECKING:
    from tpuport.topology.reports import Result

# Columns of a text that goes into a file or a pipe.
_WIDTH: Final = 110


def compile(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code: 0, 1 where there is no program that fits, 2 where it could not run."""
    from tpuport.cli.requests import parser

    try:
        return _run(parser().parse_args(arguments))
    except PortError as error:
        say(str(error), style="red")
    except KeyboardInterrupt:
        say("interrupted; what was compiled before is kept", style="red")
        return 130
    except SystemExit as error:  # argparse has shown its help, or what is wrong
        return error.code if isinstance(error.code, int) else 2
    except Exception:  # noqa: BLE001 - exit code 1 would say that the program does not fit
        import traceback

        say(f"{traceback.format_exc()}This is a bug of tpuport; please report it.", style="red")
    return 2


def _run(options: argparse.Namespace) -> int:
    from tpuport.cli.requests import check_output, meshes_of, request_of, sizes_of

    if options.list_topologies or options.list_models:
        _print(_listing(options.format, topologies=options.list_topologies))
        return 0
    if options.output is not None:
        check_output(options.output)
    request, asked = request_of(options), sizes_of(options)
    meshes = meshes_of(options.topology, asked, request["suggest"])
    found = _Found()
    with found.told(), _programs(options.save_hlo) as scratch:
        request["save_hlo"] = None if scratch is None else str(scratch)
        for topology, mesh in meshes.items():
            found.collect({**request, "topology": topology, "mesh": mesh}, _assumed(mesh, asked, request))
            if scratch is not None:
                _publish(scratch, options.save_hlo)
    try:
        _show(found, options)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the report has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return found.exit_code


def _assumed(mesh: dict[str, int], asked: dict[str, int] | None, request: dict[str, Any]) -> tuple[str, ...]:
    """What to say of a mesh that the user has not said."""
    if request["suggest"] is not None:
        return ("the mesh is the best of the splits that were tried",)
    if asked is not None or mesh["tp"] == 1:
        return ()
    return (f"no mesh was given: tp over all {mesh['tp']} devices",)


class _Found:
    """What processes have told.

    Attributes:
        results: of all topologies; suggestion: ranked splits, or None where none were asked for.
        stopped: whether one could not run; warnings: each distinct one, in order.
    """

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.suggestion: list[dict[str, Any]] | None = None
        self.stopped = False
        self.warnings: dict[str, None] = {}

    @contextmanager
    def told(self) -> Iterator[None]:
        """Write the warnings after what is said of progress inside, each once."""
        try:
            yield
        finally:
            for warning in self.warnings:
                say(warning, style="yellow")

    @property
    def exit_code(self) -> int:
        """Of the command."""
        defect = any((one.failure or {}).get("kind") == "defect" for one in self.results)
        return 2 if self.stopped or defect else int(not all(result.fits for result in self.results))

    def collect(self, request: dict[str, Any], notes: tuple[str, ...] = ()) -> None:
        """Let a process work for one topology. What stops it is shown, and the next topology has its turn."""
        from tpuport.topology.process import events

        told: dict[str, list[str]] = {}
        if request["suggest"] is not None:
            self.suggestion = self.suggestion or []
        with Stages(request["topology"]) as stages:
            try:
                for event in events(request):
                    if event["event"] == "note":
                        told.setdefault(event["target"], list(notes)).append(event["text"])
                    else:
                        self._take(
                            event, request["topology"], told.get(event.get("target", ""), notes), stages
                        )
            except PortError as error:
                self.stopped = True
                stages.stop()
                say(str(error), style="red")

    def _take(self, event: dict[str, Any], topology: str, notes: Sequence[str], stages: Stages) -> None:
        from tpuport.topology.reports import Result, quantities

        match event["event"]:
            case "progress":
                mesh = quantities.mesh(event["mesh"]) if event["mesh"] else ""
                stages.show(event["stage"], event["target"], mesh)
            case "log":
                self.warnings.setdefault(f"{event['level']}: {event['text']}")
            case "splits":
                assert self.suggestion is not None
                self.suggestion += event["splits"]
            case "report" | "failure" as kind:
                told = {kind: event[kind], "seconds": event["seconds"], "cached": event["cached"]}
                self.results.append(Result(event["target"], topology, notes=tuple(notes), **told))


def _show(found: _Found, options: argparse.Namespace) -> None:
    if not found.results:
        return
    if options.output is None:
        _print(_rendered(found, options, sys.stdout))
        return
    from tpuport.lint.paths import write_atomically

    try:
        write_atomically(options.output, _rendered(found, options, None).encode(errors="backslashreplace"))
    except OSError as error:
        raise PortError(
            f"the report cannot be written: {error.strerror}", where=f"--output {options.output}"
        ) from None


def _rendered(found: _Found, options: argparse.Namespace, stream: Any) -> str:
    from tpuport.topology.reports import as_json, document

    plain = document(found.results, found.suggestion, traceback=options.traceback)
    if options.format == "json":
        return as_json(plain)
    if options.format == "html":
        from tpuport.topology.reports.html import page

        return page(plain)
    import dataclasses

    from tpuport.topology.reports.text import rendered

    # The document's reports: without tracebacks, unless they are asked for.
    kept = [
        dataclasses.replace(result, report=one["report"], failure=one["failure"])
        for result, one in zip(found.results, plain["results"], strict=True)
    ]
    return _text(rendered(kept, found.suggestion), stream)


def _text(renderable: Any, stream: Any) -> str:
    """As the stream shows it: in colours and as wide as a terminal; plain elsewhere."""
    import io

    from rich.console import Console

    terminal = stream is not None and stream.isatty()
    width = None if terminal or os.environ.get("COLUMNS") else _WIDTH
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=terminal or None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    if terminal:
        console.width = min(Console().width, 120)
    console.print(renderable)
    made = console.file
    assert isinstance(made, io.StringIO)
    return "\n".join(line.rstrip() for line in made.getvalue().splitlines()) + "\n"


def _print(text: str) -> None:
    """Write text as it is; what the terminal's encoding lacks is escaped."""
    if sys.stdout is None:
        raise PortError("the report cannot be written: standard output is closed", fix="give --output FILE")
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def _listing(form: str, *, topologies: bool) -> str:
    from tpuport.topology.reports import known_models, topology_list

    if form == "html":
        what = "topologies" if topologies else "models"
        raise PortError(f"{what} are listed as text or json", where="--format html", fix="--format json")
    known = topology_list if topologies else known_models
    return known.as_json() if form == "json" else _text(known.listing(), sys.stdout)


@contextmanager
def _programs(directory: Path | None) -> Iterator[Path | None]:
    """A directory beside the programs to come, which goes with what an interruption leaves in it."""
    if directory is None:
        yield None
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix=".tpuport-", dir=directory)
    except OSError as error:
        raise PortError(
            f"programs cannot be written there: {error.strerror}",
            where=f"--save-hlo {directory}",
            fix="name a directory that can be written to",
        ) from None
    try:
        yield Path(scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _publish(scratch: Path, directory: Path) -> None:
    for file in sorted(scratch.iterdir()):
        file.replace(directory / file.name)
