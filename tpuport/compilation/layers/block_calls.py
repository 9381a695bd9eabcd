"""Which call of a model's block each equation of a traced program is from, by the name
scope that it was traced in.
"""

import collections
import contextlib
import dataclasses
import itertools
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import torch
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from tpuport.base.temporary import temporary_attributes
from tpuport.compat import jaxprs
from tpuport.compilation.layers.stacks import stacked_lists

_SCOPE = re.compile(r"tpuport_block:(\d+):(\d+)")
_thread = (
    threading.local()
)  # .record: of the innermost function that this thread traces in `record_calls`


class BlockCall(NamedTuple):
    """One call of a block: the index of its list in `CallRecord.paths`, and the number
    of the call among all.
    """

    list_index: int
    call: int


class CallRecord:
    """The lists of blocks met while a function is traced.

    Attributes:
        paths: of the lists in their models.
        calls: counts calls of blocks.
    """

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.calls = itertools.count()

    def index(self, path: str) -> int:
        """The index of a list, which is noted if it is new."""
        if path not in self.paths:
            self.paths.append(path)
        return self.paths.index(path)


@contextlib.contextmanager
def record_calls() -> Iterator[CallRecord]:
    """Let the blocks of models with stacked weights leave marks in the equations that
    are traced.
    """
    record = CallRecord()
    # A function that is traced may itself trace another one.
    with temporary_attributes(_thread, record=record):
        yield record


@contextlib.contextmanager
def mark_blocks(model: torch.nn.Module, arrays: Mapping[str, Any]) -> Iterator[None]:
    """Traced. Let the blocks in lists with stacked weights leave marks; nothing happens
    outside of `record_calls`.
    """
    record: CallRecord | None = getattr(_thread, "record", None)
    with contextlib.ExitStack() as stack:
        if record is not None:
            for path in stacked_lists(arrays):
                for block in model.get_submodule(path).children():
                    stack.enter_context(_mark_block(block, record, record.index(path)))
        yield


@contextlib.contextmanager
def _mark_block(
    block: torch.nn.Module, record: CallRecord, list_index: int
) -> Iterator[None]:
    # A block may call itself, so the scopes that are open are a stack.
    scopes: list[contextlib.ExitStack] = []

    def open_scope(module: Any, args: Any) -> None:
        scopes.append(contextlib.ExitStack())
        scopes[-1].enter_context(
            jax.named_scope(f"tpuport_block:{list_index}:{next(record.calls)}")
        )

    def close_scope(module: Any, args: Any, output: Any) -> None:
        scopes.pop().close()

    before = block.register_forward_pre_hook(open_scope)
    # Before other hooks leave their scopes, which are around this one.
    after = block.register_forward_hook(close_scope, prepend=True, always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()


def block_call(equation: JaxprEqn) -> BlockCall | None:
    """The call of a block that an equation is from."""
    for scope in equation.source_info.name_stack.stack:
        match = _SCOPE.fullmatch(scope.name)
        if match:
            return BlockCall(int(match[1]), int(match[2]))
    return None


def remove_mark(equation: JaxprEqn) -> JaxprEqn:
    """The equation without the mark."""
    name_stack = equation.source_info.name_stack
    scopes = tuple(
        scope for scope in name_stack.stack if not _SCOPE.fullmatch(scope.name)
    )
    if len(scopes) == len(name_stack.stack):
        return equation
    # Scopes become names in the compiled program, where users would meet the mark.
    source_info = equation.source_info.replace(name_stack=type(name_stack)(scopes))
    return equation.replace(source_info=source_info)


def has_block_calls(jaxpr: ClosedJaxpr | Jaxpr) -> bool:
    """Whether an equation of a program, or one inside of it, is from a block."""
    return any(block_call(visit.equation) for visit in jaxprs.walk_equations(jaxpr))


@dataclasses.dataclass(frozen=True)
class LiveProgram:
    """The equations of a jaxpr that its results or its effects need, those inside of
    others apart.

    Attributes:
        equations: in order; other attributes and methods refer to them by index.
        producers: the equation that makes a variable.
        results: of the jaxpr.
    """

    equations: tuple[JaxprEqn, ...]
    producers: dict[Var, int]
    results: tuple[Any, ...]

    @classmethod
    def of_jaxpr(cls, jaxpr: Jaxpr) -> "LiveProgram":
        """The program of a jaxpr."""
        needed = set(variables(jaxpr.outvars))
        # Dead equations of one block would make it differ from the others.
        live: list[JaxprEqn] = []
        for equation in reversed(jaxpr.eqns):
            if equation.effects or not needed.isdisjoint(equation.outvars):
                live.append(equation)
                needed.update(variables(equation.invars))
        live.reverse()
        producers = {
            variable: index
            for index, equation in enumerate(live)
            for variable in equation.outvars
        }
        return cls(tuple(live), producers, tuple(jaxpr.outvars))

    def producer(self, atom: Any) -> int | None:
        """The equation that makes a variable; None for a literal or an argument."""
        return None if isinstance(atom, Literal) else self.producers.get(atom)

    def producing_equation(self, atom: Any) -> JaxprEqn | None:
        """As `producer`, the equation itself."""
        index = self.producer(atom)
        return None if index is None else self.equations[index]

    def equations_of(self, indices: Iterable[int]) -> list[JaxprEqn]:
        """The equations with these indices."""
        return [self.equations[index] for index in indices]

    def sources(self, index: int) -> set[int]:
        """The equations whose results an equation takes."""
        operands = variables(self.equations[index].invars)
        return {
            self.producers[operand] for operand in operands if operand in self.producers
        }

    def successors(self, indices: Iterable[int]) -> set[int]:
        """The equations that take results of these, directly or not; without these."""
        start = set(indices)
        reached = set(start)
        # Equations are in order, so one pass follows chains of any length.
        for index in range(len(self.equations)):
            if not reached.isdisjoint(self.sources(index)):
                reached.add(index)
        return reached - start

    def predecessors(self, indices: Iterable[int]) -> set[int]:
        """The equations whose results these take, directly or not; without these."""
        start = set(indices)
        reached = set(start)
        for index in reversed(range(len(self.equations))):
            if index in reached:
                reached |= self.sources(index)
        return reached - start


def variables(atoms: Iterable[Any]) -> Iterator[Var]:
    """The variables among operands, without the literals."""
    return (atom for atom in atoms if not isinstance(atom, Literal))


def group_calls(program: LiveProgram) -> dict[int, list[list[int]]]:
    """The equations of each call of a block, in order, by the index of the list that
    the block is in.
    """
    calls: dict[int, dict[int, list[int]]] = collections.defaultdict(
        lambda: collections.defaultdict(list)
    )
    for index, equation in enumerate(program.equations):
        mark = block_call(equation)
        if mark is not None:
            calls[mark.list_index][mark.call].append(index)
    return {list_index: list(groups.values()) for list_index, groups in calls.items()}


def extend_calls(
    program: LiveProgram, calls: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Each call with the equations before it that connect it with an earlier call: a
    unit that a scan can repeat.
    """
    inside = set(itertools.chain.from_iterable(calls))
    between = sorted(program.successors(inside) & program.predecessors(inside))
    units: list[list[int]] = []
    for call in calls:
        # What stands behind the last call connects it with nothing, and is in no unit.
        earlier = [index for index in between if index < call[0]]
        between = between[len(earlier) :]
        units.append(sorted([*earlier, *call]))
    return units
