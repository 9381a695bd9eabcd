"""What each axis of a mesh divides, by cost."""

import jax
import pytest

from tpuport.attention.sharding_plan import CallSizes, ShardingPlan, plan_sharding
from tpuport.errors import PortError
from tpuport.hardware.mesh import create_mesh


def _plan(shape: tuple, sizes: tuple) -> ShardingPlan:
    return plan_sharding(CallSizes(*sizes), create_mesh(*shape))


def test_divides_unevenly_if_that_is_cheaper() -> None:
    long = _plan((1, 1, 8), (1, 6, 2, 8192, 8192))
    assert (long.heads.local, long.heads.axis, long.kv_heads.local) == (1, "tp", 1)
    short = _plan((1, 1, 8), (1, 6, 2, 1, 512))
    assert (short.heads.local, short.heads.axis, short.kv_heads.local) == (6, None, 2)
    assert "every device of tp=8" in short.reasons[0]
    one_query = _plan((1, 8, 1), (1, 8, 8, 1, 8192))
    assert one_query.queries.axis is None
    video = _plan((1, 8, 1), (1, 40, 40, 32_763, 32_763))
    assert (video.queries.local, video.queries.padding) == (4096, 5)
    rows = _plan((4, 1, 2), (3, 8, 8, 4096, 4096))
    assert (rows.batch.local, rows.batch.axis) == (1, "dp")


def test_says_why_in_one_sentence_for_each_dimension() -> None:
    plan = plan_sharding(CallSizes(2, 12, 6, 4096, 4096), create_mesh(1, 2, 4), "ring")
    assert plan.reasons == (
        "12 query heads over tp=4: 3 on each device",
        "tp=4 does not divide 6 key/value heads: each device takes the 3 that its query heads need",
        "4096 queries over sp=2: 2048 on each device",
        "4096 keys over sp=2, 2048 on each device, sent round",
    )


def test_one_device_has_nothing_to_divide() -> None:
    sizes = CallSizes(3, 5, 1, 7, 9)
    plan = plan_sharding(sizes, None, "ring")
    assert plan.reasons == ()
    assert plan.sequence == "gather"
    assert (plan.batch.local, plan.heads.local, plan.kv_heads.local) == (3, 5, 1)
    alone = create_mesh(devices=jax.devices()[:1])
    assert plan_sharding(sizes, alone, "ring") == plan


def test_key_value_heads_divide_the_query_heads() -> None:
    with pytest.raises(PortError, match="3 key/value heads do not divide 4"):
        plan_sharding(CallSizes(1, 4, 3, 8, 8), None)


@pytest.mark.parametrize(
    ("shape", "sizes", "expected"),
    [
        # Half of what gathering sends, as much, and of grouped heads more.
        ((2, 4, 1), (2, 16, 16, 112_856, 112_856), "ulysses"),
        ((4, 2, 1), (4, 16, 16, 112_856, 112_856), "gather"),
        ((2, 4, 1), (2, 32, 4, 8192, 8192), "gather"),
        ((1, 4, 2), (1, 32, 32, 8192, 8192), "ulysses"),
        # Queries of a video and keys of a text; more devices than heads.
        ((2, 4, 1), (2, 40, 40, 75_600, 512), "gather"),
        ((1, 8, 1), (1, 4, 4, 8192, 8192), "gather"),
    ],
)
def test_what_sends_less_is_chosen(shape: tuple, sizes: tuple, expected: str) -> None:
    plan = plan_sharding(CallSizes(*sizes), create_mesh(*shape))
    assert plan.sequence == expected
