"""Schedulers of several kinds in one ported pipeline: latents are torch's, and none compiles the U-Net anew."""

import copy
from types import SimpleNamespace

import pytest
import torch
from diffusers import UniPCMultistepScheduler, schedulers

from benchmarks import pipelines
from benchmarks.pipeline_schedulers import Pair
from tpuport.diffusion import pipeline_calls

# Some of these schedulers warn by themselves.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
# One step and several, two stages whose model inputs are scaled differently, noise, and one for another pipeline.
SAMPLE = (
    "DDIMScheduler",
    "EulerAncestralDiscreteScheduler",
    "HeunDiscreteScheduler",
    "KDPM2DiscreteScheduler",
    "LMSDiscreteScheduler",
    "PNDMScheduler",
    "UniPCMultistepScheduler",
    "DDPMWuerstchenScheduler",
)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair("StableDiffusionPipeline")


# Those of several steps and of two stages have another each in the sample; test_schedulers.py has one with noise.
SLOW_SAMPLE = (
    "EulerAncestralDiscreteScheduler",
    "HeunDiscreteScheduler",
    "KDPM2DiscreteScheduler",
    "LMSDiscreteScheduler",
    "PNDMScheduler",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW_SAMPLE else []) for name in SAMPLE]
)
def test_latents_are_those_of_torch(pair: Pair, name: str) -> None:
    record = pair.check(getattr(schedulers, name))
    if name == "DDPMWuerstchenScheduler":
        # Its step takes other arguments than this pipeline gives.
        assert record["verdict"] == "torch fails"
        return
    assert record["verdict"] == "equal"
    assert "reason" not in record
    # One for timesteps that are whole numbers, and one for others.
    assert pipelines.compilations(pair.ours.pipe) <= 2


@pytest.mark.parametrize("where", ["device", "host"])
def test_a_copy_that_a_pipeline_makes_steps_by_itself(where: str) -> None:
    """As LTX-2 copies its scheduler for sound: two of them, step by step in turn, with a history each."""

    def step_in_turn(first: UniPCMultistepScheduler) -> list[torch.Tensor]:
        second = copy.deepcopy(first)
        latents = [torch.linspace(-1, 1, 8).view(1, 2, 4), torch.linspace(2, 3, 8).view(1, 2, 4)]
        for scheduler in (first, second):
            scheduler.set_timesteps(3)
        for timestep in first.timesteps:
            for index, scheduler in enumerate((first, second)):
                latents[index] = scheduler.step(latents[index] * 0.1, timestep, latents[index])[0]
        return [torch.as_tensor(latent) for latent in latents]

    expected = step_in_turn(UniPCMultistepScheduler())
    scheduler = UniPCMultistepScheduler()
    with pipeline_calls._watched_scheduler(scheduler, SimpleNamespace(scheduler=where, bar=None)):
        results = step_in_turn(scheduler)
    for result, reference in zip(results, expected, strict=True):
        torch.testing.assert_close(result.cpu(), reference)
