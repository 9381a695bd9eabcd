"""Python numbers among the arguments of a model: each value compiles a program."""

import inspect

import torch

from tpuport import porting, trace_errors
from tpuport.compilation import CompiledFunction
from tpuport.verification import model_runs
from tpuport.verification.check_result import CheckFinding
from tpuport.verification.model_runs import Arguments


def findings(model: torch.nn.Module, arguments: Arguments) -> list[CheckFinding]:
    """A note for each number, with what it takes to make it a tensor: a run shows
    whether the code allows it.
    """
    parameters = list(inspect.signature(model.forward).parameters)
    named = (
        dict(zip(parameters, arguments.positional, strict=False)) | arguments.keywords
    )
    # Not bool, which is a class derived from int: flags have two values.
    return [
        _finding(name, value, model, arguments)
        for name, value in named.items()
        if type(value) in (int, float)
    ]


def _finding(
    name: str, value: float, model: torch.nn.Module, arguments: Arguments
) -> CheckFinding:
    option = f"tpuport.compile(model, traced=[{name!r}])"
    compiled = CompiledFunction(
        porting.port(model_runs.copy_model(model)), traced=[name]
    )
    line = None
    try:
        model_runs.call_compiled(compiled, arguments)
    except Exception as error:  # noqa: BLE001  whatever the model's code does with a tensor for a number
        line = trace_errors.explain(error, model).source
        remedy = "leave it as it is if it never changes; else write the line for a tensor, and pass one"
    else:
        remedy = f"leave it as it is if it never changes; else {option} makes it a tensor: tried here"
    return CheckFinding(
        "recompilation", "repeat", "note",
        f"{name} is a Python number, {value!r} here: each other value of it compiles a program", remedy, line,
        details={"argument": name},
    )  # fmt: skip
