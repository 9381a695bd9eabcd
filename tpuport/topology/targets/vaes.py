"""Autoencoders of diffusers: what their latents look like, and the decoder alone as a program."""

from collections.abc import Mapping
from typing import Any, Final

import torch

from tpuport.errors import PortError
from tpuport.topology.targets.latents import Compression, Size, latent_sides
from tpuport.topology.targets.target import Options, empty

_VIDEO_SIZE: Final = (480, 832)
_FRAMES: Final = 81
# Of a class whose config does not say it all: the compression of frames.
_TEMPORAL: Final = {"AutoencoderKLMochi": 6, "AutoencoderKLMagvit": 4}
# Videos are decoded to as many frames as latents have, or to a whole multiple.
_NOT_CAUSAL: Final = ("AutoencoderKLTemporalDecoder",)
_VIDEO: Final = (
    "AutoencoderKLCogVideoX", "AutoencoderKLCosmos", "AutoencoderKLHunyuanVideo", "AutoencoderKLHunyuanVideo15",
    "AutoencoderKLLTXVideo", "AutoencoderKLMagvit", "AutoencoderKLMochi", "AutoencoderKLQwenImage",
    "AutoencoderKLWan",
)  # fmt: skip
_IMAGE: Final = (
    "AsymmetricAutoencoderKL", "AutoencoderDC", "AutoencoderKL", "AutoencoderKLFlux2", "AutoencoderKLHunyuanImage",
    "AutoencoderKLTemporalDecoder", "AutoencoderTiny", "VQModel",
)  # fmt: skip
_ENCODING: Final = ("encoder", "quant_conv")


def is_vae(model_class: type) -> bool:
    """Whether models of this class decode latents."""
    return hasattr(model_class, "decode") and model_class.__name__.startswith(
        ("Autoencoder", "VQModel", "AsymmetricAutoencoder")
    )


def compression_of(name: str, config: Mapping[str, Any], source: str) -> Compression:
    """What the autoencoder of this class and config divides by."""
    temporal = _temporal(name, config)
    return Compression(_spatial(name, config), temporal, name not in _NOT_CAUSAL, source)


def _spatial(name: str, config: Mapping[str, Any]) -> int:
    if config.get("temperal_downsample") is not None and "scale_factor_spatial" not in config:
        return 2 ** len(config["temperal_downsample"])
    for field in ("spatial_compression_ratio", "scale_factor_spatial"):
        if isinstance(config.get(field), int):
            return config[field]
    if name == "AutoencoderKLLTXVideo":
        return config["patch_size"] * 2 ** sum(config["spatio_temporal_scaling"])
    if name == "AutoencoderKLMochi":
        return 8
    levels = next(
        (
            config[field]
            for field in ("block_out_channels", "decoder_block_out_channels", "down_block_out_channels")
            if config.get(field)
        ),
        (1,) * 4,
    )
    return 2 ** (len(levels) - 1)


def _temporal(name: str, config: Mapping[str, Any]) -> int:
    if config.get("temperal_downsample") is not None and "scale_factor_temporal" not in config:
        return 2 ** sum(map(bool, config["temperal_downsample"]))
    for field in ("temporal_compression_ratio", "scale_factor_temporal"):
        if config.get(field):
            return int(config[field])
    if name == "AutoencoderKLLTXVideo":
        return config["patch_size_t"] * 2 ** sum(config["spatio_temporal_scaling"])
    return _TEMPORAL.get(name, 1)


def applicable(name: str) -> tuple[str, ...]:
    """The options that say something of a decoder's inputs."""
    return ("batch", "image_size", *(("frames",) if name in _VIDEO else ()), "task")


def inputs_of(
    name: str, config: Mapping[str, Any], options: Options, dtype: str, like: tuple[Size, int] | None = None
) -> tuple[dict[str, Any], tuple[str, float], tuple[str, ...]]:
    """Latents to decode, what a call makes and how many, and notes.

    Args:
        like: the size in pixels and the frames that the pipeline's denoiser makes.

    Raises:
        PortError: a class whose latents are not known here, or a size that is no multiple of the compression.
    """
    if name not in (*_IMAGE, *_VIDEO):
        raise PortError(
            f"what the latents of {name} look like is not known here", where=name,
            fix="--inputs module:function, which returns {'latents': ...}",
        )  # fmt: skip
    compression = compression_of(name, config, "its config")
    size, frames = like or _default(name, config, compression)
    pixels, frames = options.image_size or size, options.frames or frames
    height, width = latent_sides(pixels, compression.spatial, (1, 1))
    batch, channels = options.batch or 1, _channels(config)
    text = f"decodes to {pixels[0]}x{pixels[1]} pixels; the encoder is left out of the program and of its weights"
    if name not in _VIDEO:
        made = {"latents": empty(batch, channels, height, width, dtype=dtype)}
        if name == "AutoencoderKLTemporalDecoder":
            made = {
                "latents": empty(batch * frames, channels, height, width, dtype=dtype),
                "num_frames": frames,
            }
            return made, ("frames", float(batch * frames)), (f"{frames} frames, {text}",)
        return made, ("images", float(batch)), (f"{text}; batch {batch}",)
    latents = empty(batch, channels, compression.frames(frames), height, width, dtype=dtype)
    made = {"latents": latents}
    if config.get("timestep_conditioning"):
        made["temb"] = empty(batch, dtype=dtype)
    return made, ("frames", float(batch * frames)), (f"{frames} frames, {text}; batch {batch}, no tiling",)


def _default(name: str, config: Mapping[str, Any], compression: Compression) -> tuple[Size, int]:
    if name == "AutoencoderKLTemporalDecoder":
        return (576, 1024), 14
    if name == "AutoencoderKLQwenImage":
        return (1024, 1024), 1
    if name in _VIDEO:
        extra = 1 if compression.causal else 0
        return _VIDEO_SIZE, (_FRAMES - 1) // compression.temporal * compression.temporal + extra
    side = config.get("sample_size") or 0
    side = side if isinstance(side, int) else side[0]
    # Some configs count latents in this field, and some say the default of 32.
    return ((side, side) if side >= 256 else (1024, 1024)), 1


def _channels(config: Mapping[str, Any]) -> int:
    return next(config[name] for name in ("latent_channels", "z_dim") if isinstance(config.get(name), int))


def decoding(model: torch.nn.Module) -> torch.nn.Module:
    """The model with a forward that decodes, and without the weights that encode.

    It stays an instance of its class, so that rules for its parameters find them by their names.
    """
    for name in _ENCODING:
        if isinstance(getattr(model, name, None), torch.nn.Module):
            # Some classes walk over the modules of both halves.
            setattr(model, name, torch.nn.Module())
    whole = type(model)
    model.__class__ = type(f"{whole.__name__}Decoder", (whole,), {"forward": _decode, "__module__": __name__})
    return model


def _decode(self: Any, latents: torch.Tensor, **given: Any) -> torch.Tensor:
    return self.decode(latents, return_dict=False, **given)[0]
