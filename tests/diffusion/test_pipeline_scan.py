"""A pipeline whose denoiser runs its identical blocks in one loop: the same frames, and weights that come back."""

from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch

import tpuport
from tpuport import PortError

Build = Callable[..., Any]


def latents(pipe: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return pipe(
        **inputs, generator=torch.Generator().manual_seed(0), height=16, width=16, num_frames=3,
        num_inference_steps=2, output_type="latent",
    ).frames  # fmt: skip


@pytest.mark.slow  # tests/compilation/layers/test_scanning.py scans the blocks of models
def test_latents_are_torchs_and_the_weights_come_back(hunyuan: Build, prompts: Build) -> None:
    theirs = hunyuan(5)
    before = {name: value.clone() for name, value in theirs.transformer.state_dict().items()}
    ours = tpuport.port(
        hunyuan(5), mesh=tpuport.create_mesh(tp=2, devices=jax.devices()[:2]), scan_layers=True
    )
    torch.testing.assert_close(latents(ours, prompts()), latents(theirs, prompts()), rtol=1e-4, atol=1e-4)
    [blocks] = ours.transformer.forward.compiled.scanned
    assert blocks.name == "transformer_blocks"
    assert blocks.count >= 3, "the first and the last may do something of their own"
    with pytest.raises(PortError, match="row of an array that holds those of all blocks"):
        _ = ours.transformer.transformer_blocks[0].attn.to_q.weight + 1
    tpuport.to_cpu(ours)
    after = ours.transformer.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.slow
def test_ported_again_without_a_loop(hunyuan: Build, prompts: Build) -> None:
    pipe = tpuport.port(hunyuan(2), scan_layers=True)
    first = latents(pipe, prompts())
    tpuport.port(pipe)
    torch.testing.assert_close(latents(pipe, prompts()), first, rtol=1e-5, atol=1e-5)
    assert pipe.transformer.forward.compiled.scanned == ()
