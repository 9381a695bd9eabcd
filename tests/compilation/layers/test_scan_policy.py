"""When a loop is the default."""

import jax
import jax.numpy as jnp
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


def test_a_function_without_blocks_has_not_succeeded() -> None:
    function = layers.scan_blocks(lambda x: x + 1)
    assert jax.jit(function)(jnp.ones(())) == 2
    assert not function.is_mostly_scanned
