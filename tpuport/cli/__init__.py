"""The `tpuport` command. One file a command: parse, call, render."""

import sys
from typing import Any

from tpuport.errors import PortError


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module 'tpuport.cli' has no attribute {name!r}")
    from tpuport.cli.commands import app

    return app


def main() -> None:
    """Run the command line: exit code 0, 1 for what cannot work, 2 for wrong usage."""
    if sys.argv[1:2] == ["lint"]:
        # Importing typer takes longer than linting a file, so this command has a parser of its own.
        from tpuport.cli.lint import lint

        sys.exit(lint(sys.argv[2:]))
    if sys.argv[1:2] == ["compile"]:
        from tpuport.cli.compile import compile

        sys.exit(compile(sys.argv[2:]))
    try:
        sys.modules[__name__].app()
    except PortError as error:
        from rich.console import Console

        Console(stderr=True, highlight=False).print(str(error), style="red", markup=False, soft_wrap=True)
        sys.exit(1)
