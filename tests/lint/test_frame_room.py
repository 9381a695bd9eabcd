"""The frames of deep calls stay in memory that is mapped once."""

import resource

import pytest

from tpuport.lint.frame_room import with_frame_room


def descend(depth: int) -> int:
    return 1 + descend(depth - 1) if depth else 0


def call_to_all_depths() -> int:
    """Go up and down across the end of every piece of some kilobytes; the number of calls that were made."""
    return sum(descend(depth) for depth in range(0, 400, 4) for _ in range(50))


def test_calls_map_no_memory_over_and_over() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    calls = with_frame_room(call_to_all_depths)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert calls == sum(50 * depth for depth in range(0, 400, 4))
    assert faults < 1000


def test_errors_come_through() -> None:
    with pytest.raises(ZeroDivisionError):
        with_frame_room(lambda: 1 // 0)
