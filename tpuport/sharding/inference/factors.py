"""Which dimensions of a program's arrays are the same dimension: classes of equal factors of sizes.

A dimension is a tuple of factors, the major one first: the 64 features of four heads of 16 are `(heads, head_dim)` as
soon as some reshape shows it, and `(features,)` before. An operation that needs two dimensions to be alike, such as
an addition, makes one class of their factors. A dimension of size 1 has no factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod


class Factor:
    """A factor of a dimension's size, which may turn out to be another factor, or to have parts.

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
    return () if size == 1 else (Factor(size),)


def new_dimensions(shape: Iterable[int]) -> Dimensions:
    """New dimensions of an array."""
    return tuple(map(new_dimension, shape))


def leaves(factors: Iterable[Factor]) -> Iterator[Factor]:
    """The factors that are not divided any further, each by the one that stands for its class."""
    for factor in factors:
        root = factor.root
        if root.parts is None:
            yield root
        else:
            yield from leaves(root.parts)


def leading_leaf(dimension: Dimension) -> Factor | None:
    """The major factor, along which a dimension can be cut in contiguous parts; None if its size is 1."""
    return next(leaves(dimension), None)


def unify(first: Dimension, second: Dimension) -> None:
    """Make two dimensions of one size the same, as far as their factors divide each other."""
    left_stack, right_stack = list(leaves(first))[::-1], list(leaves(second))[::-1]
    while left_stack and right_stack:
        left, right = _pop_leaf(left_stack), _pop_leaf(right_stack)
        if left is right:
            continue
        if left.size == right.size:
            right.same = left
            continue
        if left.size < right.size:
            left, right = right, left
            left_stack, right_stack = right_stack, left_stack
        if left.size % right.size:
            # 4 x 6 against 6 x 4: what follows has no common factors.
            return
        major, minor = _split(left, right.size)
        major.same = right
        left_stack.append(minor)


def unify_each(first: Iterable[Dimension], second: Iterable[Dimension]) -> None:
    """Make the dimensions of two arrays the same, in their order."""
    for left, right in zip(first, second, strict=True):
        unify(left, right)


def reshape(dimensions: Dimensions, shape: Sequence[int]) -> Dimensions:
    """The dimensions of an array after a reshape; new ones where the old and new sizes do not divide each other."""
    remaining = [factor for dimension in dimensions for factor in leaves(dimension)][::-1]
    result: list[Dimension] = []
    for size in shape:
        dimension = _take(remaining, size)
        if dimension is None:
            # From here on, positions are dealt to dimensions in a way that no factors describe.
            return (*result, *new_dimensions(shape[len(result) :]))
        result.append(dimension)
    return tuple(result)


def _take(remaining: list[Factor], size: int) -> Dimension | None:
    """The next factors whose sizes multiply to `size`; None if there are none. `remaining` has the major one last."""
    taken: list[Factor] = []
    while (missing := size // prod(factor.size for factor in taken)) > 1:
        if not remaining:
            return None
        factor = _pop_leaf(remaining)
        if missing % factor.size == 0:
            taken.append(factor)
        elif factor.size % missing == 0:
            major, minor = _split(factor, missing)
            taken.append(major)
            remaining.append(minor)
        else:
            return None
    return tuple(taken)


def _pop_leaf(factors: list[Factor]) -> Factor:
    """Remove the last factor, or the major leaf of it if it was divided after it was listed."""
    divided = list(leaves([factors.pop()]))
    factors.extend(divided[:0:-1])
    return divided[0]


def _split(leaf: Factor, major_size: int) -> tuple[Factor, Factor]:
    leaf.parts = Factor(major_size), Factor(leaf.size // major_size)
    return leaf.parts
