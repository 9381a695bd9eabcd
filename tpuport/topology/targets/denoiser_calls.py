"""The sizes of a denoiser's call, from pixels and frames to latents, and what a family
of models is called with.

Needs no torch, except for making the inputs.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpuport.base.plurals import count_noun
from tpuport.errors import PortError
from tpuport.topology.targets.target import (
    Options,
    empty,
    first_integer,
    required_parameters,
)

if TYPE_CHECKING:
    import torch

Size = tuple[int, int]
Config = Mapping[str, Any]

_TEXT_WIDTHS: Final = (
    "joint_attention_dim", "text_embed_dim", "text_dim", "caption_channels", "cap_feat_dim", "in_text_dim",
    "text_in_dim", "cross_attention_input_dim", "cross_attention_dim", "encoder_hid_dim",
)  # fmt: skip
_GUESSED_ARGUMENTS: Final = frozenset({
    "hidden_states", "sample", "encoder_hidden_states", "timestep", "pooled_projections", "encoder_attention_mask",
    "guidance", "class_labels", "return_dict",
})  # fmt: skip
_VIDEO_NAME: Final = re.compile(r"3D|Video")
_IMAGE_NAME: Final = re.compile(r"2D|Image")
# Positions and grids that only the pipeline knows the meaning of.
_PIPELINE_ARGUMENTS: Final = ("img_ids", "img_shapes", "image_rotary_emb")


@dataclasses.dataclass(frozen=True)
class Compression:
    """What a variational autoencoder divides by: pixels of a side by `spatial`, frames
    by `temporal`.

    Attributes:
        causal: the first frame is coded by itself, so that 1 + n * temporal frames make
            1 + n.
        source: where the figures are from, for people.
    """

    spatial: int
    temporal: int = 1
    causal: bool = True
    source: str = ""

    def latent_frames(self, frames: int) -> int:
        """Latent frames of a video of `frames` frames, or of an image, which is one.

        Raises:
            PortError: the compression does not divide the frames.
        """
        first = int(self.causal)
        groups, remainder = divmod(frames - first, self.temporal)
        if remainder:
            rule = (
                f"1 and a multiple of {self.temporal}"
                if self.causal
                else f"a multiple of {self.temporal}"
            )
            below = groups * self.temporal + first
            raise PortError(
                f"{frames} frames are not {rule}, the compression of frames", where="frames",
                fix=f"{below or self.temporal} or {below + self.temporal}",
            )  # fmt: skip
        return groups + first


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a denoiser.

    Attributes:
        config: of the model, with the class's defaults.
        batch: rows; height, width: of the latents; frames: of the latents, 1 for an
            image.
        pixels: height and width of the image; text: tokens of the prompt; dtype: of
            floating-point inputs.
        compression: of the autoencoder.
    """

    config: Config
    batch: int
    height: int
    width: int
    frames: int
    pixels: Size
    text: int
    dtype: str
    compression: Compression

    def floats(self, *shape: int) -> "torch.Tensor":
        """A tensor [batch, *shape] in the model's dtype."""
        return empty(self.batch, *shape, dtype=self.dtype)

    def integers(self, *shape: int) -> "torch.Tensor":
        """A tensor [batch, *shape] of integers."""
        return empty(self.batch, *shape, dtype="int64")

    def timesteps(self) -> "torch.Tensor":
        """A timestep for each row, [batch]."""
        return empty(self.batch, dtype="float32")

    def guidance(self, dtype: str = "float32") -> "torch.Tensor | None":
        """The scale of guidance for each row, [batch], of a model that was distilled to
        take it; None for others.
        """
        if not self.config["guidance_embeds"]:
            return None
        return empty(self.batch, dtype=dtype)


@dataclasses.dataclass(frozen=True)
class Family:
    """How models of one class are called by their pipeline.

    Attributes:
        inputs: the arguments of a call.
        spatial, temporal: the compression, if no autoencoder is beside the model;
            temporal is 0 for images.
        size: height and width in pixels that the pipeline has by default, given the
            config and the compression.
        text: tokens of the prompt that the pipeline pads to or takes at most.
        frames: that the pipeline makes by default.
        multiple: latents that height and width have to be multiples of.
        causal: of the autoencoder, as in `Compression`.
        max_patches: that a side can have, if the model has a table of positions.
        fixed: whether there is one size only.
    """

    inputs: Callable[[Call], dict[str, Any]]
    spatial: int | Callable[[Config], int] = 8
    temporal: int = 0
    size: Size | Callable[[Config, int], Size] = (1024, 1024)
    text: int | Callable[[Config], int] = 512
    frames: int | Callable[[Config], int] = 1
    multiple: Callable[[Config], Size] = lambda config: (1, 1)
    causal: bool = True
    max_patches: Callable[[Config], int] | None = None
    fixed: bool = False

    def applicable(self) -> tuple[str, ...]:
        """The options that determine something of the inputs."""
        sizes = ["batch"]
        if not self.fixed:
            sizes.append("image_size")
        if self.temporal:
            sizes.append("frames")
        return (*sizes, "task")

    def default_frames(self, config: Config) -> int:
        """The frames that the pipeline makes by default."""
        return _resolve(self.frames, config)


def _resolve(value: Any, *arguments: Any) -> Any:
    """A family's figure for a config, if it depends on that."""
    return value(*arguments) if callable(value) else value


class PlannedCall(NamedTuple):
    """A call, the frames of the video, and a note about the sizes."""

    call: Call
    frames: int
    note: str


def plan_call(
    family: Family,
    config: Config,
    options: Options,
    dtype: str,
    compression: Compression | None,
) -> PlannedCall:
    """The sizes of a call.

    Args:
        compression: of the autoencoder that is beside the model; None takes the
            family's.

    Raises:
        PortError: a size is not a multiple of the compression.
    """
    if compression is None:
        spatial = _resolve(family.spatial, config)
        temporal = max(1, family.temporal)
        compression = Compression(
            spatial, temporal, family.causal, "the family's own autoencoder"
        )
    # The size in pixels may depend on the compression, as configs count latents.
    pixels = options.image_size or _resolve(family.size, config, compression.spatial)
    height, width = latent_sides(pixels, compression.spatial, family.multiple(config))
    _check_table(family, config, (height, width), compression.spatial)
    frames = options.frames or family.default_frames(config)
    latent_frames = compression.latent_frames(frames)
    text = _resolve(family.text, config)
    call = Call(
        config,
        options.rows,
        height,
        width,
        latent_frames,
        pixels,
        text,
        dtype,
        compression,
    )
    return PlannedCall(call, frames, _describe(family, call, frames))


def _describe(family: Family, call: Call, frames: int) -> str:
    """A sentence about the sizes."""
    pixels = f"{call.pixels[0]}x{call.pixels[1]} pixels"
    latents = f"{call.height}x{call.width} latents"
    if family.temporal:
        pixels = f"{frames} frames of {pixels}"
        latents = f"{call.frames}x{latents}"
    text = f", {call.text} text tokens" if call.text else ""
    rows = count_noun(call.batch, "row")
    return (
        f"{pixels} are {latents} by {call.compression.source}{text}; {rows} a call; guidance that needs a second "
        "prediction takes a second call, or twice the rows"
    )


def _check_table(family: Family, config: Config, sides: Size, spatial: int) -> None:
    """PortError if a side has more patches than the model's table of positions."""
    if family.max_patches is None:
        return
    limit = family.max_patches(config)
    for side, patch in zip(sides, family.multiple(config), strict=True):
        if side // patch > limit:
            raise PortError(
                f"{side * spatial} pixels are {side // patch} patches, and the model has positions for {limit}",
                where="image_size", fix=f"at most {limit * patch * spatial} pixels a side",
            )  # fmt: skip


def latent_sides(pixels: Size, spatial: int, multiple: Size) -> Size:
    """Height and width of the latents.

    Raises:
        PortError: a side is not a multiple of what the autoencoder and the patches
            divide it by.
    """
    for name, side, patch in zip(("height", "width"), pixels, multiple, strict=True):
        unit = spatial * patch
        below = side // unit * unit
        if side != below:
            patches = f" and patches of {patch}" if patch > 1 else ""
            # No image has a side of 0.
            nearest = filter(None, (below, below + unit))
            raise PortError(
                f"{name} {side} is not a multiple of {unit}: the autoencoder's {spatial}{patches}",
                where="image_size", fix=f"a {name} of {' or '.join(map(str, nearest))}",
            )  # fmt: skip
    return pixels[0] // spatial, pixels[1] // spatial


def sample_size(config: Config, spatial: int) -> Size:
    """The size in pixels of a config's `sample_size`, which counts latents."""
    height, width = side_pair(config.get("sample_size") or 64)
    return height * spatial, width * spatial


def side_pair(value: Any) -> Size:
    """Height and width, given as one number or as the last two of several."""
    if isinstance(value, int):
        return value, value
    height, width = value[-2:]
    return int(height), int(width)


def first_width(value: Any) -> int:
    """The width of a model, or of the first of its blocks if a config has one for
    each.
    """
    return value if isinstance(value, int) else value[0]


def patch_sides(config: Config) -> Size:
    """Height and width of a patch, in latents."""
    return side_pair(config.get("patch_size") or 1)


def guess_family(model_class: Any, config: Config) -> Family:
    """A family for a class that none is known for, whose inputs follow from the names
    of its arguments.

    Raises:
        PortError: there is an argument that cannot be made from its name.
    """
    class_name = model_class.__name__
    parameters = inspect.signature(model_class.forward).parameters
    required = required_parameters(model_class.forward)
    unknown = [argument for argument in required if argument not in _GUESSED_ARGUMENTS]
    is_video = _VIDEO_NAME.search(class_name) is not None
    if not (is_video or _IMAGE_NAME.search(class_name)):
        # It is not a denoiser, as far as its name goes.
        unknown += [*required, "hidden_states"]
    # Optional or not, a call without them would not be the pipeline's.
    unknown += [argument for argument in _PIPELINE_ARGUMENTS if argument in parameters]
    if unknown:
        raise _refusal(class_name, unknown[0])
    text = 256 if "encoder_hidden_states" in parameters else 0

    def make_inputs(call: Call) -> dict[str, Any]:
        makers = _input_makers(class_name, call, is_video)
        for argument in required:
            if argument not in makers:
                raise _refusal(class_name, argument)
        return {
            argument: make()
            for argument, make in makers.items()
            if argument in parameters
        }

    # The compression and the sizes are those of Wan: a guess, which the options
    # overrule.
    if is_video:
        return Family(
            make_inputs,
            temporal=4,
            size=(480, 832),
            frames=81,
            text=text,
            multiple=patch_sides,
        )
    return Family(make_inputs, text=text, multiple=patch_sides)


def _input_makers(
    class_name: str, call: Call, is_video: bool
) -> dict[str, Callable[[], Any]]:
    """By argument, a function that makes it, for those that the config tells the size
    of.
    """
    config = call.config

    def latents() -> Any:
        channels = config.get("in_channels")
        if not isinstance(channels, int):
            raise _refusal(class_name, "hidden_states")
        if is_video:
            return call.floats(channels, call.frames, call.height, call.width)
        return call.floats(channels, call.height, call.width)

    makers: dict[str, Callable[[], Any]] = {
        "hidden_states": latents,
        "sample": latents,
        "timestep": call.timesteps,
        "return_dict": lambda: False,
    }
    text_width = first_integer(config, _TEXT_WIDTHS)
    if text_width is not None:
        makers["encoder_hidden_states"] = lambda: call.floats(call.text, text_width)
        makers["encoder_attention_mask"] = lambda: call.integers(call.text)
    pooled_width = config.get("pooled_projection_dim")
    if isinstance(pooled_width, int):
        makers["pooled_projections"] = lambda: call.floats(pooled_width)
    if config.get("guidance_embeds"):
        makers["guidance"] = call.timesteps
    if config.get("num_class_embeds"):
        makers["class_labels"] = call.integers
    return makers


def _refusal(class_name: str, argument: str) -> PortError:
    return PortError(
        f"no value can be made for the argument {argument!r} of {class_name}",
        where=argument, fix="--inputs module:function, which returns the arguments of forward by name",
    )  # fmt: skip
