"""A function traced once more with its identical blocks in one loop."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr, JaxprEqn

from tpuport.layers.choosing import Chooser
from tpuport.layers.emission import evaluated, order
from tpuport.layers.scopes import Record, mark_of, recording
from tpuport.layers.units import calls, program

logger = logging.getLogger("tpuport")

# Programs inside of equations that blocks may be called in, by the equations' name.
_INNER = {
    "jit": ("jaxpr",), "while": ("body_jaxpr",), "scan": ("jaxpr",), "cond": ("branches",),
    "closed_call": ("call_jaxpr",),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ScannedBlocks:
    """Blocks that a program runs in one loop: the list they are in ("model.layers"), and how many."""

    name: str
    count: int


@dataclasses.dataclass(frozen=True)
class DeclinedBlocks:
    """Blocks of a list that a program does not run in a loop, and why the first of them is not."""

    name: str
    count: int
    reason: str


class ScannedFunction:
    """What `scan_blocks` returns.

    Attributes:
        scanned, declined: what the last trace has found; empty before the first.
    """

    def __init__(self, function: Callable) -> None:
        functools.update_wrapper(self, function, ("__name__", "__qualname__", "__doc__"))
        self._function = function
        self.scanned: tuple[ScannedBlocks, ...] = ()
        self.declined: tuple[DeclinedBlocks, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Traced. What the function gives."""
        with recording() as record:
            closed, form = jax.make_jaxpr(self._function, return_shape=True)(*args, **kwargs)
        rewriting = _Rewriting(record)
        results = rewriting.evaluate(closed, jax.tree.leaves((args, kwargs)))
        self.scanned, self.declined = tuple(rewriting.scanned), tuple(rewriting.declined)
        for one in self.declined:
            logger.info("%d blocks of %s are not scanned: %s", one.count, one.name, one.reason)
        return jax.tree.unflatten(jax.tree.structure(form), results)

    @property
    def is_mostly_scanned(self) -> bool:
        """Whether more calls of blocks with stacked weights are in loops than are not, after a trace.

        Where they are not, blocks take slices of stacked weights for nothing, and single weights serve them better.
        """
        scanned = sum(blocks.count for blocks in self.scanned)
        return scanned > sum(blocks.count for blocks in self.declined)


def scan_blocks(function: Callable) -> ScannedFunction:
    """The function with identical blocks of its models in one loop: equal results, from a program compiled sooner.

    Blocks are found by stacked weights, so the function calls models inside of `compilation.use_weights` with
    weights as `stack_weights` gives them. It is traced as it is; calls of blocks that come out equal, but for the
    rows of stacked arrays that they take, become a `jax.lax.scan`. What does not allow it stays as it is, and
    `declined` says why. Calls inside of `jax.jit`, loops and branches are found too.

    Args:
        function: of arrays (any pytrees of them), traced; without keyword-only static arguments. What comes out is not
            for differentiation.
    """
    return ScannedFunction(function)


class _Rewriting:
    def __init__(self, record: Record) -> None:
        self._record = record
        self.scanned: list[ScannedBlocks] = []
        self.declined: list[DeclinedBlocks] = []

    def evaluate(self, closed: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
        """Traced. The results of a program, with its calls of blocks in loops."""
        jaxpr = closed.jaxpr
        if not _has_marks(jaxpr):
            return eval_jaxpr(jaxpr, closed.consts, *args)
        jaxpr = jaxpr.replace(eqns=[self._inside(equation) for equation in jaxpr.eqns])
        found = program(jaxpr)
        chooser = Chooser(found)
        by_list = calls(found)
        for place, groups in sorted(by_list.items(), key=lambda item: -len(item[1])):
            chooser.choose(place, groups)
        runs = chooser.runs
        nodes = order(found, [run for _, run, _ in runs])
        while nodes is None:  # two runs that take from one another
            place, _, _ = runs.pop()
            chooser.reasons[place] = "its blocks take from those of another list, and give to them"
            nodes = order(found, [run for _, run, _ in runs])
        for place, groups in by_list.items():
            self._note(place, len(groups), [n for p, _, n in runs if p == place], chooser.reasons.get(place))
        return evaluated(jaxpr, found, nodes, closed.consts, args)

    def _note(self, place: int, total: int, counts: list[int], reason: str | None) -> None:
        name = self._record.paths[place]
        self.scanned += [ScannedBlocks(name, count) for count in counts]
        if left := total - sum(counts):
            self.declined.append(DeclinedBlocks(name, left, reason or "there is only one such call"))

    def _inside(self, equation: JaxprEqn) -> JaxprEqn:
        """The equation with the programs in it rewritten."""
        names = [name for name in _INNER.get(equation.primitive.name, ()) if name in equation.params]
        held = {name: equation.params[name] for name in names}
        if mark_of(equation) or not any(map(_has_marks, _programs(held))):
            return equation
        changed = {
            name: tuple(map(self._closed, value)) if isinstance(value, tuple) else self._closed(value)
            for name, value in held.items()
        }
        return equation.replace(params={**equation.params, **changed})

    def _closed(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        if not _has_marks(closed.jaxpr):
            return closed
        forms = [
            jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False))
            for a in closed.in_avals
        ]
        return jax.make_jaxpr(lambda *args: self.evaluate(closed, args))(*forms)


def _programs(params: dict[str, Any]) -> list[Any]:
    """The programs among an equation's parameters."""
    found = []
    for value in params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, ClosedJaxpr):
                found.append(one.jaxpr)
            elif hasattr(one, "eqns"):
                found.append(one)
    return found


def _has_marks(jaxpr: Any) -> bool:
    return any(
        mark_of(equation) or any(map(_has_marks, _programs(equation.params))) for equation in jaxpr.eqns
    )
