"""What is refused before a ported pipeline does any work; nothing here is ported."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    AutoencoderKLLTXVideo,
    FlowMatchEulerDiscreteScheduler,
    LTXPipeline,
    LTXVideoTransformer3DModel,
)

from benchmarks import tiny_pipelines
from tpuport.diffusion import pipeline_checks
from tpuport.errors import PortError


@pytest.fixture(scope="module")
def ltx() -> Any:
    """A pipeline whose VAE's factor is 4, and which takes multiples of 32 only."""
    none: Any = None
    vae = AutoencoderKLLTXVideo(
        latent_channels=8,
        block_out_channels=(8,) * 4,
        decoder_block_out_channels=(8,) * 4,
        layers_per_block=(1,) * 5,
        decoder_layers_per_block=(1,) * 5,
        spatio_temporal_scaling=(True, True, False, False),
        decoder_spatio_temporal_scaling=(True, True, False, False),
        decoder_inject_noise=(False,) * 5,
        upsample_residual=(False,) * 4,
        upsample_factor=(1,) * 4,
        patch_size=1,
    )
    transformer = LTXVideoTransformer3DModel(
        in_channels=8, num_attention_heads=1, attention_head_dim=8, num_layers=1, caption_channels=8
    )
    return LTXPipeline(FlowMatchEulerDiscreteScheduler(), vae, none, none, transformer)


def check(pipe: Any, **given: Any) -> None:
    prompt = {"prompt": "a red triangle", "height": 32, "width": 32, "num_frames": 9}
    pipeline_checks.check_call(pipe, inspect.signature(type(pipe).__call__), prompt | given)


def test_any_number_of_frames_is_taken_where_the_pipeline_cuts_the_clip() -> None:
    """Allegro's own is 88, and its VAE makes n * 4."""
    tiny = tiny_pipelines.build("AllegroPipeline")
    for count in (24, 88, 25):
        arguments = tiny.inputs | {"num_frames": count}
        pipeline_checks.check_call(tiny.pipe, inspect.signature(type(tiny.pipe).__call__), arguments)


@pytest.mark.parametrize(
    ("given", "offered"),
    [
        ({"height": 33}, {"height": [32, 64]}),
        ({"width": 70}, {"width": [64, 96]}),
        ({"height": 33, "width": 70}, {"height": [32, 64]}),
        ({"height": 3}, {"height": [32]}),
        ({"num_frames": 10}, {"num_frames": [9, 13]}),
        ({"num_frames": 0}, {"num_frames": [1, 5]}),
    ],
)
def test_the_sizes_that_are_offered_are_taken(ltx: Any, given: dict, offered: dict) -> None:
    with pytest.raises(PortError) as raised:
        check(ltx, **given)
    ((name, values),) = offered.items()
    assert raised.value.where == name
    assert raised.value.fix == f"{name}={' or '.join(map(str, values))}"
    for value in values:
        check(ltx, **{name: value})
        sizes = {"height": 32, "width": 32} | ({name: value} if name != "num_frames" else {})
        ltx.check_inputs(prompt="a red triangle", **sizes)


def test_where_the_pipeline_takes_no_size_the_rule_is_told(ltx: Any) -> None:
    with pytest.raises(PortError) as raised:
        check(ltx, prompt=None, height=33)
    assert raised.value.fix == "height=n * 4"


@pytest.mark.parametrize("value", ["3", None, {"scale": 3}, float("nan"), [1.0, "2"], [1.0, float("inf")]])
@pytest.mark.parametrize("name", ["guidance_scale", "guidance_rescale"])
def test_scales_that_are_no_finite_numbers(ltx: Any, name: str, value: Any) -> None:
    with pytest.raises(PortError, match=f"{name} is") as raised:
        check(ltx, **{name: value})
    assert raised.value.where == name


@pytest.mark.parametrize("value", [3, 3.0, np.float32(3), torch.tensor(3.0), [1.0, 2.0]])
def test_scales_that_are_numbers(ltx: Any, value: Any) -> None:
    check(ltx, guidance_scale=value)


def test_a_scale_whose_default_is_none_may_be_none() -> None:
    class Pipe:
        def __call__(self, guidance_scale_2: float | None = None) -> None:
            pass

    call = inspect.signature(Pipe.__call__)
    pipeline_checks.check_call(Pipe(), call, {"guidance_scale_2": None})
    with pytest.raises(PortError, match="guidance_scale_2 is '3'"):
        pipeline_checks.check_call(Pipe(), call, {"guidance_scale_2": "3"})


def test_a_mask_of_embeddings_of_several_layers() -> None:
    """Bria's are [batch, layers, tokens, width], and Krea's [batch, tokens, layers, width]."""
    tiny = tiny_pipelines.build("BriaFibo2Pipeline")
    signature = inspect.signature(type(tiny.pipe).__call__)
    pipeline_checks.check_call(tiny.pipe, signature, tiny.inputs)
    shorter = tiny.inputs | {"prompt_embeds_mask": tiny.inputs["prompt_embeds_mask"][:, :7]}
    with pytest.raises(PortError, match=r"prompt_embeds_mask is \[1, 7\].*must agree in batch and tokens"):
        pipeline_checks.check_call(tiny.pipe, signature, shorter)
