"""HunyuanVideo-1.5's own pipeline: frames as torch's, one program a shape, on one device and on eight."""

from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch

import tpuport
from tpuport import PortError

Build = Callable[..., Any]


def run(pipe: Any, inputs: dict[str, torch.Tensor], seed: int = 0, **options: Any) -> torch.Tensor:
    settings = {
        "height": 16,
        "width": 16,
        "num_frames": 3,
        "num_inference_steps": 2,
        "output_type": "pt",
    } | options
    return pipe(**inputs, generator=torch.Generator().manual_seed(seed), **settings).frames


def compilations(pipe: Any) -> list[int]:
    return [part.forward.program.compilations for part in (pipe.transformer, pipe.vae.decoder)]


@pytest.fixture(scope="module")
def theirs(hunyuan: Build) -> Any:
    return hunyuan()


@pytest.fixture(scope="module")
def ours(hunyuan: Build) -> Any:
    return tpuport.port(hunyuan())


def test_frames_are_torchs_and_each_shape_is_compiled_once(ours: Any, theirs: Any, prompts: Build) -> None:
    for seed, steps in ((0, 2), (1, 3)):
        actual, expected = (run(p, prompts(), seed, num_inference_steps=steps) for p in (ours, theirs))
        assert (actual - expected).abs().max() < 1e-4
    assert compilations(ours) == [1, 1]


@pytest.mark.slow  # each new shape of tests/compilation/rotary/test_compiled.py, and the frames above
def test_another_resolution_is_compiled_once_more(ours: Any, theirs: Any, prompts: Build) -> None:
    options = {"height": 24, "output_type": "latent"}
    before, _ = compilations(ours)
    for seed in (0, 1):
        actual, expected = (run(pipe, prompts(), seed, **options) for pipe in (ours, theirs))
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert compilations(ours)[0] == before + 1


def test_guidance_of_one_makes_one_call(ours: Any, theirs: Any, prompts: Build) -> None:
    before = compilations(ours)
    for pipe in (ours, theirs):
        pipe.guider.guidance_scale = 1.0
    try:
        actual, expected = (run(pipe, prompts(), output_type="latent") for pipe in (ours, theirs))
    finally:
        for pipe in (ours, theirs):
            pipe.guider.guidance_scale = 3.0
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert compilations(ours)[0] - before[0] <= 1


@pytest.mark.slow  # one device above, and tests/patches/test_hunyuan_video15.py
def test_several_devices_and_guidance_as_one_batch(hunyuan: Build, theirs: Any, prompts: Build) -> None:
    mesh = tpuport.create_mesh(dp=2, sp=2, devices=jax.devices()[:4])
    pipe = tpuport.port(hunyuan(), mesh=mesh)
    shapes: list[torch.Size] = []
    program = pipe.transformer.forward.compiled

    def seen(*args: Any, **kwargs: Any) -> Any:
        shapes.append(kwargs["hidden_states"].shape)
        return program(*args, **kwargs)

    pipe.transformer.forward.compiled = seen
    actual = run(pipe, prompts(), output_type="latent")
    expected = run(theirs, prompts(), output_type="latent")
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert [shape[0] for shape in shapes] == [2, 2]  # two steps, each one call for both conditions
    assert program.program.compilations == 1


@pytest.mark.slow
def test_frames_on_eight_devices(hunyuan: Build, theirs: Any, prompts: Build) -> None:
    pipe = tpuport.port(hunyuan(), mesh=tpuport.create_mesh(dp=2, sp=2, tp=2))
    for _ in range(2):
        assert (run(pipe, prompts()) - run(theirs, prompts())).abs().max() < 1 / 255
    assert compilations(pipe) == [1, 1]


def broken(inputs: dict[str, torch.Tensor], name: str, change: Any) -> dict[str, torch.Tensor]:
    return {key: value for key, value in inputs.items() if key != name} | (
        {} if change is None else {name: change(inputs[name])}
    )


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("prompt_embeds_mask", None, "prompt_embeds without prompt_embeds_mask"),
        ("prompt_embeds_mask_2", None, "prompt_embeds_2 without prompt_embeds_mask_2"),
        ("negative_prompt_embeds_mask", None, "negative_prompt_embeds without"),
        ("prompt_embeds_mask", lambda mask: mask[:, :-1], r"\[1, 9\].*\[1, 10, 24\]"),
        ("negative_prompt_embeds_mask_2", lambda mask: mask[:, :2], r"\[1, 2\].*\[1, 4, 12\]"),
    ],
)
def test_masks_that_are_missing_or_do_not_fit(
    ours: Any, prompts: Build, name: str, change: Any, message: str
) -> None:
    before = compilations(ours)
    with pytest.raises(PortError, match=message):
        run(ours, broken(prompts(), name, change))
    assert compilations(ours) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"height": 18}, r"(?s)height=18.*height=16 or 20"),
        ({"width": 2}, r"(?s)width=2.*width=4"),
        ({"num_frames": 4}, r"(?s)num_frames=4.*num_frames=3 or 5"),
        ({"num_inference_steps": 0}, "0 denoising steps"),
    ],
)
def test_sizes_that_do_not_fit(ours: Any, prompts: Build, options: dict, message: str) -> None:
    before = compilations(ours)
    with pytest.raises(PortError, match=message):
        run(ours, prompts(), **options)
    assert compilations(ours) == before


def test_a_guider_without_a_finite_scale(ours: Any, prompts: Build) -> None:
    ours.guider.guidance_scale = float("inf")
    try:
        with pytest.raises(PortError, match=r"guider\.guidance_scale is inf"):
            run(ours, prompts())
    finally:
        ours.guider.guidance_scale = 3.0
