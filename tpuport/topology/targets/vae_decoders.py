"""Autoencoders of diffusers: what their latents look like, and the decoder alone as a
program.
"""

import dataclasses
from typing import Any, Final

import torch

from tpuport.errors import PortError
from tpuport.topology.targets.denoiser_calls import (
    Compression,
    Config,
    Size,
    latent_sides,
    side_pair,
)
from tpuport.topology.targets.target import Options, empty, first_integer

# What pipelines of video models make by default; others have a row below.
_VIDEO_SIZE: Final = (480, 832)
_FRAMES: Final = 81
_DEFAULT_OUTPUTS: Final = {
    "AutoencoderKLTemporalDecoder": ((576, 1024), 14),
    "AutoencoderKLQwenImage": ((1024, 1024), 1),
}
# The compression of frames, for classes whose config does not say it.
_TEMPORAL: Final = {"AutoencoderKLMochi": 6, "AutoencoderKLMagvit": 4}
# It decodes latents to as many frames, and one by one: its first frame is not special.
_FRAMEWISE: Final = "AutoencoderKLTemporalDecoder"
_VIDEO: Final = (
    "AutoencoderKLCogVideoX", "AutoencoderKLCosmos", "AutoencoderKLHunyuanVideo", "AutoencoderKLHunyuanVideo15",
    "AutoencoderKLLTXVideo", "AutoencoderKLMagvit", "AutoencoderKLMochi", "AutoencoderKLQwenImage",
    "AutoencoderKLWan",
)  # fmt: skip
_IMAGE: Final = (
    "AsymmetricAutoencoderKL", "AutoencoderDC", "AutoencoderKL", "AutoencoderKLFlux2", "AutoencoderKLHunyuanImage",
    "AutoencoderKLTemporalDecoder", "AutoencoderTiny", "VQModel",
)  # fmt: skip
_LEVEL_FIELDS: Final = (
    "block_out_channels",
    "decoder_block_out_channels",
    "down_block_out_channels",
)
_ENCODERS: Final = ("encoder", "quant_conv")
# Sides below this are a number of latents, or the default of a field that the model
# does not use.
_SMALLEST_SIDE: Final = 256


@dataclasses.dataclass(frozen=True)
class Decoding:
    """A call of a decoder: its inputs, what it makes and how many, and notes."""

    inputs: dict[str, Any]
    unit: tuple[str, float]
    notes: tuple[str, ...]


def is_vae(model_class: type) -> bool:
    """Whether models of this class decode latents."""
    names = ("Autoencoder", "VQModel", "AsymmetricAutoencoder")
    return hasattr(model_class, "decode") and model_class.__name__.startswith(names)


def vae_compression(class_name: str, config: Config, source: str) -> Compression:
    """What the autoencoder of this class and config divides by; `source` says where the
    config is from.
    """
    spatial, temporal = _spatial(class_name, config), _temporal(class_name, config)
    return Compression(spatial, temporal, class_name != _FRAMEWISE, source)


def _spatial(class_name: str, config: Config) -> int:
    """How many pixels of a side make one latent."""
    # The spelling is diffusers'. Where the config has both, the scale factor counts
    # patches too.
    halvings = config.get("temperal_downsample")
    if halvings is not None and "scale_factor_spatial" not in config:
        return 2 ** len(halvings)
    stated = first_integer(
        config, ("spatial_compression_ratio", "scale_factor_spatial")
    )
    if stated is not None:
        return stated
    if class_name == "AutoencoderKLLTXVideo":
        return config["patch_size"] * 2 ** sum(config["spatio_temporal_scaling"])
    if class_name == "AutoencoderKLMochi":
        return 8
    # What has no table of its levels' channels has four levels.
    tables = filter(None, map(config.get, _LEVEL_FIELDS))
    levels = next(map(len, tables), 4)
    return 2 ** (levels - 1)


def _temporal(class_name: str, config: Config) -> int:
    """How many frames make one latent frame."""
    halvings = config.get("temperal_downsample")
    if halvings is not None and "scale_factor_temporal" not in config:
        return 2 ** sum(map(bool, halvings))
    stated = config.get("temporal_compression_ratio") or config.get(
        "scale_factor_temporal"
    )
    if stated:
        return int(stated)
    if class_name == "AutoencoderKLLTXVideo":
        return config["patch_size_t"] * 2 ** sum(config["spatio_temporal_scaling"])
    return _TEMPORAL.get(class_name, 1)


def applicable(class_name: str) -> tuple[str, ...]:
    """The options that determine something of a decoder's inputs."""
    frames = ("frames",) if class_name in _VIDEO else ()
    return ("batch", "image_size", *frames, "task")


def plan_decoding(
    class_name: str,
    config: Config,
    options: Options,
    dtype: str,
    denoised: tuple[Size, int] | None = None,
) -> Decoding:
    """A call that decodes latents.

    Args:
        denoised: the size in pixels and the frames that the pipeline's denoiser makes.

    Raises:
        PortError: the latents of this class are not known, or a size is not a multiple
            of the compression.
    """
    if class_name not in (*_IMAGE, *_VIDEO):
        raise PortError(
            f"what the latents of {class_name} look like is not known", where=class_name,
            fix="--inputs module:function, which returns {'latents': ...}",
        )  # fmt: skip
    compression = vae_compression(class_name, config, "its config")
    default_pixels, default_frames = denoised or _default_output(
        class_name, config, compression
    )
    pixels = options.image_size or default_pixels
    frames = options.frames or default_frames
    height, width = latent_sides(pixels, compression.spatial, (1, 1))
    batch = options.rows
    # Every known class has one of the two in its config.
    channels = config.get("latent_channels") or config["z_dim"]
    note = f"decodes to {pixels[0]}x{pixels[1]} pixels; the encoder is left out of the program and of its weights"
    if class_name == _FRAMEWISE:
        latents = empty(batch * frames, channels, height, width, dtype=dtype)
        inputs = {"latents": latents, "num_frames": frames}
        return Decoding(
            inputs, ("frames", float(batch * frames)), (f"{frames} frames, {note}",)
        )
    if class_name in _IMAGE:
        latents = empty(batch, channels, height, width, dtype=dtype)
        return Decoding(
            {"latents": latents}, ("images", float(batch)), (f"{note}; batch {batch}",)
        )
    latent_frames = compression.latent_frames(frames)
    inputs = {
        "latents": empty(batch, channels, latent_frames, height, width, dtype=dtype)
    }
    if config.get("timestep_conditioning"):
        inputs["temb"] = empty(batch, dtype=dtype)
    note = f"{frames} frames, {note}; batch {batch}, no tiling"
    return Decoding(inputs, ("frames", float(batch * frames)), (note,))


def _default_output(
    class_name: str, config: Config, compression: Compression
) -> tuple[Size, int]:
    """Pixels and frames."""
    if class_name in _DEFAULT_OUTPUTS:
        return _DEFAULT_OUTPUTS[class_name]
    if class_name in _VIDEO:
        groups = (_FRAMES - 1) // compression.temporal
        return _VIDEO_SIZE, groups * compression.temporal + int(compression.causal)
    side, _ = side_pair(config.get("sample_size") or 0)
    if side < _SMALLEST_SIDE:
        side = 1024
    return (side, side), 1


def make_decoder(model: torch.nn.Module) -> torch.nn.Module:
    """Give the model a forward that decodes, and take away the weights that encode.

    It stays an instance of its class, so that rules for its parameters find them by
    their names.
    """
    for name in _ENCODERS:
        if isinstance(getattr(model, name, None), torch.nn.Module):
            # An empty module stays: some classes iterate over the modules of both
            # halves.
            setattr(model, name, torch.nn.Module())
    base = type(model)
    namespace = {"forward": _decode, "__module__": __name__}
    model.__class__ = type(f"{base.__name__}Decoder", (base,), namespace)
    return model


def _decode(self: Any, latents: torch.Tensor, **options: Any) -> torch.Tensor:
    return self.decode(latents, return_dict=False, **options)[0]
