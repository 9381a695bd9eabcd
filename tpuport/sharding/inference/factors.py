"""Which dimensions of a program's arrays are the same dimension: classes of equal
factors of sizes.

A dimension is a tuple of factors, the major one first: the 64 features of four heads of
16 are `(heads, head_dim)` as soon as some reshape shows it, and `(features,)` before.
An operation that needs two dimensions to be alike, such as an addition, makes one class
of their factors. A dimension of size 1 has no factors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from math import prod


class Factor:
    """A factor of a dimension's size, which may turn out to be another factor, or to
    have parts.

    Attributes:
        size: how many positions it has.
        same: the factor that it was found to be the same as.
        parts: its own factors, major first, if a reshape has divided it.
    """

    __slots__ = ("parts", "same", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.same: Factor | None = None
        self.parts: tuple[Factor, Factor] | None = None

    @property
    def root(self) -> Factor:
        """The factor that stands for the class."""
        factor = self
        while factor.same is not None:
            # Halve the path, so that long chains of equal factors stay short.
            factor.same = factor.same.same or factor.same
            factor = factor.same
        return factor


Dimension = tuple[Factor, ...]
Dimensions = tuple[Dimension, ...]


def new_dimension(size: int) -> Dimension:
    """A dimension that is like no other so far."""
    # Without factors for size 1, such dimensions may come and go without changing any
    # class.
    return () if size == 1 else (Factor(size),)


def new_dimensions(shape: Iterable[int]) -> Dimensions:
    """New dimensions of an array."""
    return tuple(map(new_dimension, shape))


def leaves(factors: Iterable[Factor]) -> Iterator[Factor]:
    """The factors that are not divided any further, each by the one that stands for its
    class.
    """
    for factor in factors:
        root = factor.root
        if root.parts is None:
            yield root
        else:
            yield from leaves(root.parts)


def leading_leaf(dimension: Dimension) -> Factor | None:
    """The major factor, along which a dimension can be cut in contiguous parts; None if
    its size is 1.
    """
    return next(leaves(dimension), None)


def size_of(factors: Iterable[Factor]) -> int:
    """How many positions a dimension of these factors has."""
    return prod(factor.size for factor in factors)


def unify(first: Dimension, second: Dimension) -> None:
    """Make two dimensions of one size the same, as far as their factors divide each
    other.
    """
    # Major factors are compared first, and are last in the stacks.
    left_stack = list(leaves(first))[::-1]
    right_stack = list(leaves(second))[::-1]
    while left_stack and right_stack:
        left, right = _pop_leaf(left_stack), _pop_leaf(right_stack)
        if left is right:
            # `right.same = left` would make a circle.
            continue
        if left.size == right.size:
            right.same = left
            continue
        if left.size < right.size:
            # The larger one is split, and its minor part goes back to the stack that it
            # came from.
            left, right = right, left
            left_stack, right_stack = right_stack, left_stack
        if left.size % right.size:
            # 4 x 6 against 6 x 4: what follows has no common factors.
            return
        major, minor = _split(left, right.size)
        major.same = right
        left_stack.append(minor)


def unify_each(first: Iterable[Dimension], second: Iterable[Dimension]) -> None:
    """Make the dimensions of two arrays of one shape the same, in their order."""
    for left, right in zip(first, second, strict=True):
        unify(left, right)


def reshape(dimensions: Dimensions, shape: Sequence[int]) -> Dimensions:
    """The dimensions of an array after a reshape; new ones where the old and new sizes
    do not divide each other.
    """
    # A reshape is row-major, so that the factors of all dimensions are one sequence
    # that is divided anew.
    remaining = list(leaves(itertools.chain.from_iterable(dimensions)))[::-1]
    result: list[Dimension] = []
    for size in shape:
        dimension = _take(remaining, size)
        if dimension is None:
            # From here on, positions are dealt to dimensions in a way that no factors
            # describe.
            return (*result, *new_dimensions(shape[len(result) :]))
        result.append(dimension)
    return tuple(result)


def _take(remaining: list[Factor], size: int) -> Dimension | None:
    """The next factors whose sizes multiply to `size`; None if there are none.
    `remaining` has the major one last.
    """
    dimension: list[Factor] = []
    missing = size
    while missing > 1:
        if not remaining:
            return None
        factor = _pop_leaf(remaining)
        if factor.size > missing and factor.size % missing == 0:
            factor, minor = _split(factor, missing)
            remaining.append(minor)
        if missing % factor.size:
            return None
        dimension.append(factor)
        missing //= factor.size
    return tuple(dimension)


def _pop_leaf(factors: list[Factor]) -> Factor:
    """Remove the last factor, or the major leaf of it if it was divided after it was
    listed.
    """
    # A factor that is listed twice may have been divided at its first occurrence.
    major, *minor = leaves([factors.pop()])
    factors.extend(reversed(minor))
    return major


def _split(leaf: Factor, major_size: int) -> tuple[Factor, Factor]:
    """Divide a factor in two; every dimension that has it, or one of its class, then
    has both.
    """
    leaf.parts = Factor(major_size), Factor(leaf.size // major_size)
    return leaf.parts
