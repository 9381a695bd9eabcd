"""Inputs of transformers' models that do not generate: encoders of text, images and
sound, and encoder-decoders.
"""

import inspect
import itertools
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tpuport.errors import PortError
from tpuport.internals.transformers_internals import classes_by_config
from tpuport.topology.targets.denoiser_calls import side_pair
from tpuport.topology.targets.target import Options, empty, required_parameters

_TEXT_LENGTH: Final = 512  # tokens of a text whose length the user does not give, if the model takes as many
_IMAGE_SIDE: Final = 224  # pixels of an image, if the config does not say it
_SOUND_SECONDS: Final = 10
_SAMPLE_RATE: Final = 16_000  # samples of sound a second
_SOUND_POSITIONS: Final = 1_500  # of Whisper's 30 seconds, two frames each
# Their tables of positions begin with some for padding, which no token has.
_PADDING_POSITIONS: Final = ("roberta", "xlm-roberta", "camembert", "longformer")


class EncoderCall(NamedTuple):
    """The arguments of a call, what it makes and how many, and notes."""

    inputs: dict[str, Any]
    unit: tuple[str, float]
    notes: tuple[str, ...]


def applicable(model_class: Any, config: Any) -> tuple[str, ...]:
    """The options that determine something of these models' inputs."""
    names = set(_argument_names(model_class, config))
    sizes = ["batch"]
    if not names.isdisjoint(("input_ids", "decoder_input_ids")):
        sizes.append("length")
    if "pixel_values" in names:
        sizes.append("image_size")
    return (*sizes, "task")


def plan_call(
    model_class: Any, config: Any, dtype: str, options: Options
) -> EncoderCall:
    """A call of the model.

    Raises:
        PortError: an argument that cannot be made here.
    """
    maker = _InputMaker(config, dtype, options)
    inputs: dict[str, Any] = {}
    for name in _argument_names(model_class, config):
        if name not in maker.makers:
            raise PortError(
                f"no value can be made for the argument {name!r} of {_resolve_class(model_class, config).__name__}",
                where=name, fix="--inputs module:function, which returns the arguments of forward by name",
            )  # fmt: skip
        inputs[name] = maker.makers[name]()
    notes = tuple(maker.notes)
    # A model of images alone is measured in images, one that reads text in tokens.
    if inputs.keys() <= {"pixel_values"}:
        return EncoderCall(inputs, ("images", float(maker.batch)), notes)
    tokens = sum(
        value.shape[1] for name, value in inputs.items() if name.endswith("input_ids")
    )
    if tokens:
        return EncoderCall(inputs, ("tokens", float(maker.batch * tokens)), notes)
    return EncoderCall(inputs, ("steps", 1.0), notes)


def _resolve_class(model_class: Any, config: Any) -> Any:
    """The class that an automatic one makes with this config."""
    mapping = classes_by_config(model_class)
    if mapping is None:
        return model_class
    try:
        classes = mapping[type(config)]
    except KeyError as error:
        raise PortError(
            f"transformers has no {model_class.__name__} of {type(config).__name__}", where="config.json",
            fix="name the class in the config: architectures",
        ) from error  # fmt: skip
    # A config of several classes has them in order of preference.
    if isinstance(classes, tuple | list):
        return classes[0]
    return classes


def _argument_names(model_class: Any, config: Any) -> list[str]:
    """The arguments to give: the main one, those without a default, masks of text, and
    a decoder's ids.
    """
    resolved = _resolve_class(model_class, config)
    parameters = inspect.signature(resolved.forward).parameters
    main = getattr(resolved, "main_input_name", "input_ids")
    needed = {main, *required_parameters(resolved.forward)}
    names = [name for name in parameters if name in needed]
    # CLIP's forward has defaults for both, and fails without them.
    if _compares_text_with_images(resolved):
        names += ["input_ids", "pixel_values"]
    if getattr(config, "is_encoder_decoder", False):
        names.append("decoder_input_ids")
    # Texts of a batch differ in length, so that real calls have a mask.
    if "input_ids" in names:
        names.append("attention_mask")
    return [name for name in dict.fromkeys(names) if name in parameters]


def _compares_text_with_images(model_class: Any) -> bool:
    """Whether the model compares texts with images, as CLIP does."""
    from transformers.models.auto import modeling_auto

    names = modeling_auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES
    return model_class.__name__ in names.values()


class _InputMaker:
    """Makes tensors by the names of arguments.

    Attributes:
        makers: by argument, the function that makes it.
        notes: what was chosen; the functions add to it.
    """

    def __init__(self, config: Any, dtype: str, options: Options) -> None:
        self.config, self.dtype, self.options = config, dtype, options
        self.batch = options.rows
        self.notes: list[str] = []
        self.makers: dict[str, Callable[[], Any]] = {
            "input_ids": self._input_ids,
            "attention_mask": self._text_integers,
            "decoder_input_ids": self._text_integers,
            "pixel_values": self._pixel_values,
            "input_features": self._input_features,
            "input_values": self._input_values,
        }

    def _field(self, *names: str, default: Any = None) -> Any:
        """The first of the fields that the config has, or one of its parts."""
        text, vision = (
            getattr(self.config, name, None)
            for name in ("text_config", "vision_config")
        )
        fields = itertools.product((self.config, text, vision), names)
        values = (getattr(part, name, None) for part, name in fields)
        return next((value for value in values if value is not None), default)

    def _input_ids(self) -> Any:
        tensor = self._text_integers()
        self.notes.append(f"batch {self.batch}, {tensor.shape[1]} tokens")
        return tensor

    def _text_integers(self) -> Any:
        return empty(self.batch, self._text_length(), dtype="int64")

    def _text_length(self) -> int:
        """Tokens of the text: as many as there are positions, but no more than the
        default.
        """
        positions = self._max_positions()
        length = self.options.length or min(_TEXT_LENGTH, positions)
        if length > positions:
            raise PortError(
                f"the model has positions for {positions} tokens, not for {length}", where="length",
                fix=f"at most {positions}",
            )  # fmt: skip
        return length

    def _max_positions(self) -> int:
        """The most tokens that the model takes."""
        positions = self._field(
            "max_position_embeddings", "n_positions", "max_target_positions"
        )
        # T5 has no table of positions, so that its n_positions is not a bound.
        if not isinstance(positions, int) or hasattr(
            self.config, "relative_attention_num_buckets"
        ):
            return sys.maxsize
        if self.config.model_type in _PADDING_POSITIONS:
            positions -= (getattr(self.config, "pad_token_id", None) or 0) + 1
        # Some configs have 0 for a model without a table of positions.
        return positions or sys.maxsize

    def _pixel_values(self) -> Any:
        stated = self._field("image_size")
        default = _sides(stated or _IMAGE_SIDE)
        height, width = self.options.image_size or default
        patch = _sides(self._field("patch_size", default=1))
        # The size that a config states is that of a table of positions.
        if (height, width) != default and (
            stated or height % patch[0] or width % patch[1]
        ):
            raise PortError(
                f"the model takes images of {default[0]}x{default[1]}", where="image_size",
                fix="leave it out, or change image_size in a copy of the config",
            )  # fmt: skip
        channels = self._field("num_channels", "in_channels", default=3)
        self.notes.append(f"batch {self.batch}, images of {height}x{width}")
        return empty(self.batch, channels, height, width, dtype=self.dtype)

    def _input_features(self) -> Any:
        bins = self._field("num_mel_bins", "feature_size", default=80)
        # Two frames of sound make a position.
        frames = 2 * self._field("max_source_positions", default=_SOUND_POSITIONS)
        self.notes.append(f"batch {self.batch}, {frames} frames of {bins} mel bins")
        return empty(self.batch, bins, frames, dtype=self.dtype)

    def _input_values(self) -> Any:
        self.notes.append(
            f"batch {self.batch}, {_SOUND_SECONDS} s of sound at {_SAMPLE_RATE} samples a second"
        )
        return empty(self.batch, _SOUND_SECONDS * _SAMPLE_RATE, dtype=self.dtype)


def _sides(size: Any) -> tuple[int, int]:
    """Height and width, which configs write as a number, a pair or a mapping."""
    if isinstance(size, dict):
        return int(size["height"]), int(size["width"])
    return side_pair(size)
