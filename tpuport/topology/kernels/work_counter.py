"""A traced program walked through: FLOPs of its products, and its Pallas kernels with
what they do over their grids.

A program and the body of a kernel are counted by the same walk. In a kernel it runs all
steps of the grid at once: conditions that follow from the grid alone decide which steps
come to an equation.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr

from tpuport.base.mappings import without
from tpuport.compat.jaxprs import Equation, SubJaxpr, sub_jaxprs, walk_equations
from tpuport.topology.kernels.axis_splits import (
    dividing_axes,
    result_splits,
    sending_axes,
    spec_split,
)
from tpuport.topology.kernels.grid_steps import (
    UNKNOWN,
    Environment,
    Grid,
    StepValue,
    constant,
    count_block_bytes,
    evaluate,
    is_in_hbm,
    read_grid,
)
from tpuport.topology.kernels.kernel_calls import (
    KernelCall,
    KernelCost,
    array_bytes,
    item_bytes,
    pallas_kernel_call,
    product_flops,
    ragged_call,
)

# Rounds of all loops in a kernel that are gone through one by one. Outside of kernels
# no condition is known, so that there is nothing to gain from single rounds.
_MOST_ROUNDS: Final = 4096
_NO_GRID: Final = Grid((), (), (), is_known=True)
_ALL_AXES: Final = frozenset(range(32))
# Of a value that may depend on anything.
_ANY: Final = StepValue(None, _ALL_AXES)

# [FLOPs, bytes that copies move at an end in HBM, FLOPs of digits], over all steps that
# come to an equation.
_Work = np.ndarray
_Values = Sequence[StepValue]
_Outcome = tuple[_Work, _Values]
_BOUNDS: Final = {
    (False, False): None, (True, False): "at most", (False, True): "at least", (True, True): "about",
}  # fmt: skip


class TracedWork(NamedTuple):
    """What a traced function does.

    Attributes:
        flops: of all devices.
        calls: of Pallas kernels, and of products by groups (`RAGGED`), in its order.
        digit_flops: of all devices, beyond `flops`, where a TPU multiplies the digits
            of a number one by one.
    """

    flops: float
    calls: tuple[KernelCall, ...]
    digit_flops: float = 0.0


def count_work(jaxpr: ClosedJaxpr) -> TracedWork:
    """What a traced function has to compute: FLOPs of matrix products, convolutions and
    Pallas kernels.

    A product of [M, K] and [K, N] has 2 * M * N * K, and so has a convolution, with K
    the channels of a group times the kernel's size. A grouped product counts each row
    once. The body of a scan counts as often as it runs, the body of another loop once,
    and of branches the costliest or, where code differs by platform, a TPU's; but where
    only the TPU's multiplies integers, numbers are written with several digits there,
    and count once. A Pallas kernel counts the products of its body at those steps of
    its grid that do them, if that is known before it runs; otherwise its own estimate,
    or at most that many. The body of a shard_map counts for each device along the axes
    that its arguments or results are split over; along the other axes all devices do
    the same work. Devices that divide the groups of a grouped product among them have
    all rows, and each does those of its own groups.
    """
    counter = _Counter(_NO_GRID, rounds=0)
    constants = list(map(constant, jaxpr.consts))
    work, _ = counter.run(
        jaxpr.jaxpr, [UNKNOWN] * len(jaxpr.jaxpr.invars), _Execution(), constants
    )
    return TracedWork(float(work[0]), tuple(counter.calls), float(work[2]))


class _Execution(NamedTuple):
    """Which steps of a grid come to an equation; outside of kernels there is one.

    Attributes:
        active: [S or 1].
        steps: how many are active.
        times: how often each does.
        axes: sizes of the axes that the shard_maps around it divide work over, and
            along which no rows are sent.
    """

    active: np.ndarray = np.ones(1, bool)
    steps: int = 1
    times: float = 1.0
    axes: Mapping[str, int] = MappingProxyType({})

    def only(self, which: np.ndarray) -> "_Execution":
        """Those of the steps for which `which` is true [S or 1]."""
        active = self.active & which
        steps = int(active.sum())
        # A condition that is the same for all steps has one entry for all of them.
        if len(active) == 1:
            steps *= self.steps
        return self._replace(active=active, steps=steps)


class _Counter:
    """Counts a program, or the body of a kernel.

    Args:
        grid: of the kernel.
        rounds: of loops that may be gone through one by one.

    Attributes:
        calls: of kernels, in order.
        may_be_less: whether a branch was counted that may not be taken.
        may_be_more: whether a loop or a grid was counted that may be longer.
    """

    def __init__(self, grid: Grid, *, rounds: int) -> None:
        self.calls: list[KernelCall] = []
        self.may_be_less, self.may_be_more = False, not grid.is_known
        self._grid = grid
        self._rounds = rounds
        self._kernel_costs: dict[Any, tuple[Any, KernelCost]] = {}

    def run(
        self,
        jaxpr: Jaxpr,
        arguments: _Values,
        execution: _Execution,
        constants: _Values = (),
    ) -> _Outcome:
        """The work of a jaxpr, and what is known of its results."""
        environment = Environment()
        environment.assign(jaxpr.constvars, constants)
        environment.assign(jaxpr.invars, arguments)
        total = _work()
        for equation in jaxpr.eqns:
            operands = environment.read(equation.invars)
            count = _RULES.get(equation.primitive.name, _Counter._other)
            work, results = count(self, equation, operands, execution)
            total = total + work
            environment.assign(equation.outvars, results)
        return total, environment.read(jaxpr.outvars)

    def _run_sub(
        self, sub_jaxpr: SubJaxpr, arguments: _Values, execution: _Execution
    ) -> _Outcome:
        constants = list(map(constant, sub_jaxpr.consts))
        return self.run(sub_jaxpr.jaxpr, arguments, execution, constants)

    def _other(
        self, equation: Equation, operands: _Values, execution: _Execution
    ) -> _Outcome:
        callees = sub_jaxprs(equation)
        if callees:
            return self._call(equation, callees, operands, execution)
        splits = result_splits(equation, [operand.split for operand in operands])
        results = [
            value._replace(split=split)
            for value, split in zip(evaluate(equation, operands), splits, strict=True)
        ]
        return _work(product_flops(equation) * execution.steps), results

    def _call(
        self,
        equation: Equation,
        callees: Sequence[SubJaxpr],
        operands: _Values,
        execution: _Execution,
    ) -> _Outcome:
        total, results = _work(), _unknown(equation)
        for callee in callees:
            # `run_scoped` allocates the arguments of its jaxpr, and has its operands as
            # constants, which since jax 0.12 are tracers of the kernel around it.
            arguments = operands[: len(callee.operands)]
            consts = [one for one in callee.consts if not isinstance(one, Tracer)]
            constants = list(map(constant, consts)) or operands
            work, outcome = self.run(callee.jaxpr, arguments, execution, constants)
            total = total + work
            is_plain = len(callees) == 1 and len(callee.operands) == len(
                callee.jaxpr.invars
            )
            if is_plain and len(outcome) == len(results):
                results = outcome
        return total, results

    def _cond(
        self, equation: Equation, operands: _Values, execution: _Execution
    ) -> _Outcome:
        branches = sub_jaxprs(equation)
        index, arguments = operands[0].numbers, operands[1:]
        if index is None:
            work = np.array(
                [self._run_sub(branch, arguments, execution)[0] for branch in branches]
            )
            self.may_be_less |= bool((work.min(axis=0) < work.max(axis=0)).any())
            return work.max(axis=0), _unknown(equation)
        selected = np.clip(index.astype(np.int64), 0, len(branches) - 1)
        total, results = _work(), _unknown(equation)
        for number, branch in enumerate(branches):
            inside = execution.only(selected == number)
            if inside.steps:
                work, outcome = self._run_sub(branch, arguments, inside)
                total = total + work
                # Steps that take different branches have different results.
                if inside.steps == execution.steps:
                    results = outcome
        if "branches_platforms" in equation.params:
            total = self._count_numbers_once(
                branches, int(selected[0]), arguments, execution, total
            )
        return total, results

    def _count_numbers_once(
        self,
        branches: Sequence[SubJaxpr],
        tpu: int,
        arguments: _Values,
        execution: _Execution,
        work: _Work,
    ) -> _Work:
        """The work of the TPU's branch; of numbers that it alone writes with digits,
        what another platform does.
        """
        others = [branch for number, branch in enumerate(branches) if number != tpu]
        if (
            not others
            or not _multiplies_integers(branches[tpu])
            or _multiplies_integers(others[-1])
        ):
            return work
        plain, _ = self._run_sub(others[-1], arguments, execution)
        return plain + _work(digits=work[0] - plain[0])

    def _scan(
        self, equation: Equation, operands: _Values, execution: _Execution
    ) -> _Outcome:
        [body] = sub_jaxprs(equation)
        length, results = body.times, _unknown(equation)
        fixed = operands[: body.carries.start]
        stacked = operands[body.rows.start :]
        # Rounds that decide nothing are all the same, so that one round says what each
        # does.
        if length > self._rounds or not _has_decisions(body.jaxpr):
            rows = [_ANY._replace(split=value.split[1:]) for value in stacked]
            repeated = execution._replace(times=execution.times * length)
            work, _ = self._run_sub(
                body, [*fixed, *[_ANY] * len(body.carries), *rows], repeated
            )
            return length * work, results
        self._rounds -= length
        state: _Values = operands[body.carries.start : body.carries.stop]
        total = _work()
        rounds = range(length)
        if equation.params["reverse"]:
            rounds = rounds[::-1]
        for number in rounds:
            rows = [_row(value, number) for value in stacked]
            work, outcome = self._run_sub(body, [*fixed, *state, *rows], execution)
            state = outcome[: len(body.carries)]
            total = total + work
        return total, [*state, *results[len(state) :]]

    def _while(
        self, equation: Equation, operands: _Values, execution: _Execution
    ) -> _Outcome:
        condition, body = sub_jaxprs(equation)
        first_of_body = condition.carries.start
        first_state = first_of_body + body.carries.start
        of_condition, of_body = (
            operands[:first_of_body],
            operands[first_of_body:first_state],
        )
        state: _Values = operands[first_state:]
        total = _work()
        while self._rounds > 0:
            self._rounds -= 1
            work, [goes_on] = self._run_sub(
                condition, [*of_condition, *state], execution
            )
            if goes_on.numbers is None:
                break
            execution = execution.only(goes_on.numbers.astype(bool))
            if not execution.steps:
                return total, _unknown(equation)
            body_work, state = self._run_sub(body, [*of_body, *state], execution)
            total = total + work + body_work
        # How long it goes on is known only at run time: it counts once from here on.
        self.may_be_more = True
        work, _ = self._run_sub(body, of_body, execution)
        return total + work, _unknown(equation)

    def _shard_map(
        self, equation: Equation, operands: _Values, execution: _Execution
    ) -> _Outcome:
        [body] = sub_jaxprs(equation)
        arguments = []
        for value, spec, variable in zip(
            operands, equation.params["in_specs"], equation.invars, strict=True
        ):
            split = spec_split(spec, variable.aval.ndim)
            # A block of an array is not the array, so that its numbers are not known.
            if any(split):
                value = _ANY._replace(split=split)
            arguments.append(value)
        sizes = dividing_axes(equation.params)
        sending = sending_axes(body.jaxpr)
        stationary = without(sizes, sending)
        inside = execution._replace(axes={**execution.axes, **stationary})
        work, _ = self._run_sub(body, arguments, inside)
        return work * math.prod(sizes.values()), _unknown(equation)

    def _ragged_dot(
        self, equation: Equation, operands: _Values, execution: _Execution
    ) -> _Outcome:
        """A product by groups. Devices that divide the groups have all rows each, and
        do those of their own groups.

        That holds if no rows are sent: rows that are sent may be anywhere.
        """
        numbers, split = (
            equation.params["ragged_dot_dimension_numbers"],
            operands[1].split,
        )
        axes = frozenset[str]()
        if split:
            axes = axes.union(*(split[dim] for dim in numbers.rhs_group_dimensions))
        ways = math.prod(size for axis, size in execution.axes.items() if axis in axes)
        flops = product_flops(equation) / ways
        self.calls.append(ragged_call(equation, execution.times, flops, ways))
        return _work(flops * execution.steps), _unknown(equation)

    def _program_id(
        self, equation: Equation, operands: _Values, execution: _Execution
    ) -> _Outcome:
        axis = self._grid.own_axes[equation.params["axis"]]
        if equation.primitive.name == "num_programs":
            return _work(), [constant(self._grid.sizes[axis])]
        return _work(), [self._grid.ids[axis]]

    def _platform_index(
        self, equation: Equation, operands: _Values, execution: _Execution
    ) -> _Outcome:
        """The branch that a TPU has."""
        for number, platforms in enumerate(equation.params["platforms"]):
            # None stands for the platforms that no other branch names.
            if platforms is None or "tpu" in platforms:
                return _work(), [constant(number)]
        return _work(), _unknown(equation)

    def _copy(
        self, equation: Equation, operands: _Values, execution: _Execution
    ) -> _Outcome:
        """A copy that a kernel starts: it counts at each end that is in HBM."""
        source, target, *_ = jax.tree.unflatten(
            equation.params["tree"], equation.invars
        )
        ends = [getattr(end, "ref", end).aval for end in (source, target)]
        # What is taken of the source, or all of it; other transforms view the same
        # bytes in another way.
        shape = ends[0].shape
        for transform in getattr(source, "transforms", ()):
            if hasattr(transform, "get_indexer_shape"):
                shape = transform.get_indexer_shape()
        nbytes = math.prod(shape) * item_bytes(ends[0]) * sum(map(is_in_hbm, ends))
        return _work(copied=nbytes * execution.steps), _unknown(equation)

    def _store(
        self, equation: Equation, operands: _Values, execution: _Execution
    ) -> _Outcome:
        """A store into a reference. If its numbers were known they are others from here
        on.
        """
        if operands[0].numbers is not None:
            self.may_be_less = self.may_be_more = True
        return _work(), _unknown(equation)

    def _pallas_call(
        self, equation: Equation, operands: _Values, execution: _Execution
    ) -> _Outcome:
        params = equation.params
        tables = tuple(
            value.numbers is not None and value.numbers.tobytes() for value in operands
        )
        key = id(params["jaxpr"]), id(params["grid_mapping"]), tables
        if key not in self._kernel_costs:
            # The parameters stay alive with the entry, so that no other object gets
            # their ids.
            self._kernel_costs[key] = params, _kernel_cost(equation, operands)
        _, counted = self._kernel_costs[key]
        call = pallas_kernel_call(equation, execution.times, counted)
        self.calls.append(call)
        return _work(call.cost.flops * execution.steps), _unknown(equation)


_RULES: Final[dict[str, Any]] = {
    "cond": _Counter._cond, "scan": _Counter._scan, "while": _Counter._while, "shard_map": _Counter._shard_map,
    "program_id": _Counter._program_id, "num_programs": _Counter._program_id,
    "platform_index": _Counter._platform_index, "pallas_call": _Counter._pallas_call,
    "dma_start": _Counter._copy, "ragged_dot_general": _Counter._ragged_dot,
    "swap": _Counter._store, "addupdate": _Counter._store,
}  # fmt: skip


def _kernel_cost(equation: Equation, operands: _Values) -> KernelCost:
    """What a pallas_call does: the products of its body over the steps of its grid, and
    the blocks that these move.

    Of arrays that a kernel gets whole it moves what the copies in its body say or, if
    it has none, each array once.
    """
    mapping, body = equation.params["grid_mapping"], equation.params["jaxpr"]
    bounds = mapping.num_dynamic_grid_bounds
    indexing = operands[bounds : bounds + mapping.num_index_operands]
    # What is stored in a prefetched operand is the same at every step.
    prefetched = [StepValue(value.numbers) for value in indexing]
    grid = read_grid(mapping, operands[:bounds])
    counter = _Counter(grid, rounds=_MOST_ROUNDS)
    references = [*prefetched, *[_ANY] * (len(body.invars) - len(prefetched))]
    (flops, copied, _), _ = counter.run(body, references, _Execution(steps=grid.steps))
    whole, moved = 0, []
    for block in mapping.block_mappings:
        traffic = count_block_bytes(grid, block, prefetched)
        counter.may_be_less |= not traffic.is_exact
        moved.append(traffic.nbytes)
        if is_in_hbm(block.block_aval):
            whole += array_bytes(block.array_aval)
    bound = _BOUNDS[counter.may_be_less, counter.may_be_more]
    # It may copy in ways that the walk does not know.
    if whole and not copied:
        copied, bound = float(whole), "about"
    first_block = len(operands) - mapping.num_inputs
    read_whole = [
        float(array_bytes(variable.aval)) for variable in equation.invars[:first_block]
    ]
    return KernelCost(
        float(flops), sum(read_whole) + sum(moved) + copied, "counted", bound,
        read=(*read_whole, *moved[: mapping.num_inputs]), written=tuple(moved[mapping.num_inputs :]),
        copied=float(copied),
    )  # fmt: skip


def _work(flops: float = 0.0, copied: float = 0.0, digits: float = 0.0) -> _Work:
    return np.array([flops, copied, digits])


def _multiplies_integers(branch: SubJaxpr) -> bool:
    """Whether there is a product of integers in it."""
    equations = [visit.equation for visit in walk_equations(branch.jaxpr)]
    return any(
        jax.numpy.issubdtype(equation.outvars[0].aval.dtype, np.integer)
        for equation in equations
        if product_flops(equation)
    )


def _unknown(equation: Equation) -> list[StepValue]:
    return [_ANY] * len(equation.outvars)


def _row(value: StepValue, number: int) -> StepValue:
    """What a round of a scan gets of an operand."""
    row = value._replace(split=value.split[1:])
    if value.numbers is None:
        return row
    return row._replace(numbers=value.numbers[:, number])


def _has_decisions(jaxpr: Jaxpr) -> bool:
    """Whether there is a branch or a loop in it that may depend on how often it ran."""
    return any(
        visit.equation.primitive.name in ("cond", "while")
        for visit in walk_equations(jaxpr)
    )
