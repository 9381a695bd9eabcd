"""The commands as typer knows them."""

from typing import Annotated

import typer

import tpuport
from tpuport.cli.doctor import doctor
from tpuport.cli.patches import patches
from tpuport.cli.tune import tune

app = typer.Typer(
    name="tpuport",
    help="Port PyTorch models written for GPUs to TPU through torchax.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(doctor)
app.command()(patches)
app.add_typer(tune, name="tune")


@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
def lint(arguments: Annotated[list[str] | None, typer.Argument(metavar="...")] = None) -> None:
    """Find what cannot be traced under jax.jit, and mend it; exit 1 for errors, 2 for what could not be linted."""
    from tpuport.cli.lint import lint as run

    raise typer.Exit(run(arguments or []))


@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
def compile(arguments: Annotated[list[str] | None, typer.Argument(metavar="...")] = None) -> None:
    """Compile a model for a TPU that is not there; exit 1 where it does not fit, 2 for what could not run."""
    from tpuport.cli.compile import compile as run

    raise typer.Exit(run(arguments or []))


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
