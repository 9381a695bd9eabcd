"""What the collectives of a compiled program move: weights, caches, or products that
are taken apart.
"""

import collections
import functools
import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from tpuport.base.mappings import only
from tpuport.topology.hlo import Instruction, Program, Value, ValueFlow

Item = TypeVar("Item")
Key = TypeVar("Key")
# An all-reduce adds up what devices have computed, and moves nothing that one of them
# has.
MOVES: Final = ("all-gather", "all-to-all", "collective-permute")

_QUOTED: Final = re.compile(r"\['(.+?)'\]")
# The result is the first operand, all of it or a part, in another place, form or dtype.
_MOVES_FIRST_OPERAND: Final = frozenset(
    "bitcast bitcast-convert convert copy dynamic-slice dynamic-update-slice gather pad reshape reverse scatter slice "
    "transpose".split()
)
_MOVES_ALL_OPERANDS: Final = frozenset((*MOVES, "concatenate", "optimization-barrier"))
# The compiler's own calls that hand on their operands.
_HANDING_ON: Final = frozenset(
    {"ConcatBitcast", "AsyncCollectiveStart", "AsyncCollectiveDone"}
)
# A new key is rotated and normed on its way from its projection to the cache; sums and
# products end the way.
_ELEMENTWISE: Final = frozenset(
    "add broadcast clamp cosine divide maximum minimum multiply negate power rsqrt sine sqrt subtract".split()
)
_UPDATES: Final = {
    "dynamic-update-slice": 1,
    "scatter": 2,
}  # and which operand is written
_PRODUCTS: Final = ("convolution", "dot")
# Primitives that take an array apart. A collective for a product or for a sum has
# another reason.
_TAKING_APART: Final = frozenset(
    "broadcast_in_dim concatenate dynamic_slice gather reshape slice split squeeze transpose".split()
)


class CacheCollectives(NamedTuple):
    """Collectives of a step: of what the cache holds, and of new keys and values on
    their way into it.
    """

    whole: tuple[Instruction, ...] = ()
    new: tuple[Instruction, ...] = ()

    @property
    def all(self) -> tuple[Instruction, ...]:
        return (*self.whole, *self.new)


class ProductCollective(NamedTuple):
    """A collective that moves a part of the product with a weight."""

    instruction: Instruction
    weight: str


class DataMovement:
    """Answers for one program.

    Args:
        program: the compiled one.
        weights: the names of the arguments that are weights.
    """

    def __init__(self, program: Program, weights: Collection[str]) -> None:
        self._program = program
        self._weights = frozenset(weights)

    def collectives(self, *kinds: str) -> list[Instruction]:
        """The instructions of these kinds; of a collective that is started and ended
        apart, the start.
        """
        return [
            instruction
            for instruction in self._program.instructions
            if instruction.kind in kinds and self._program.stage(instruction) != "later"
        ]

    def cache_collectives(self, arguments: Collection[int]) -> CacheCollectives:
        """The collectives that put keys and values together.

        Args:
            arguments: the numbers of those that a step overwrites in part, or returns
                longer.
        """
        # Following a program is slow, and most programs have no such collectives.
        moving = self.collectives(*MOVES)
        if not moving or not arguments:
            return CacheCollectives()
        parameters = self._program.parameters
        cache = self._moved.reach(
            Value(parameters[number]) for number in arguments if number in parameters
        )
        whole = [
            move
            for move in moving
            if not cache.isdisjoint(map(Value, self._program.operands(move)))
        ]
        way = {
            value.instruction
            for value in self._computed.trace(self._written_into(cache))
        }
        on_the_way = way.difference(whole).intersection(moving)
        # A product of few rows may be elementwise too. Weights that are gathered for it
        # have their own advice.
        new = [
            move
            for move in moving
            if move in on_the_way and not self.weights_behind(move)
        ]
        return CacheCollectives(tuple(whole), tuple(new))

    def _written_into(self, values: Collection[Value]) -> list[Value]:
        """What is written into any of these."""
        updates = [
            update
            for update in self._program.instructions
            if update.operation in _UPDATES
        ]
        updated = [
            (self._program.operands(update), _UPDATES[update.operation])
            for update in updates
        ]
        return [
            Value(operands[part])
            for operands, part in updated
            if Value(operands[0]) in values
        ]

    def split_products(self, weights: Collection[str]) -> list[ProductCollective]:
        """The collectives that take products with any of these weights apart."""
        if not weights:
            return []
        matches = []
        for collective in self.collectives(*MOVES):
            products = self._moved_products(collective)
            if not (
                primitive(collective) in _TAKING_APART
                or any(_have_one_origin(collective, product) for product in products)
            ):
                continue
            names = self._product_weights(products).intersection(weights)
            if names:
                # A collective of several products is reported with the first weight by
                # name.
                matches.append(ProductCollective(collective, min(names)))
        return matches

    def feeds_product(self, instruction: Instruction) -> bool:
        """Whether a product multiplies its result, as it is or a part of it."""
        return instruction in self._factors

    @functools.cached_property
    def _factors(self) -> set[Instruction]:
        """What products multiply, and what that was moved from."""
        products = [
            instruction
            for instruction in self._program.instructions
            if instruction.operation in _PRODUCTS
        ]
        operands = itertools.chain.from_iterable(map(self._program.operands, products))
        moved = self._moved.trace(map(Value, operands))
        return {instruction for instruction, _ in moved}

    def _moved_products(self, collective: Instruction) -> list[Instruction]:
        """The products that a collective moves. That of a matrix and one vector may be
        the sum of an elementwise product.
        """
        operands = map(Value, self._program.operands(collective))
        return [
            instruction
            for instruction, _ in self._computed.trace(operands)
            if instruction.operation in _PRODUCTS
            or (
                instruction.operation == "reduce"
                and not _moved_operands(
                    instruction, self._program.operands(instruction)
                )
            )
        ]

    def _product_weights(self, products: Iterable[Instruction]) -> set[str]:
        """The arguments with which products are computed."""
        names: set[str] = set()
        for product in products:
            factors = self._program.operands(product)
            if product.operation in _PRODUCTS:
                names |= self._argument_names(self._moved, factors)
            else:
                names |= self._argument_names(self._computed, factors[:1])
        return names

    @functools.cached_property
    def weight_parameters(self) -> dict[str, Instruction]:
        """The program's arguments that are weights, by their names."""
        parameters = self._program.parameters.values()
        named = {
            name: parameter
            for parameter in parameters
            for name in _QUOTED.findall(parameter.op_name)
        }
        return only(named, self._weights)

    def independent_products(self, weight: str) -> tuple[Instruction, ...]:
        """The products with a weight; none if one of them depends on the result of
        another.
        """
        products = self._products_by_weight.get(weight, [])
        for product in products:
            behind = {
                value.instruction
                for value in self._dependencies.trace([Value(product)])
            }
            if not behind.isdisjoint(set(products) - {product}):
                return ()
        return tuple(products)

    @functools.cached_property
    def _products_by_weight(self) -> dict[str, list[Instruction]]:
        """The products of the program by each weight that is one of their factors."""
        products: dict[str, list[Instruction]] = collections.defaultdict(list)
        for instruction in self._program.instructions:
            if instruction.operation in _PRODUCTS:
                for name in self._argument_names(
                    self._moved, self._program.operands(instruction)
                ):
                    products[name].append(instruction)
        return products

    def weights_behind(self, instruction: Instruction) -> frozenset[str]:
        """The weights that its operands are computed from; none if anything else has a
        part in them.
        """
        # What depends on anything else is found once for all collectives: a search back
        # from each would be too slow.
        operands = list(map(Value, self._program.operands(instruction)))
        if not self._not_from_weights.isdisjoint(operands):
            return frozenset()
        names = self._argument_names(
            self._dependencies, self._program.operands(instruction)
        )
        return self._weights.intersection(names)

    @functools.cached_property
    def _not_from_weights(self) -> set[Value]:
        """The values in which anything but weights and constants has a part."""
        others = itertools.filterfalse(
            self._is_weight_or_constant, self._program.instructions
        )
        # What is computed from something else depends on that.
        origins = [
            value
            for value in map(Value, others)
            if not self._dependencies.sources(value)
        ]
        return self._dependencies.reach(origins)

    def _is_weight_or_constant(self, instruction: Instruction) -> bool:
        if instruction.operation in ("constant", "iota") or _is_scalar(instruction):
            return True
        names = _QUOTED.findall(instruction.op_name)
        return instruction.operation == "parameter" and not self._weights.isdisjoint(
            names
        )

    def _argument_names(
        self, flow: ValueFlow, instructions: Iterable[Instruction]
    ) -> set[str]:
        """The quoted names of the program's arguments that these results come from."""
        names: set[str] = set()
        for instruction, _ in flow.trace(map(Value, instructions)):
            if (
                instruction.operation == "parameter"
                and instruction.computation == self._program.entry
            ):
                names.update(_QUOTED.findall(instruction.op_name))
        return names

    @functools.cached_property
    def _moved(self) -> ValueFlow:
        return ValueFlow(self._program.computations, _moved_operands)

    @functools.cached_property
    def _computed(self) -> ValueFlow:
        return ValueFlow(self._program.computations, _moved_or_elementwise_operands)

    @functools.cached_property
    def _dependencies(self) -> ValueFlow:
        return ValueFlow(self._program.computations, _all_operands)


def primitive(instruction: Instruction) -> str:
    """The jax primitive that an instruction was made for, "dot_general", or an empty
    string.
    """
    return instruction.op_name.rpartition("/")[2].partition("[")[0]


def _have_one_origin(collective: Instruction, product: Instruction) -> bool:
    """Whether a collective has the name of the product that it moves, as the compiler
    of libtpu 0.0.52 gives it. A collective for the product after it has that name.
    """
    return (collective.op_name, collective.frame) == (product.op_name, product.frame)


def sent_bytes(collectives: Iterable[Instruction]) -> int:
    """Bytes that collectives leave on a device in a step."""
    return sum(
        collective.times * array.nbytes
        for collective in collectives
        for array in collective.results
    )


def count_executions(instructions: Iterable[Instruction]) -> int:
    """How often a step executes them."""
    return sum(instruction.times for instruction in instructions)


def count_by_kind(instructions: Iterable[Instruction]) -> dict[str, int]:
    """How often a step executes those of each kind, in the order of `MOVES`."""
    counts: collections.Counter[str] = collections.Counter(dict.fromkeys(MOVES, 0))
    for instruction in instructions:
        counts[instruction.kind] += instruction.times
    return {kind: count for kind, count in counts.items() if count}


def _is_scalar(instruction: Instruction) -> bool:
    """Whether it is a single number, such as a loop's counter: it says where in an
    array to look.
    """
    return not any(array.dims for array in instruction.results)


def _moved_operands(
    instruction: Instruction, operands: Sequence[Instruction]
) -> Sequence[Instruction]:
    kind = instruction.kind
    if kind in _MOVES_FIRST_OPERAND:
        return operands[:1]
    if kind in _MOVES_ALL_OPERANDS or instruction.target in _HANDING_ON:
        return operands
    if kind == "select":
        return operands[1:]
    # A reduction over dimensions of one element only reshapes.
    if kind == "reduce" and _size(operands[0]) == _size(instruction):
        return operands[:1]
    return ()


def _moved_or_elementwise_operands(
    instruction: Instruction, operands: Sequence[Instruction]
) -> Sequence[Instruction]:
    return (
        operands
        if instruction.operation in _ELEMENTWISE
        else _moved_operands(instruction, operands)
    )


def _all_operands(
    instruction: Instruction, operands: Sequence[Instruction]
) -> Sequence[Instruction]:
    return () if _is_scalar(instruction) else operands


def _size(instruction: Instruction) -> int:
    return sum(array.size for array in instruction.results)
