"""Inputs of transformers' models that do not generate: encoders of text, images and sound, and encoder-decoders."""

import inspect
from typing import Any, Final

from tpuport.errors import PortError
from tpuport.topology.targets.target import Options, empty

TEXT: Final = 512  # tokens of a text whose length nobody says, where the model takes as many
_SECONDS, _RATE, _MEL_FRAMES = (
    10,
    16_000,
    3_000,
)  # of sound: seconds, samples a second, and Whisper's 30 seconds
_IMAGES: Final = ("pixel_values",)


def concrete(model_class: Any, config: Any) -> Any:
    """The class that an automatic one stands for with this config."""
    mapping = getattr(model_class, "_model_mapping", None)
    if mapping is None:
        return model_class
    try:
        found = mapping[type(config)]
    except KeyError as error:
        raise PortError(
            f"transformers has no {model_class.__name__} of {type(config).__name__}", where="config.json",
            fix="name the class in the config: architectures",
        ) from error  # fmt: skip
    return found[0] if isinstance(found, tuple | list) else found


def applicable(model_class: Any, config: Any) -> tuple[str, ...]:
    """The options that say something of these models' inputs."""
    names = _names(model_class, config)
    text = ("length",) if {"input_ids", "decoder_input_ids"} & set(names) else ()
    return ("batch", *text, *(("image_size",) if set(_IMAGES) & set(names) else ()), "task")


def inputs_of(
    model_class: Any, config: Any, dtype: str, options: Options
) -> tuple[dict[str, Any], tuple[str, float], tuple[str, ...]]:
    """The arguments of a call, what it makes and how many, and notes.

    Raises:
        PortError: an argument that cannot be made here.
    """
    maker = _Maker(config, dtype, options)
    made: dict[str, Any] = {}
    for name in _names(model_class, config):
        if (make := getattr(maker, name, None)) is None:
            raise PortError(
                f"no value can be made here for the argument {name!r} of {concrete(model_class, config).__name__}",
                where=name, fix="--inputs module:function, which returns the arguments of forward by name",
            )  # fmt: skip
        made[name] = make()
    if set(made) <= set(_IMAGES):
        return made, ("images", float(maker.batch)), tuple(maker.notes)
    tokens = sum(value.shape[1] for name, value in made.items() if name.endswith("input_ids"))
    unit = ("tokens", float(maker.batch * tokens)) if tokens else ("steps", 1.0)
    return made, unit, tuple(maker.notes)


def _names(model_class: Any, config: Any) -> list[str]:
    """The arguments to give: the main one, those without a default, masks of text, and a decoder's ids."""
    found = concrete(model_class, config)
    parameters = inspect.signature(found.forward).parameters
    main = getattr(found, "main_input_name", "input_ids")
    plain = [
        parameter.name
        for parameter in parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and (parameter.default is parameter.empty or parameter.name == main)
        and parameter.name != "self"
    ]
    both = [name for name in ("input_ids", "pixel_values") if name in parameters and _compares(found)]
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters:
        plain.append("decoder_input_ids")
    names = list(dict.fromkeys([*plain, *both]))
    if "input_ids" in names and "attention_mask" in parameters:
        names.append("attention_mask")
    return names


def _compares(model_class: Any) -> bool:
    """Whether this compares texts with images, as CLIP does."""
    from transformers.models.auto import modeling_auto

    return (
        model_class.__name__ in modeling_auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES.values()
    )


class _Maker:
    """Tensors by the names of arguments; `notes` says what was chosen."""

    def __init__(self, config: Any, dtype: str, options: Options) -> None:
        self.config, self.dtype, self.options = config, dtype, options
        self.batch = options.batch or 1
        self.notes: list[str] = []

    def field(self, *names: str) -> Any:
        """The first of the fields that the config has, or one of its parts."""
        parts = [
            self.config,
            *(getattr(self.config, name, None) for name in ("text_config", "vision_config")),
        ]
        return next(
            (v for part in parts for name in names if (v := getattr(part, name, None)) is not None), None
        )

    def input_ids(self) -> Any:
        length = self.text()
        self.notes.append(f"batch {self.batch}, {length} tokens")
        return empty(self.batch, length, dtype="int64")

    def attention_mask(self) -> Any:
        return empty(self.batch, self.text(), dtype="int64")

    def decoder_input_ids(self) -> Any:
        return empty(self.batch, self.text(), dtype="int64")

    def text(self) -> int:
        """Tokens of the text: as many as there are positions, at most `TEXT`."""
        most = self.field("max_position_embeddings", "n_positions", "max_target_positions")
        # T5 has no table of positions: its n_positions is no bound.
        bound = (
            most
            if isinstance(most, int) and not hasattr(self.config, "relative_attention_num_buckets")
            else None
        )
        # RoBERTa's table begins with places for padding that no token can have.
        if bound and self.config.model_type in ("roberta", "xlm-roberta", "camembert", "longformer"):
            bound -= (getattr(self.config, "pad_token_id", None) or 0) + 1
        length = self.options.length
        if length and bound and length > bound:
            raise PortError(
                f"the model has positions for {bound} tokens, not for {length}", where="length",
                fix=f"at most {bound}",
            )  # fmt: skip
        return length or min(TEXT, bound or TEXT)

    def pixel_values(self) -> Any:
        own = self.field("image_size")
        height, width = _pair(own) if own else (224, 224)
        if self.options.image_size and self.options.image_size != (height, width):
            patch = _pair(self.field("patch_size") or 1)
            if own or any(side % part for side, part in zip(self.options.image_size, patch, strict=True)):
                raise PortError(
                    f"the model takes images of {height}x{width}", where="image_size",
                    fix="leave it out, or change image_size in a copy of the config",
                )  # fmt: skip
            height, width = self.options.image_size
        channels = self.field("num_channels", "in_channels") or 3
        self.notes.append(f"batch {self.batch}, images of {height}x{width}")
        return empty(self.batch, channels, height, width, dtype=self.dtype)

    def input_features(self) -> Any:
        bins = self.field("num_mel_bins", "feature_size") or 80
        frames = 2 * (self.field("max_source_positions") or _MEL_FRAMES // 2)
        self.notes.append(f"batch {self.batch}, {frames} frames of {bins} mel bins")
        return empty(self.batch, bins, frames, dtype=self.dtype)

    def input_values(self) -> Any:
        self.notes.append(f"batch {self.batch}, {_SECONDS} s of sound at {_RATE} samples a second")
        return empty(self.batch, _SECONDS * _RATE, dtype=self.dtype)


def _pair(size: Any) -> tuple[int, int]:
    """(height, width) of what configs write as a number, a pair or a mapping."""
    if isinstance(size, dict):
        return int(size["height"]), int(size["width"])
    return (int(size), int(size)) if isinstance(size, int) else (int(size[0]), int(size[1]))
