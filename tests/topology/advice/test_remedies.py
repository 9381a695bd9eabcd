"""Rules that propose more tp look at the heads first, so that no two of them point at each other."""

from types import SimpleNamespace
from typing import Any

import pytest

from tpuport.topology.advice import tpc014_batch_not_divided
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.weight_placement import undivided_heads


def evidence(task: str, query: int, kv: int, **sizes: int) -> Evidence:
    """Of a program of one row on a mesh of these axes, as far as the rule looks at it."""
    made, length = object.__new__(Evidence), 1 if task == "decode" else 256
    call = SimpleNamespace(query=(1, query, length, 64), key=(1, kv, 256, 64))
    devices = 1
    for size in sizes.values():
        devices *= size
    report = SimpleNamespace(
        task=task, attention=((call, 2),), costs=None, fits=True, memory=SimpleNamespace(capacity=1 << 34)
    )
    vars(made).update(
        report=report, axis_sizes=sizes, mesh=SimpleNamespace(size=devices), inputs={"batch": 1}, weights={}, cache=(),
        model=None, model_axes={axis: size for axis, size in sizes.items() if axis == "tp"},
    )  # fmt: skip
    return made


def remedy(found: Any) -> str:
    [hit] = tpc014_batch_not_divided.check(found)
    return hit.remedy


def test_tp_that_divides_the_heads_is_named() -> None:
    # With no weights, all_over_tp has no rules to name either.
    assert "a smaller dp and more tp: tpuport.create_mesh(tp=4) (--tp 4)" in remedy(
        evidence("decode", 8, 4, dp=2, tp=2)
    )


def test_a_decoding_step_of_six_heads_is_not_sent_to_tp_4() -> None:
    said = remedy(evidence("decode", 6, 2, dp=2, tp=2))
    assert said == "a batch of a multiple of 2 (--batch 2); tp=4 does not divide 6 heads"


@pytest.mark.parametrize("sizes", [{"dp": 2, "tp": 2}, {"dp": 4}])
def test_a_prompt_of_six_heads_is_sent_to_a_split_that_tpc007_leaves_alone(sizes: dict[str, int]) -> None:
    said = remedy(evidence("prefill", 6, 2, **sizes))
    assert "tpuport.create_mesh(sp=2, tp=2) (--sp 2 --tp 2); tp=4 does not divide 6 heads" in said
    assert undivided_heads(evidence("prefill", 6, 2, sp=2, tp=2)) == []
