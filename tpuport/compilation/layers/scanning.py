"""A traced program with its identical blocks in one loop."""

import dataclasses
import graphlib
import heapq
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from tpuport.compat import jaxprs
from tpuport.compilation.layers.block_calls import (
    CallRecord,
    LiveProgram,
    block_call,
    group_calls,
    has_block_calls,
    remove_mark,
    variables,
)
from tpuport.compilation.layers.scan_policy import RunSelector
from tpuport.compilation.layers.scan_roles import Carried, Closed, Each, Role, Run, Slot

logger = logging.getLogger("tpuport")

# Equations whose inner programs may call blocks and can be traced anew.
_CONTROL_FLOW = frozenset({"jit", "while", "scan", "cond", "closed_call"})


@dataclasses.dataclass(frozen=True)
class ScannedBlocks:
    """Blocks that a program runs in one loop: the list they are in ("model.layers"),
    and how many.
    """

    name: str
    count: int


@dataclasses.dataclass(frozen=True)
class DeclinedBlocks:
    """Blocks of a list that a program does not run in a loop, and why the first of them
    is not.
    """

    name: str
    count: int
    reason: str


def loop_blocks(
    closed: ClosedJaxpr, record: CallRecord
) -> tuple[ClosedJaxpr, tuple[ScannedBlocks, ...], tuple[DeclinedBlocks, ...]]:
    """A program with calls of equal blocks in loops: equal results, compiled sooner.

    Blocks are found by stacked weights, so the program calls models inside of
    `compilation.use_weights` with weights as `stack_weights` returns them. Calls of
    blocks whose equations are equal, except for the rows of stacked arrays that they
    take, become a `jax.lax.scan`. Other calls stay, and `declined` says why. Calls
    inside of `jax.jit`, loops and branches are found too.

    Args:
        closed: the program. What runs in a loop cannot be differentiated.
        record: of the trace that made the program.

    Returns:
        The program, and the blocks that run in loops, and that do not.
    """
    rewriter = _Rewriter(record)
    program = rewriter.rewrite(closed)
    rewriter.log_declined()
    return program, tuple(rewriter.scanned), tuple(rewriter.declined)


class _Rewriter:
    def __init__(self, record: CallRecord) -> None:
        self._record = record
        self.scanned: list[ScannedBlocks] = []
        self.declined: list[DeclinedBlocks] = []

    def evaluate(self, closed: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
        """Traced. The results of a program, with its calls of blocks in loops."""
        jaxpr = closed.jaxpr
        # Most programs inside of others call no block.
        if not has_block_calls(jaxpr):
            return eval_jaxpr(jaxpr, closed.consts, *args)
        jaxpr = jaxpr.replace(eqns=list(map(self._rewrite_inside, jaxpr.eqns)))
        program = LiveProgram.of_jaxpr(jaxpr)
        calls = group_calls(program)
        selector = RunSelector(program)
        # The list with most calls first: its scans are worth most.
        for list_index, groups in sorted(calls.items(), key=lambda item: -len(item[1])):
            selector.select(list_index, groups)
        while (nodes := _order_nodes(program, selector.runs)) is None:
            # Two runs take results from one another: without the last one, the others
            # may be in order.
            selector.drop_last()
        self._note_results(calls, selector)
        # Variables of the program with what they are in the trace outside.
        values = dict(
            zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *args], strict=True)
        )
        return _Evaluation(jaxpr, program, values).results(nodes)

    def log_declined(self) -> None:
        """Say which blocks do not run in loops, and why."""
        for blocks in self.declined:
            logger.info(
                "%d blocks of %s are not scanned: %s",
                blocks.count,
                blocks.name,
                blocks.reason,
            )

    def _note_results(
        self, calls: dict[int, list[list[int]]], selector: RunSelector
    ) -> None:
        for list_index, groups in calls.items():
            name = self._record.paths[list_index]
            counts = [
                selected.calls
                for selected in selector.selected
                if selected.list_index == list_index
            ]
            self.scanned += [ScannedBlocks(name, count) for count in counts]
            remaining = len(groups) - sum(counts)
            if remaining:
                reason = selector.reasons.get(list_index, "there is only one such call")
                self.declined.append(DeclinedBlocks(name, remaining, reason))

    def _rewrite_inside(self, equation: JaxprEqn) -> JaxprEqn:
        """The equation with the programs in it rewritten."""
        # What a block itself calls is compared and scanned as a part of the block.
        if equation.primitive.name not in _CONTROL_FLOW or block_call(equation):
            return equation
        return jaxprs.replace_sub_jaxprs(equation, self.rewrite)

    def rewrite(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """A program with its calls of blocks in loops."""
        if not self._record.paths or not has_block_calls(closed):
            return closed
        forms = [
            jax.ShapeDtypeStruct(
                aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False)
            )
            for aval in closed.in_avals
        ]
        return jax.make_jaxpr(lambda *args: self.evaluate(closed, args))(*forms)


# An equation by its index, or a run of units.
_Node = int | Run


def _order_nodes(program: LiveProgram, runs: Sequence[Run]) -> list[_Node] | None:
    """Equations and runs in an order in which each comes after what it needs; None if
    there is none.

    Equations with side effects stay in their order.
    """
    # The key of each equation: its index, or that of the first equation of its run.
    keys = list(range(len(program.equations)))
    for run in runs:
        for index in run.indices:
            keys[index] = run.first_index
    needs: dict[int, set[int]] = {key: set() for key in keys}
    last_effect: set[int] = set()
    for index, equation in enumerate(program.equations):
        key = keys[index]
        needs[key].update(keys[source] for source in program.sources(index))
        if equation.effects:
            needs[key] |= last_effect
            last_effect = {key}
    order = _sort_topologically(needs)
    runs_by_key = {run.first_index: run for run in runs}
    return None if order is None else [runs_by_key.get(key, key) for key in order]


def _sort_topologically(needs: dict[int, set[int]]) -> list[int] | None:
    """The keys in an order in which each comes after what it needs, small keys early;
    None if there is a circle.

    What a key needs of itself does not count.
    """
    sorter = graphlib.TopologicalSorter(
        {key: sources - {key} for key, sources in needs.items()}
    )
    try:
        sorter.prepare()
    except graphlib.CycleError:
        return None
    order: list[int] = []
    ready: list[int] = []
    while sorter.is_active():
        # graphlib's own order is not by key, which keeps the program close to the order
        # that it was traced in.
        for key in sorter.get_ready():
            heapq.heappush(ready, key)
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
    return order


class _Step(NamedTuple):
    """Traced. What one iteration of a scan has: its number, the carried values, and a
    slice of each scanned array.
    """

    number: Any
    carried: list[Any]
    slices: list[Any]


class _Evaluation:
    """The evaluation of a program node by node.

    Args:
        jaxpr: the program's own, for what new jaxprs have in common with it.
        program: its equations.
        values: of its constants and arguments.
    """

    def __init__(
        self, jaxpr: Jaxpr, program: LiveProgram, values: dict[Var, Any]
    ) -> None:
        self._jaxpr = jaxpr
        self._program = program
        self._values = values

    def results(self, nodes: Sequence[_Node]) -> list[Any]:
        """Traced. The results of the program, its nodes evaluated in this order."""
        # Equations between two loops are evaluated together, which keeps their order.
        pending: list[JaxprEqn] = []
        for node in nodes:
            if isinstance(node, Run):
                self._evaluate_equations(pending)
                self._evaluate_run(node)
                pending = []
            else:
                pending.append(remove_mark(self._program.equations[node]))
        self._evaluate_equations(pending)
        return list(map(self._read, self._jaxpr.outvars))

    def _read(self, atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else self._values[atom]

    def _sub_program(
        self, operands: list[Var], results: list[Var], equations: list[JaxprEqn]
    ) -> Jaxpr:
        return self._jaxpr.replace(
            constvars=[], invars=operands, outvars=results, eqns=equations
        )

    def _evaluate_equations(self, equations: list[JaxprEqn]) -> None:
        results = list(
            itertools.chain.from_iterable(equation.outvars for equation in equations)
        )
        operands = itertools.chain.from_iterable(
            variables(equation.invars) for equation in equations
        )
        inside = set(results)
        outer = [
            operand for operand in dict.fromkeys(operands) if operand not in inside
        ]
        part = self._sub_program(outer, results, equations)
        values = eval_jaxpr(part, [], *map(self._read, outer))
        self._values.update(zip(results, values, strict=True))

    def _evaluate_run(self, run: Run) -> None:
        """Evaluate a run as a scan. Its state is its number, what is carried, and
        results of which the last counts.
        """
        carried_slots = [role.result for role in run.carried]
        extra_slots = [slot for slot in run.last if slot not in carried_slots]
        state_slots = [*carried_slots, *extra_slots]
        body = self._run_body(run, [*state_slots, *run.each])
        scanned_arrays: list[Any] = []
        readers = self._operand_readers(run, scanned_arrays)

        def iterate(
            state: tuple[Any, list[Any]], slices: list[Any]
        ) -> tuple[Any, list[Any]]:
            number, values = state
            step = _Step(number, values, slices)
            results = eval_jaxpr(body, [], *[read(step) for read in readers])
            # The body gives the new state, then what is collected of each unit.
            count = len(state_slots)
            return (number + 1, list(map(_strong_dtype, results[:count]))), results[
                count:
            ]

        first = [
            _strong_dtype(jnp.asarray(self._read(role.first))) for role in run.carried
        ]
        # Overwritten in every iteration before anything reads them.
        first += [_zeros_like(run.result(slot)) for slot in extra_slots]
        start = (jnp.int32(0), first)
        (_, final), each = jax.lax.scan(
            iterate, start, scanned_arrays, length=len(run.units)
        )
        for slot, variable in run.last.items():
            self._values[variable] = final[state_slots.index(slot)]
        for by_unit, stacked in zip(run.each.values(), each, strict=True):
            for unit, variable in by_unit.items():
                self._values[variable] = jax.lax.index_in_dim(
                    stacked, unit, keepdims=False
                )

    def _operand_readers(
        self, run: Run, scanned_arrays: list[Any]
    ) -> list[Callable[[_Step], Any]]:
        """For each input of a run, how an iteration gets its value; arrays to scan over
        are appended.
        """
        carried_count = itertools.count()

        def read_slice_of(array: Any) -> Callable[[_Step], Any]:
            index = len(scanned_arrays)
            scanned_arrays.append(array)
            return lambda step: step.slices[index]

        def reader(role: Role) -> Callable[[_Step], Any]:
            match role:
                case Carried():
                    index = next(carried_count)
                    return lambda step: step.carried[index]
                case Closed():
                    value = self._read(role.value)
                    return lambda step: value
                case Each():
                    return read_slice_of(self._stack_each(role))
            array = self._read(role.array)
            if (role.base, role.stride, array.shape[0]) == (0, 1, len(run.units)):
                return read_slice_of(array)
            first, stride = role.base, role.stride
            return lambda step: jax.lax.dynamic_index_in_dim(
                array, first + stride * step.number, keepdims=False
            )

        return [reader(role) for role, _ in run.inputs]

    def _stack_each(self, role: Each) -> Any:
        dtype = role.values[0].aval.dtype
        values = list(map(self._read, role.values))
        # Numbers stay a constant of the program, which the compiler can read.
        is_constant = all(isinstance(value, Literal) for value in role.values)
        module: Any = np if is_constant else jnp
        return module.stack([module.asarray(value, dtype) for value in values])

    def _run_body(self, run: Run, results: Iterable[Slot]) -> Jaxpr:
        """One unit as a program of its own, whose arguments are the inputs of the
        run.
        """
        operands = [list(equation.invars) for equation in run.body]
        arguments: list[Var] = []
        for role, slots in run.inputs:
            first = slots[0]
            argument = Var(operands[first.equation][first.position].aval)
            arguments.append(argument)
            # The compiler can read a number that stays in its equation.
            if isinstance(role, Closed) and isinstance(role.value, Literal):
                continue
            for slot in slots:
                operands[slot.equation][slot.position] = argument
        equations = [
            remove_mark(equation.replace(invars=own))
            for equation, own in zip(run.body, operands, strict=True)
        ]
        return self._sub_program(arguments, list(map(run.result, results)), equations)


def _zeros_like(variable: Any) -> jax.Array:
    return jnp.zeros(variable.aval.shape, variable.aval.dtype)


def _strong_dtype(array: Any) -> Any:
    """Traced. The array without a weak dtype, which the state of a loop could lose from
    one iteration to the next.
    """
    aval = getattr(array, "aval", None)
    if not getattr(aval, "weak_type", False):
        return array
    return jax.lax.convert_element_type(array, array.dtype)
