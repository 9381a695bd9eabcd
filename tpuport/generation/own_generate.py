"""transformers classes with a `generate` of their own: Whisper's cuts long recordings into segments, CTC's calls once.

It runs as it is, on the host, on a view of the ported model: an object that shares everything with the model but its
class, which is derived from the model's. `super().generate` is tpuport's loop there; a call of the model itself runs
its compiled call; and tensors are on the host.
"""

import dis
import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from transformers import GenerationMixin

from tpuport import checkpoint
from tpuport.errors import PortError


def _refuse_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise PortError(
        f"{type(self).__name__} decodes in a loop of its own, one operation after the other",
        where=f"{type(self).__name__}.generate",
        fix="write that loop over tpuport.compile(model), or take the model back with tpuport.to_cpu(model)",
    )


class InnerGenerate(GenerationMixin):
    """What the class's own `generate` finds behind itself."""

    _sample: Any = _refuse_loop
    _beam_search: Any = _refuse_loop
    _assisted_decoding: Any = _refuse_loop
    _prefill: Any = _refuse_loop

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Run tpuport's loop with the arguments of transformers' `generate`."""
        return vars(self)["generate"].run(*args, **kwargs)


def has_own_generate(model: Any) -> bool:
    """Whether a model's class defines a `generate` that calls that of transformers, or the model without a loop."""
    return _runs_as_it_is(type(model))


@functools.cache
def _runs_as_it_is(cls: type) -> bool:
    owner = next((base for base in cls.__mro__ if "generate" in vars(base)), GenerationMixin)
    if owner is GenerationMixin:
        return False
    if _calls_once(vars(owner)["generate"]):
        return True
    functions = [value for value in vars(owner).values() if isinstance(value, FunctionType)]
    return any(_names_super_generate(function) for function in functions)


def _calls_once(function: Any) -> bool:
    """Whether a function calls the model, as those of CTC do, and has no loop."""
    code = inspect.unwrap(function).__code__
    has_loop = any(
        instruction.opname.startswith("JUMP_BACKWARD") for instruction in dis.get_instructions(code)
    )
    return "__call__" in code.co_names and not has_loop


def _names_super_generate(function: FunctionType) -> bool:
    code = function.__code__
    # `super()` without arguments reads the cell of the class.
    return "__class__" in code.co_freevars and "generate" in code.co_names


@functools.cache
def _view_class(cls: type) -> type:
    """The class of views of models of a class."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return checkpoint.to_cpu(cls.__call__(self, *args, **kwargs))

    namespace = {
        "__module__": cls.__module__,
        "__call__": call,
        "device": property(lambda self: torch.device("cpu")),
    }
    return type(cls.__name__, (cls, InnerGenerate), namespace)


def run_own_generate(model: Any, arguments: dict[str, Any]) -> Any:
    """Run the own `generate` of a ported model's class with these arguments, by name; `inputs` is the first."""
    if "kv_cache" in arguments:
        raise PortError(
            f"{type(model).__name__} has a generate of its own, which knows no kv_cache",
            where=f"kv_cache={arguments['kv_cache']!r}",
            fix="leave kv_cache out",
        )
    view = object.__new__(_view_class(type(model)))
    object.__setattr__(view, "__dict__", vars(model))
    # How to compile a call that is a compiled program already.
    arguments.pop("compile_config", None)
    first = [arguments.pop("inputs")] if "inputs" in arguments else []
    own: Callable = type(model).generate
    return own(view, *first, **arguments)
