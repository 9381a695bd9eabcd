"""`tpuport tune`: block sizes searched with the TPU's own compiler, without a TPU."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from tpuport.cli.arguments import CommandParser, UsageError, positive_integer, seconds
from tpuport.cli.console import print_text, say, write_file
from tpuport.errors import PortError

if TYPE_CHECKING:
    from tpuport.attention.tuning.search import Candidate, Search, Task

Value = TypeVar("Value")
_MAX_ROWS: Final = 10


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = CommandParser(
        prog="tpuport tune",
        description="Search block sizes with the TPU's own compiler; no TPU is needed.",
    )
    kernels = parser.add_subparsers(metavar="KERNEL", required=True)
    attention = kernels.add_parser(
        "attention",
        prog="tpuport tune attention",
        help="rank block sizes of the attention kernel",
        description="Rank block sizes of the attention kernel for a shape by the instruction bundles that the "
        "compiler schedules.",
        epilog="Measurements are stored in the user's cache directory: an interrupted search continues where it "
        "stopped.",
    )
    add = attention.add_argument
    add(
        "--topology",
        required=True,
        metavar="NAME",
        help="v4, v5e, v5p, v6e or tpu7x, or a slice such as v5e:2x4",
    )
    add(
        "--shape",
        required=True,
        action="append",
        metavar="SHAPE",
        help="B,H,K,Q,T,D, or a name such as llama3-8b-8k; repeat it for several",
    )
    add(
        "--dtype",
        choices=("bf16", "f32"),
        default="bf16",
        help="of queries, keys and values; bf16 by default",
    )
    add(
        "--causal",
        action="store_true",
        help="a query sees keys up to its own; some named shapes are causal",
    )
    add(
        "--window",
        type=positive_integer,
        metavar="N",
        help="keys that a query sees, up to its own",
    )
    add(
        "--padding",
        choices=("none", "exact", "segment_ids"),
        default="none",
        help="how padded keys are masked, if there are any; none by default",
    )
    add("--json", action="store_true", help="print the results as one JSON object")
    add("--save", type=Path, metavar="FILE", help="write a data file of block sizes")
    add(
        "--timeout",
        type=seconds,
        default=300.0,
        metavar="SECONDS",
        help="seconds that compiling a candidate may take; 300 by default",
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command; the exit code is 0."""
    from tpuport.hardware import parse_slice
    from tpuport.libraries.attention_shapes import parse_shape

    topology = _parse("--topology", parse_slice, options.topology).name
    shapes = [_parse("--shape", parse_shape, text) for text in options.shape]
    if options.save is not None and not options.save.absolute().parent.is_dir():
        raise UsageError(
            f"there is no directory {options.save.absolute().parent}", where="--save"
        )
    # Not before everything is checked: this imports jax and torch.
    from tpuport.attention.tuning.search import DTYPES, Task

    dtype = DTYPES[options.dtype]
    tasks = [
        Task(
            shape,
            dtype,
            options.causal or shape.causal,
            options.window,
            options.padding,
        )
        for shape in shapes
    ]
    searches = _search(tasks, topology, options.timeout)
    if options.save is not None:
        _save(options.save, searches, topology)
    if options.json:
        _print_json(searches, topology)
    else:
        _print_tables(searches, topology)
    return 0


def _parse(option: str, parse: Callable[[str], Value], text: str) -> Value:
    try:
        return parse(text)
    except PortError as error:
        raise UsageError(error.what, where=option, fix=error.fix) from None


def _search(tasks: "list[Task]", topology: str, timeout: float) -> "list[Search]":
    from tpuport.attention.tuning.bundle_cache import Measurements, cache_file
    from tpuport.attention.tuning.bundle_compiler import Compiler
    from tpuport.attention.tuning.search import search_all

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    file = cache_file(topology)
    try:
        with Progress(
            *columns, console=Console(stderr=True), transient=True
        ) as progress:
            bar = progress.add_task("starting the compiler", total=None)

            def show(activity: str, count: int, total: int) -> None:
                progress.update(
                    bar,
                    description=f"compiling {activity}",
                    completed=count,
                    total=total,
                )

            with Compiler(topology, timeout=timeout) as compiler:
                generation = topology.partition(":")[0]
                return search_all(tasks, generation, Measurements(compiler, file), show)
    except KeyboardInterrupt:
        # The bar is gone by now; the command line says that it was interrupted.
        say(
            f"What has been measured is in {file}; the same command continues from there."
        )
        raise


def _save(file: Path, searches: "list[Search]", topology: str) -> None:
    from tpuport.attention.tuning.data_file import build_data, format_data

    data = build_data(
        searches, topology.partition(":")[0], _command(searches, topology, file)
    )
    write_file(file, format_data(data), "the results", "--save")


def _command(searches: "list[Search]", topology: str, file: Path) -> str:
    """The command that creates this file again, in a canonical form."""
    # Tasks differ in nothing but their shapes.
    task = searches[0].task
    # What is not the default; the file's directory does not matter.
    is_needed = {
        "--dtype f32": task.dtype == "float32",
        "--causal": task.causal and not task.shape.causal,
        f"--window {task.window}": task.window is not None,
        f"--padding {task.padding}": task.padding != "none",
        f"--save {file.name}": True,
    }
    shapes = [f"--shape {search.task.shape.name}" for search in searches]
    options = [option for option, needed in is_needed.items() if needed]
    return " ".join(["tpuport tune attention --topology", topology, *shapes, *options])


def _print_json(searches: "list[Search]", topology: str) -> None:
    from tpuport.attention.tuning.bundle_cache import versions
    from tpuport.attention.tuning.search import search_to_json

    results = list(map(search_to_json, searches))
    report = {
        "schema": 1,
        "topology": topology,
        "versions": versions(),
        "results": results,
    }
    print_text(
        json.dumps(report, indent=2) + "\n",
        "the results",
        fix="redirect them to a file",
    )


def _print_tables(searches: "list[Search]", topology: str) -> None:
    console = Console()
    for search in searches:
        console.print(_table(search, topology))
        console.print(_verdict(search), soft_wrap=True)
        for reason, count in search.failures.items():
            console.print(
                f"{count} did not compile: {reason}", soft_wrap=True, markup=False
            )
        console.print()


def _table(search: "Search", topology: str) -> Table:
    task = search.task
    title = f"{task.shape.name} on {topology}, {task.dtype}, {_mask_name(task)}"
    table = Table(title=title, title_justify="left")
    headings = (
        "queries", "keys", "chunk", "bundles a step", "steps", "million cycles", "matrix unit", "to the best",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    for index, candidate in enumerate(search.candidates):
        # The default is shown wherever it ranks.
        if candidate.blocks == search.default:
            table.add_row(*_row(candidate, search), style="bold")
        elif index < _MAX_ROWS:
            table.add_row(*_row(candidate, search))
    return table


def _row(candidate: "Candidate", search: "Search") -> list[str]:
    return [
        *(f"{size:,}" for size in candidate.blocks),
        f"{candidate.bundles:,}",
        f"{candidate.steps:,}",
        f"{candidate.cycles / 1e6:,.2f}",
        f"{candidate.matrix_unit:.0%}",
        f"{candidate.cycles / search.best.cycles - 1:+.1%}",
    ]


def _mask_name(task: Any) -> str:
    # A window is causal as well.
    if task.window is not None:
        return f"window of {task.window}"
    if task.causal:
        return "causal"
    return "no mask"


def _verdict(search: "Search") -> str:
    # The default need not be among the best: it is computed, for shapes that nobody
    # searched.
    default = search.of(search.default)
    if default is None:
        best = tuple(search.best.blocks)
        return f"The default, {tuple(search.default)}, does not compile: pass blocks={best}."
    behind = default.cycles / search.best.cycles - 1
    sizes = "/".join(map(str, search.default))
    return f"The default is {sizes}, {behind:.1%} behind the best of {len(search.candidates)} that compiled."
