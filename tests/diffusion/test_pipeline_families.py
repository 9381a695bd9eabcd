"""Pipelines of several families, each diffusers' own with tiny models of random weights: results are torch's."""

import pytest

from benchmarks import pipelines, tiny_pipelines

PUBLISHED = pipelines.load(pipelines.STORED)


@pytest.mark.slow
# Warnings that the libraries' own code gives, of what they deprecate and of sizes that only tiny models have.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", tiny_pipelines.names())
def test_a_family(name: str) -> None:
    record = pipelines.checked(name)
    # Some raise in torch itself, and one is refused.
    assert record["verdict"] == PUBLISHED[name]["verdict"], record.get("reason")
    assert record.get("recompilations", 0) == 0


@pytest.mark.slow  # test_pipeline_schedulers.py compares a pipeline in the same way
def test_a_difference_is_found() -> None:
    tiny = tiny_pipelines.build("DDIMPipeline")
    expected = {kind: [first + 0.1, *others] for kind, (first, *others) in pipelines.results(tiny)}
    record = pipelines.compare(tiny, expected)
    assert (record["verdict"], record["reason"]) == ("different", "decoded")
