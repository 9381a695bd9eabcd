"""The process behind `bundle_compiler.Compiler`: a line of JSON in, a program compiled,
a line of JSON out.
"""

import contextlib
import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from tpuport.attention.tuning.bundle_schedule import read_kernels
from tpuport.base.child_process import open_replies
from tpuport.errors import PortError
from tpuport.hardware import compiled, described


def main() -> None:
    """Reply until the input ends. Arguments: the topology's name, and the directory of
    LIBTPU_INIT_ARGS.
    """
    name, schedules = sys.argv[1:]
    with open_replies() as reply:
        try:
            topology = described(name)
        except PortError as error:
            reply(_problem(error))
            return
        # The parent waits for this before it sends a program.
        reply(_result([], None))
        for line in sys.stdin:
            reply(_compile(json.loads(line), topology, Path(schedules)))


def _compile(request: dict[str, Any], topology: Any, schedules: Path) -> dict[str, Any]:
    try:
        function, arguments = _build_program(request["function"], request["arguments"])
    except PortError as error:
        return _problem(error)
    _empty(schedules)
    try:
        # Only for what it writes: nothing can run the program.
        compiled(function, *arguments, topology=topology)
        return _result(list(map(dataclasses.asdict, read_kernels(schedules))), None)
    except Exception as error:  # noqa: BLE001  whatever tracing, lowering and compiling raise is a result
        return _result([], _first_line(error))
    finally:
        _empty(schedules)


def _build_program(path: str, arguments: dict[str, Any]) -> tuple[Any, tuple]:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)(**arguments)
    except PortError:
        raise
    except Exception as error:
        raise PortError(
            f"there is nothing to compile: {type(error).__name__}: {error}",
            where=f"{path} with {json.dumps(arguments)}",
            fix='name a function as "package.module:function", with arguments that it takes',
        ) from error


def _first_line(error: Exception) -> str:
    lines = list(filter(None, map(str.strip, str(error).splitlines()))) or [
        type(error).__name__
    ]
    # The compiler puts a code on the first line and the sentence on the second.
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def _result(kernels: list[dict[str, Any]], failure: str | None) -> dict[str, Any]:
    return {"kernels": kernels, "failure": failure}


def _problem(error: PortError) -> dict[str, Any]:
    return {"problem": {"what": error.what, "where": error.where, "fix": error.fix}}


def _empty(directory: Path) -> None:
    for file in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            file.unlink()
