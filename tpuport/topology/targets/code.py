"""Someone's own code: `module:function`, or `path/to/file.py:function`."""

import contextlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from tpuport.checkpoint.device_layout import as_torch_dtype
from tpuport.errors import PortError
from tpuport.topology.abstract_weights import unallocated
from tpuport.topology.generation_tasks import Decode, Prefill
from tpuport.topology.targets import casting
from tpuport.topology.targets.naming import NAMED
from tpuport.topology.targets.target import Options, Target


def own_target(named: str, options: Options) -> Target:
    """What the function returns: (a model or a function that builds one, its inputs), or with `inputs` the first alone.

    Parameters that the function makes take no memory. A dtype that was asked for is that of parameters, buffers and
    inputs, as `model.to` and `inputs.to` would make them; without one, all are as the function made them.

    Raises:
        PortError: there is no such function, it fails, or it returns something else.
    """
    options.check_apply(("task",), "code of one's own, whose inputs its function makes")
    function = load_function(named)
    if wanted := _required(function):
        raise PortError(
            f"the function takes {', '.join(wanted)}, and it is called with nothing", where=named,
            fix="give its parameters defaults, or name a function that calls it",
        )  # fmt: skip
    with unallocated():
        made = _called(function, named)
    model, inputs, notes = _parts(made, named, options)
    build = (lambda: model) if isinstance(model, torch.nn.Module) else lambda: _called(model, named)
    dtype = as_torch_dtype(options.dtype)
    if dtype is torch.float16:
        dtype = torch.bfloat16
        notes = (*notes, "weights are bfloat16 in place of float16, which no TPU multiplies in")
    target = Target(named.rpartition(":")[2], build, inputs, None, None, "code", notes)
    return target if dtype is None else casting.cast(target, dtype)


def _parts(made: Any, named: str, options: Options) -> tuple[Any, Any, tuple[str, ...]]:
    """(the model or what builds it, checked inputs, notes) of what the user's function returned."""
    pair = isinstance(made, tuple | list) and len(made) == 2 and callable(made[0])
    if options.inputs is not None:
        if pair:
            raise PortError(
                "the function makes the inputs",
                where="inputs",
                fix=f"let {named} return the model alone, or drop it",
            )
        if callable(made):
            inputs = made_inputs(options.inputs, None, options.task)
            return made, inputs, (f"inputs are those of {options.inputs}",)
    if not pair:
        one = ", or give --inputs module:function, which makes the inputs" if callable(made) else ""
        raise PortError(
            f"it returned {_kind(made)}", where=named,
            fix="return (model, inputs): a torch.nn.Module or a function that builds one, and a mapping of arguments"
            + one,
        )  # fmt: skip
    inputs = checked_inputs(made[1], named, options.task)
    return made[0], inputs, ("sizes and inputs are those that the function returns",)


def check_arguments(model: torch.nn.Module, inputs: Any, where: str) -> None:
    """PortError unless a mapping of inputs has the names that the model's forward takes."""
    if not isinstance(inputs, Mapping):
        return
    try:
        taken = inspect.signature(model.forward).parameters.values()
    except ValueError:  # of a function that is not Python's
        return
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {one.name: one.default is one.empty for one in taken if one.kind in kinds}
    anything = any(one.kind is one.VAR_KEYWORD for one in taken)
    whose = f"{type(model).__name__}.forward"
    if not anything and (unknown := [name for name in inputs if name not in named]):
        what = f"{whose} takes no argument {', '.join(map(repr, unknown))}"
    elif missing := [name for name, needed in named.items() if needed and name not in inputs]:
        what = f"{whose} needs the argument {', '.join(map(repr, missing))}, which the inputs do not have"
    else:
        return
    raise PortError(what, where=where, fix=f"name the inputs as forward does: {', '.join(named) or 'none'}")


def made_inputs(named: str, config: Any, task: str | None = None) -> Mapping[str, Any] | Prefill | Decode:
    """What the function makes as inputs, called with the config where it takes an argument."""
    function = load_function(named)
    takes = any(
        parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        for parameter in inspect.signature(function).parameters.values()
    )
    if takes and config is None:
        raise PortError(
            f"{named} takes an argument, and code of one's own has no config to give it",
            where="inputs", fix="let it take none",
        )  # fmt: skip
    return checked_inputs(_called(function, named, *([config] if takes else [])), named, task)


def checked_inputs(inputs: Any, named: str, task: str | None = None) -> Mapping[str, Any] | Prefill | Decode:
    """The inputs, if they are a mapping from names, a Prefill or a Decode; and if they are those of the task."""
    tasks = {Prefill: "prefill", Decode: "decode"}
    of = next((name for kind, name in tasks.items() if isinstance(inputs, kind)), "forward")
    if task not in (None, of):
        raise PortError(
            f"{named} makes inputs of {of}, not of {task}", where="task", fix=f"--task {of}, or none"
        )
    if of != "forward":
        return inputs
    if isinstance(inputs, Mapping) and all(isinstance(name, str) for name in inputs):
        return dict(inputs)
    raise PortError(
        f"the inputs are {_kind(inputs)}",
        where=named,
        fix="a mapping from argument names of forward to values",
    )


def load_function(named: str) -> Callable[..., Any]:
    """The function, imported with the current directory, and the file's, on the path.

    Raises:
        PortError: no such module, file or function, or an error in importing it, with its line.
    """
    match = NAMED.fullmatch(named)
    if match is None:
        raise PortError(
            "this names no function", where=named, fix="module:function, or path/to/file.py:function"
        )
    where, name = match["module"], match["function"]
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else _from_path(where)
    except PortError:
        raise
    except Exception as error:  # whatever someone's module raises when it is run
        raise PortError(
            f"{where} cannot be imported: {_said(error)}", where=_place(error) or where
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        there = [key for key, value in vars(module).items() if inspect.isfunction(value) and key[0] != "_"]
        raise PortError(
            f"there is no function {name!r}", where=where, fix=f"it has {', '.join(there[:8]) or 'none'}"
        )
    return function


def _from_path(name: str) -> Any:
    with _importable(Path.cwd()):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                raise
            raise PortError(
                f"there is no module {name!r}", where=str(Path.cwd()),
                fix="run where it can be imported, or give path/to/file.py:function",
            ) from error  # fmt: skip


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise PortError("there is no such file", where=str(path), fix="check the path")
    name = re.sub(r"\W", "_", path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PortError("this is no file of Python code", where=str(path))
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up; one that is imported already under this name stays.
    sys.modules.setdefault(name, module)
    with _importable(path.resolve().parent):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _importable(directory: Path) -> Iterator[None]:
    """Let modules of the directory be found, before others as for a script."""
    entry = str(directory)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(entry)


def _called(function: Callable[..., Any], named: str, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except PortError:
        raise
    except Exception as error:  # whatever someone's function raises
        raise PortError(
            f"{named} failed: {_said(error)}", where=_place(error) or named,
            fix="call it in Python: it fails there too",
        ) from error  # fmt: skip


def _required(function: Callable[..., Any]) -> list[str]:
    """The parameters that a call must give."""
    try:
        taken = inspect.signature(function).parameters.values()
    except ValueError:  # of a function that is not Python's
        return []
    return [
        one.name
        for one in taken
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]


def _said(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"


def _place(error: Exception) -> str | None:
    """file:line of the innermost frame outside of installed packages and of this file."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__
        and not any(part in frame.filename for part in ("site-packages", "importlib", "contextlib.py"))
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None


def _kind(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}: {', '.join(type(one).__name__ for one in value)}"
    return "None" if value is None else f"an object of class {type(value).__name__}"
