"""Which block of a model each equation of a traced program is from: told by the name scope it was traced in."""

import contextlib
import dataclasses
import itertools
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import torch

from tpuport.layers.stacks import stacked_lists

_SCOPE = re.compile(r"tpuport_block:(\d+):(\d+)")
_active = threading.local()  # .record: of the innermost function that is traced to be scanned


@dataclasses.dataclass(frozen=True)
class Mark:
    """One call of a block: of which list (a place in `Record.paths`), and the how manieth call of any block."""

    place: int
    call: int


class Record:
    """The lists of blocks met while a function is traced.

    Attributes:
        paths: of the lists.
    """

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.calls = itertools.count()


@contextlib.contextmanager
def recording() -> Iterator[Record]:
    """Let the blocks of models with stacked weights leave marks in the equations that are traced."""
    before = getattr(_active, "record", None)
    _active.record = record = Record()
    try:
        yield record
    finally:
        _active.record = before


@contextlib.contextmanager
def mark_blocks(model: torch.nn.Module, arrays: Mapping[str, Any]) -> Iterator[None]:
    """Traced. Let the blocks in lists with stacked weights leave marks, if `recording` asks for it."""
    record: Record | None = getattr(_active, "record", None)
    with contextlib.ExitStack() as stack:
        for path in stacked_lists(arrays) if record else ():
            assert record is not None
            if path not in record.paths:
                record.paths.append(path)
            for block in model.get_submodule(path).children():
                stack.enter_context(_marking(block, record, record.paths.index(path)))
        yield


@contextlib.contextmanager
def _marking(block: torch.nn.Module, record: Record, place: int) -> Iterator[None]:
    entered: list[contextlib.ExitStack] = []

    def before(module: Any, args: Any) -> None:
        entered.append(contextlib.ExitStack())
        entered[-1].enter_context(jax.named_scope(f"tpuport_block:{place}:{next(record.calls)}"))

    def after(module: Any, args: Any, output: Any) -> None:
        entered.pop().close()

    handles = [
        block.register_forward_pre_hook(before),
        block.register_forward_hook(after, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def mark_of(equation: Any) -> Mark | None:
    """The block call that an equation is from."""
    for scope in equation.source_info.name_stack.stack:
        if found := _SCOPE.fullmatch(scope.name):
            return Mark(int(found[1]), int(found[2]))
    return None


def unmarked(equation: Any) -> Any:
    """The equation without the mark."""
    stack = equation.source_info.name_stack
    kept = tuple(scope for scope in stack.stack if not _SCOPE.fullmatch(scope.name))
    if len(kept) == len(stack.stack):
        return equation
    return equation.replace(source_info=equation.source_info.replace(name_stack=type(stack)(kept)))
