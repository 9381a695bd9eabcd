"""`tpuport tune`: block sizes searched with the compiler of a TPU that is not there."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tpuport.errors import PortError

if TYPE_CHECKING:
    from tpuport.attention.tuning.search import Search, Task

tune = typer.Typer(help="Search sizes with the TPU's own compiler; no TPU is needed.", no_args_is_help=True)


@tune.callback()
def _kernels() -> None:
    """Search sizes with the TPU's own compiler; no TPU is needed."""


@tune.command()
def attention(
    topology: Annotated[
        str, typer.Option(help="The TPU: v4, v5e, v5p, v6e or tpu7x, or a slice such as v5e:2x4.")
    ],
    shape: Annotated[
        list[str],
        typer.Option(help="B,H,K,Q,T,D, or a name such as llama3-8b-8k. Can be given several times."),
    ],
    dtype: Annotated[Literal["bf16", "f32"], typer.Option(help="Of queries, keys and values.")] = "bf16",
    causal: Annotated[
        bool, typer.Option("--causal", help="A query sees keys up to its own. Some named shapes are causal.")
    ] = False,
    window: Annotated[int | None, typer.Option(min=1, help="Keys that a query sees, up to its own.")] = None,
    padding: Annotated[
        Literal["none", "exact", "segment_ids"],
        typer.Option(help="How padded keys are masked, where there are."),
    ] = "none",
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as one JSON object.")] = False,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a data file of block sizes.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that one candidate may compile.")] = 300,
) -> None:
    """Rank block sizes of the attention kernel for a shape by the bundles that the compiler schedules.

    What has been measured is kept in the user's cache directory: an interrupted search goes on where it stopped.
    """
    from tpuport.attention.tuning.attention_shapes import parse_shape
    from tpuport.hardware import parse_slice

    full = _checked("--topology", parse_slice, topology).name
    shapes = [_checked("--shape", parse_shape, text) for text in shape]
    if save is not None and not save.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no directory {save.absolute().parent}", param_hint="--save")
    from tpuport.attention.tuning.search import DTYPES, Task

    tasks = [Task(one, DTYPES[dtype], causal or one.causal, window, padding) for one in shapes]
    found = _search(tasks, full, timeout)
    if save is not None:
        _save(save, found, full)
    _show(found, full, as_json=as_json)


def _checked(option: str, read: Any, text: str) -> Any:
    try:
        return read(text)
    except PortError as error:
        raise typer.BadParameter(f"{error.what}. {error.fix}", param_hint=option) from None


def _search(tasks: "list[Task]", topology: str, timeout: float) -> "list[Search]":
    from tpuport.attention.tuning.bundle_cache import Measurements, cache_file
    from tpuport.attention.tuning.bundle_compiler import Compiler
    from tpuport.attention.tuning.search import search_all

    generation = topology.partition(":")[0]
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    measurements = None
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("starting the compiler", total=None)
            with Compiler(topology, timeout=timeout) as compiler:
                measurements = Measurements(compiler, cache_file(topology))

                def show(what: str, done: int, total: int) -> None:
                    progress.update(bar, description=f"compiling {what}", completed=done, total=total)

                return search_all(tasks, generation, measurements, show)
    except KeyboardInterrupt:
        if measurements is not None:
            console.print(
                f"Stopped. What has been measured is kept in {measurements.file}; the same command goes on.",
                soft_wrap=True,
            )
        raise typer.Exit(130) from None


def _save(file: Path, found: "list[Search]", topology: str) -> None:
    from tpuport.attention.tuning.data_file import build_data, format_data

    data = build_data(found, topology.partition(":")[0], _command(found, topology, file))
    try:
        file.write_text(format_data(data), encoding="utf-8")
    except OSError as error:
        raise PortError(f"the results cannot be written: {error.strerror}", where=f"--save {file}") from None


def _command(found: "list[Search]", topology: str, file: Path) -> str:
    """The command that makes this file, whatever the shell's own line was."""
    task = found[0].task
    options = [f"--shape {one.task.shape.name}" for one in found]
    options += ["--dtype f32"] if task.dtype == "float32" else []
    options += ["--causal"] if task.causal and not task.shape.causal else []
    options += [f"--window {task.window}"] if task.window is not None else []
    options += [f"--padding {task.padding}"] if task.padding != "none" else []
    return f"tpuport tune attention --topology {topology} {' '.join(options)} --save {file.name}"


def _show(found: "list[Search]", topology: str, *, as_json: bool) -> None:
    from tpuport.attention.tuning.bundle_cache import versions
    from tpuport.attention.tuning.search import search_to_json

    if as_json:
        results = [search_to_json(one) for one in found]
        typer.echo(
            json.dumps(
                {"schema": 1, "topology": topology, "versions": versions(), "results": results}, indent=2
            )
        )
        return
    console = Console()
    for one in found:
        console.print(_table(one, topology))
        console.print(_verdict(one), soft_wrap=True)
        for reason, count in one.failures.items():
            console.print(f"{count} did not compile: {reason}", soft_wrap=True, markup=False)
        console.print()


def _table(found: "Search", topology: str) -> Table:
    task = found.task
    mask = "causal" if task.causal else "no mask"
    mask = f"window of {task.window}" if task.window is not None else mask
    table = Table(title=f"{task.shape.name} on {topology}, {task.dtype}, {mask}", title_justify="left")
    for heading in (
        "queries",
        "keys",
        "chunk",
        "bundles a step",
        "steps",
        "million cycles",
        "matrix unit",
        "to the best",
    ):
        table.add_column(heading, justify="right")
    shown = found.candidates[:10]
    shown += [one for one in found.candidates[10:] if one.blocks == found.default]
    for one in shown:
        table.add_row(
            *(f"{size:,}" for size in one.blocks),
            f"{one.bundles:,}",
            f"{one.steps:,}",
            f"{one.cycles / 1e6:,.2f}",
            f"{one.matrix_unit:.0%}",
            f"{one.cycles / found.best.cycles - 1:+.1%}",
            style="bold" if one.blocks == found.default else None,
        )
    return table


def _verdict(found: "Search") -> str:
    default = found.of(found.default)
    if default is None:
        return (
            f"The default, {tuple(found.default)}, does not compile: pass blocks={tuple(found.best.blocks)}."
        )
    behind = default.cycles / found.best.cycles - 1
    sizes = "/".join(str(size) for size in found.default)
    return f"The default is {sizes}, {behind:.1%} behind the best of {len(found.candidates)} that compiled."
