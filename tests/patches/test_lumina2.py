"""Lumina-Image 2.0 for prompts of several lengths, against diffusers' own forward."""

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
    model, (inputs, *_) = tiny_diffusers.build("Lumina2Transformer2DModel")
    masks = [torch.arange(8) < torch.tensor(lengths)[:, None] for lengths in ((8, 5), (3, 3), (8, 8), (0, 6))]
    calls = [{**inputs, "encoder_attention_mask": mask.long()} for mask in masks]
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
