"""What follows when some weights are divided: which arrays are divided too, and what
devices have to send.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from tpuport.sharding.inference.factors import Factor, leading_leaf, leaves
from tpuport.sharding.inference.operations import Axis, Operation, Value
from tpuport.sharding.inference.traced_program import Program

# Operations on arrays of one shape, or of sizes 1, whose result is as large as their
# largest input.
_ARITHMETIC: Final = frozenset(
    ("add", "sub", "mul", "div", "max", "min", "pow", "select_n")
)
Kind = Literal["sum", "whole", "deal"]


@dataclasses.dataclass(frozen=True, eq=False)
class Transfer:
    """Something that devices have to send each other.

    Attributes:
        kind: "sum" is an all-reduce of an operation's outputs; "whole" means that an
            operation needs an array whole that is divided; "deal" that a part of a
            divided dimension is divided anew.
        operation: that needs it.
        elements: of the whole array that is sent.
        weights: the weights whose division leads to it.
    """

    kind: Kind
    operation: Operation
    elements: int
    weights: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Divided:
    """How an array is divided: along which of its dimensions, and because of which
    weights.
    """

    dimension: int
    weights: frozenset[str]


@dataclasses.dataclass
class Flow:
    """The consequences of dividing weights.

    Attributes:
        divided: the arrays that are divided, the weights among them.
        transfers: in the program's order.
    """

    divided: dict[Value, Divided]
    transfers: list[Transfer] = dataclasses.field(default_factory=list)

    def kinds(self, kind: Kind) -> list[Transfer]:
        """The transfers of one kind."""
        return [transfer for transfer in self.transfers if transfer.kind == kind]


def follow(
    program: Program,
    seeds: Mapping[str, int],
    settled: Mapping[Value, Divided],
    prefix: frozenset[Factor] = frozenset(),
) -> Flow:
    """What follows if weights are divided, each along the major factor of a dimension.

    Args:
        seeds: the dimension of each weight to divide.
        settled: arrays that are divided because of weights that were decided on before.
        prefix: factors to look past: the division is along the first factor after them.
    """
    return _Follower(program, seeds, settled, prefix).run()


def leading_factors(divided: Mapping[Value, Divided]) -> frozenset[Factor]:
    """The factors along which arrays are divided."""
    leading = {
        leading_leaf(value.dimensions[way.dimension]) for value, way in divided.items()
    }
    return frozenset(factor for factor in leading if factor is not None)


class _Follower:
    """Carries a division from weights to the arrays that are computed from them.

    Attributes:
        queue: positions of operations that have a divided input and were not reached
            yet, as a heap.
        queued: all positions that are or were in the queue.
    """

    def __init__(
        self,
        program: Program,
        seeds: Mapping[str, int],
        settled: Mapping[Value, Divided],
        prefix: frozenset[Factor],
    ) -> None:
        self.program = program
        self.settled = settled
        self.prefix = prefix
        divided = {
            program.weights[name]: Divided(dimension, frozenset([name]))
            for name, dimension in seeds.items()
        }
        self.flow = Flow(divided)
        self.queue: list[int] = []
        self.queued: set[int] = set()

    def run(self) -> Flow:
        for value in list(self.flow.divided):
            self._queue_users(value)
        # In the program's order, so that all inputs of an operation are known when it
        # is reached.
        while self.queue:
            self._pass(self.program.operations[heapq.heappop(self.queue)])
        return self.flow

    def _queue_users(self, value: Value) -> None:
        # An operation is reached once, even if a loop carries a divided value back to
        # it.
        for index in self.program.positions_of_users(value) - self.queued:
            self.queued.add(index)
            heapq.heappush(self.queue, index)

    def _pass(self, operation: Operation) -> None:
        inputs = {
            Axis(index, self.flow.divided[value].dimension): value
            for index, value in enumerate(operation.inputs)
            if value in self.flow.divided
        }
        if self._is_conflicting(operation, inputs) or self._would_divide_more(
            operation, inputs
        ):
            for value in inputs.values():
                self._need_whole(operation, value)
            return
        # All weights behind the inputs: from here on they are divided together or not
        # at all.
        weights = frozenset().union(
            *(self.flow.divided[value].weights for value in inputs.values())
        )
        for axis, value in inputs.items():
            if axis not in operation.reduced:
                self._carry_on(operation, axis, value, weights)
        if not operation.reduced.isdisjoint(inputs):
            elements = sum(value.elements for value in operation.outputs)
            self._transfer("sum", operation, elements, weights)

    def _is_conflicting(
        self, operation: Operation, inputs: Mapping[Axis, Value]
    ) -> bool:
        """Whether inputs are divided along different things, now or by an earlier
        decision.
        """
        ways = {self._way(operation, axis, value) for axis, value in inputs.items()}
        for index, value in enumerate(operation.inputs):
            # A device cannot divide an operation along a second dimension: the mesh has
            # one `tp` axis.
            settled = self.settled.get(value)
            if settled:
                ways.add(self._way(operation, Axis(index, settled.dimension), value))
        return len(ways) > 1

    def _would_divide_more(
        self, operation: Operation, inputs: Mapping[Axis, Value]
    ) -> bool:
        """Whether an array meets one that is whole and no smaller, as a product's
        result meets the residual stream.

        Taking a part of that one would be free, but the compiler would rather divide it
        where it is made, and gather it for its other users.
        """
        if operation.name not in _ARITHMETIC:
            return False
        largest = max(value.elements for value in inputs.values())
        factors = {
            self._factor(value, axis.dimension) for axis, value in inputs.items()
        }
        others = [value for value in operation.inputs if value not in self.flow.divided]
        # A smaller one, as a bias is, is divided at little cost; a cheap one is
        # computed in parts.
        large = [value for value in others if value.elements >= largest]
        return any(
            self._has_any(value, factors) and not self._is_cheap(value, factors)
            for value in large
        )

    def _is_cheap(self, value: Value, factors: set[Factor | None]) -> bool:
        """Whether each device can have its part of an array at no cost: a mask, or what
        all heads share.
        """
        maker = self.program.maker_of(value)
        if (
            maker is not None
            and maker.name == "broadcast_in_dim"
            and not self._has_any(maker.inputs[0], factors)
        ):
            return True
        return self.program.is_cheap(value)

    def _has_any(self, value: Value, factors: set[Factor | None]) -> bool:
        """Whether a value could be divided along one of these factors."""
        return any(self._find(value, factor) is not None for factor in factors)

    def _way(
        self, operation: Operation, axis: Axis, value: Value
    ) -> Factor | int | None:
        """What an input is divided along; parts that are joined are alike if they
        become parts of one dimension.
        """
        if axis in operation.dealt:
            return operation.dealt[axis]
        return self._factor(value, axis.dimension)

    def _carry_on(
        self, operation: Operation, axis: Axis, value: Value, weights: frozenset[str]
    ) -> None:
        """Divide the outputs as the input is."""
        factor = self._factor(value, axis.dimension)
        # Of several outputs, some may be divided and others, such as statistics, be
        # whole.
        is_carried = False
        for output in operation.outputs:
            dimension = self._find(output, factor)
            if dimension is None and axis in operation.dealt:
                dimension = operation.dealt[axis]
                self._transfer("deal", operation, output.elements, weights)
            if dimension is not None:
                is_carried = True
                self.flow.divided[output] = Divided(dimension, weights)
                self._queue_users(output)
        if not is_carried:
            self._need_whole(operation, value)

    def _find(self, value: Value, factor: Factor | None) -> int | None:
        """The index of the dimension that a division along this factor divides; None if
        there is none.
        """
        if factor is None:
            return None
        factors = [
            first_after(dimension, self.prefix) for dimension in value.dimensions
        ]
        if factor not in factors:
            return None
        return factors.index(factor)

    def _factor(self, value: Value, dimension: int) -> Factor | None:
        """The factor that a division along this dimension divides."""
        return first_after(value.dimensions[dimension], self.prefix)

    def _need_whole(self, operation: Operation, value: Value) -> None:
        """Note that an operation needs an array whole that is divided."""
        self._transfer(
            "whole", operation, value.elements, self.flow.divided[value].weights
        )

    def _transfer(
        self, kind: Kind, operation: Operation, elements: int, weights: Iterable[str]
    ) -> None:
        # Code that nothing uses is not in the compiled program, such as what was
        # computed apart instead.
        if self.program.is_idle(operation):
            return
        self.flow.transfers.append(
            Transfer(kind, operation, elements, frozenset(weights))
        )


def first_after(
    dimension: Iterable[Factor], prefix: frozenset[Factor]
) -> Factor | None:
    """The first factor of a dimension that is not one of these; None if there is
    none.
    """
    return next((leaf for leaf in leaves(dimension) if leaf not in prefix), None)
