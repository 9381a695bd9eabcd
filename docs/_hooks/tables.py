"""Fill `<!-- tpuport:NAME -->` in the pages with what the package itself says, so that they cannot drift."""

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MARKER = re.compile(r"<!-- tpuport:([a-z]+) -->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    return MARKER.sub(lambda match: TABLES[match.group(1)](), markdown)


def table(header: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def versions() -> str:
    """What each dependency may be, and the version that the tests run with."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))

    def rows() -> Iterator[Sequence[str]]:
        yield "Python", f"`{project['requires-python']}`", "3.11"
        for requirement in project["dependencies"]:
            name, allowed = re.fullmatch(r"([\w.-]+)(.*)", requirement).groups()
            yield name, f"`{allowed}`", pins[name]

    return table(("package", "allowed", "tested with"), rows())


def combinations() -> str:
    """The environments that the tests ran in, and what came of it."""
    runs = json.loads((ROOT / "docs/data/combinations.json").read_text())
    outcome = ("passed", "failed", "skipped", "date")
    versions = [name for name in next(iter(runs), {}) if name not in outcome]

    def rows() -> Iterator[Sequence[str]]:
        for run in runs:
            counts = f"{run['passed']:,} passed, {run['failed']} failed, {run['skipped']} skipped"
            yield *(run[name] for name in versions), counts, run["date"]

    return table((*versions, "tests", "date"), rows())


def broken() -> str:
    """The versions that cannot work together."""
    from tpuport.compat.versions import BROKEN

    rows = (
        (", ".join(f"{name} `{wanted}`" for name, wanted in known.packages.items()), known.reason)
        for known in BROKEN
    )
    return table(("versions", "why"), rows)


def operators() -> str:
    from tpuport.cli.probes import replaced_operators

    rows = ((f"`{entry['operator']}`", entry["reason"]) for entry in replaced_operators())
    return table(("operator", "what torchax lacks or gets wrong"), rows)


def mechanisms() -> str:
    from tpuport.cli import probes

    rows = ((entry["mechanism"], entry["library"], entry["without"]) for entry in probes.mechanisms())
    return table(("mechanism", "library", "while it is off"), rows)


def warnings() -> str:
    from tpuport.compat.warnings import HARMLESS

    rows = (
        (f"`{known.category.__name__}`: {known.text.replace('*', '…')}", known.reason) for known in HARMLESS
    )
    return table(("warning", "why it is harmless"), rows)


def doctor() -> str:
    """The fields of `tpuport doctor --json`, from the docstring of what it prints."""
    from tpuport.cli.diagnosis import Diagnosis

    described = re.findall(r"^        (\w+): (.*(?:\n            .*)*)", Diagnosis.__doc__, re.MULTILINE)
    assert [name for name, _ in described] == [field.name for field in dataclasses.fields(Diagnosis)]
    return table(
        ("field", "what it holds"), ((f"`{name}`", " ".join(text.split())) for name, text in described)
    )


def api() -> str:
    """A heading and a mkdocstrings block for each public name."""
    import tpuport

    def block(name: str, path: str) -> str:
        return f"::: {path}\n    options:\n      heading: tpuport.{name}\n"

    # A room's public names, at the modules that define them.
    rooms = {
        "attention.register": "tpuport.attention.register.register",
        "attention.unregister": "tpuport.attention.register.unregister",
        "attention.explain": "tpuport.attention.call_report.explain",
        "attention.attention": "tpuport.attention.reference.attention",
    }
    blocks = [block(name, f"{module}.{name}") for name, module in tpuport._PUBLIC.items()]
    return "\n".join([*blocks, *(block(name, path) for name, path in rooms.items())])


TABLES: dict[str, Callable[[], str]] = {
    "versions": versions,
    "broken": broken,
    "combinations": combinations,
    "operators": operators,
    "mechanisms": mechanisms,
    "warnings": warnings,
    "doctor": doctor,
    "api": api,
}
