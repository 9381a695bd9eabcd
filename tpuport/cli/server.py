"""`tpuport server`: the linter in an editor, as a language server."""

import argparse
import importlib.util

from tpuport.cli.arguments import CommandParser
from tpuport.errors import PortError


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    return CommandParser(
        prog="tpuport server",
        description="Show what tpuport lint finds while you edit: a language server over standard input and output, "
        "which editors start. Settings are read from [tool.tpuport.lint] in the nearest pyproject.toml.",
    )


def run(_: argparse.Namespace) -> int:
    """Serve until the editor ends the connection.

    Raises:
        PortError: the packages of the extra are missing.
    """
    if importlib.util.find_spec("pygls") is None:
        raise PortError(
            "the language server needs pygls", fix='pip install "tpuport[server]"'
        )
    from tpuport.server.language_server import serve

    serve()
    return 0
