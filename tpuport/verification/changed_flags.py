"""Flags of the user's modules that are changed after compiling: a compiled call must
see it, as torch does.
"""

import contextlib
import dataclasses
import dis
import inspect
import io
import itertools
import logging
import types
import warnings
from collections.abc import Iterator
from typing import Final

import torch

from tpuport.compilation import CompiledFunction
from tpuport.trace_errors import Source
from tpuport.trace_errors.libraries import LIBRARIES, MODEL_MODULES
from tpuport.verification import differences, model_runs
from tpuport.verification.bounds import total_distance
from tpuport.verification.check_result import CheckFinding
from tpuport.verification.model_runs import Arguments

# Each costs a run in torch and a program.
_MOST_FLAGS: Final = 4
# Instructions that read an attribute; up to Python 3.11, methods have one of their own.
_READS: Final = ("LOAD_ATTR", "LOAD_METHOD")


@dataclasses.dataclass(frozen=True)
class Flag:
    """A boolean attribute of modules of one class that its code reads.

    Attributes:
        line: where it is read.
    """

    module_class: type[torch.nn.Module]
    name: str
    line: Source

    def invert(self, model: torch.nn.Module) -> None:
        """Invert it in every module of the class."""
        for module in model.modules():
            if type(module) is self.module_class:
                setattr(module, self.name, not getattr(module, self.name))


def find_flags(model: torch.nn.Module) -> list[Flag]:
    """The first flags of a model's own modules; libraries of models are not
    searched.
    """
    # Blocks of a class share their flags.
    flags = itertools.chain.from_iterable(map(_flags_of, model.modules()))
    return list(dict.fromkeys(flags))[:_MOST_FLAGS]


def _flags_of(module: torch.nn.Module) -> Iterator[Flag]:
    module_class = type(module)
    if _package(module_class) in LIBRARIES | MODEL_MODULES.keys():
        return
    for name, value in vars(module).items():
        # `training` stays False in a check, and torch has a method for it.
        if not isinstance(value, bool) or name == "training":
            continue
        line = _reading_line(module_class, name)
        if line is not None:
            yield Flag(module_class, name, line)


def _package(module_class: type) -> str:
    return module_class.__module__.partition(".")[0]


def _reading_line(module_class: type, name: str) -> Source | None:
    """The first line of the class's code, or of its bases', that reads an attribute of
    this name.
    """
    for function in _functions_of(module_class):
        line = next(_lines_that_read(function.__code__, name), None)
        if line is not None:
            return Source.read(
                function.__code__.co_filename, line, function.__qualname__
            )
    return None


def _functions_of(module_class: type) -> Iterator[types.FunctionType]:
    """The methods and properties of a class and of its bases that are not a library's,
    apart from constructors.
    """
    bases = [base for base in module_class.__mro__ if _package(base) not in LIBRARIES]
    for member in (member for base in bases for member in vars(base).values()):
        function = member
        if isinstance(member, property) and member.fget is not None:
            function = inspect.unwrap(member.fget)
        # What only the constructor reads has no part in a call.
        if isinstance(function, types.FunctionType) and function.__name__ != "__init__":
            yield function


def _lines_that_read(code: types.CodeType, name: str) -> Iterator[int]:
    for instruction in dis.get_instructions(code):
        positions = instruction.positions
        if positions is None or positions.lineno is None:
            continue
        if instruction.opname in _READS and instruction.argval == name:
            yield positions.lineno


def stale_findings(
    compiled: CompiledFunction,
    ported: torch.nn.Module,
    model: torch.nn.Module,
    arguments: Arguments,
) -> list[CheckFinding]:
    """Invert each flag, and compare the compiled call with torch's before and after.

    Args:
        compiled: the program of `ported`, which was called before.
        model: on the host, which draws no random numbers: those would differ with or
            without the change.
    """
    flags = find_flags(model)
    if not flags:
        return []
    model = model_runs.copy_model(model)
    before = model_runs.call_torch(model, arguments)
    return [
        _stale_finding(flag)
        for flag in flags
        if _is_unseen(flag, before, compiled, ported, model, arguments)
    ]


def _is_unseen(
    flag: Flag,
    before: list[torch.Tensor],
    compiled: CompiledFunction,
    ported: torch.nn.Module,
    model: torch.nn.Module,
    arguments: Arguments,
) -> bool:
    """Whether the compiled call still gives the results from before while a flag is
    inverted.
    """
    flag.invert(model)
    flag.invert(ported)
    try:
        # What the code says of a flag that its user has not changed is nobody's matter.
        with _unheard():
            after = model_runs.call_torch(model, arguments)
            ours = model_runs.call_compiled(compiled, arguments)
    except Exception:  # noqa: BLE001  the flag may stand for something that this model does not have
        # Code that stops is not stale.
        return False
    finally:
        # The next flag, and whoever calls the compiled model next, start from the model
        # as it was.
        flag.invert(model)
        flag.invert(ported)
    return _is_nearer(ours, before, after)


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Neither warnings nor logs nor anything printed leaves the block."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _is_nearer(
    ours: list[torch.Tensor], before: list[torch.Tensor], after: list[torch.Tensor]
) -> bool:
    """Whether results are those from before a change rather than those from after
    it.
    """
    our_shapes, shapes_before, shapes_after = map(_shapes, (ours, before, after))
    if our_shapes != shapes_before:
        return False
    if shapes_before != shapes_after:
        return True
    # A flag without effect here, or one that chooses another way to the same numbers.
    if not differences.describe_difference(after, before, []):
        return False
    return _distance(ours, before) < _distance(ours, after)


def _shapes(tensors: list[torch.Tensor]) -> list[torch.Size]:
    return [tensor.shape for tensor in tensors]


def _distance(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    return sum(map(total_distance, first, second))


def _stale_finding(flag: Flag) -> CheckFinding:
    owner = flag.module_class.__name__
    return CheckFinding(
        "stale", "repeat", "error",
        f"a compiled call does not see that {owner}.{flag.name} has changed: it computes what it did before",
        "call tpuport.port(model) after such a change, or pass the flag as an argument of the call", flag.line,
        details={"attribute": flag.name, "class": owner},
    )  # fmt: skip
