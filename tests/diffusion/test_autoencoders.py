"""Autoencoders on the device: results are torch's, and with tiling no program sees more than a tile."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL, DiffusionPipeline

import tpuport
from tpuport import compat
from tpuport.diffusion import compiled_components, mixed_devices
from tpuport.diffusion.compiled_components import compile_parts, is_autoencoder, restore_parts
from tpuport.errors import PortError


def build() -> AutoencoderKL:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoencoderKL(
            block_out_channels=(8, 8),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            latent_channels=4,
            norm_num_groups=4,
            sample_size=16,
            mid_block_add_attention=False,
        )
    return model.eval()


def latents(batch: int = 1, height: int = 8, width: int = 8) -> torch.Tensor:
    return torch.randn(batch, 4, height, width, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model() -> Any:
    model = build()
    tpuport.port(model)
    compile_parts(model)
    return model


@pytest.fixture(autouse=True)
def whole(model: Any) -> Iterator[None]:
    yield
    model.disable_tiling()
    model.disable_slicing()


@torch.no_grad()
def test_decode_and_encode_outside_of_a_pipeline(model: Any) -> None:
    own = build()
    decoded = model.decode(latents(), return_dict=False)[0]
    expected = own.decode(latents(), return_dict=False)[0]
    assert compat.is_ported(decoded)
    torch.testing.assert_close(tpuport.to_cpu(decoded), expected, rtol=1e-4, atol=1e-5)
    with mixed_devices.allow_mixed():
        mean = mixed_devices.to_host(model.encode(expected).latent_dist.mode())
    torch.testing.assert_close(mean, own.encode(expected).latent_dist.mode(), rtol=1e-4, atol=1e-5)
    assert model.decoder.forward.program.compilations == 1


@torch.no_grad()
def test_with_tiling_a_program_is_of_a_tile(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = build()
    seen: set[tuple[int, ...]] = set()
    forward = model.decoder.forward
    run = forward.run

    def observed(args: tuple, kwargs: dict) -> Any:
        seen.add(tuple(args[0].shape[2:]))
        return run(args, kwargs)

    monkeypatch.setattr(forward, "run", observed)
    before = forward.program.compilations
    for vaes in (own, model):
        vaes.enable_tiling()
        vaes.tile_latent_min_size, vaes.tile_sample_min_size = 4, 8
    inputs = latents(height=6, width=6)
    with mixed_devices.allow_mixed():
        for _ in range(2):
            actual = model.decode(inputs, return_dict=False)[0]
    assert not compat.is_ported(actual)  # blended on the host
    torch.testing.assert_close(actual, own.decode(inputs, return_dict=False)[0], rtol=1e-4, atol=1e-5)
    assert all(math.prod(shape) <= 16 for shape in seen)
    assert forward.program.compilations - before == len(seen)


@torch.no_grad()
def test_with_slicing_a_program_is_of_one_sample(model: Any) -> None:
    own = build()
    before = model.decoder.forward.program.compilations
    model.enable_slicing()
    with mixed_devices.allow_mixed():
        actual = model.decode(latents(batch=3), return_dict=False)[0]
    torch.testing.assert_close(
        actual, own.decode(latents(batch=3), return_dict=False)[0], rtol=1e-4, atol=1e-5
    )
    assert model.decoder.forward.program.compilations - before <= 1


@torch.no_grad()
def test_a_large_decode_in_one_piece_advises_tiling(
    model: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled_components, "_LARGE_RESULT", 100)
    with caplog.at_level("WARNING", "tpuport"):
        for _ in range(2):
            model.decode(latents())
    assert sum("enable_tiling" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.slow
@torch.no_grad()
def test_in_bfloat16() -> None:
    own, ours = build().to(torch.bfloat16), build()
    tpuport.port(ours, dtype="bfloat16")
    compile_parts(ours)
    inputs = latents(height=4, width=4).to(torch.bfloat16)
    actual = tpuport.to_cpu(ours.decode(inputs, return_dict=False)[0])
    exact = build().decode(inputs.float(), return_dict=False)[0]
    theirs = own.decode(inputs, return_dict=False)[0]
    assert actual.dtype == torch.bfloat16
    # No further from float32 than torch's own bfloat16 is, up to the noise of both.
    assert (actual.float() - exact).abs().mean() < 2 * (theirs.float() - exact).abs().mean()


def test_parts_are_given_back() -> None:
    model = build()
    forward = model.decoder.forward
    tpuport.port(model)
    compile_parts(model)
    assert is_autoencoder(model)
    restore_parts(model)
    assert model.decoder.forward == forward
    assert "decode" not in vars(model)
    assert not is_autoencoder(torch.nn.Linear(1, 1))


def test_a_pipeline_that_is_not_ported_is_told_so(model: Any) -> None:
    class Decoding(DiffusionPipeline):
        def __init__(self, vae: Any) -> None:
            super().__init__()
            self.register_modules(vae=vae)

        def __call__(self) -> Any:
            return self.vae.decode(latents(), return_dict=False)[0]

    with pytest.raises(PortError, match=r"its AutoencoderKL is on the devices(.|\n)*where: Decoding"):
        Decoding(model)()
