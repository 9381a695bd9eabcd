"""The sizes of a denoiser's call: from pixels and frames to latents, and what a family of models takes."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tpuport.errors import PortError
from tpuport.topology.targets.target import Options, empty

if TYPE_CHECKING:
    import torch

Size = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Compression:
    """What a variational autoencoder divides by: pixels of a side by `spatial`, frames by `temporal`.

    Attributes:
        causal: the first frame is coded by itself, so that 1 + n * temporal frames make 1 + n.
        source: where the figures are from, for people.
    """

    spatial: int
    temporal: int = 1
    causal: bool = True
    source: str = ""

    def frames(self, pixels: int) -> int:
        """Latent frames of a video of `pixels` frames.

        Raises:
            PortError: there is no such number of latent frames.
        """
        extra = 1 if self.causal else 0
        if (pixels - extra) % self.temporal:
            below = (pixels - extra) // self.temporal * self.temporal + extra
            raise PortError(
                f"{pixels} frames are not {extra} and a multiple of {self.temporal}, the compression of frames"
                if extra
                else f"{pixels} frames are no multiple of {self.temporal}, the compression of frames",
                where="frames", fix=f"{max(below, extra) or self.temporal} or {below + self.temporal}",
            )  # fmt: skip
        return (pixels - extra) // self.temporal + extra


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a denoiser.

    Attributes:
        config: of the model, with the class's defaults.
        batch: rows; height, width: of the latents; frames: of the latents, 1 for an image.
        pixels: height and width of the image; text: tokens of the prompt; dtype: of floating-point inputs.
        compression: of the autoencoder.
    """

    config: Mapping[str, Any]
    batch: int
    height: int
    width: int
    frames: int
    pixels: Size
    text: int
    dtype: str
    compression: Compression

    def floats(self, *shape: int) -> "torch.Tensor":
        """A tensor with a row for each sample, in the model's dtype."""
        return empty(self.batch, *shape, dtype=self.dtype)

    def whole(self, *shape: int) -> "torch.Tensor":
        """The same of whole numbers."""
        return empty(self.batch, *shape, dtype="int64")

    def times(self) -> "torch.Tensor":
        """A timestep for each sample."""
        return empty(self.batch, dtype="float32")


@dataclasses.dataclass(frozen=True)
class Family:
    """How models of one class are called by their pipeline.

    Attributes:
        inputs: the arguments of a call.
        spatial, temporal: the compression where no autoencoder is beside the model; temporal 0 for images.
        size: height and width in pixels that the pipeline has by default, given the config and the compression.
        text: tokens of the prompt that the pipeline pads to or takes at most.
        frames: that the pipeline makes by default.
        multiple: latents that a side has to be a multiple of.
        causal: of the autoencoder, as in `Compression`.
        most: patches that a side can have, where the model has a table of positions.
        fixed: whether there is one size only.
    """

    inputs: Callable[[Call], dict[str, Any]]
    spatial: int | Callable[[Mapping[str, Any]], int] = 8
    temporal: int = 0
    size: Size | Callable[[Mapping[str, Any], int], Size] = (1024, 1024)
    text: int | Callable[[Mapping[str, Any]], int] = 512
    frames: int | Callable[[Mapping[str, Any]], int] = 1
    multiple: Callable[[Mapping[str, Any]], Size] = lambda config: (1, 1)
    causal: bool = True
    most: Callable[[Mapping[str, Any]], int] | None = None
    fixed: bool = False

    def applicable(self) -> tuple[str, ...]:
        """The options that say something of the inputs."""
        size = () if self.fixed else ("image_size",)
        return ("batch", *size, *(("frames",) if self.temporal else ()), "task")


def sample_size(config: Mapping[str, Any], spatial: int) -> Size:
    """The size in pixels that a config's `sample_size`, which counts latents, says."""
    size = config.get("sample_size") or 64
    height, width = (size, size) if isinstance(size, int) else size
    return int(height) * spatial, int(width) * spatial


def pair(value: Any) -> Size:
    """A patch's height and width, of a number or of the last two of several."""
    return (value, value) if isinstance(value, int) else (int(value[-2]), int(value[-1]))


def patches(config: Mapping[str, Any]) -> Size:
    """Latents that a patch has on each side."""
    return pair(config.get("patch_size") or 1)


def call_of(
    family: Family, config: Mapping[str, Any], options: Options, dtype: str, known: Compression | None
) -> tuple[Call, str]:
    """The sizes of a call, and a note of them.

    Args:
        known: the compression of the autoencoder that lies beside the model.

    Raises:
        PortError: a size that is no multiple of the compression.
    """
    spatial = family.spatial(config) if callable(family.spatial) else family.spatial
    default = Compression(spatial, max(1, family.temporal), family.causal, "the family's own autoencoder")
    compression = known or default
    size = family.size(config, compression.spatial) if callable(family.size) else family.size
    pixels = options.image_size or size
    height, width = latent_sides(pixels, compression.spatial, family.multiple(config))
    _check_table(family, config, (height, width), compression.spatial)
    frames = options.frames or (family.frames(config) if callable(family.frames) else family.frames)
    latent_frames = compression.frames(frames) if family.temporal else 1
    text = family.text(config) if callable(family.text) else family.text
    batch = options.batch or 1
    call = Call(config, batch, height, width, latent_frames, pixels, text, dtype, compression)
    film = f"{frames} frames of " if family.temporal else ""
    latent = f"{latent_frames}x{height}x{width}" if family.temporal else f"{height}x{width}"
    words = f", {text} text tokens" if text else ""
    rows = "row" if batch == 1 else "rows"
    note = (
        f"{film}{pixels[0]}x{pixels[1]} pixels are {latent} latents by {compression.source}{words};"
        f" {batch} {rows} a call; guidance that needs a second prediction takes a second call, or twice the rows"
    )
    return call, note


def _check_table(family: Family, config: Mapping[str, Any], sides: Size, spatial: int) -> None:
    """PortError where a side has more patches than the model's table of positions."""
    if family.most is None:
        return
    for side, part in zip(sides, family.multiple(config), strict=True):
        if side // part > (most := family.most(config)):
            raise PortError(
                f"{side * spatial} pixels are {side // part} patches, and the model has positions for {most}",
                where="image_size", fix=f"at most {most * part * spatial} pixels a side",
            )  # fmt: skip


def latent_sides(pixels: Size, spatial: int, multiple: Size) -> Size:
    """Height and width of the latents.

    Raises:
        PortError: a side is no multiple of what the autoencoder and the patches divide it by.
    """
    for name, side, part in zip(("height", "width"), pixels, multiple, strict=True):
        unit = spatial * part
        if side % unit:
            below = side // unit * unit
            near = f"{below} or {below + unit}" if below else f"{unit}"
            patch = f" and patches of {part}" if part > 1 else ""
            raise PortError(
                f"{name} {side} is no multiple of {unit}: the autoencoder's {spatial}{patch}",
                where="image_size", fix=f"a {name} of {near}",
            )  # fmt: skip
    return pixels[0] // spatial, pixels[1] // spatial
