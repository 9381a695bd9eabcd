"""The lines of code that advice by time is given about."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tpuport.topology import hlo
from tpuport.topology.advice import timed_code, tpc022_narrow_last_dimension
from tpuport.topology.advice.timed_code import timed_lines


@pytest.mark.parametrize(
    ("milliseconds", "lines"),
    [
        ({"query": 1.5, "key": 1.4}, ["query", "key"]),
        ({"query": 2.5, "key": 0.5}, ["query"]),
        ({"query": 1.5}, []),
        ({"query": 0.9, "key": 0.9, "value": 0.9}, []),
    ],
)
def test_a_cause_may_be_in_two_lines(
    monkeypatch: pytest.MonkeyPatch, milliseconds: dict[str, float], lines: list[str]
) -> None:
    monkeypatch.setattr(timed_code.code_origins, "source", lambda program, instruction: instruction)
    leaves = [
        SimpleNamespace(instruction=line, times=1, busy=seconds / 1e3, waiting=0.0)
        for line, seconds in milliseconds.items()
    ]
    profile = SimpleNamespace(seconds=0.1, schedule_share=1.0)
    report = SimpleNamespace(timeline=SimpleNamespace(leaves=leaves), profile=profile)
    evidence: Any = SimpleNamespace(report=report, compiled=None)
    selected = timed_lines(evidence, lambda span: cast(Any, span.instruction))
    assert [cast(Any, line.source) for line in selected] == lines


@pytest.mark.parametrize(
    ("dims", "is_narrow"),
    [
        ((8192, 24, 64, 2), True),
        ((8192, 24, 4), True),
        ((8192, 24, 5), False),
        # The same array with another name for it.
        ((8192, 24, 64, 1), False),
        # A few tiles, and a matrix.
        ((128, 24, 2), False),
        ((1 << 20, 2), False),
    ],
)
def test_arrays_whose_last_dimension_is_narrow(dims: tuple[int, ...], is_narrow: bool) -> None:
    """The example of TPC022 in test_advice_rules.py is compiled."""
    arrays = hlo.Array("bf16", (8192, 128)), hlo.Array("bf16", dims)
    span: Any = SimpleNamespace(instruction=SimpleNamespace(results=arrays))
    assert (tpc022_narrow_last_dimension._narrow_array(span) == arrays[1]) == is_narrow
