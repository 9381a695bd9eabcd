"""Flags of the user's modules that are changed after compiling: a compiled call must see it, as torch does."""

import dataclasses
import dis
import inspect
import itertools
import linecache
import types
from collections.abc import Iterator

import torch

from tpuport.compilation import CompiledFunction
from tpuport.trace_errors import Source
from tpuport.trace_errors.libraries import LIBRARIES, MODEL_MODULES
from tpuport.verification import model_runs
from tpuport.verification.check_result import CheckFinding
from tpuport.verification.model_runs import Arguments

# Each costs a run in torch and a program.
_MOST_FLAGS = 4


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
    """The first flags of a model's own modules; libraries of models are not searched."""
    flags: dict[tuple[type, str], Flag] = {}
    for module in model.modules():
        for flag in _flags_of(module):
            flags.setdefault((flag.module_class, flag.name), flag)
    return list(itertools.islice(flags.values(), _MOST_FLAGS))


def _flags_of(module: torch.nn.Module) -> Iterator[Flag]:
    cls = type(module)
    if cls.__module__.partition(".")[0] in LIBRARIES | MODEL_MODULES.keys():
        return
    names = [name for name, value in vars(module).items() if isinstance(value, bool) and name != "training"]
    for name in names:
        line = _reading_line(cls, name)
        if line is not None:
            yield Flag(cls, name, line)


def _reading_line(cls: type, name: str) -> Source | None:
    """The first line of the class's code, or of its bases', that reads an attribute of this name."""
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in LIBRARIES:
            continue
        for member in vars(base).values():
            function = inspect.unwrap(member.fget) if isinstance(member, property) and member.fget else member
            if not isinstance(function, types.FunctionType) or function.__name__ == "__init__":
                continue
            line = next(_lines_that_read(function.__code__, name), None)
            if line is not None:
                file = function.__code__.co_filename
                return Source(file, line, function.__qualname__, linecache.getline(file, line).strip())
    return None


def _lines_that_read(code: types.CodeType, name: str) -> Iterator[int]:
    for instruction in dis.get_instructions(code):
        is_read = instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval == name
        if is_read and instruction.positions is not None and instruction.positions.lineno is not None:
            yield instruction.positions.lineno


def stale_findings(
    compiled: CompiledFunction, ported: torch.nn.Module, model: torch.nn.Module, arguments: Arguments
) -> list[CheckFinding]:
    """Invert each flag, and compare the compiled call with torch's before and after.

    Args:
        compiled: of `ported`, called before; model: a copy on the host, which draws nothing.
    """
    before = model_runs.call_torch(model, arguments)
    return [
        _stale_finding(flag)
        for flag in find_flags(model)
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
    """Whether the compiled call goes on with the results from before while a flag is inverted."""
    flag.invert(model)
    flag.invert(ported)
    try:
        after = model_runs.call_torch(model, arguments)
        ours = model_runs.call_compiled(compiled, arguments)
    except Exception:  # noqa: BLE001  the flag may stand for something that this model does not have
        return False
    finally:
        flag.invert(model)
        flag.invert(ported)
    return _is_nearer(ours, before, after)


def _is_nearer(ours: list[torch.Tensor], before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    """Whether results are those from before a change rather than those from after it."""
    shapes = [[tensor.shape for tensor in tensors] for tensors in (ours, before, after)]
    # Other shapes are other results, whichever they are.
    if shapes[0] != shapes[1] or shapes[1] != shapes[2]:
        return shapes[0] == shapes[1]
    return _distance(ours, before) < _distance(ours, after)


def _distance(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    pairs = zip(first, second, strict=True)
    return sum(
        float((one.double() - other.double()).abs().sum()) for one, other in pairs if not one.is_complex()
    )


def _stale_finding(flag: Flag) -> CheckFinding:
    owner = flag.module_class.__name__
    return CheckFinding(
        "stale", "repeat", "error",
        f"a compiled call does not see that {owner}.{flag.name} has changed: it computes what it did before",
        "call tpuport.port(model) after such a change, or pass the flag as an argument of the call", flag.line,
        details={"attribute": flag.name, "class": owner},
    )  # fmt: skip
