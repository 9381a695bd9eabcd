"""`tpuport patches`: what is replaced in known libraries, and whether it fits what is
installed.
"""

import argparse
import dataclasses
import importlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tpuport.cli.arguments import CommandParser
from tpuport.cli.console import print_text

if TYPE_CHECKING:
    from tpuport.patches.patch import State, Status

_WAITING: Final = "waiting for import"
_STYLES: Final = {
    "applied": "green",
    _WAITING: "green",
    "off": "dim",
    "not installed": "dim",
    "source differs": "bold red",
    "target missing": "bold red",
    "failed": "bold red",
}
# In fewer columns, reasons would be broken into a word a line.
_TABLE_WIDTH: Final = 120
# Other states say that there is nothing to patch, or that the user does not want to.
_WRONG: Final = frozenset({"source differs", "target missing", "failed"})


class _ImportFailure(NamedTuple):
    state: "State"
    detail: str


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = CommandParser(
        prog="tpuport patches",
        description="List the patches of known libraries and their status.",
        epilog="Exit code: 0, 1 if a patch does not fit what is installed, 2 wrong usage.",
    )
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="a table, or one JSON object",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="import what is patched, and compare the sources; takes longer",
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command; the exit code is 1 if a patch does not fit what is installed."""
    from tpuport.patches import registry

    # As `tpuport.enable()` would do it, but a mismatch is a line of the list instead of
    # an error.
    strictness = registry.environment_strictness()
    registry.apply_all("off" if strictness == "off" else "warn")
    failures = {}
    if options.check:
        failures = _import_targets(registry.statuses())
    # Anew, because importing a target applies its patches.
    statuses = [_with_failure(status, failures) for status in registry.statuses()]
    if options.format == "json":
        patches = list(map(_to_dict, statuses))
        listing = json.dumps(
            {"schema": 1, "checked": options.check, "patches": patches}, indent=2
        )
        print_text(listing + "\n", "the patches", fix="redirect them to a file")
    else:
        _render(statuses, is_checked=options.check)
    return int(not _WRONG.isdisjoint(status.state for status in statuses))


def _import_targets(statuses: "Sequence[Status]") -> dict[str, _ImportFailure]:
    """Import the modules of patches that wait for it; the failures by module."""
    failures = {}
    waiting = [status for status in statuses if status.state == _WAITING]
    with Console(stderr=True).status("importing what is patched"):
        for status in waiting:
            module = status.patch.module
            try:
                importlib.import_module(module)
            except Exception as error:  # noqa: BLE001  whatever a library raises is a line of the list
                failures[module] = _explain_import_error(status, error)
    return failures


def _explain_import_error(status: "Status", error: Exception) -> _ImportFailure:
    module = status.patch.module
    # A module that is missing elsewhere is a failure of the library.
    if (
        isinstance(error, ModuleNotFoundError)
        and error.name
        and module.startswith(error.name)
    ):
        detail = f"{status.patch.package} {status.installed} has no module {module}"
        return _ImportFailure("not installed", detail)
    return _ImportFailure(
        "failed", f"{module} does not import: {type(error).__name__}: {error}"
    )


def _with_failure(status: "Status", failures: dict[str, _ImportFailure]) -> "Status":
    if status.state != _WAITING or status.patch.module not in failures:
        return status
    return dataclasses.replace(status, **failures[status.patch.module]._asdict())


def _to_dict(status: "Status") -> dict[str, object]:
    """The fields of the patch and those of its status, side by side."""
    fields = dataclasses.asdict(status)
    return {**fields.pop("patch"), **fields}


def _render(statuses: "Sequence[Status]", *, is_checked: bool) -> None:
    console = Console()
    if not statuses:
        console.print("No patches are registered.")
        return
    if console.width >= _TABLE_WIDTH:
        console.print(_table(statuses))
    else:
        _print_list(console, statuses)
    for status in statuses:
        if status.detail:
            console.print(
                f"{status.patch.name}: {status.detail}", soft_wrap=True, markup=False
            )
    if not is_checked and _WAITING in {status.state for status in statuses}:
        console.print(
            "Sources are compared when the target is imported; --check does it now.",
            style="dim",
        )


def _print_list(console: Console, statuses: "Sequence[Status]") -> None:
    """Print what the table says, for terminals in which its columns would be too narrow
    to read.
    """
    for status in statuses:
        state = Text(status.state, style=_STYLES.get(status.state, "yellow"))
        console.print(Text(status.patch.name, style="bold"), "-", state)
        facts = f"for {_library(status)}; places: {len(status.places)}; from {status.origin}"
        for line in (facts, status.patch.why):
            console.print(Padding(Text(line), (0, 0, 0, 4)))


def _library(status: "Status") -> str:
    return f"{status.patch.package} {status.installed or ''}".strip()


def _table(statuses: "Sequence[Status]") -> Table:
    table = Table(title="Patches", title_justify="left")
    table.add_column("patch", overflow="fold")
    for heading in ("for", "status", "places", "from"):
        table.add_column(heading)
    table.add_column("why", overflow="fold")
    for status in statuses:
        patch = status.patch
        state = Text(status.state, style=_STYLES.get(status.state, "yellow"))
        # As `Text`, since names and reasons may look like rich's markup.
        name, library, origin, why = map(
            Text, (patch.name, _library(status), status.origin, patch.why)
        )
        table.add_row(name, library, state, str(len(status.places)), origin, why)
    return table
