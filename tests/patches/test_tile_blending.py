"""Tiles blended on the device, against the autoencoders' own loops on the host."""

import importlib

import pytest
import torch
from diffusers import AutoencoderKLHunyuanVideo15

import tpuport
from tpuport import compat
from tpuport.patches import registry
from tpuport.patches.builtin import PATCHES

BLENDING = [patch for patch in PATCHES if patch.replacement.startswith("tpuport.patches.tile_blending:")]


@pytest.fixture(scope="module", autouse=True)
def enabled():
    tpuport.enable()
    yield
    tpuport.disable()


def tiles(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = (1, 2, 4, 6, 5), (1, 2, 4, 6, 5)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def blended(function, extent, ported, dtype=torch.float32):
    """(what the function returns, tile b afterwards)."""
    a, b = tiles(dtype)
    if not ported:
        return function(None, a, b, extent), b
    a, b = (compat.wrap(compat.to_jax(x)) for x in (a, b))
    with compat.environment():
        result = function(None, a, b, extent)
    return tpuport.to_cpu(result), tpuport.to_cpu(b)


@pytest.mark.parametrize("patch", BLENDING, ids=lambda patch: patch.name)
def test_equals_the_loop(patch):
    module, _, name = patch.target.partition(":")
    cls, _, method = name.partition(".")
    function = getattr(getattr(importlib.import_module(module), cls), method)
    assert patch.name in registry.applied()
    for extent in (0, 3, 100):
        for got, expected in zip(
            blended(function, extent, True), blended(function, extent, False), strict=True
        ):
            torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_half_precision_is_rounded_once():
    function = AutoencoderKLHunyuanVideo15.blend_v
    got, _ = blended(function, 4, True, torch.bfloat16)
    exact = blended(function, 4, False)[0]
    theirs, _ = blended(function, 4, False, torch.bfloat16)
    assert got.dtype == torch.bfloat16
    assert (got.float() - exact).abs().max() <= 1.01 * (theirs.float() - exact).abs().max()


def test_tiles_of_a_whole_video():
    """Both directions, with tiles that were changed before they are read again."""
    model = AutoencoderKLHunyuanVideo15(
        block_out_channels=(8, 8),
        latent_channels=4,
        layers_per_block=1,
        spatial_compression_ratio=2,
        temporal_compression_ratio=2,
    )
    model.enable_tiling(4, 4, 4, 4, 0.5)
    model.decoder.forward = lambda x: x * x
    video = torch.randn(1, 4, 2, 4, 6, generator=torch.Generator().manual_seed(0))
    expected = model.tiled_decode(video)
    with compat.environment():
        got = model.tiled_decode(compat.wrap(compat.to_jax(video)))
    torch.testing.assert_close(tpuport.to_cpu(got), expected, rtol=1e-6, atol=1e-6)
