"""The user's own code: `module:function`, or `path/to/file.py:function`."""

import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import jax
import torch

from tpuport import compat
from tpuport.checkpoint.device_layout import as_torch_dtype
from tpuport.errors import PortError
from tpuport.objects import pytrees
from tpuport.topology.abstract_weights import unallocated_parameters
from tpuport.topology.generation_tasks import Decode, Prefill
from tpuport.topology.targets.early_checks import (
    check_python_file,
    missing_module,
    split_function_name,
)
from tpuport.topology.targets.target import Options, Target, required_parameters

# Parts of the paths of files that only call the user's code.
_CALLERS: Final = ("site-packages", "importlib", "contextlib.py", __file__)
_NAMED_KINDS: Final = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)
_MOST_FUNCTIONS: Final = 8  # that a message lists

_Inputs = Mapping[str, Any] | Prefill | Decode


def user_target(name: str, options: Options) -> Target:
    """The program of a function that returns (a model or a function that builds one,
    its inputs).

    If the options have `inputs`, the function returns the model alone. Parameters that
    it makes take no memory. The dtype of the options is that of parameters, buffers and
    inputs, as `model.to` and `inputs.to` would make them; without one, all have the
    dtypes that the function gives them.

    Raises:
        PortError: there is no such function, it fails, or it returns something else.
    """
    options.check_apply(
        ("task",), "the user's own code, whose inputs its function makes"
    )
    function = load_function(name)
    required = required_parameters(function)
    if required:
        raise PortError(
            f"the function takes {', '.join(required)}, and it is called without arguments", where=name,
            fix="give its parameters defaults, or name a function that calls it",
        )  # fmt: skip
    # The function may make the model itself, of any size.
    with unallocated_parameters():
        result = _call(function, name)
    model, inputs, notes = _split_result(result, name, options)

    def build() -> torch.nn.Module:
        return model if isinstance(model, torch.nn.Module) else _call(model, name)

    target = Target(name.rpartition(":")[2], build, inputs, kind="code", notes=notes)
    dtype = as_torch_dtype(options.dtype)
    if dtype is None:
        return target
    if dtype is torch.float16:
        dtype = torch.bfloat16
        note = "weights are bfloat16 instead of float16, in which no TPU multiplies"
        target = dataclasses.replace(target, notes=(*notes, note))
    return convert_dtype(target, dtype)


def _split_result(
    result: Any, name: str, options: Options
) -> tuple[Any, _Inputs, tuple[str, ...]]:
    """The model or what builds it, checked inputs, and notes, from what the user's
    function returned.
    """
    fix = "return (model, inputs): a torch.nn.Module or a function that builds one, and a mapping of arguments"
    match result:
        case [model, _] if callable(model) and options.inputs is not None:
            raise PortError(
                "the function makes the inputs",
                where="inputs",
                fix=f"let {name} return the model alone, or drop it",
            )
        case [model, inputs] if callable(model):
            inputs = _check_inputs(inputs, name, options.task)
            return (
                model,
                inputs,
                ("sizes and inputs are those that the function returns",),
            )
        case _ if callable(result) and options.inputs is not None:
            inputs = call_inputs_function(options.inputs, None, options.task)
            return result, inputs, (f"inputs are those of {options.inputs}",)
        case _ if callable(result):
            fix += ", or give --inputs module:function, which makes the inputs"
    raise PortError(f"it returned {describe_value(result)}", where=name, fix=fix)


def check_arguments(model: torch.nn.Module, inputs: Any, where: str) -> None:
    """PortError unless a mapping of inputs has the names that the model's forward
    takes.
    """
    if not isinstance(inputs, Mapping):
        return
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except ValueError:  # of a function that Python code does not define
        return
    # Inputs are passed by name, so that parameters which take a position only are no
    # use.
    named = [
        parameter.name for parameter in parameters if parameter.kind in _NAMED_KINDS
    ]
    takes_any_name = any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters
    )
    forward = f"{type(model).__name__}.forward"
    fix = f"name the inputs as forward does: {', '.join(named) or 'none'}"
    unknown = [name for name in inputs if name not in named]
    if unknown and not takes_any_name:
        raise PortError(
            f"{forward} takes no argument {_quote(unknown)}", where=where, fix=fix
        )
    missing = [
        name for name in required_parameters(model.forward) if name not in inputs
    ]
    if missing:
        problem = f"{forward} needs the argument {_quote(missing)}, which the inputs do not have"
        raise PortError(problem, where=where, fix=fix)


def _quote(names: list[str]) -> str:
    return ", ".join(map(repr, names))


def call_inputs_function(name: str, config: Any, task: str | None = None) -> _Inputs:
    """What the function makes as inputs, called with the config if it takes an
    argument.
    """
    function = load_function(name)
    arguments = []
    if required_parameters(function):
        if config is None:
            raise PortError(
                f"{name} takes an argument, and the user's own code has no config to give it",
                where="inputs", fix="let it take none",
            )  # fmt: skip
        arguments.append(config)
    return _check_inputs(_call(function, name, *arguments), name, task)


def _check_inputs(inputs: Any, name: str, task: str | None) -> _Inputs:
    """The inputs, if they are a mapping from names, a Prefill or a Decode, as the task
    wants them.
    """
    tasks = {Prefill: "prefill", Decode: "decode"}
    actual_task = tasks.get(type(inputs), "forward")
    if task not in (None, actual_task):
        raise PortError(
            f"{name} makes inputs of {actual_task}, not of {task}", where="task",
            fix=f"--task {actual_task}, or none",
        )  # fmt: skip
    if isinstance(inputs, Mapping) and all(
        isinstance(argument, str) for argument in inputs
    ):
        return dict(inputs)
    if actual_task != "forward":
        return inputs
    raise PortError(
        f"the inputs are {describe_value(inputs)}", where=name,
        fix="a mapping from argument names of forward to values",
    )  # fmt: skip


def load_function(name: str) -> Callable[..., Any]:
    """The function, imported with the current directory, and the file's, on the path.

    Raises:
        PortError: there is no such module, file or function, or importing it fails; the
            message names the line.
    """
    module_name, function_name = split_function_name(name)
    load = _load_file if module_name.endswith(".py") else _load_module
    with reported_errors(f"{module_name} cannot be imported", module_name):
        module = load(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        public = [
            name
            for name, member in vars(module).items()
            if inspect.isfunction(member) and name[0] != "_"
        ]
        fix = f"it has {', '.join(public[:_MOST_FUNCTIONS])}"
        if not public:
            fix = f"write one: def {function_name}(): return model, inputs"
        raise PortError(
            f"there is no function {function_name!r}", where=module_name, fix=fix
        )
    return function


def _load_module(name: str) -> Any:
    with _importable(Path.cwd()):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A module that the user's own imports is missing, and not the user's own.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise missing_module(name) from error


def _load_file(file: str) -> Any:
    path = Path(file)
    check_python_file(path)
    name = re.sub(r"\W", "_", path.stem)
    spec: Any = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up. One that is imported already under this name
    # stays.
    sys.modules.setdefault(name, module)
    with _importable(path.resolve().parent):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _importable(directory: Path) -> Iterator[None]:
    """Let modules of the directory be imported, before others as for a script."""
    entry = str(directory)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(entry)


@contextlib.contextmanager
def called_by_name(name: str) -> Iterator[None]:
    """Around a call of a function of the user's: modules beside its file can be
    imported, and errors name the line.
    """
    module, _ = split_function_name(name)
    directory = Path(module).resolve().parent if module.endswith(".py") else Path.cwd()
    with (
        _importable(directory),
        reported_errors(
            f"{name} failed", name, "call it in Python: it fails there too"
        ),
    ):
        yield


def _call(function: Callable[..., Any], name: str, *arguments: Any) -> Any:
    with called_by_name(name):
        return function(*arguments)


@contextlib.contextmanager
def reported_errors(what: str, where: str, fix: str | None = None) -> Iterator[None]:
    """Turn whatever the user's code raises inside into a PortError that names the
    line.
    """
    try:
        yield
    except PortError:  # says already what to do
        raise
    except Exception as error:
        raise PortError(
            f"{what}: {_quote_error(error)}", where=_error_line(error) or where, fix=fix
        ) from error


def _quote_error(error: Exception) -> str:
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}"


def _error_line(error: Exception) -> str | None:
    """file:line of the innermost frame of the user's code; None if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if not any(part in frame.filename for part in _CALLERS)
    ]
    return next((f"{frame.filename}:{frame.lineno}" for frame in reversed(own)), None)


def describe_value(value: Any) -> str:
    """What a value is, in words of an error: "a tuple of 2: Linear, int"."""
    match value:
        case None:
            return "None"
        case tuple() | list():
            classes = ", ".join(type(element).__name__ for element in value)
            return f"a {type(value).__name__} of {len(value)}: {classes}"
    return f"an object of class {type(value).__name__}"


def convert_dtype(target: Target, dtype: torch.dtype) -> Target:
    """The target with floating-point parameters, buffers and inputs in this dtype, and
    a note of changed inputs.

    Complex tensors stay as they are: torch would take their real part.
    """

    def build() -> torch.nn.Module:
        # Module.to would convert complex tensors as well.
        return target.build()._apply(lambda tensor: _convert(tensor, dtype))

    if not isinstance(target.inputs, Mapping):  # those of `generate` are tokens
        return dataclasses.replace(target, build=build, dtype=None)
    pytrees.register()
    inputs = {
        name: jax.tree.map(lambda leaf: _convert(leaf, dtype), value)
        for name, value in target.inputs.items()
    }
    changed = [
        name for name in inputs if _dtypes(inputs[name]) != _dtypes(target.inputs[name])
    ]
    notes = target.notes
    if changed:
        dtype_name = str(dtype).removeprefix("torch.")
        notes = (
            *notes,
            f"inputs that were converted to {dtype_name}: {', '.join(changed)}",
        )
    return dataclasses.replace(
        target, build=build, inputs=inputs, dtype=None, notes=notes
    )


def _convert(value: Any, dtype: torch.dtype) -> Any:
    """A floating-point tensor, or the description of one, in this dtype; anything else
    as it is.
    """
    match value:
        case torch.Tensor() if value.is_floating_point():
            return value.to(dtype)
        case jax.ShapeDtypeStruct():
            current = as_torch_dtype(value.dtype)
            if current and current.is_floating_point:
                return value.update(dtype=compat.jax_dtype(dtype))
    return value


def _dtypes(value: Any) -> list[str]:
    return [str(getattr(leaf, "dtype", "")) for leaf in jax.tree.leaves(value)]
