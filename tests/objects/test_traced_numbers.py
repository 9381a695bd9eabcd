"""A number of a call computes and compares as an int, and its guards say for which other numbers the code does the
same."""

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuport.objects.traced_numbers import TracedNumber, evaluate, number_at, traced_numbers

OPERATIONS = (
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.truediv, operator.and_,
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne, max, min, divmod,
)  # fmt: skip
FIRST, SECOND = ("argument", "first"), ("argument", "second")
small = st.integers(-5, 5)
steps = st.tuples(
    st.sampled_from(OPERATIONS),
    st.integers(0, 9),
    st.one_of(st.integers(0, 9), st.one_of(small, st.just(1.5)).map(lambda value: ("constant", value))),
)


def run(program: list, first: Any, second: Any) -> list[Any]:
    """What a program gives at each step: each takes earlier results or constants."""
    values, results = [first, second], []
    for function, left, right in program:
        operands = (
            values[left % len(values)],
            right[1] if isinstance(right, tuple) else values[right % len(values)],
        )
        try:
            result = function(*operands)
        except (ZeroDivisionError, TypeError) as error:
            result = type(error).__name__
        results.append(result)
        if type(result) in (int, TracedNumber):
            values.append(result)
        if result is True:
            results.append("a branch")
    return results


def of_call(results: list[Any], values: dict) -> list[tuple[type, Any]]:
    def settled(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(settled, value))
        return evaluate(value.term, values) if type(value) is TracedNumber else value

    return [(type(value), value) for value in map(settled, results)]


@given(st.lists(steps, max_size=6), small, small, small, small)
def test_numbers_with_the_same_outcomes_are_served(
    program: list, first: int, second: int, other_first: int, other_second: int
) -> None:
    values = {FIRST: first, SECOND: second}
    with traced_numbers(values) as trace:
        results = run(program, number_at(FIRST), number_at(SECOND))
    assert of_call(results, values) == of_call(run(program, first, second), {})
    others = {FIRST: other_first, SECOND: other_second} | {path: values[path] for path in trace.fixed}
    if all(guard.holds(others) for guard in trace.guards):
        expected = run(program, others[FIRST], others[SECOND])
        assert of_call(results, others) == of_call(expected, {})


@pytest.mark.parametrize(
    "use",
    [
        int, float, str, range, hash, "{:03d}".format, "%d".__mod__, np.asarray, round, bin, [0, 1, 2, 3].__getitem__,
        {3: 1}.get, lambda n: [0] * n, lambda n: n.bit_length(), lambda n: 2**n, lambda n: np.arange(3) + n,
        lambda n: n & 1, lambda n: pickle.loads(pickle.dumps(n)), lambda n: n / 2,
    ],
)  # fmt: skip
def test_who_needs_the_number_itself_gets_it_and_fixes_it(use: Callable) -> None:
    with traced_numbers({FIRST: 3}) as trace:
        result = use(number_at(FIRST))
    assert np.array_equal(result, use(3))
    assert trace.fixed == {FIRST}


def test_what_asks_nothing_fixes_nothing() -> None:
    with traced_numbers({FIRST: 3}) as trace:
        number: Any = number_at(FIRST)
        assert isinstance(number, int)
        assert not hasattr(number, "dtype")
        assert copy.deepcopy([number])[0] is number
        assert number is not None
        assert (number + 1) - number == 1
        assert trace.guards == ()
    assert not trace.fixed
    # It is the int that it was, also in a later trace.
    assert number + 1 == 4
    with traced_numbers({FIRST: 7}) as later:
        assert number + number_at(FIRST) == 10
    assert later.fixed == {FIRST}
