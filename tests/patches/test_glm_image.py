"""GLM-Image with some, all and none of its prior tokens dropped, against diffusers' own forward."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tpuport
from benchmarks import tiny_diffusers


@pytest.fixture(scope="module")
def built() -> Iterator[Any]:
    """A tiny model with inputs of two rows, and what diffusers' own code makes of each."""
    torch.manual_seed(0)
    model, (inputs, *_) = tiny_diffusers.build("GlmImageTransformer2DModel")
    drops = [
        torch.zeros(2, 64, dtype=torch.bool),
        torch.ones(2, 64, dtype=torch.bool),
        torch.rand(2, 64) < 0.5,
    ]
    calls = [{**inputs, "prior_token_drop": drop} for drop in drops]
    with torch.no_grad():
        expected = [model(**call).sample for call in calls]
    tpuport.enable()
    yield model, calls, expected
    tpuport.disable()


def test_on_the_host(built: Any) -> None:
    model, calls, expected = built
    for call, theirs in zip(calls, expected, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(model(**call).sample, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_on_the_device_as_one_program(built: Any) -> None:
    model, calls, expected = built
    compiled = tpuport.compile(tpuport.port(model))
    for call, theirs in zip(calls, expected, strict=True):
        ours = tpuport.to_cpu(compiled(**call).sample)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert compiled.program.compilations == 1
