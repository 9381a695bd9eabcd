"""The `tpuport` command line.

Each command is a module with `parser()` and `run(options)`, which returns the exit
code. What commands do is imported inside `run`: the command line answers at once, and
`tpuport lint` needs neither torch nor jax.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tpuport.cli import interrupts
from tpuport.cli.arguments import CommandParser, UsageError, closest
from tpuport.cli.console import say
from tpuport.errors import PortError
from tpuport.version import __version__


class Command(NamedTuple):
    """A command of `tpuport`.

    Attributes:
        summary: for `tpuport --help`.
        error_code: the exit code for a PortError: 2 if 1 is a result of the command's
            work, else 1.
        interrupted: what to say after Ctrl-C.
    """

    summary: str
    error_code: int = 1
    interrupted: str = "interrupted"


# Names of modules in this package.
COMMANDS: Final = {
    "lint": Command(
        "find what cannot be traced under jax.jit, and fix it",
        2,
        "interrupted; every file is whole",
    ),
    "server": Command("show what lint finds in an editor: a language server"),
    "check": Command(
        "run a model in torch and on the device, and report what stops it or differs", 2
    ),
    "compile": Command(
        "compile a model for a TPU, without a TPU",
        2,
        "interrupted; what was compiled before is kept",
    ),
    "tune": Command("search block sizes with the TPU's own compiler, without a TPU"),
    "patches": Command("list the patches of known libraries and their status"),
    "doctor": Command(
        "report versions, devices, memory and caches, and what cannot work"
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 for what cannot work, 2 for
    wrong usage.
    """
    if arguments is None:
        arguments = sys.argv[1:]
        command = COMMANDS.get("".join(arguments[:1]), Command(""))
        interrupts.install(lambda: say(command.interrupted, "red"))
    # Not argparse's subparsers, for which all commands would be imported.
    if arguments and arguments[0] in COMMANDS:
        name, *rest = arguments
        return _run(lambda: _run_command(name, rest), COMMANDS[name])
    return _run(lambda: _run_without_command(arguments), Command(""))


def _run(work: Callable[[], int], command: Command) -> int:
    """Do the work; errors become messages and exit codes."""
    try:
        return _carry_out(work)
    except UsageError as error:
        say(str(error), "red")
        return 2
    except PortError as error:
        say(str(error), "red")
        return command.error_code
    except KeyboardInterrupt:
        say(command.interrupted, "red")
        return interrupts.EXIT_CODE
    except SystemExit as error:
        # argparse has printed its help or the version.
        return int(error.code or 0)
    except ModuleNotFoundError as error:
        # A module of tpuport itself is a bug; another package was left out when tpuport
        # was installed.
        package = (error.name or "").partition(".")[0]
        if package in ("", "tpuport"):
            return _report_bug()
        say(
            f"the package {package} is not installed\n  fix: pip install tpuport", "red"
        )
        return 2
    except Exception:  # noqa: BLE001  Python would exit with 1, which is a result of some commands' work
        return _report_bug()


def _carry_out(work: Callable[[], int]) -> int:
    """Do the work; an interrupt that became another error on the way, or none, is one
    again.
    """
    code = 0
    try:
        code = work()
    except Exception:
        if not interrupts.received():
            raise
    if interrupts.received():
        raise KeyboardInterrupt
    return code


def _report_bug() -> int:
    import traceback

    say(f"{traceback.format_exc()}This is a bug of tpuport; please report it.", "red")
    return 2


def _run_command(name: str, arguments: Sequence[str]) -> int:
    module = importlib.import_module(f"tpuport.cli.{name}")
    return module.run(module.parser().parse_args(arguments))


def _run_without_command(arguments: Sequence[str]) -> int:
    width = max(map(len, COMMANDS))
    commands = "\n".join(
        f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()
    )
    parser = CommandParser(
        prog="tpuport",
        usage="tpuport [-h] [--version] COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Port PyTorch models written for GPUs to TPU through torchax.",
        epilog=f"commands:\n{commands}\n\ntpuport COMMAND --help describes a command.",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"tpuport {__version__}",
        help="show the version",
    )
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    # What follows an unknown command may be anything, and is not the mistake.
    options, _ = parser.parse_known_args(arguments)
    if options.command is not None:
        raise UsageError(
            f"there is no command {options.command!r}",
            fix=f"{closest([options.command], COMMANDS)}tpuport --help lists the commands",
        )
    # An option that does not exist is an error; nothing at all asks for help.
    parser.parse_args(arguments)
    parser.print_help()
    return 2
