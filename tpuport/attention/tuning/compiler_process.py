"""The process behind `bundles.Compiler`: a line of JSON in, a program compiled, a line of JSON out."""

import contextlib
import dataclasses
import importlib
import json
import os
import sys
from pathlib import Path
from typing import IO, Any

from tpuport.attention.tuning import bundle_schedule
from tpuport.errors import PortError


def main() -> None:
    """Answer until the input ends. Arguments: the topology's name, and the directory of LIBTPU_INIT_ARGS."""
    name, dumps = sys.argv[1:]
    # What libraries print must not come between the answers.
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        topology = _started(out, name)
        for line in sys.stdin if topology is not None else ():
            _say(out, _answered(json.loads(line), topology, Path(dumps)))


def _started(out: IO[str], name: str) -> Any:
    """The described TPU, or None after saying why there is none."""
    from tpuport.hardware import described

    try:
        topology = described(name)
    except PortError as error:
        _say(out, _problem(error))
        return None
    _say(out, _answer([], None))
    return topology


def _answered(request: dict[str, Any], topology: Any, dumps: Path) -> dict[str, Any]:
    from tpuport.hardware import compiled

    try:
        function, arguments = _program(request["function"], request["arguments"])
    except PortError as error:
        return _problem(error)
    _empty(dumps)
    try:
        compiled(function, *arguments, topology=topology)
        return _answer([dataclasses.asdict(kernel) for kernel in bundle_schedule.kernels(dumps)], None)
    except Exception as error:  # noqa: BLE001  whatever tracing, lowering and compiling raise is what was asked for
        return _answer([], _first_line(error))
    finally:
        _empty(dumps)


def _program(named: str, arguments: dict[str, Any]) -> tuple[Any, tuple]:
    module, _, name = named.partition(":")
    try:
        return getattr(importlib.import_module(module), name)(**arguments)
    except PortError:
        raise
    except Exception as error:
        raise PortError(
            f"there is nothing to compile: {type(error).__name__}: {error}",
            where=f"{named} with {json.dumps(arguments)}",
            fix='name a function as "package.module:function", with arguments that it takes',
        ) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    # The compiler puts a code on the first line and the sentence on the second.
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def _answer(kernels: list[dict[str, Any]], failure: str | None) -> dict[str, Any]:
    return {"kernels": kernels, "failure": failure}


def _problem(error: PortError) -> dict[str, Any]:
    return {"problem": {"what": error.what, "where": error.where, "fix": error.fix}}


def _say(out: IO[str], answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()


def _empty(directory: Path) -> None:
    for file in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            file.unlink()
