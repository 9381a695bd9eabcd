"""`tpuport patches`: what is replaced in known libraries, for which versions, and whether it fits what is installed."""

import dataclasses
import importlib
import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from tpuport.patches.patch import State, Status

_STYLES = {"applied": "green", "waiting for import": "green", "off": "dim", "not installed": "dim"}
_WRONG = ("source differs", "target missing", "failed")


def patches(
    form: Annotated[
        Literal["text", "json"], typer.Option("--format", help="A table, or one JSON object.")
    ] = "text",
    check: Annotated[
        bool, typer.Option("--check", help="Import what is patched, and compare the sources; takes longer.")
    ] = False,
) -> None:
    """List the patches and their status here; exit 1 when one does not fit what is installed."""
    from tpuport.patches import registry

    # As `tpuport.enable()` would, except that a mismatch is a line of the list and no error.
    registry.apply_all("off" if registry.environment_strictness() == "off" else "warn")
    failures = _import_targets(registry.statuses()) if check else {}
    statuses = [_with(status, failures) for status in registry.statuses()]
    if form == "json":
        listed = [_as_json(status) for status in statuses]
        typer.echo(json.dumps({"schema": 1, "checked": check, "patches": listed}, indent=2))
    else:
        _render(statuses, check)
    raise typer.Exit(1 if any(status.state in _WRONG for status in statuses) else 0)


def _import_targets(statuses: "list[Status]") -> "dict[str, tuple[State, str]]":
    """Import the modules of patches that wait for it; what went wrong, by module."""
    waiting = [status for status in statuses if status.state == "waiting for import"]
    failures: dict[str, tuple[State, str]] = {}
    with Console(stderr=True).status("importing what is patched"):
        for status in waiting:
            module = status.patch.module
            try:
                importlib.import_module(module)
            except Exception as error:  # noqa: BLE001  whatever a library raises is a line of the list
                absent = isinstance(error, ModuleNotFoundError) and module.startswith(error.name or "?")
                said = f"{module} does not import: {type(error).__name__}: {error}"
                failures[module] = ("not installed", "") if absent else ("failed", said)
    return failures


def _with(status: "Status", failures: "dict[str, tuple[State, str]]") -> "Status":
    if status.patch.module not in failures or status.state != "waiting for import":
        return status
    state, detail = failures[status.patch.module]
    detail = detail or f"{status.patch.package} {status.installed} has no module {status.patch.module}"
    return dataclasses.replace(status, state=state, detail=detail)


def _as_json(status: "Status") -> dict[str, object]:
    fields = dataclasses.asdict(status)
    return {**fields.pop("patch"), **fields}


def _render(statuses: "list[Status]", check: bool) -> None:
    console = Console()
    if not statuses:
        console.print("No patches are registered.")
        return
    table = Table(title="Patches", title_justify="left")
    table.add_column("patch", overflow="fold")
    table.add_column("for")
    table.add_column("here")
    table.add_column("status")
    table.add_column("from")
    table.add_column("why", overflow="fold")
    for status in statuses:
        patch = status.patch
        state = Text(status.state, style=_STYLES.get(status.state, "yellow"))
        if status.state in _WRONG:
            state.style = "bold red"
        versions = f"{patch.package} {patch.versions}".strip() or "any"
        before = (patch.name, versions, status.installed or "-")
        table.add_row(*map(Text, before), state, Text(status.origin), Text(patch.why))
    console.print(table)
    for status in statuses:
        if status.detail:
            console.print(f"{status.patch.name}: {status.detail}", soft_wrap=True, markup=False)
    if not check and any(status.state == "waiting for import" for status in statuses):
        console.print("Sources are compared when the target is imported; --check does it now.", style="dim")
