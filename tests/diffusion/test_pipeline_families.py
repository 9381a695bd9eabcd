"""Pipelines of several families, each diffusers' own with tiny models of random weights: results are torch's."""

import pytest

from benchmarks import pipelines, tiny_pipelines

# Decoded, as latents, and with a callback that changes these.
EVERY_CALL = {"decoded", "latent", "callback"}


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning",
    "ignore:float64 becomes float32:UserWarning",
)
@pytest.mark.parametrize("name", tiny_pipelines.names())
def test_a_family(name: str) -> None:
    record = pipelines.checked(name)
    assert (record["verdict"], record.get("reason")) == ("equal", None)
    assert record["recompilations"] == 0
    assert set(record["calls"]) == EVERY_CALL or name in ("DDIMPipeline", "DiTPipeline")


@pytest.mark.slow  # test_pipeline_schedulers.py compares a pipeline in the same way
def test_a_difference_is_found() -> None:
    tiny = tiny_pipelines.build("DDIMPipeline")
    expected = {kind: result + 0.1 for kind, result in pipelines.results(tiny)}
    record = pipelines.compare(tiny, expected)
    assert (record["verdict"], record["reason"]) == ("different", "decoded")
