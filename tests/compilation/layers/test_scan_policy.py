"""When a loop is the default."""

import pytest

from tpuport.compilation import layers


def stack(count: int) -> layers.Stack:
    return layers.Stack("model.layers", "Block", tuple(map(str, range(count))), True, ("weight",), 4 * count)


@pytest.mark.parametrize(
    ("counts", "task", "scan", "reason"),
    [
        ([32], "prefill", True, "32 identical blocks"),
        ([2, 54], "forward", True, "54 identical blocks"),
        ([32], "decode", False, "cache"),
        ([4], "forward", False, "4 identical blocks"),
        ([], "forward", False, "0 identical blocks"),
    ],
)
def test_loops_are_the_default_where_they_win(counts, task, scan, reason) -> None:
    decision = layers.decide_scan(tuple(map(stack, counts)), task)
    assert bool(decision) is scan
    assert reason in decision.reason
