"""The bandwidth that the decoding benchmark compares with, and when it says not to believe it."""

import io
import os
from unittest import mock

import pytest
from rich.console import Console

with mock.patch.dict(os.environ):
    from benchmarks import decode


def _bandwidth(*rates: float) -> decode.CopyBandwidth:
    made = decode.CopyBandwidth.__new__(decode.CopyBandwidth)
    made.rates = list(rates)
    return made


@pytest.mark.parametrize(
    ("rates", "reached", "words"),
    [
        ((10e9, 10e9, 9e9), 0.9, None),
        ((10e9, 10e9, 9e9), 1.05, None),
        ((10e9, 10e9, 9e9), 1.69, "1.69 is impossible"),
        ((20e9, 10e9, 9e9), 0.9, "2.0 times as fast as the median"),
    ],
)
def test_a_share_that_cannot_be_is_doubted(rates: tuple, reached: float, words: str | None) -> None:
    doubt = decode.doubts(_bandwidth(*rates), reached)
    assert doubt is None if words is None else words in doubt


@pytest.mark.parametrize(("rate", "doubted"), [(1e9, True), (1e10, False)])
def test_the_report_says_so(rate: float, doubted: bool) -> None:
    names = [
        "torch generate, dynamic cache",
        "one jitted step per token, the host reads each",
        "tpuport.generate",
    ]
    times = {name: [decode.NEW * 0.05] for name in [*names, "hand-written JAX"]}
    out = io.StringIO()
    decode.report(times, int(1e8), _bandwidth(rate, rate), [], Console(file=out, width=300))
    assert ("Ignore this share: 2.00 is impossible" in out.getvalue()) is doubted
    assert f"{rate / 1e9:.1f} GB/s" in out.getvalue()
