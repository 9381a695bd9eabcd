"""`tpuport doctor`: what is installed here, and whether it works together."""

import dataclasses
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tpuport.cli.diagnosis import Diagnosis, Problem, diagnose


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that torchax, and then the devices, have to answer.")
    ] = 60,
) -> None:
    """Report versions, shims, devices, memory and the compilation cache; exit 1 when they cannot work."""
    console = Console()
    with Console(stderr=True).status("asking torchax and the devices"):
        diagnosis = diagnose(timeout)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(diagnosis), indent=2))
    else:
        _render(diagnosis, console)
    raise typer.Exit(0 if diagnosis.works else 1)


def _render(diagnosis: Diagnosis, console: Console) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, lines in _sections(diagnosis).items():
        table.add_row(label, Text("\n".join(lines)))
    console.print(table)
    console.print()
    for problem in diagnosis.problems:
        console.print(_sentence(problem), soft_wrap=True)
    console.print(_verdict(diagnosis), soft_wrap=True)


def _verdict(diagnosis: Diagnosis) -> Text:
    if not diagnosis.works:
        return Text("This combination does not work.", style="bold red")
    if diagnosis.tested:
        return Text(f"These versions work together: {diagnosis.note}.", style="green")
    return Text(f"Nothing wrong was found; these versions are untested, {diagnosis.note}", style="yellow")


def _sections(diagnosis: Diagnosis) -> dict[str, list[str]]:
    versions = [f"{name} {version or 'not installed'}" for name, version in diagnosis.versions.items()]
    shims = [f"{name}: {reason}" for name, reason in diagnosis.shims.items()]
    return {
        "python": [f"{diagnosis.python['version']} on {diagnosis.python['platform']}"],
        "versions": versions,
        "shims": shims or ["none needed" if diagnosis.operators is not None else "unknown"],
        "operators": _operators(diagnosis),
        "devices": _devices(diagnosis),
        "libtpu": [
            diagnosis.libtpu["version"] or "not installed (pip install '.[tpu]' in a clone of tpuport)"
        ],
        "host memory": [_memory(diagnosis.memory)],
        "compilation cache": [_cache(diagnosis.cache)],
    }


def _operators(diagnosis: Diagnosis) -> list[str]:
    if diagnosis.operators is None:
        return ["unknown"]
    return [f"{len(diagnosis.operators)} that torchax lacks or gets wrong are replaced (--json lists them)"]


def _devices(diagnosis: Diagnosis) -> list[str]:
    if diagnosis.devices is None:
        return ["unknown"]
    kinds: dict[str, list[dict]] = {}
    for device in diagnosis.devices:
        kinds.setdefault(f"{device['platform']} {device['kind']}", []).append(device)
    lines = []
    for kind, devices in kinds.items():
        memory = devices[0]["memory_bytes"]
        lines.append(f"{len(devices)} x {kind}" + (f", {_size(memory)} each" if memory else ""))
    if not any(device["platform"] == "tpu" for device in diagnosis.devices):
        lines.append("no TPU here: programs run, and are checked, on these")
    return lines


def _memory(memory: dict[str, int | None]) -> str:
    limit = f", this process may take {_size(memory['limit_bytes'])}" if memory["limit_bytes"] else ""
    return f"{_size(memory['available_bytes'])} available of {_size(memory['total_bytes'])}{limit}"


def _cache(cache: dict[str, str | int | None] | None) -> str:
    if cache is None:
        return "unknown"
    if cache["directory"] is None:
        return "off"
    return f"{cache['directory']}: {cache['files']} files, {_size(cache['bytes'])}"


def _size(size: str | int | None) -> str:
    if size is None:
        return "unknown"
    value = int(size)
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"


def _sentence(problem: Problem) -> Text:
    text = Text("problem: ", style="bold red").append(problem.what, style="not bold")
    for label, value in (("where", problem.where), ("fix", problem.fix)):
        if value:
            text.append(f"\n  {label}: {value}", style="default not bold")
    return text
