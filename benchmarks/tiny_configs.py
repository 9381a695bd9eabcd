"""Small transformers configurations, made from a class's defaults by the names of their fields."""

import itertools
import re
from typing import Any

from transformers import CONFIG_MAPPING, configuration_utils

# transformers has one tuple of them or several, under other names in each release.
LAYER_TYPES = {
    kind
    for name, kinds in vars(configuration_utils).items()
    if re.fullmatch(r"ALLOWED_\w*LAYER_TYPES", name)
    for kind in kinds
}
VOCABULARY = 300
TOKENS = range(VOCABULARY - 60, VOCABULARY)  # the ids that special tokens move to; inputs keep clear of them
TEXT_TOKENS = range(5, VOCABULARY - 60)
TOKEN_FIELD = re.compile(r"token_(id|index)$|_token$|^(bos|eos|pad|sep|cls|mask|unk)_|_token_ids?$|_id$")
LATER = re.compile(r"label|dtype|version|architectures|initializer|dropout|rate$|eps$|problem|task")

KEY_HEADS = re.compile(r"(key_value|kv)_heads?$|n_head_kv|num_kv")
# Fewer also in a "wide" model: torch leaves open which of hundreds of nearly equal scores `topk` takes.
QUERIES = re.compile(r"num_queries|num_object_queries|num_query|num_latents")
DEPTHS = re.compile(r"layers?$|n_layer|depth$|num_blocks|n_blocks|num_hidden_groups|^layers|num_stages_")

# (what a field's name contains, the largest value it keeps), the first match decides
SIZES = [
    (re.compile(r"vocab"), VOCABULARY),
    (re.compile(r"kv_lora_rank|q_lora_rank|lora_rank"), 32),
    (re.compile(r"rotary_dim"), 8),
    (re.compile(r"feat_extract|num_adapter_layers|conv"), 1_000_000),
    (re.compile(r"num_experts_per_tok|top_k$|moe_topk|moe_k$|num_selected"), 2),
    (re.compile(r"n_group|topk_group|n_shared|num_shared"), 1),
    (re.compile(r"num_experts|n_routed_experts|num_local_experts|moe_num_experts"), 4),
    (KEY_HEADS, 2),
    (re.compile(r"heads?$|attention_heads|n_heads?|num_heads|nhead"), 4),
    (re.compile(r"head_dim|head_size|d_kv$|attention_dim_head|dim_head|key_length"), 16),
    (DEPTHS, 2),
    (re.compile(r"intermediate|ffn|d_ff|feedforward|n_inner|mlp_dim|mlp_hidden|d_inner|fc_dim"), 128),
    (re.compile(r"upsample_groups"), 64),  # a group for each channel
    (re.compile(r"hidden|d_model|n_embd|embed|^dim$|width|projection|_dim$|emb_dim|model_dim|d_embed"), 64),
    (QUERIES, 16),
    (re.compile(r"sliding_window|attention_window|local_attn"), 16),
]  # fmt: skip
KEEP = re.compile(
    r"position|channels|patch|kernel|stride|image_size|window_size|max_|min_|bins|_ratio|factor|(?<!upsample_)groups|"
    r"num_labels|hidden_act|num_buckets|use_|levels|n_fft|sampling|hop|period|type_vocab|num_embeds|out_features|out_indices"
)
LISTS = re.compile(r"hidden|embed|dims?$|channels|width|planes")


class Shrinker:
    """Makes a configuration small.

    Args:
        mode: "narrow" cuts all; "equal" keeps as many key heads as query heads; "own" starts the
            configuration's parts from their own defaults, not from the whole's; "wide" cuts depths, vocabularies,
            experts, queries and token ids only.
    """

    def __init__(self, mode: str) -> None:
        self.widths = mode != "wide"
        self.equal, self.own = mode == "equal", mode == "own"
        self.ids: dict[int, int] = {}
        self.free = iter(TOKENS)

    def fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        """What to pass to the constructor instead of these defaults: the fields that change, and no others."""
        small: dict[str, Any] = {}
        for name, value in fields.items():
            if not isinstance(name, str) or LATER.search(name):
                continue
            new = self.value(name, value, fields)
            if new != value:
                small[name] = new
        kinds = list(dict.fromkeys(fields.get("layer_types") or ()))
        if kinds and set(kinds) <= LAYER_TYPES:  # convolutional layers have types of other names
            small["num_hidden_layers"] = max(2, len(kinds))
            small["layer_types"] = list(itertools.islice(itertools.cycle(kinds), small["num_hidden_layers"]))
        small |= last_stages(fields)
        if depth := fields.get("num_hidden_layers"):
            kept = small.get("num_hidden_layers", depth)
            per_layer = (
                key for key, value in fields.items() if isinstance(value, list) and len(value) == depth
            )
            small |= {key: fields[key][:kept] for key in per_layer if key != "layer_types" and depth > 4}
        if fields.get("per_layer_config"):
            small["per_layer_config"] = None
        if "pad_token_id" in fields and not fields["pad_token_id"]:
            small["pad_token_id"] = 0
        return small

    def value(self, name: str, value: Any, fields: dict[str, Any]) -> Any:
        """The small value of one field."""
        if isinstance(value, dict):
            if name in ("rope_parameters", "rope_scaling"):
                return rope(value, axes=has_axes(fields)) if self.widths else value
            if str(value.get("model_type", "")).startswith("timm"):
                return backbone(value)
            new = self.fields(value)
            if self.own and "model_type" in value:
                return {"model_type": value["model_type"], **new}
            return {**value, **new}
        if isinstance(value, bool) or value is None or isinstance(value, str | float):
            return value
        if isinstance(value, int):
            return self.integer(name, value)
        if isinstance(value, list | tuple) and value and all(type(item) is int for item in value):
            return self.integers(name, list(value))
        return value

    def integer(self, name: str, value: int) -> int:
        """The small value of a whole number."""
        if TOKEN_FIELD.search(name):
            if value >= TEXT_TOKENS.stop:
                self.ids.setdefault(value, 0) or self.ids.update({value: next(self.free)})
                return self.ids[value]
            return value
        if name == "image_size":
            return min(value, 224)
        if KEEP.search(name):
            return min(value, 4096)
        if self.equal and KEY_HEADS.search(name):
            return min(value, 4)
        for pattern, most in SIZES:
            if pattern.search(name):
                narrow = most > 4 and most != VOCABULARY and pattern not in (DEPTHS, QUERIES)
                return value if narrow and not self.widths else min(value, most)
        return value

    def integers(self, name: str, values: list[int]) -> list[int]:
        """The small values of a list of whole numbers: depths become ones, widths keep their ratios."""
        if TOKEN_FIELD.search(name):
            return [self.integer(name, value) for value in values]
        if re.search(r"depths?$|num_blocks|layer_nums|num_layers", name) and "out" not in name:
            return [min(value, 1) for value in values]
        if not self.widths or "section" in name or "kernel" in name or "stride" in name:
            return values
        if re.search(r"heads?$", name):
            return [max(1, value // min(values)) if min(values) else value for value in values]
        if LISTS.search(name) and min(values) >= 16:
            return [value // (min(values) // 16) for value in values]
        return values


def last_stages(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a backbone, each of whose layers is a stage: as many layers as it has outputs, and two at least."""
    stages, outputs = fields.get("stage_names"), fields.get("out_features")
    if not outputs or not stages or len(stages) != fields.get("num_hidden_layers", 0) + 1:
        return {}
    depth = max(2, len(outputs))
    last = list(range(depth - len(outputs) + 1, depth + 1))
    names = [f"stage{number}" for number in last]
    return {"num_hidden_layers": depth, "out_features": names, "out_indices": last}


def has_axes(fields: dict[str, Any]) -> bool:
    """Whether the model of these fields rotates by positions on several axes."""
    model_type = fields.get("model_type")
    if model_type not in CONFIG_MAPPING:
        return False
    return "mrope_section" in getattr(CONFIG_MAPPING[model_type], "ignore_keys_at_rope_validation", ())


def rope(parameters: dict[str, Any], *, axes: bool) -> dict[str, Any]:
    """Rotary parameters for a head of 16: the sections of a multi-axis embedding have to sum to its half."""
    made = {
        name: rope(value, axes=axes) if isinstance(value, dict) else value
        for name, value in parameters.items()
    }
    if "rope_theta" in made and made["rope_theta"] is None:
        made["rope_theta"] = 10_000.0
    if axes or "mrope_section" in made:
        made["mrope_section"] = [2, 3, 3] if made.get("partial_rotary_factor", 1.0) > 0.5 else [1, 1, 2]
    return made


def backbone(fields: dict[str, Any]) -> dict[str, Any]:
    """A backbone of transformers' own in place of one of timm's, which is another library."""
    outputs = {"out_indices": list(fields.get("out_indices") or [4])}
    stages = {"depths": [1, 1, 1, 1], "embedding_size": 16, "hidden_sizes": [16, 32, 64, 128]}
    return {"model_type": "resnet", **stages, **outputs}


def few_patches(given: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The fields of a part, with None for the size of images replaced by that of 4 x 4 patches."""
    if "image_size" not in given or given["image_size"] is not None:
        return given
    size, patch = defaults.get("image_size"), defaults.get("patch_size")
    rest = {name: value for name, value in given.items() if name != "image_size"}
    if isinstance(size, int) and isinstance(patch, int):
        return {**rest, "image_size": 4 * patch}
    if isinstance(size, list | tuple) and isinstance(patch, list | tuple):
        return {**rest, "image_size": [4 * side for side in patch]}
    return rest


def small(config_class: type[Any], mode: str, given: dict[str, Any]) -> Any:
    """A small configuration of the class, with the fields that are given.

    Raises:
        Exception: Whatever the class raises: that it has no defaults, or that the sizes do not suit it.
    """
    defaults = config_class().to_dict()
    fields = Shrinker(mode).fields(defaults)
    return config_class(**overlaid(fields, given, defaults))


def overlaid(fields: dict[str, Any], given: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Fields with those that are given over them, in their parts too."""
    result = dict(fields)
    for name, value in given.items():
        if isinstance(value, dict) and isinstance(defaults.get(name), dict):
            value = overlaid(fields.get(name, {}), few_patches(value, defaults[name]), defaults[name])
        result[name] = value
    return result
