"""How far `tpuport lint` agrees with what models ask for when they run.

    python -m benchmarks.agreement                             diffusers and transformers
    python -m benchmarks.agreement --every 5 --output seen.json   each fifth class of each library
    python -m benchmarks.agreement --library diffusers --limit 10 --observe-only --output seen.json
    python -m benchmarks.agreement --library strangers         packages that have to be installed first, one by one
    python -m benchmarks.agreement --package vocos             any package's classes, with guessed sizes and inputs
    python -m benchmarks.agreement --observed seen.json        lint again, from a stored observation

Tiny models with random weights run eagerly on the CPU under `benchmarks.watch`, in processes of their own; the lines
that read a number out of a tensor or make a shape of one are the truth that TPU1xx and TPU2xx errors are held
against. A library may also be the path of a Python file that defines `tiny()`, which returns a callable and a list of
dictionaries of its keyword arguments; the files of its directory are then watched.

Recall is the share of watched lines that carry an error, precision the share of errors on lines that ran which are
watched. Both are printed for the calls that a model was built with, and for these together with the linter's
scenarios (`benchmarks.scenarios`): without each optional argument, a decoding step under a static cache, `encode`
and `decode`. A finding matches a watched line if both lie in the same statement: the innermost simple statement, or
header of a compound one, that holds the finding's first line is the one that holds the watched line. So a finding on
a call matches a watched argument two lines below, and a finding in an if's body does not match its condition. Guards
such as `if not is_tracing(x)` answer as they do under jax.jit unless --eager is given.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import os
import random
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from benchmarks.watch import Line

from benchmarks import workers
from benchmarks.matching import PLACES, VALUES, Score, Subject, counted, score

# Functions under torch.compile and torch.jit.script run as they are written, with lines.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("PYTORCH_JIT", "0")

LIMIT_SECONDS = 120  # for one model, on a machine that others use too
BATCH = 40  # models to a process: what one leaves behind is then soon given back
MEMORY = 8 * 1024**3  # bytes for a worker
LIBRARIES = ("diffusers", "transformers")
_INSTALLED = re.compile(r"[^\s'\"]*/site-packages/")


def record(name: str, *, traced: bool) -> dict[str, Any]:
    """Build and run the model `name`; its status and, if it ran, its watched and run lines by file."""
    from benchmarks import scenarios, tiny_models
    from benchmarks.watch import Line, watch

    entry: dict[str, Any] = {"name": name}
    try:
        tiny = tiny_models.build(name)
    except Exception as error:  # noqa: BLE001 - whatever a constructor raises is the reason to report
        return {**entry, "status": "not built", "reason": reason(error)}
    errors, ran = [], 0
    files: dict[str, Any] = {}

    def run(call: Callable[[], Any], into: dict[str, Any], opposed: Line | None = None) -> bool:
        error = None
        with tiny_models.as_traced(traced), watch(tiny.roots, opposed) as seen:
            try:
                call()
            except Exception as raised:  # noqa: BLE001
                error = raised
        if error is not None:
            errors.append(reason(error))
            # The values do not suit the other side of a condition, so torch may refuse them in the end.
            if opposed is None or seen.inside(origin(error).filename):
                return False
        ran_lines = {
            path: {"ran": sorted(lines), "notes": {}, "parts": sorted(seen.parts[path])}
            for path, lines in seen.ran.items()
        }
        merge(into, ran_lines)
        merge(into, {path: {"ran": [], "notes": notes} for path, notes in seen.notes.items()})
        return True

    for inputs in tiny.inputs:
        ran += run(functools.partial(tiny.call, **inputs), files)
    status = "ran" if ran else "not run"
    if not ran:
        return {**entry, "status": status, "reason": "; ".join(errors), "files": {}, "scenarios": {}}
    by_scenario: dict[str, Any] = json.loads(json.dumps(files))
    failures, errors = errors, []
    tried = list(scenarios.of_model(tiny.call, tiny.inputs))
    succeeded = [scenario for scenario in tried if run(scenario.call, by_scenario)]
    opposites = scenarios.opposites(functools.partial(tiny.call, **tiny.inputs[0]), conditions(files))
    succeeded += [scenario for scenario in opposites if run(scenario.call, by_scenario, scenario.opposed)]
    passed = {name for call in (*tiny.inputs, *(scenario.passed for scenario in succeeded)) for name in call}
    return {
        **entry, "status": status, "reason": "; ".join(failures), "files": files, "scenarios": by_scenario,
        "ran_scenarios": [scenario.name for scenario in succeeded], "passed": sorted(passed),
    }  # fmt: skip


def conditions(files: dict[str, Any]) -> list["Line"]:
    """The observed lines that ask for the truth of a tensor."""
    from benchmarks.watch import Line

    return [
        Line(path, int(number))
        for path, file in files.items()
        for number, note in file["notes"].items()
        if "value:__bool__" in note["kinds"]
    ]


def reason(error: Exception) -> str:
    """One line that says what went wrong, and where."""
    frame = origin(error)
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__}: {shorten(str(error), 160)} ({place})"


def shorten(text: str, length: int) -> str:
    """A text on one line, with files of the libraries as from wherever they are installed, cut to a length."""
    return _INSTALLED.sub("", " ".join(text.split()))[:length]


def origin(error: Exception) -> traceback.FrameSummary:
    """The innermost frame of an error that was raised."""
    return traceback.extract_tb(error.__traceback__)[-1]


def merge(files: dict[str, Any], more: dict[str, Any], by: str | None = None) -> None:
    """Add the lines of `more` to `files`, in place; `by` names the model that they come from."""
    for path, seen in more.items():
        mine = files.setdefault(path, {"ran": [], "notes": {}})
        mine["ran"] = sorted({*mine["ran"], *seen["ran"]})
        for line, kinds in seen["notes"].items():
            note = mine["notes"].setdefault(str(line), {"kinds": [], "by": []})
            stored = isinstance(kinds, dict)
            note["kinds"] = sorted({*note["kinds"], *(kinds["kinds"] if stored else kinds)})
            names = kinds["by"] if stored else []
            note["by"] = [*note["by"], *names, *([by] if by else [])][:5]
        if "passed" in seen:
            mine["passed"] = sorted({*mine.get("passed", ()), *seen["passed"]})
        if "parts" in seen:
            mine["parts"] = sorted({*map(tuple, mine.get("parts", ())), *map(tuple, seen["parts"])})


def work(name: str, *, traced: bool) -> Iterator[dict[str, Any]]:
    """The worker's part: what came of a model."""
    import torch

    torch.set_num_threads(1)
    with torch.no_grad():
        yield record(name, traced=traced)


def run_all(names: Sequence[str], *, traced: bool) -> Iterator[dict[str, Any]]:
    """Run the models in worker processes; a crash or an overrun costs the one model that was running.

    Yields:
        A record for each name, in order.
    """
    task = functools.partial(work, traced=traced)
    limits = {"seconds": LIMIT_SECONDS, "memory": MEMORY}  # a model that is not tiny fails alone
    for outcome in workers.run(task, names, **limits, batch=BATCH):
        if outcome.failure is None and outcome.record is not None:
            yield outcome.record
        else:
            yield {"name": outcome.item, "status": "not run", "reason": outcome.failure}


def chosen(library: str, models: list[str] | None, limit: int | None, every: int = 1) -> list[str]:
    """The names of a library's models: those of `models`, or each `every`th, the first `limit` of these."""
    from benchmarks import tiny_models

    return (
        [f"{library}:{model}" for model in models] if models else tiny_models.names(library)[::every][:limit]
    )


def guessed(package: str, limit: int | None) -> list[str]:
    """The names of a package's classes that may be built with guessed sizes: so many of them, drawn at random."""
    from benchmarks import tiny_guessed

    names = [f"guessed:{name}" for name in tiny_guessed.names(package)]
    drawn = random.Random(0).sample(names, min(len(names), limit or len(names)))
    return sorted(drawn)


def observe(names: list[str], output: Path | None, *, traced: bool) -> dict[str, Any]:
    """Run the models; what was seen, which `output` holds too as it grows.

    Models that `output` already has are not run again, so a run that was ended goes on where it was.
    """
    seen: dict[str, Any] = {"traced": traced, "models": {}, "files": {}, "scenarios": {}}
    if output is not None and output.exists():
        seen |= load([output])
    pending = [name for name in names if name not in seen["models"]]
    for number, entry in enumerate(run_all(pending, traced=traced), 1):
        passed = entry.get("passed", [])
        for kind in ("files", "scenarios"):
            files = {path: {**file, "passed": passed} for path, file in entry.pop(kind, {}).items()}
            merge(seen[kind], files, entry["name"])
        seen["models"][entry.pop("name")] = entry
        # All that was seen is written anew, so not after every model.
        if output is not None and (number % BATCH == 0 or number == len(pending)):
            partial = output.with_suffix(".partial")
            partial.write_text(json.dumps(seen), encoding="utf-8")
            partial.replace(output)
    return seen


def summarise(seen: dict[str, Any], console: Console) -> None:
    """Print what ran, what did not and why, and how much was watched."""
    models = seen["models"]
    for library in sorted({name.split(":")[0] for name in models}):
        mine = {name: entry for name, entry in models.items() if name.split(":")[0] == library}
        ran = [name for name, entry in mine.items() if entry["status"] == "ran"]
        console.print(f"{library}: {len(ran)} of {len(mine)} models ran", highlight=False)
    for name, entry in models.items():
        if entry["status"] != "ran":
            console.print(f"  {name}: {entry['status']}: {entry['reason']}", highlight=False, markup=False)
    lines = sum(len(counted(file)) for file in seen["files"].values())
    console.print(f"{len(seen['files'])} files, {lines} watched lines", highlight=False)


def entry_points(models: Iterable[str]) -> tuple[str, ...]:
    """Patterns of functions that the observed programs compile, and that no `forward` calls."""
    return ("*Scheduler.step",) if any(name.startswith("schedulers:") for name in models) else ()


def lint(files: dict[str, Any], compiled: tuple[str, ...]) -> list[Any]:
    """The linter's findings in these files, where functions of these patterns are compiled."""
    from tpuport.lint import lint_paths
    from tpuport.lint.configuration import find_settings

    paths = [Path(path) for path in files]
    settings = find_settings(paths)
    return list(lint_paths(paths, dataclasses.replace(settings, entry_points=compiled)).findings)


def report(seen: dict[str, Any], without: list[str], console: Console) -> None:
    """Lint the observed files and print how far the errors agree with the observation."""
    in_scenarios = seen.get("scenarios", {})
    findings = lint(in_scenarios or seen["files"], entry_points(seen["models"]))
    compare(seen["files"], findings, without, console)
    if in_scenarios:
        console.print("\nwith the scenarios:", highlight=False)
        compare(in_scenarios, findings, without, console)
    console.print("\ntensors of the host beside tensors of the device:", highlight=False)
    compare(in_scenarios or seen["files"], findings, without, console, PLACES)


def compare(
    observed: dict[str, Any],
    findings: list[Any],
    without: list[str],
    console: Console,
    subject: Subject = VALUES,
) -> None:
    """Print how far the errors agree with one observation."""
    tally = score(observed, findings, without, subject)
    for name, places in (("missed", tally.misses), ("false alarm", tally.wrong)):
        for place in places:
            line = f"{name}: {place.path}:{place.line}: {place.what}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    parts: dict[str, dict[str, Any]] = {}
    for path, file in observed.items():
        parts.setdefault(library_of(path), {})[path] = file
    for library, files in sorted(parts.items()):
        figures(library, score(files, findings, without, subject), len(files), console)
    if len(parts) > 1:
        figures("all", tally, len(observed), console)


def library_of(path: str) -> str:
    """The outermost package that an observed file belongs to, or the name of its directory."""
    packages = itertools.takewhile(lambda parent: (parent / "__init__.py").exists(), Path(path).parents)
    return [Path(path).parent, *packages][-1].name


def figures(name: str, tally: Score, files: int, console: Console) -> None:
    """Print the two figures, and what they are shares of."""
    watched, judged = len(tally.hits) + len(tally.misses), len(tally.right) + len(tally.wrong)
    console.print(
        f"{name}: {files} files; recall {tally.recall:.1%} of {watched} watched lines; precision "
        f"{tally.precision:.1%} of {judged} errors on lines that ran; {tally.idle} errors on lines that never ran",
        highlight=False,
    )


def load(paths: list[Path]) -> dict[str, Any]:
    """Several stored observations as one."""
    seen: dict[str, Any] = {"models": {}, "files": {}, "scenarios": {}}
    for path in paths:
        more = json.loads(path.read_text(encoding="utf-8"))
        seen["models"] |= more["models"]
        merge(seen["files"], more["files"])
        merge(seen["scenarios"], more.get("scenarios", {}))
    return seen


def arguments() -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--library",
        action="append",
        help="diffusers, transformers, schedulers, strangers or a Python file; may be repeated",
    )
    parser.add_argument(
        "--package",
        action="append",
        default=[],
        help="run the classes of this package that `benchmarks.tiny_guessed` can build; may be repeated",
    )
    parser.add_argument("--model", action="append", help="run this class alone; may be repeated")
    parser.add_argument("--limit", type=int, help="at most this many models of each library")
    parser.add_argument("--every", type=int, default=1, help="take each Nth model of each library")
    parser.add_argument(
        "--seed", type=int, help="run the models of all libraries in the random order of this seed"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="where the observation is written, as JSON; one that is there is completed",
    )
    parser.add_argument(
        "--observed",
        type=Path,
        action="append",
        help="an observation to use instead of running models; may be repeated",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="KIND",
        help="a kind of note to leave out: value:__format__",
    )
    parser.add_argument("--observe-only", action="store_true", help="do not lint")
    parser.add_argument(
        "--eager", action="store_true", help="let is_tracing() guards answer as in eager torch"
    )
    return parser.parse_args()


def main() -> None:
    options = arguments()
    console = Console(width=200, emoji=False)  # no faces for `:mask:`
    if options.observed:
        seen = load(options.observed)
        if options.output is not None:
            options.output.write_text(json.dumps(seen), encoding="utf-8")
    else:
        libraries = options.library or ([] if options.package else list(LIBRARIES))
        names = [
            name
            for library in libraries
            for name in chosen(library, options.model, options.limit, options.every)
        ]
        for package in options.package:
            names += guessed(package, options.limit)
        if options.seed is not None:
            random.Random(options.seed).shuffle(names)
        seen = observe(names, options.output, traced=not options.eager)
    summarise(seen, console)
    if not options.observe_only:
        report(seen, options.without, console)


if __name__ == "__main__":
    main()
