"""Small transformers configurations, made from a class's defaults by the names of their fields."""

import itertools
import re
from typing import Any

VOCABULARY = 300
TOKENS = range(VOCABULARY - 60, VOCABULARY)  # the ids that special tokens move to; inputs keep clear of them
TEXT_TOKENS = range(5, VOCABULARY - 60)
TOKEN_FIELD = re.compile(r"token_(id|index)$|_token$|^(bos|eos|pad|sep|cls|mask|unk)_|_token_ids?$|_id$")
LATER = re.compile(r"label|dtype|version|architectures|initializer|dropout|rate$|eps$|problem|task")

# (what a field's name contains, the largest value it keeps), the first match decides
SIZES = [
    (re.compile(r"vocab"), VOCABULARY),
    (re.compile(r"kv_lora_rank|q_lora_rank|lora_rank"), 32),
    (re.compile(r"qk_rope_head_dim|qk_nope_head_dim|rotary_dim"), 8),
    (re.compile(r"num_experts_per_tok|top_k$|moe_topk|moe_k$|num_selected"), 2),
    (re.compile(r"n_group|topk_group|n_shared|num_shared"), 1),
    (re.compile(r"num_experts|n_routed_experts|num_local_experts|moe_num_experts"), 4),
    (re.compile(r"(key_value|kv).*heads?$|n_head_kv|num_kv"), 2),
    (re.compile(r"heads?$|attention_heads|n_heads?|num_heads|nhead"), 4),
    (re.compile(r"head_dim|head_size|d_kv$|attention_dim_head|dim_head|key_length"), 16),
    (re.compile(r"layers?$|n_layer|depth$|num_blocks|n_blocks|num_hidden_groups|^layers|num_stages_"), 2),
    (re.compile(r"intermediate|ffn|d_ff|feedforward|n_inner|mlp_dim|mlp_hidden|d_inner|fc_dim"), 128),
    (re.compile(r"hidden|d_model|n_embd|embed|^dim$|width|projection|_dim$|emb_dim|model_dim|d_embed"), 64),
    (re.compile(r"num_queries|num_object_queries|num_query|num_latents"), 16),
    (re.compile(r"sliding_window|attention_window|local_attn"), 16),
]  # fmt: skip
KEEP = re.compile(
    r"position|channels|patch|kernel|stride|image_size|window_size|max_|min_|bins|_ratio|factor|groups|num_labels|"
    r"hidden_act|num_buckets|use_|levels|n_fft|sampling|hop|period|type_vocab|num_embeds|out_features|out_indices"
)
LISTS = re.compile(r"hidden|embed|dims?$|channels|width|planes")


class Shrinker:
    """Makes a configuration small.

    Args:
        widths: Whether to cut widths too, or only depths, vocabularies, experts and token ids.
    """

    def __init__(self, *, widths: bool) -> None:
        self.widths = widths
        self.ids: dict[int, int] = {}
        self.free = iter(TOKENS)

    def fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        """What to pass to the constructor instead of these defaults: the fields that change, and no others."""
        small = {}
        for name, value in fields.items():
            if LATER.search(name):
                continue
            new = self.value(name, value, fields)
            if new != value:
                small[name] = new
        if fields.get("layer_types"):
            kinds = list(dict.fromkeys(fields["layer_types"]))
            small["layer_types"] = list(itertools.islice(itertools.cycle(kinds), max(2, len(kinds))))
            small["num_hidden_layers"] = len(small["layer_types"])
        if "pad_token_id" in fields and not fields["pad_token_id"]:
            small["pad_token_id"] = 0
        return small

    def value(self, name: str, value: Any, fields: dict[str, Any]) -> Any:
        """The small value of one field."""
        if isinstance(value, dict):
            if name in ("rope_parameters", "rope_scaling"):
                return rope(value)
            new = self.fields(value)
            return (
                {**value, **new} if "model_type" not in value else {"model_type": value["model_type"], **new}
            )
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
        if name == "image_size" and value > 256:
            return 224
        if KEEP.search(name):
            return min(value, 4096)
        for pattern, most in SIZES:
            if pattern.search(name):
                narrow = most > 4 and most != VOCABULARY and pattern is not SIZES[9][0]
                return value if narrow and not self.widths else min(value, most)
        return value

    def integers(self, name: str, values: list[int]) -> list[int]:
        """The small values of a list of whole numbers: depths become ones, widths keep their ratios."""
        if TOKEN_FIELD.search(name):
            return [self.integer(name, value) for value in values]
        if re.search(r"depths?$|layers?$|num_blocks|layer_nums|num_layers", name) and "out" not in name:
            return [min(value, 1) for value in values]
        if not self.widths or "section" in name or "kernel" in name or "stride" in name:
            return values
        if re.search(r"heads?$", name):
            return [max(1, value // min(values)) if min(values) else value for value in values]
        if LISTS.search(name) and min(values) >= 16:
            return [value // (min(values) // 16) for value in values]
        return values


def rope(parameters: dict[str, Any]) -> dict[str, Any]:
    """Rotary parameters for a head of 16: the sections of a multi-axis embedding have to sum to its half."""
    if "mrope_section" in parameters:
        return {**parameters, "mrope_section": [2, 3, 3]}
    return {name: rope(value) if isinstance(value, dict) else value for name, value in parameters.items()}


def small(config_class: type[Any], *, widths: bool = True) -> Any:
    """A small configuration of the class.

    Raises:
        Exception: Whatever the class raises: that it has no defaults, or that the sizes do not suit it.
    """
    defaults = config_class().to_dict()
    fields = Shrinker(widths=widths).fields(defaults)
    if defaults.get(
        "use_timm_backbone"
    ):  # timm is another library: the same models take transformers' own backbone
        stages = {"depths": [1, 1, 1, 1], "embedding_size": 16, "hidden_sizes": [16, 32, 64, 128]}
        backbone = {"model_type": "resnet", **stages, "out_features": ["stage4"]}
        fields |= {"use_timm_backbone": False, "backbone": None, "backbone_config": backbone}
    return config_class(**fields)
