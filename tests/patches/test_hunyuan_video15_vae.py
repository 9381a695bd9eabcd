"""HunyuanVideo-1.5's autoencoder on the device, whole and by tiles, against diffusers' own on the host."""

import re

import pytest
import torch
from diffusers import AutoencoderKLHunyuanVideo15
from diffusers.models.autoencoders.autoencoder_kl_hunyuanvideo15 import HunyuanVideo15AttnBlock
from torch.nn import functional

import tpuport
from tpuport import compat
from tpuport.patches.hunyuan_video15_vae import attention_forward, frame_causal_attention

LATENT = (1, 4, 3, 5, 6)  # batch, channels, frames, height, width
VIDEO = (1, 3, 5, 10, 14)


def build():
    torch.manual_seed(0)
    model = AutoencoderKLHunyuanVideo15(
        block_out_channels=(8, 16), latent_channels=4, layers_per_block=1, spatial_compression_ratio=2,
        temporal_compression_ratio=2,
    )  # fmt: skip
    return model.eval()


def noise(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def difference(got, expected):
    got = tpuport.to_cpu(got) if compat.is_ported(got) else got
    assert got.shape == expected.shape
    return ((got - expected).abs().max() / expected.abs().max()).item()


@pytest.fixture(scope="module", autouse=True)
def enabled():
    tpuport.enable()
    yield
    tpuport.disable()


@pytest.fixture(scope="module")
def host():
    return build().requires_grad_(False)


@pytest.fixture(scope="module")
def ported():
    return tpuport.port(build())


@pytest.mark.parametrize(
    ("part", "shape"), [("decoder", LATENT), pytest.param("encoder", VIDEO, marks=pytest.mark.slow)]
)
def test_odd_sizes_and_several_frames(host, ported, part, shape):
    compiled = tpuport.compile(getattr(ported, part))
    for seed in range(2):
        assert difference(compiled(noise(shape, seed)), getattr(host, part)(noise(shape, seed))) < 1e-5
    assert compiled.program.compilations == 1


@pytest.mark.slow
@pytest.mark.parametrize(("part", "shape"), [("decoder", (2, 4, 1, 3, 3)), ("encoder", (2, 3, 1, 12, 8))])
def test_one_frame_and_a_batch(host, ported, part, shape):
    """diffusers' own attention takes one video at a time."""
    expected = torch.cat([getattr(host, part)(x) for x in noise(shape).split(1)])
    assert difference(tpuport.compile(getattr(ported, part))(noise(shape)), expected) < 1e-5


def test_attention_equals_that_with_the_mask():
    frames, size = 4, 6
    query, key, value = noise((3, 2, 1, frames * size, 8)).unbind(0)
    mask = HunyuanVideo15AttnBlock.prepare_causal_attention_mask(frames, size, torch.float32, "cpu")
    expected = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    assert difference(frame_causal_attention(query, key, value, frames), expected) < 1e-6
    later = value.clone()
    later[:, :, size:] += 1
    first = frame_causal_attention(query, key, later, frames)[:, :, :size]
    assert torch.equal(first, frame_causal_attention(query, key, value, frames)[:, :, :size])


def test_no_score_of_all_positions_by_all(ported):
    """What a frame attends to is what its program holds: 2 of 6 times 4 positions each for the second."""
    torch.manual_seed(0)
    block = tpuport.port(HunyuanVideo15AttnBlock(8))
    program = tpuport.compile(block).lower(noise((1, 8, 6, 2, 2))).as_text()
    assert re.search(r"tensor<[x\d]*x4x24xf32>", program)
    assert not re.search(r"tensor<[x\d]*x24x24xf32>", program)


def test_block_equals_its_own_on_the_host():
    torch.manual_seed(0)
    block = HunyuanVideo15AttnBlock(8).requires_grad_(False)
    x = noise((1, 8, 3, 2, 5))
    assert difference(attention_forward(block, x), block(x)) < 1e-6
