"""The `tpuport` command. One file a command: parse, call, render."""

import sys
from typing import Annotated

import typer
from rich.console import Console

import tpuport
from tpuport.cli.doctor import doctor
from tpuport.cli.lint import lint
from tpuport.errors import PortError

app = typer.Typer(
    name="tpuport",
    help="Port PyTorch models written for GPUs to TPU through torchax.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(doctor)
app.command()(lint)


def _show_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"tpuport {tpuport.__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Port PyTorch models written for GPUs to TPU through torchax."""


def main() -> None:
    """Run the command line: exit code 0, 1 for what cannot work, 2 for wrong usage."""
    try:
        app()
    except PortError as error:
        Console(stderr=True, highlight=False).print(str(error), style="red", markup=False, soft_wrap=True)
        sys.exit(1)
