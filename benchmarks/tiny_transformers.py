"""Tiny transformers models: every class that it exports, as far as small defaults suit it."""

import copy
import inspect
import itertools
import re
from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

from benchmarks import (
    exported_models,
    tiny_configs,
    tiny_generating,
    tiny_timm,
    tiny_transformers_images,
    tiny_transformers_mixed,
    tiny_transformers_parts,
    tiny_transformers_sound,
)
from benchmarks import tiny_transformers_table as table

CONFIGS = {
    **table.CONFIGS,
    **tiny_transformers_images.CONFIGS,
    **tiny_transformers_mixed.CONFIGS,
    **tiny_transformers_sound.CONFIGS,
    **tiny_transformers_parts.CONFIGS,
    **tiny_timm.CONFIGS,
}
INPUTS = {
    **table.INPUTS,
    **tiny_transformers_images.INPUTS,
    **tiny_transformers_mixed.INPUTS,
    **tiny_transformers_sound.INPUTS,
    **tiny_transformers_parts.INPUTS,
    **tiny_timm.INPUTS,
}
BATCH, LENGTH = 2, 16
LARGEST = 60_000_000  # parameters: what builds and runs in a few seconds
MAPPINGS = (
    "CAUSAL_LM IMAGE_TEXT_TO_TEXT SEQ_TO_SEQ_CAUSAL_LM MASKED_LM OBJECT_DETECTION ZERO_SHOT_OBJECT_DETECTION "
    "UNIVERSAL_SEGMENTATION INSTANCE_SEGMENTATION SEMANTIC_SEGMENTATION DEPTH_ESTIMATION SPEECH_SEQ_2_SEQ CTC "
    "MASK_GENERATION TABLE_QUESTION_ANSWERING ZERO_SHOT_IMAGE_CLASSIFICATION VIDEO_CLASSIFICATION "
    "TEXT_TO_WAVEFORM TEXT_TO_SPECTROGRAM KEYPOINT_DETECTION KEYPOINT_MATCHING TIME_SERIES_PREDICTION "
    "MULTIMODAL_LM IMAGE_CLASSIFICATION AUDIO_CLASSIFICATION BASE PRETRAINING SEQUENCE_CLASSIFICATION RNNT TDT "
    "AUDIO_XVECTOR IMAGE_TO_IMAGE DECISION IMAGE_MATTING POSE_ESTIMATION TOKEN_CLASSIFICATION QUESTION_ANSWERING "
    "DOCUMENT_QUESTION_ANSWERING VISUAL_QUESTION_ANSWERING MULTIPLE_CHOICE NEXT_SENTENCE_PREDICTION TEXT_ENCODING "
    "AUDIO_FRAME_CLASSIFICATION BACKBONE MASKED_IMAGE_MODELING CAUSAL_IMAGE_MODELING NORMAL_ESTIMATION "
    "POINTMAP_ESTIMATION TEXT_RECOGNITION TABLE_RECOGNITION TIME_SERIES_CLASSIFICATION TIME_SERIES_REGRESSION"
).split()


def mapping(name: str) -> dict[str, Any]:
    """From model type to class name or names, by the mapping's short name."""
    full = "MODEL_MAPPING_NAMES" if name == "BASE" else f"MODEL_FOR_{name}_MAPPING_NAMES"
    return dict(getattr(modeling_auto, full, {}))


def by_type() -> dict[str, list[str]]:
    """From model type to its classes, the most telling first."""
    classes: dict[str, list[str]] = {}
    for name in MAPPINGS:
        for model_type, found in mapping(name).items():
            listed = found if isinstance(found, tuple | list) else (found,)
            classes.setdefault(model_type, []).extend(listed)
    return {model_type: list(dict.fromkeys(found)) for model_type, found in sorted(classes.items())}


def names() -> list[str]:
    """Class names: first one of every model type, then another of every type, and so on, then those without a type."""
    columns = itertools.zip_longest(*by_type().values())
    of_types = [name for column in columns for name in column if name]
    return list(dict.fromkeys([*of_types, *exported_models.names("transformers")]))


def kin(name: str) -> list[str]:
    """The other classes of a class's types, of what these are parts of, and of its module."""
    classes = by_type()
    types = [model_type for model_type, members in classes.items() if name in members]
    # The type of a part, such as "voxtral_realtime_text", begins with that of the whole.
    wholes = [whole for whole in classes if any(model_type.startswith(whole) for model_type in types)]
    found = [member for model_type in (*types, *wholes) for member in classes[model_type]]
    modules = transformers._class_to_module
    module = modules.get(name)
    found += [other for other in exported_models.names("transformers") if modules[other] == module]
    return [other for other in dict.fromkeys(found) if other != name]


def build(name: str) -> tuple[torch.nn.Module, list[dict[str, Any]]]:
    """The model and the calls that it was tried with.

    Raises:
        RuntimeError: If no combination of small sizes and inputs that is known here runs.
    """
    if tiny_generating.only_generates(name):
        return tiny_generating.build(name)
    reasons: list[str] = []
    for mode in ("narrow", "equal", "own", "wide"):
        try:
            model = construct(name, mode)
        except Exception as error:  # noqa: BLE001 - whatever a constructor raises is the reason to report
            reasons.append(brief(error))
            continue
        calls = [call for variant in VARIANTS if (call := attempt(model, variant, reasons)) is not None]
        if not calls and (call := attempt(model, {"unmasked": 1}, reasons)) is not None:
            calls = [call]
        if calls:
            different = list({str(shapes(call)): call for call in calls}.values())
            return model, [*different, *(call for call in others(name, calls[0]) if runs(model, call))]
    raise RuntimeError(" | ".join(dict.fromkeys(reasons)))


def others(name: str, first_call: dict[str, Any]) -> list[dict[str, Any]]:
    """The call again: with a mask of ones, with none, and with labels where they are token ids."""
    more = []
    if (mask := first_call.get("attention_mask")) is not None:
        more.append({**first_call, "attention_mask": torch.ones_like(mask)})
        more.append({key: value for key, value in first_call.items() if key != "attention_mask"})
    # Musicgen's ids have a row for each codebook, its labels a column.
    has_labels = name.endswith(("ForCausalLM", "LMHeadModel")) and not name.startswith("Musicgen")
    if has_labels and "input_ids" in first_call:
        more.append({**first_call, "labels": first_call["input_ids"]})
    return more


def runs(model: torch.nn.Module, call: dict[str, Any]) -> bool:
    """Whether the model takes a call; some take none without a mask."""
    try:
        with torch.no_grad():
            # Some models change when they are called: Mimi's codebook keeps what it computed.
            copy.deepcopy(model)(**call)
    except Exception:  # noqa: BLE001 - whatever it raises, torch takes no such call
        return False
    return True


def brief(error: Exception) -> str:
    """An error in a few words."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[-150:]}"


def construct(name: str, mode: str, fields: dict[str, Any] | None = None) -> torch.nn.Module:
    """The class with a small configuration and random weights, in evaluation mode.

    Args:
        fields: of the configuration, over those of the table.

    Raises:
        Exception: Whatever the class raises.
    """
    model_class = getattr(transformers, name)
    given = table.lookup(CONFIGS, name) or {}
    for field, value in (fields or {}).items():
        if isinstance(value, dict) and isinstance(given.get(field), dict):
            value = {**given[field], **value}
        given = {**given, field: value}
    config = tiny_configs.small(model_class.config_class, mode, given)
    with torch.device("meta"):
        parameters = sum(weight.numel() for weight in model_class(config).parameters())
    if parameters > LARGEST:
        raise ValueError(f"too large: {parameters / 1e6:.0f}M parameters with the {mode} sizes")
    model = model_class(config).eval()
    name_first_token(model)
    if name.startswith(table.SIZE_KEEPING):
        keep_sizes(model)
    return model


def name_first_token(model: Any) -> None:
    """Name a token that the decoder begins with, in place, where the defaults of the class name none."""
    settings = getattr(model, "generation_config", None)
    if settings is None or not model.config.is_encoder_decoder:
        return
    if settings.decoder_start_token_id is None and settings.bos_token_id is None:
        settings.decoder_start_token_id = 0


def keep_sizes(model: torch.nn.Module) -> None:
    """Draw the weights of convolutions anew, in place, so that what a layer gives is as large as what it gets."""
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(module.weight)


def find(config: Any, *wanted: str, default: Any = None) -> Any:
    """The first of the fields that the configuration or one of its parts has."""
    parts = [config]
    for part in parts:
        parts += [
            sub for name in getattr(part, "sub_configs", {}) if (sub := getattr(part, name, None)) is not None
        ]
    for name in wanted:
        for part in parts:
            value = getattr(part, name, None)
            if value is not None:
                return value
    return default


def first(value: Any) -> int:
    """The number, or the first of several."""
    return int(value[0] if isinstance(value, list | tuple) else value)


class Inputs:
    """The arguments of a call, by the names in the signature of the model's `forward`."""

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        frames: int = 0,
        images: int = 0,
        image_tokens: int = 0,
        last: int = -1,
        masks: int = 0,
        unmasked: int = 0,
    ) -> None:
        self.last, self.masks, self.unmasked = last, masks, unmasked
        self.name = type(model).__name__
        self.config: Any = model.config
        self.parameters = inspect.signature(model.forward).parameters
        self.main = getattr(model, "main_input_name", "input_ids")
        self.frames, self.images, self.image_tokens = frames, images, image_tokens

    def make(self) -> dict[str, Any]:
        """The keyword arguments, for the parameters that are known here."""
        made: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            maker: Callable[[], Any] | None = getattr(self, name, None)
            required = parameter.default is inspect.Parameter.empty
            if maker is not None and (
                required or name in ALWAYS or name == self.main or (self.masks and name in MASKS)
            ):
                value = maker()
                if value is not None:
                    made[name] = value
        if "mm_token_type_ids" in self.parameters and "input_ids" in made and self.image_tokens:
            made["mm_token_type_ids"] = (made["input_ids"] == find(self.config, *IMAGE_TOKENS)).long()
        given = table.lookup(INPUTS, self.name)
        extra = {key: value for key, value in (given() if given else {}).items() if key in self.parameters}
        made = {**made, **extra}
        if self.name.endswith("ForMultipleChoice"):
            # Of each row two choices.
            made = {name: torch.stack([value, value.flip(0)], 1) for name, value in made.items()}
        return made

    def input_ids(self) -> Any:
        if self.main not in ("input_ids", "pixel_values", "input_features", "input_values") and (
            self.parameters["input_ids"].default is not inspect.Parameter.empty
        ):
            return None
        start, stop = tiny_configs.TEXT_TOKENS.start, tiny_configs.TEXT_TOKENS.stop
        ids = torch.randint(start, min(stop, find(self.config, "vocab_size", default=stop)), (BATCH, LENGTH))
        token = find(self.config, *IMAGE_TOKENS)
        if token is not None and self.image_tokens:
            picture = torch.full((BATCH, self.image_tokens), token)
            ids = torch.cat([ids[:, :1], picture, ids[:, 1:]], dim=1)
        # Some take what they give from the last token alone.
        ends = "Clip" in type(self.config).__name__ or self.classifies_decoded()
        if ends and (end := find(self.config, "eos_token_id")) is not None:
            ids[:, -1] = first(end)
        return ids

    def classifies_decoded(self) -> bool:
        """Whether the model classifies what its decoder makes of the encoder's own ids."""
        return self.name.endswith("ForSequenceClassification") and bool(self.config.is_encoder_decoder)

    def decoder_input_ids(self) -> Any:
        if self.classifies_decoded():
            return None
        return torch.randint(5, 200, (BATCH, 6))

    def attention_mask(self) -> Any:
        if self.unmasked:
            return None
        if "input_ids" in self.parameters:
            length = LENGTH + self.image_tokens
        elif self.main == "input_features":
            length = self.input_features().shape[-1 if self.features_last() else 1]
        elif self.main == "input_values":
            length = self.input_values().shape[-1]
        else:
            return None
        mask = torch.ones(BATCH, length, dtype=torch.long)
        mask[1, -3:] = 0  # a padded row: a mask of ones lets models skip what they do for one
        return mask

    def bbox(self) -> Any:
        return torch.tensor([1, 2, 50, 60]).repeat(BATCH, LENGTH, 1)

    def token_type_ids(self) -> Any:
        if "Tapas" in type(self.config).__name__:
            return torch.zeros(BATCH, LENGTH, 7, dtype=torch.long)
        return None

    def side(self) -> int:
        """Height and width of an image."""
        size = find(self.config, "image_size", default=224)
        return min(first(size), 256)

    def pixel_values(self) -> Any:
        config = self.config
        channels = find(config, "num_channels", "in_channels", "in_chans", default=3)
        channels = channels if isinstance(channels, int) and channels < 16 else 3
        if "image_grid_thw" in self.parameters or "grid_thw" in self.parameters:
            return self.patches()
        if "spatial_shapes" in self.parameters:
            return torch.randn(BATCH, 16, 3 * first(find(config, "patch_size", default=16)) ** 2)
        side = self.side()
        shape = [BATCH, channels, side, side]
        if self.frames:
            shape.insert(1, find(config, "num_frames", default=self.frames))
        if self.images:
            shape.insert(1, self.images)
        return torch.randn(shape)

    def image_grid_thw(self) -> Any:
        return torch.tensor([[1, 4, 4]] * BATCH)

    def image_sizes(self) -> Any:
        if not re.search("Next|Onevision|Pixtral|Mistral3|Aria", type(self.config).__name__):
            return None
        return torch.tensor([[self.side(), self.side()]] * BATCH)

    def pixel_attention_mask(self) -> Any:
        if "spatial_shapes" in self.parameters:
            return table.padded(BATCH, 16)
        shape = (BATCH, self.side(), self.side())
        return torch.ones((BATCH, self.images, *shape[1:]) if self.images else shape, dtype=torch.bool)

    def pixel_mask(self) -> Any:
        mask = torch.ones(BATCH, self.side(), self.side(), dtype=torch.long)
        mask[1, :, -16:] = 0
        return mask

    def spatial_shapes(self) -> Any:
        return torch.tensor([[4, 4]] * BATCH)

    def features_last(self) -> bool:
        """Whether time is the last axis of the audio features (Whisper's order)."""
        if self.last >= 0:
            return bool(self.last)
        return find(self.config, "max_source_positions") is not None and self.main == "input_features"

    def input_features(self) -> Any:
        width = find(
            self.config, "num_mel_bins", "input_feat_per_channel", "feature_size", "num_mels", default=80
        )
        if self.features_last():
            return torch.randn(
                BATCH, width, 2 * min(find(self.config, "max_source_positions", default=1500), 1500)
            )
        return torch.randn(BATCH, 96, width)

    def input_features_mask(self) -> Any:
        return table.padded(BATCH, self.input_features().shape[-1 if self.features_last() else 1])

    feature_attention_mask = input_features_mask

    def grid_thw(self) -> Any:
        return self.image_grid_thw()

    def hidden_states(self) -> Any:
        return self.patches() if "grid_thw" in self.parameters else None

    def patches(self) -> Any:
        """The images' patches in one list, for models that take the grids beside it."""
        patch = first(find(self.config, "patch_size", default=14))
        depth = find(self.config, "temporal_patch_size", "patch_temporal", default=1)
        if "patchify" in self.name or self.frames:  # some take the patches as small images
            return torch.randn(BATCH * 16, 3, patch, patch)
        return torch.randn(BATCH * 16, 3 * depth * patch * patch)

    def pixel_values_videos(self) -> Any:
        if self.frames or self.main == "pixel_values_videos":
            frames = find(self.config, "num_frames", "frames_per_clip", default=4)
            return torch.randn(BATCH, frames, 3, self.side(), self.side())
        return None

    def bool_masked_pos(self) -> Any:
        return None

    def input_values(self) -> Any:
        bins = find(self.config, "num_mel_bins")
        if "ASTConfig" in type(self.config).__name__:
            return torch.randn(BATCH, find(self.config, "max_length"), bins)
        wide = re.search("Encodec|Dac|Mimi|Xcodec|XCodec|PocketTTS|PeAudio", type(self.config).__name__)
        return torch.randn(BATCH, 1, 4000) if wide else torch.randn(BATCH, 4000)


IMAGE_TOKENS = ("image_token_id", "image_token_index")
MASKS = frozenset("input_features_mask feature_attention_mask pixel_attention_mask".split())
ALWAYS = frozenset(
    "input_ids attention_mask pixel_values decoder_input_ids input_features bbox token_type_ids image_grid_thw "
    "image_sizes pixel_mask spatial_shapes".split()
)
VARIANTS: tuple[dict[str, int], ...] = (
    {}, {"frames": 2}, {"images": 1}, {"images": 3}, {"last": 1}, {"last": 0},
    {"masks": 1}, {"masks": 1, "last": 1}, {"masks": 1, "images": 1},
)  # fmt: skip
FEATURES = re.compile(
    r"tokens: (\d+).*?features:? \(?(\d+)|(\d+) image tokens.*?(\d+) image features", re.DOTALL
)


def shapes(call: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of a call's arguments."""
    return {name: tuple(getattr(value, "shape", ())) for name, value in call.items()}


def attempt(model: torch.nn.Module, variant: dict[str, int], reasons: list[str]) -> dict[str, Any] | None:
    """A call of this variant that the model takes; or none, and the reason is added to `reasons`.

    A model that counts its image tokens says how many it wants when it refuses; they are then given.
    """
    pending = [0]
    while pending:
        tokens = pending.pop(0)
        torch.manual_seed(0)
        inputs: dict[str, Any] = {}
        try:
            inputs = Inputs(model, **variant, image_tokens=tokens).make()
            with torch.no_grad():
                # Some models change when they are called: Mimi's codebook keeps what it computed.
                copy.deepcopy(model)(**inputs)
        except Exception as error:  # noqa: BLE001
            reasons.append(f"{brief(error)} {shapes(inputs)}")
            if told := FEATURES.search(str(error)):
                told_count = int(told.group(2) or told.group(4)) // BATCH
                width = find(getattr(model.config, "text_config", model.config), "hidden_size", default=1)
                pending += [count for count in (told_count, told_count // width) if 0 < count < 3000] * (
                    not tokens
                )
        else:
            return inputs
    return None
