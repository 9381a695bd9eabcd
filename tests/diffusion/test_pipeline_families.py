"""Pipelines of several families, each diffusers' own with tiny models of random weights: results are torch's."""

import pytest

from benchmarks import pipelines, tiny_pipelines


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning",
    "ignore:float64 becomes float32:UserWarning",
    # FluxPosEmbed, which diffusers' own ControlNets of Flux still use.
    "ignore:.*is deprecated and will be removed in version:FutureWarning",
)
@pytest.mark.parametrize("name", tiny_pipelines.names())
def test_a_family(name: str) -> None:
    record = pipelines.checked(name)
    assert record["verdict"] == "equal", record.get("reason")
    assert record["recompilations"] == 0


@pytest.mark.slow  # test_pipeline_schedulers.py compares a pipeline in the same way
def test_a_difference_is_found() -> None:
    tiny = tiny_pipelines.build("DDIMPipeline")
    expected = {kind: [first + 0.1, *others] for kind, (first, *others) in pipelines.results(tiny)}
    record = pipelines.compare(tiny, expected)
    assert (record["verdict"], record["reason"]) == ("different", "decoded")
