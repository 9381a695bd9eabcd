"""What `explain` says of calls, and that it stays small."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from tpuport import attention, compat
from tpuport.attention import call_report
from tpuport.attention.call_report import Call

CALL = Call(
    "model.py:1", "Attention", "torch", (1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 5), "float32", "xla", "why", "causal",
    "one device", "",
)  # fmt: skip


@pytest.fixture(autouse=True)
def forgotten():
    attention.explain(clear=True)
    yield
    attention.explain(clear=True)


class Model(torch.nn.Module):
    def forward(self, x, **options):
        return functional.scaled_dot_product_attention(x, x, x, **options)  # the site


def site_of_model():
    return next(
        n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if "# the site" in line
    )


def run(shape=(1, 2, 5, 32), count=1, **options):
    with compat.environment(), attention.register():
        x = compat.wrap(compat.to_jax(torch.zeros(shape)))
        for _ in range(count):
            Model()(x, **options)


def test_calls_of_one_kind_are_one_entry():
    run(count=3)
    run(count=2, is_causal=True)
    report = attention.explain()
    assert report.counts == (3, 2)
    assert [call.mask for call in report] == ["none", "causal"]
    assert report[0].query == report[0].key == report[0].value == (1, 2, 5, 32)
    assert (report[0].dtype, report[0].source, report[0].padding) == ("float32", "torch", "")


def test_the_site_is_the_line_that_calls_attention():
    run()
    (call,) = attention.explain()
    assert call.site == f"tests/attention/test_call_report.py:{site_of_model()}"
    assert call.module == "Model"


def test_a_function_has_no_module():
    with compat.environment(), attention.register():
        x = compat.wrap(compat.to_jax(torch.zeros(1, 1, 5, 8)))
        functional.scaled_dot_product_attention(x, x, x)
    (call,) = attention.explain()
    assert call.module == ""
    assert call.site.startswith("tests/attention/test_call_report.py:")


def test_a_library_is_named_below_site_packages(monkeypatch):
    monkeypatch.setattr(
        call_report, "_INTERMEDIATE", call_report._INTERMEDIATE | {"tests", "test_call_report"}
    )
    run()
    (call,) = attention.explain()
    assert call.site.startswith("_pytest/") or call.site.startswith("pluggy/")


def test_clear_forgets():
    run()
    assert len(attention.explain(clear=True)) == 1
    assert len(attention.explain()) == 0
    assert "No attention call" in str(attention.explain())


def test_it_prints_as_a_table_and_converts_to_json():
    call_report.record_call(CALL)
    call_report.record_call(dataclasses.replace(CALL, mask="dense [1, 1, 3, 3] bool", padding="exact"))
    report = attention.explain()
    text = str(report)
    for part in (
        "model.py:1",
        "1x2x3x4; 1x2x3x4, 1x2x3x5",
        "causal",
        "dense [1, 1, 3, 3] bool",
        "why",
        "exact",
    ):
        assert part in text
    data = json.loads(json.dumps(report.to_dict()))
    assert data["forgotten"] == 0
    assert [call["calls"] for call in data["calls"]] == [1, 1]
    assert data["calls"][0]["query"] == [1, 2, 3, 4]


def test_the_longest_unseen_is_forgotten_first_and_counted(monkeypatch):
    monkeypatch.setattr(call_report, "LIMIT", 3)
    made = [dataclasses.replace(CALL, site=f"model.py:{n}") for n in range(5)]
    for n in (0, 1, 2, 0, 3, 4):
        call_report.record_call(made[n])
    report = attention.explain()
    assert list(report) == [made[0], made[3], made[4]]
    assert (report.counts, report.forgotten) == ((2, 1, 1), 2)
    assert "2 earlier calls forgotten" in str(report)
