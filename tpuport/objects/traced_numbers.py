"""Whole numbers of Python that are arguments of a program: counters, positions, steps.

A number that has changed from one call to the next is given to the trace as a
`TracedNumber`, which computes as an int does, and notes the outcome of each comparison.
The program then serves every number with the same outcomes: a guard is evaluated on
the host before a call, and nothing is compiled. Code that needs the number itself, as
the length of a loop or a shape, fixes it: the program is made for this number alone.

A number is kept as a term: a constant, and a multiple of each atom. An atom is the path
of a number of the call, or what `//`, `%` and products of terms give.
"""

import contextlib
import operator
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

# "argument", "cache" or "state", and the path there: ("cache", "cache.layers[0].seen").
Path = tuple[str, str]
Atom = Any
Term = tuple[int, tuple[tuple[Atom, int], ...]]

_ATOMS: Final[dict[str, Callable[[int, int], int]]] = {
    "//": operator.floordiv,
    "%": operator.mod,
    "*": operator.mul,
}
# int64 on the host is int32 on the device.
LIMIT: Final = 2**31


class Guard(NamedTuple):
    """A comparison that a program depends on, and its outcome.

    Attributes:
        term: what is compared with 0.
        relation: "<" or "=".
    """

    term: Term
    relation: str
    outcome: bool

    def holds(self, values: Mapping[Path, int]) -> bool:
        """Whether the comparison has the same outcome for other numbers."""
        return _compare(evaluate(self.term, values), self.relation) == self.outcome


class NumberTrace:
    """The numbers of a call while its function is traced.

    Args:
        values: of the call, by path.

    Attributes:
        guards: what the program depends on.
        fixed: the numbers that the code has asked for.
        make_array: makes the array of a term; None if the program has no numbers.
    """

    def __init__(self, values: Mapping[Path, int]) -> None:
        self.values = values
        self.is_open = True
        self.fixed: set[Path] = set()
        self.make_array: Callable[[Term], Any] | None = None
        self._guards: dict[tuple[Term, str], bool] = {}

    @property
    def guards(self) -> tuple[Guard, ...]:
        return tuple(
            Guard(term, relation, outcome)
            for (term, relation), outcome in self._guards.items()
        )

    def compare(self, term: Term, relation: str) -> bool:
        """The outcome of a comparison with 0, which the program depends on then."""
        outcome = _compare(evaluate(term, self.values), relation)
        self._guards[term, relation] = outcome
        return outcome

    def close(self) -> None:
        """End the trace: numbers are values from now on."""
        self.is_open = False

    def fix(self, term: Term) -> None:
        """Note that the code needs the number itself."""
        self.fixed.update(paths_in(term))


_active = threading.local()


@contextlib.contextmanager
def traced_numbers(values: Mapping[Path, int]) -> Iterator[NumberTrace]:
    """A trace of a function; numbers that are made in this block belong to it."""
    former = vars(_active).copy()
    trace = _active.trace = NumberTrace(values)
    _active.settled = None
    try:
        yield trace
    finally:
        trace.close()
        vars(_active).clear()
        vars(_active).update(former)


@contextlib.contextmanager
def settled_numbers(values: Mapping[Path, int]) -> Iterator[None]:
    """Let objects that are rebuilt after a call have ints where its trace had numbers,
    wherever they are.

    Args:
        values: of the call.
    """
    former = getattr(_active, "settled", None)
    _active.settled = values
    try:
        yield
    finally:
        _active.settled = former


def rebuild_number(term: Term) -> "TracedNumber | int":
    """The number of a term in an object that is rebuilt: of the trace that is under
    way, of a call, or a place in a key.
    """
    values = getattr(_active, "settled", None)
    return TracedNumber(term) if values is None else evaluate(term, values)


_OPERATIONS: Final[dict[str, Callable]] = {
    "+": operator.add, "-": operator.sub, **_ATOMS, "/": operator.truediv, "**": operator.pow,
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift,
}  # fmt: skip


def _operator(operation: str, *, is_swapped: bool = False) -> Callable[[Any, Any], Any]:
    """The method of `TracedNumber` for an operator, or for its swapped operands."""
    function = _OPERATIONS[operation]

    def method(self: "TracedNumber", other: Any) -> Any:
        if operation in ("+", "-", *_ATOMS):
            return self._combine(other, operation, is_swapped=is_swapped)
        # Neither a sum nor an atom: of the number itself.
        return self._leave(function, other, is_swapped=is_swapped)

    return method


class TracedNumber:
    """An int of a call: computes, and is compared, as one.

    After its trace it is the int that it was then; one that was made outside of a trace
    is a place in the key of a program, and has no value.
    """

    __slots__ = ("_trace", "_value", "term")
    # Arrays leave the operation to this class.
    __array_ufunc__ = None

    def __init__(self, term: Term) -> None:
        self.term = term
        trace: NumberTrace | None = getattr(_active, "trace", None)
        has_values = trace is not None and paths_in(term) <= trace.values.keys()
        self._trace = trace if has_values else None
        self._value = (
            evaluate(term, trace.values) if trace is not None and has_values else None
        )

    @property
    def __class__(self) -> type:  # type: ignore[override]
        # For `isinstance(number, int)`.
        return int

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # So that torch's functions take it; `NumberOperators` answers them.
        return NotImplemented

    @property
    def is_traced(self) -> bool:
        """Whether its trace is under way."""
        return self._trace is not None and self._trace.is_open

    # --- the number itself ---

    def __index__(self) -> int:
        if self._value is None:
            raise TypeError("this number has no value outside of a call")
        if self._trace is not None and self._trace.is_open:
            self._trace.fix(self.term)
        return self._value

    __int__ = __index__
    __trunc__ = __index__
    __floor__ = __index__
    __ceil__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __complex__(self) -> complex:
        return complex(self.__index__())

    def __round__(self, digits: int | None = None) -> int:
        return round(self.__index__(), digits)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        import numpy as np

        return np.asarray(self.__index__(), dtype)

    def __str__(self) -> str:
        return "a number" if self._value is None else str(self.__index__())

    __repr__ = __str__

    def __format__(self, form: str) -> str:
        return format(self.__index__(), form)

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (self.__index__(),)

    def __copy__(self) -> "TracedNumber":
        return self

    def __deepcopy__(self, memo: dict) -> "TracedNumber":
        return self

    def __getattr__(self, name: str) -> Any:
        # Code asks many objects for attributes that an int lacks.
        if not hasattr(int, name):
            raise AttributeError(f"'int' object has no attribute {name!r}")
        return getattr(self.__index__(), name)

    def __hash__(self) -> int:
        return hash(self.__index__() if self.is_traced else self.term)

    # --- comparisons ---

    def __bool__(self) -> bool:
        return not self._compare(0, "=", operator.eq)

    def __eq__(self, other: object) -> Any:
        if type(other) is TracedNumber and not (self.is_traced or other.is_traced):
            return self.term == other.term
        return self._compare(other, "=", operator.eq)

    def __ne__(self, other: object) -> Any:
        return _negated(self == other)

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, "<", operator.lt)

    def __ge__(self, other: Any) -> Any:
        return _negated(self._compare(other, "<", operator.ge, is_negated=True))

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, ">", operator.gt)

    def __le__(self, other: Any) -> Any:
        return _negated(self._compare(other, ">", operator.le, is_negated=True))

    def _compare(
        self,
        other: Any,
        relation: str,
        operation: Callable,
        *,
        is_negated: bool = False,
    ) -> Any:
        """The outcome of a comparison, which the program depends on then.

        Args:
            operation: for what is no int.
            is_negated: whether the caller negates what is returned.
        """
        term = _term_of(other)
        if term is None:
            result = self._leave(operation, other)
            return _negated(result) if is_negated else result
        first, second = self.term, term
        if relation == ">":
            first, second, relation = second, first, "<"
        if self.is_traced and (not term[1] or _has_same_trace(self, other)):
            difference = _add(first, second, -1)
            if not difference[1]:
                return _compare(difference[0], relation)
            return self._trace.compare(difference, relation)  # type: ignore[union-attr]
        numbers = (self.__index__(), int(other))
        return _negated(operation(*numbers)) if is_negated else operation(*numbers)

    # --- arithmetic ---

    def _leave(
        self, operation: Callable, other: Any, *, is_swapped: bool = False
    ) -> Any:
        """The result with a value of another type: a tensor computes it itself, other
        types get the number.
        """
        if type(other) is TracedNumber:
            other = other.__index__()
        if hasattr(type(other), "__torch_function__"):
            return NotImplemented
        operands = (
            (other, self.__index__()) if is_swapped else (self.__index__(), other)
        )
        return operation(*operands)

    def _combine(self, other: Any, operation: str, *, is_swapped: bool) -> Any:
        term = _term_of(other)
        if term is None or not _has_same_trace(self, other):
            return self._leave(_OPERATIONS[operation], other, is_swapped=is_swapped)
        first, second = (term, self.term) if is_swapped else (self.term, term)
        if operation in ("//", "%") and second[1]:
            # To divide by 0 is an error.
            self._trace.compare(second, "=")  # type: ignore[union-attr]
        return _number(_result(first, operation, second))

    __add__, __radd__ = _operator("+"), _operator("+", is_swapped=True)
    __sub__, __rsub__ = _operator("-"), _operator("-", is_swapped=True)
    __mul__, __rmul__ = _operator("*"), _operator("*", is_swapped=True)
    __floordiv__, __rfloordiv__ = _operator("//"), _operator("//", is_swapped=True)
    __mod__, __rmod__ = _operator("%"), _operator("%", is_swapped=True)
    __truediv__, __rtruediv__ = _operator("/"), _operator("/", is_swapped=True)
    __pow__, __rpow__ = _operator("**"), _operator("**", is_swapped=True)
    __and__, __rand__ = _operator("&"), _operator("&", is_swapped=True)
    __or__, __ror__ = _operator("|"), _operator("|", is_swapped=True)
    __xor__, __rxor__ = _operator("^"), _operator("^", is_swapped=True)
    __lshift__, __rlshift__ = _operator("<<"), _operator("<<", is_swapped=True)
    __rshift__, __rrshift__ = _operator(">>"), _operator(">>", is_swapped=True)

    def __neg__(self) -> Any:
        return self * -1

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self


def number_at(path: Path) -> TracedNumber:
    """The number of a call at a path."""
    return TracedNumber((0, ((path, 1),)))


def as_array(value: Any) -> Any:
    """The array of a number of the call, of no dimensions; any other value as it is."""
    if type(value) is not TracedNumber:
        return value
    trace = value._trace
    if trace is None or not trace.is_open or trace.make_array is None:
        return value.__index__()
    return trace.make_array(value.term)


def of_this_trace(value: Any) -> Any:
    """A value that leaves the trace that is under way; a number of an earlier one as
    the int that it was.
    """
    if type(value) is TracedNumber and value._trace is not _active.trace:
        return value.__index__()
    return value


def paths_in(term: Term) -> set[Path]:
    """The numbers of the call that a term is computed of."""
    paths: set[Path] = set()
    for atom, _ in term[1]:
        if len(atom) == 2:
            paths.add(atom)
        else:
            paths |= paths_in(atom[1]) | paths_in(atom[2])
    return paths


def evaluate(term: Term, values: Mapping[Path, int]) -> int:
    """The number that a term is for the numbers of a call."""
    constant, multiples = term
    return constant + sum(
        factor * _evaluate_atom(atom, values) for atom, factor in multiples
    )


def _evaluate_atom(atom: Atom, values: Mapping[Path, int]) -> int:
    if len(atom) == 2:
        return values[atom]
    operation, first, second = atom
    return _ATOMS[operation](evaluate(first, values), evaluate(second, values))


def _compare(number: int, relation: str) -> bool:
    return number < 0 if relation == "<" else number == 0


def _term_of(value: Any) -> Term | None:
    if type(value) is TracedNumber:
        return value.term
    return (int(value), ()) if type(value) in (int, bool) else None


def _has_same_trace(first: TracedNumber, second: Any) -> bool:
    """Whether both can be parts of one term: one of an earlier trace is a plain number
    now.
    """
    is_number = type(second) is TracedNumber
    return first.is_traced and not (is_number and first._trace is not second._trace)


def _negated(outcome: Any) -> Any:
    return outcome if outcome is NotImplemented else not outcome


def _number(term: Term) -> "TracedNumber | int":
    return TracedNumber(term) if term[1] else term[0]


def _result(first: Term, operation: str, second: Term) -> Term:
    match operation:
        case "+":
            return _add(first, second, 1)
        case "-":
            return _add(first, second, -1)
        case "*" if not second[1]:
            return _add((0, ()), first, second[0])
        case "*" if not first[1]:
            return _add((0, ()), second, first[0])
    return 0, (((operation, first, second), 1),)


def _add(first: Term, second: Term, factor: int) -> Term:
    """The first and a multiple of the second."""
    multiples = dict(first[1])
    for atom, count in second[1]:
        multiples[atom] = multiples.get(atom, 0) + factor * count
    kept = {atom: count for atom, count in multiples.items() if count}
    # In one order, so that equal terms are equal.
    return first[0] + factor * second[0], tuple(sorted(kept.items(), key=repr))
