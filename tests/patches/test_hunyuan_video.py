"""HunyuanVideo 1.0's text refiner and FramePack, against diffusers' own forward."""

import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from diffusers.models.transformers.transformer_hunyuan_video import HunyuanVideoIndividualTokenRefiner
from diffusers.models.transformers.transformer_hunyuanimage import HunyuanImageIndividualTokenRefiner

import tpuport
from tpuport import attention
from tpuport.errors import PortError
from tpuport.patches import hunyuan_video as patch
from tpuport.patches import registry

TEXT = 7


@pytest.fixture(scope="module", autouse=True)
def enabled():
    tpuport.enable()
    yield
    tpuport.disable()


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def prefix(*lengths):
    return (torch.arange(TEXT) < torch.tensor(lengths)[:, None]).long()


@pytest.mark.parametrize("cls", [HunyuanVideoIndividualTokenRefiner, HunyuanImageIndividualTokenRefiner])
def test_refiner_agrees_in_valid_tokens(cls):
    torch.manual_seed(0)
    refiner = cls(2, 8, num_layers=2, mlp_width_ratio=2.0).requires_grad_(False)
    states, temb, mask = noise(3, TEXT, 16), noise(3, 16, seed=1), prefix(4, TEXT, 0)
    expected, got = refiner(states, temb, mask), patch.refiner_forward(refiner, states, temb, mask)
    torch.testing.assert_close(got[mask.bool()], expected[mask.bool()], rtol=1e-5, atol=1e-5)
    # Of a prompt without tokens every query sees the first, in both.
    torch.testing.assert_close(got[2], expected[2], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(got[0, 4:], expected[0, 4:])
    assert torch.equal(patch.refiner_forward(refiner, states, temb), refiner(states, temb))


def framepack():
    torch.manual_seed(0)
    model = HunyuanVideoFramepackTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=16, num_layers=1,
        num_single_layers=1, num_refiner_layers=1, mlp_ratio=2.0, patch_size=2, patch_size_t=1,
        text_embed_dim=12, pooled_projection_dim=10, rope_axes_dim=(4, 6, 6), image_proj_dim=14,
        has_image_proj=True, has_clean_x_embedder=True,
    )  # fmt: skip
    return model.eval().requires_grad_(False)


def call(*lengths, seed=0):
    batch = len(lengths)
    return {
        "hidden_states": noise(batch, 4, 2, 8, 8, seed=seed), "timestep": torch.full((batch,), 500.0),
        "encoder_hidden_states": noise(batch, TEXT, 12, seed=seed), "encoder_attention_mask": prefix(*lengths),
        "pooled_projections": noise(batch, 10), "image_embeds": noise(batch, 3, 14),
        "indices_latents": torch.arange(2) + 3, "guidance": torch.full((batch,), 6000.0),
        "latents_clean": noise(batch, 4, 2, 8, 8), "indices_latents_clean": torch.tensor([0, 5]),
        "latents_history_2x": noise(batch, 4, 2, 8, 8), "indices_latents_history_2x": torch.arange(2),
        "latents_history_4x": noise(batch, 4, 4, 8, 8), "indices_latents_history_4x": torch.arange(4),
        "return_dict": False,
    }  # fmt: skip


@pytest.mark.parametrize("lengths", [(4,), (TEXT,), (1, 5)])
def test_framepack_agrees(lengths):
    model, arguments = framepack(), call(*lengths)
    expected = model(**arguments)[0]
    got = patch.framepack_forward(model, **arguments)[0]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert patch.framepack_forward(model, **arguments | {"return_dict": True}).sample.shape == got.shape


def test_framepack_without_a_fitting_mask():
    with pytest.raises(PortError, match="a mask of shape"):
        patch.framepack_forward(framepack(), **call(4) | {"encoder_attention_mask": torch.ones(1, 3)})


@pytest.mark.slow
def test_framepack_is_one_program_for_every_length():
    host, attention_calls = framepack(), attention.explain
    assert {"framepack.forward", "hunyuan-video.text-refiner"} <= set(registry.applied())
    attention_calls(clear=True)
    compiled = tpuport.compile(tpuport.port(framepack()))
    for lengths in ((4, 2), (1, TEXT)):
        got = tpuport.to_cpu(compiled(**call(*lengths))[0])
        torch.testing.assert_close(got, host(**call(*lengths))[0], rtol=1e-4, atol=1e-5)
    assert compiled.program.compilations == 1
    assert {record.mask for record in attention_calls(clear=True)} == {"padding"}
