"""What is known of the libraries' classes, and the warning of those that fail."""

import logging

import pytest
import torch

from tpuport.libraries import model_results
from tpuport.libraries.model_results import ModelResult


@pytest.fixture
def failing(monkeypatch):
    """Let `torch.nn.Linear` be a class that is known to fail."""
    result = ModelResult(
        "torch", "1.0", "Linear", "nn", {"forward": "different"}, "at [0] 1 here, 2 in torch"
    )
    monkeypatch.setattr(model_results, "_results_by_name", lambda: {("torch", "Linear"): result})


@pytest.mark.usefixtures("failing")
def test_a_class_that_fails_is_warned_of_by_name_and_reason(caplog):
    with caplog.at_level(logging.WARNING, "tpuport.libraries.model_results"):
        model_results.warn_of_failures(torch.nn.Linear(2, 2))
        model_results.warn_of_failures(torch.nn.ReLU())
    assert len(caplog.messages) == 1
    assert "Linear is known not to give what torch gives, as measured with torch 1.0" in caplog.text
    assert "at [0] 1 here, 2 in torch" in caplog.text


def test_every_stored_result_is_read_and_names_a_class():
    results = model_results.all_results()
    assert len(results) > 100
    assert all(result.class_name.isidentifier() for result in results)
    assert all(result.version for result in results)
    llama = model_results.results_named("llama")
    assert "LlamaForCausalLM" in {result.class_name for result in llama}
    assert not any(result.fails for result in llama)
