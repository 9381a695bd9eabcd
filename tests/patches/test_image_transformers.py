"""Image transformers of diffusers whose sizes come from values, against diffusers' own code."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tpuport
from benchmarks import tiny_diffusers

Call = dict[str, Any]


def prior_tokens_dropped(inputs: Call) -> list[Call]:
    """GLM-Image with none, all and some of its prior tokens dropped."""
    drops = [
        torch.zeros(2, 64, dtype=torch.bool),
        torch.ones(2, 64, dtype=torch.bool),
        torch.rand(2, 64) < 0.5,
    ]
    return [{**inputs, "prior_token_drop": drop} for drop in drops]


def prompts_of_several_lengths(inputs: Call) -> list[Call]:
    """Lumina-Image 2.0, also with an empty prompt."""
    masks = [torch.arange(8) < torch.tensor(lengths)[:, None] for lengths in ((8, 5), (3, 3), (8, 8), (0, 6))]
    return [{**inputs, "encoder_attention_mask": mask.long()} for mask in masks]


def square_and_narrow(inputs: Call) -> list[Call]:
    """HiDream-I1, whose sizes and experts depend on the image."""
    return [inputs, {**inputs, "hidden_states": torch.randn(2, 16, 16, 8)}]


def once_more(inputs: Call) -> list[Call]:
    """Z-Image, which computes its rotary tables in the first call."""
    return [inputs, inputs]


# By class the calls that are tried, and how many programs they need: one for each shape.
MODELS: dict[str, tuple[Callable[[Call], list[Call]], int]] = {
    "GlmImageTransformer2DModel": (prior_tokens_dropped, 1),
    "Lumina2Transformer2DModel": (prompts_of_several_lengths, 1),
    "HiDreamImageTransformer2DModel": (square_and_narrow, 2),
    "ZImageTransformer2DModel": (once_more, 1),
}


@pytest.fixture(scope="module", params=MODELS)
def built(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A tiny model with inputs of two rows, what diffusers' own code makes of each, and the number of programs."""
    make_calls, programs = MODELS[request.param]
    torch.manual_seed(0)
    model, (inputs, *_) = tiny_diffusers.build(request.param)
    calls = make_calls(inputs)
    with torch.no_grad():
        expected = [model(**call).sample for call in calls]
    tpuport.enable()
    yield model, calls, expected, programs
    tpuport.disable()


def test_on_the_host(built: Any) -> None:
    model, calls, expected, _ = built
    for call, theirs in zip(calls, expected, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(model(**call).sample, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_on_the_device(built: Any) -> None:
    model, calls, expected, programs = built
    compiled = tpuport.compile(tpuport.port(model))
    for call, theirs in zip(calls, expected, strict=True):
        ours = tpuport.to_cpu(compiled(**call).sample)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert compiled.program.compilations == programs
