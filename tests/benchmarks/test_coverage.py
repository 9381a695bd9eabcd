"""A sample of the table of models, and the verdicts of models that are different or refused on purpose."""

import pytest
import torch

from benchmarks import coverage_checks, coverage_table

LLAMA = "transformers:LlamaForCausalLM"


def last_record(name):
    *_, record = coverage_checks.checked(name, None)
    return record


@pytest.fixture(scope="module")
def llama():
    return last_record(LLAMA)


def test_a_language_model_is_equal_in_every_check(llama):
    verdicts = {check: llama[check]["verdict"] for check in ("forward", "mesh", "generate", "generate_batch")}
    assert set(verdicts.values()) == {"equal"}
    assert llama["forward"]["recompilations"] == 0
    assert 0 < llama["forward"]["error"] < 1e-6


class Doubled(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


class ReadsAValue(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


class Draws(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.rand_like(x)


def compared(model, change=0.0):
    """The verdict on a model, with torch's result changed."""
    expected = coverage_checks.expect(model.eval(), [{"x": torch.arange(6.0).view(2, 3)}])
    expected[0].results = [result + change for result in expected[0].results]
    return coverage_checks.attempt(lambda: coverage_checks.compare_calls(model, expected, mesh=None))


def test_verdicts():
    assert compared(Doubled(3, 3))["verdict"] == "equal"
    assert compared(Doubled(3, 3), change=1e-3)["verdict"] == "different"
    assert compared(Draws(3, 3))["verdict"] == "not compared"
    refused = compared(ReadsAValue(3, 3))
    assert refused["verdict"] == "refused"
    assert "TPU205" in refused["reason"]


def test_a_class_that_cannot_be_built_says_why():
    record = last_record("transformers:NoSuchModel")
    assert record["status"] == "not built"
    assert "NoSuchModel" in record["reason"]


def test_the_page_names_the_worst_verdict(llama):
    broken = {**llama, "name": "transformers:OtherForCausalLM"}
    broken["mesh"] = {"verdict": "different", "reason": "at [0] 1 here, 2 in torch"}
    versions = {"torch": "1", "transformers": "2", "diffusers": "3"}
    page = coverage_table.page([llama, broken], versions, 6)
    assert "| equal | 2 | 1 | 2 | 2 |" in page
    assert "| `OtherForCausalLM` | equal | different | equal | equal |" in page
    assert "`at [0] 1 here, 2 in torch`" in page
