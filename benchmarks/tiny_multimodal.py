"""Prompts with images, videos or audio for transformers' tiny models, as the processors of their classes make them.

Pixels and audio are made by the parameters of the model's own `get_image_features`, `get_video_features` and
`get_audio_features`; these say how many features there are, and so how many placeholder tokens a prompt needs.
"""

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers.models.auto import modeling_auto

from benchmarks import tiny_multimodal_inputs as inputs_of
from benchmarks import tiny_multimodal_table, tiny_timm, tiny_transformers_table
from benchmarks.tiny_configs import TEXT_TOKENS

MODALITIES = ("image", "video", "audio")
# Of each row: images of several sizes where a class takes them.
PER_ROW = {"image": 2, "video": 1, "audio": 1}
_TOKEN_FIELDS = {
    "image": ("image_token_id", "image_token_index", "img_context_token_id", "image_patch_id"),
    "video": ("video_token_id", "video_token_index"),
    "audio": ("audio_token_id", "audio_token_index"),
}
# As transformers numbers them in `mm_token_type_ids`; Gemma 3 and PaliGemma mark images in `token_type_ids`.
_TOKEN_TYPES = {"image": 1, "video": 2, "audio": 3}
_START_FIELDS = {
    "image": ("vision_start_token_id", "image_start_token_id", "boi_token_id", "boi_token_index"),
    "video": ("vision_start_token_id", "video_start_token_id", "boi_token_id"),
    "audio": ("audio_start_token_id", "boa_token_id"),
}
_END_FIELDS = {
    "image": ("vision_end_token_id", "image_end_token_id", "eoi_token_id", "eoi_token_index"),
    "video": ("vision_end_token_id", "video_end_token_id", "eoi_token_id"),
    "audio": ("audio_end_token_id", "eoa_token_id"),
}
# Whose placeholder tokens stand in how many runs: of a video, some processors put a time before each frame.
_LAYOUTS = {
    "image": (("image", "whole"),),
    "video": (("video", "whole"), ("video", "by frame"), ("image", "by frame")),
    "audio": (("audio", "whole"),),
}
# By transformers, as encoder-decoders, or not at all.
_LISTED_ELSEWHERE = frozenset(
    {
        "AudioFlamingo3ForConditionalGeneration",
        "Ernie4_5_VL_MoeForConditionalGeneration",
        "MusicFlamingoForConditionalGeneration",
    }
)
_CONFIGS = {**tiny_multimodal_table.CONFIGS, **tiny_timm.MULTIMODAL_CONFIGS}
Call = dict[str, Any]


def names() -> frozenset[str]:
    """Classes that generate text from images, videos or audio."""
    classes = [*modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values()]
    classes += modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.values()
    return frozenset(classes) | _LISTED_ELSEWHERE


def build(name: str, construct: Callable[..., Any]) -> tuple[Any, dict[str, Callable[[int], Call]]]:
    """A tiny model, and by modality what makes its batches.

    Args:
        construct: takes the name, a way to shrink configurations, and fields.

    Raises:
        RuntimeError: no small configuration and inputs that are known here run; it says what each came to.
    """
    reasons: list[str] = []
    given = tiny_transformers_table.lookup(_CONFIGS, name) or {}
    for mode in ("narrow", "equal", "own", "wide"):
        # Few patches are quickest, but not every class takes them.
        for vision in ({"image_size": None}, {}):
            try:
                model = construct(
                    name, mode, {**given, "vision_config": vision | given.get("vision_config", {})}
                )
            except Exception as error:  # noqa: BLE001 - whatever a constructor raises is the reason to report
                reasons.append(f"{type(error).__name__}: {' '.join(str(error).split())[:150]}")
                continue
            enlarge(model)
            makers = prompts(model, reasons)
            if makers:
                return model, makers
    raise RuntimeError(" | ".join(dict.fromkeys(reasons)))


def prompts(model: Any, reasons: list[str]) -> dict[str, Callable[[int], Call]]:
    """By modality a function that makes a batch of so many rows, the last of them padded on the left.

    Args:
        reasons: why a modality of the model is not among them is added here.
    """
    makers = {}
    for modality in MODALITIES:
        for inputs, layout in itertools.product(_candidates(model, modality), _LAYOUTS[modality]):
            try:
                maker = _prompt_maker(model, modality, inputs, layout)
                torch.manual_seed(0)
                _run(model, maker(2))
            except Exception as error:  # noqa: BLE001 - the next candidate may be what the class takes
                reasons.append(f"{modality}: {type(error).__name__}: {' '.join(str(error).split())[:150]}")
            else:
                makers[modality] = maker
                break
    return makers


def other_contents(call: Call) -> Call:
    """The call with other images, videos and audio of the same sizes."""
    return {
        name: 0.5 - 1.5 * value.flip(0)
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        # The codes of sound that Inkling reads.
        else value.flip(-1)
        if name == "audio_input_ids"
        else value
        for name, value in call.items()
    }


def enlarge(model: torch.nn.Module) -> None:
    """Give small initial weights the size at which what is in an image reaches the last logits, in place."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1 and weight.is_floating_point() and weight.numel() > 1 and weight.std() < 0.05:
                weight.normal_(std=0.12, generator=generator)
            # Gates of layers that attend to images are closed in a new model.
            if weight.numel() == 1 and weight.is_floating_point() and not weight.any():
                weight.fill_(1.0)


def _run(model: Any, call: Call) -> Any:
    with torch.no_grad():
        return model(**call)


def _candidates(model: Any, modality: str) -> Iterator[inputs_of.Maker]:
    method = _features_method(model, modality)
    parameters = inspect.signature(method or model.forward).parameters
    return inputs_of.candidates(
        model, modality, set(parameters), set(inspect.signature(model.forward).parameters)
    )


def _features_method(model: Any, modality: str) -> Any:
    # The outer one passes on what the inner one names.
    for owner in (getattr(model, "model", None), model):
        for name in (f"get_{modality}_features", "get_video_features"):
            method = getattr(owner, name, None)
            # InstructBLIP's of videos reads them by the name of images.
            if method is not None and (
                modality in name or "pixel_values" in inspect.signature(method).parameters
            ):
                return method
    return None


def _prompt_maker(
    model: Any, modality: str, inputs: inputs_of.Maker, layout: tuple[str, str]
) -> Callable[[int], Call]:
    """A function that makes a batch of so many rows with inputs of a kind."""
    method = _features_method(model, modality)

    def make(rows: int) -> Call:
        torch.manual_seed(1)
        items = rows * PER_ROW[modality]
        processed = inputs(items, rows)
        counts = _count(model, modality, method, processed, items)
        frames = processed[f"{modality}_grid_thw"][:, 0].tolist() if layout[1] == "by frame" else [1] * items
        runs = [[count // n] * n for count, n in zip(counts, frames, strict=True)]
        return {**_tokens(model, modality, layout[0], runs, rows), **processed}

    return make


def _count(model: Any, modality: str, method: Any, processed: Call, items: int) -> list[int]:
    """How many placeholder tokens each image, video or recording takes."""
    names = inspect.signature(method).parameters if method is not None else {}
    # The method of some reads the tokens, which are not known before the count.
    if modality == "audio" and (method is None or "input_ids" in names):
        mask = next(value for name, value in processed.items() if name.endswith("_mask"))
        return model.model.audio_tower._get_feat_extract_output_lengths(mask.sum(-1))[1].tolist()
    if method is None:
        return [0] * items
    with torch.no_grad():
        output = method(
            **{name: value for name, value in processed.items() if name in names}, return_dict=True
        )
    features = getattr(output, "pooler_output", output)
    if features is None and "deepstack_features" in output:
        # A layer, and the features that are added there.
        features = tuple(output.deepstack_features[0][1])
    if features is None:
        features = output.last_hidden_state
    rows = items // PER_ROW[modality]
    if isinstance(features, tuple) and len(features) == 2 and len(features) not in (items, rows):
        features = features[0]
    if isinstance(features, list | tuple):
        sizes = [part.numel() // part.shape[-1] for part in features]
        if len(sizes) == rows < items:
            # Of all images of a row.
            return [size // PER_ROW[modality] for size in sizes for _ in range(PER_ROW[modality])]
        # A part for each, or for each of its tiles or frames.
        step = max(1, len(sizes) // items)
        return [sum(sizes[start : start + step]) for start in range(0, len(sizes), step)]
    mask = getattr(output, "attention_mask", None)
    # Frames in rows, padding among them, or one after another without.
    if mask is not None and (mask.shape == features.shape[:-1] or features.shape[:-1] == (mask.sum(),)):
        return mask.sum(-1).tolist()
    grid = next((value for name, value in processed.items() if "grid" in name), None)
    total = features.numel() // features.shape[-1]
    if grid is None:
        return [total // items] * items
    patches = grid.prod(-1)
    return (patches * total // patches.sum()).tolist()


def _text_config(model: Any) -> Any:
    return model.config.get_text_config(decoder=True)


def _field(model: Any, names: tuple[str, ...]) -> int | None:
    for config in (model.config, _text_config(model)):
        for name in names:
            value = getattr(config, name, None)
            if isinstance(value, int) and value >= 0:
                return value
    return None


def _tokens(model: Any, modality: str, placeholder: str, runs: list[list[int]], rows: int) -> Call:
    """Token ids, their mask and their types: text with placeholders in it, the last row three tokens shorter.

    Args:
        placeholder: the modality whose placeholder stands in the text.
        runs: for each image, video or recording the lengths of its runs of placeholders.
    """
    token = _field(model, _TOKEN_FIELDS[placeholder])
    if token is None and any(map(any, runs)):
        raise ValueError(f"the config names no token for {placeholder}")
    before = _fields(model, _START_FIELDS[modality])
    after = _fields(model, _END_FIELDS[modality])
    texts = _texts(model, rows)
    ids: list[list[int]] = []
    kinds: list[list[int]] = []
    for row, text in enumerate(texts):
        line = text[:4] if row == 0 else text[3:4]
        kind = [0] * len(line)
        for lengths in runs[row * PER_ROW[modality] : (row + 1) * PER_ROW[modality]]:
            for length in filter(None, lengths):
                line = line + before + [token or 0] * length + after + text[4:6]
                kind = kind + [0] * len(before) + [_TOKEN_TYPES[modality]] * length + [0] * (len(after) + 2)
        ids.append(line + text[6:])
        kinds.append(kind + [0] * len(text[6:]))
    columns = max(map(len, ids))
    pad = _field(model, ("pad_token_id",)) or 0
    masks = [[0] * (columns - len(line)) + [1] * len(line) for line in ids]
    ids = [[pad] * (columns - len(line)) + line for line in ids]
    kinds = [[0] * (columns - len(kind)) + kind for kind in kinds]
    call = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(masks)}
    parameters = inspect.signature(model.forward).parameters
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in parameters:
            call[name] = torch.tensor(kinds)
    if "moe_mm_token_type_ids" in parameters:
        call["moe_mm_token_type_ids"] = torch.tensor(kinds).clamp(max=1)
    return call


def _fields(model: Any, names: tuple[str, ...]) -> list[int]:
    value = _field(model, names)
    return [] if value is None else [value]


def _texts(model: Any, rows: int) -> list[list[int]]:
    """Twelve tokens a row, none of them a special one."""
    special = {
        value for config in (model.config, _text_config(model)) for name, value in vars(config).items()
        if isinstance(value, int) and "token" in name
    }  # fmt: skip
    stop = min(TEXT_TOKENS.stop, _text_config(model).vocab_size)
    usable = torch.tensor([token for token in range(TEXT_TOKENS.start, stop) if token not in special])
    return usable[torch.randint(len(usable), (rows, 12))].tolist()
