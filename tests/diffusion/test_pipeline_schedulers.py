"""Schedulers of several kinds in one ported pipeline: latents are torch's, and none compiles the U-Net anew."""

import pytest
from diffusers import schedulers

from benchmarks import pipelines
from benchmarks.pipeline_schedulers import Pair

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


# Those of several steps and of two stages have another each in the sample.
SLOW_SAMPLE = ("HeunDiscreteScheduler", "KDPM2DiscreteScheduler", "LMSDiscreteScheduler", "PNDMScheduler")


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
