"""`tpuport doctor`: what is installed, and whether it works together; or what is known
about a model.
"""

import argparse
import dataclasses
import json
from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tpuport.cli.arguments import CommandParser, UsageError, closest, seconds
from tpuport.cli.console import print_text
from tpuport.cli.diagnosis import Diagnosis, Problem, diagnose
from tpuport.libraries import model_results
from tpuport.libraries.model_results import ModelResult


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = CommandParser(
        prog="tpuport doctor",
        description="Report versions, shims, devices, memory and the compilation cache.",
        epilog="Exit code: 0 these work together, or the model is known to work; 1 they cannot work, or the model is "
        "known to fail; 2 wrong usage.",
    )
    parser.add_argument(
        "--model",
        metavar="TYPE",
        help="only say what classes of transformers or diffusers gave beside torch: a type such as llama, or a class",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the report as one JSON object"
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="seconds to wait for torchax, and then for the devices; 60 by default",
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command; the exit code is 0, or 1 if the installation cannot work."""
    if options.model is not None:
        return _report_model(options.model, as_json=options.json)
    # The probes import torch and jax, which takes seconds.
    with Console(stderr=True).status("asking torchax and the devices"):
        diagnosis = diagnose(options.timeout)
    if options.json:
        report = json.dumps(dataclasses.asdict(diagnosis), indent=2)
        print_text(report + "\n", "the report", fix="redirect it to a file")
    else:
        _render(diagnosis, Console())
    return int(not diagnosis.works)


def _report_model(name: str, as_json: bool) -> int:
    """Print the known results of a class, or of the classes of a type; 1 if any of them
    is known to fail.
    """
    results = model_results.results_named(name)
    if not results:
        known = {result.class_name for result in model_results.all_results()}
        known |= {result.model_type for result in model_results.all_results()}
        raise UsageError(
            f"no result is known of {name!r}",
            where="--model",
            fix=f"{closest([name], known)}The page 'Models beside torch' lists all; tpuport check tries your own model",
        )
    if as_json:
        text = json.dumps(list(map(dataclasses.asdict, results)), indent=2)
    else:
        text = "\n".join(map(_describe, results))
    print_text(text + "\n", "the results", fix="redirect them to a file")
    return int(any(result.fails for result in results))


def _describe(result: ModelResult) -> str:
    return (
        f"{result.class_name} ({result.library} {result.version}): {result.describe()}"
    )


def _render(diagnosis: Diagnosis, console: Console) -> None:
    # `Text` and not strings: rich would read brackets in them as markup.
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, lines in _sections(diagnosis).items():
        table.add_row(label, Text("\n".join(lines)))
    console.print(table)
    console.print()
    for problem in diagnosis.problems:
        console.print(_render_problem(problem), soft_wrap=True)
    console.print(_verdict(diagnosis), soft_wrap=True)


def _verdict(diagnosis: Diagnosis) -> Text:
    if not diagnosis.works:
        return Text("This combination does not work.", style="bold red")
    if diagnosis.tested:
        return Text(f"These versions work together: {diagnosis.note}.", style="green")
    return Text(f"Nothing wrong was found; {diagnosis.note}", style="green")


def _sections(diagnosis: Diagnosis) -> dict[str, list[str]]:
    versions = [
        f"{name} {version or 'not installed'}"
        for name, version in diagnosis.versions.items()
    ]
    return {
        "python": [f"{diagnosis.python['version']} on {diagnosis.python['platform']}"],
        "versions": versions,
        "shims": _shims(diagnosis),
        "operators": [_operators(diagnosis)],
        "mechanisms": mechanism_lines(diagnosis.mechanisms),
        "devices": _devices(diagnosis.devices),
        "libtpu": [
            diagnosis.libtpu["version"] or "not installed (pip install 'jax[tpu]')"
        ],
        "host memory": [_memory(diagnosis.memory)],
        "compilation cache": [_cache(diagnosis.cache)],
    }


def _shims(diagnosis: Diagnosis) -> list[str]:
    if diagnosis.shims:
        return [f"{name}: {reason}" for name, reason in diagnosis.shims.items()]
    # The same probe answers for both.
    return ["unknown" if diagnosis.operators is None else "none needed"]


def _operators(diagnosis: Diagnosis) -> str:
    if diagnosis.operators is None:
        return "unknown"
    return f"{len(diagnosis.operators)} that torchax lacks or gets wrong are replaced (--json lists them)"


def mechanism_lines(mechanisms: list[dict[str, Any]] | None) -> list[str]:
    """A line about those that work, and one for each that is off."""
    if mechanisms is None:
        return ["unknown"]
    working = [entry for entry in mechanisms if entry["works"]]
    lines = [
        f"{len(working)} of {len(mechanisms)} that rest on private names of libraries work (--json lists them)"
    ]
    lines += [
        f"off: {entry['mechanism']} ({entry['library']}: {entry['reason']}); {entry['without']}"
        for entry in mechanisms
        if not entry["works"]
    ]
    return lines


def _devices(devices: list[dict[str, Any]] | None) -> list[str]:
    if devices is None:
        return ["unknown"]
    # Devices of one kind share a line: a slice has hundreds.
    kinds = Counter(
        (device["platform"], device["kind"], device["memory_bytes"])
        for device in devices
    )
    lines = []
    for (platform, kind, nbytes), count in kinds.items():
        lines.append(f"{count} x {platform} {kind}")
        # jax does not know the memory of CPU devices.
        if nbytes:
            lines[-1] += f", {_size(nbytes)} each"
    # Not an error: everything works on other devices, only slowly.
    if "tpu" not in {device["platform"] for device in devices}:
        lines.append("no TPU: programs run on these devices")
    return lines


def _memory(memory: dict[str, int | None]) -> str:
    text = f"{_size(memory['available_bytes'])} available of {_size(memory['total_bytes'])}"
    if memory["limit_bytes"]:
        text += f", this process may take {_size(memory['limit_bytes'])}"
    return text


def _cache(cache: dict[str, Any] | None) -> str:
    if cache is None:
        return "unknown"
    if cache["directory"] is None:
        return "off"
    return f"{cache['directory']}: {cache['files']} files, {_size(cache['bytes'])}"


def _size(nbytes: int | None) -> str:
    if nbytes is None:
        return "unknown"
    if nbytes >= 2**30:
        return f"{nbytes / 2**30:.1f} GiB"
    return f"{nbytes / 2**20:.1f} MiB"


def _render_problem(problem: Problem) -> Text:
    text = Text("problem: ", style="bold red").append(problem.what, style="not bold")
    if problem.where:
        text.append(f"\n  where: {problem.where}", style="default not bold")
    if problem.fix:
        text.append(f"\n  fix: {problem.fix}", style="default not bold")
    return text
