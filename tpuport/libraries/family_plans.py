"""Sharding plans of well-known models of transformers whose own config has none."""

from typing import Final

# By `model_type`, written as transformers writes its own: names below the base model,
# `*` for a layer's number.
FAMILY_PLANS: Final[dict[str, dict[str, str]]] = {
    "gpt2": {
        "wpe": "replicate",
        "h.*.mlp.c_fc": "colwise",
        "h.*.mlp.c_proj": "rowwise",
    },
    # Its own plan covers the experts alone.
    "gpt_oss": {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.sinks": "colwise",
        "layers.*.self_attn.o_proj": "rowwise",
    },
    "gptj": {
        "h.*.attn.q_proj": "colwise",
        "h.*.attn.k_proj": "colwise",
        "h.*.attn.v_proj": "colwise",
        "h.*.attn.out_proj": "rowwise",
        "h.*.mlp.fc_in": "colwise",
        "h.*.mlp.fc_out": "rowwise",
    },
    "gpt_neo": {
        "wpe": "replicate",
        "h.*.attn.attention.q_proj": "colwise",
        "h.*.attn.attention.k_proj": "colwise",
        "h.*.attn.attention.v_proj": "colwise",
        "h.*.attn.attention.out_proj": "rowwise",
        "h.*.mlp.c_fc": "colwise",
        "h.*.mlp.c_proj": "rowwise",
    },
    "opt": {
        "decoder.embed_positions": "replicate",
        "decoder.layers.*.self_attn.q_proj": "colwise",
        "decoder.layers.*.self_attn.k_proj": "colwise",
        "decoder.layers.*.self_attn.v_proj": "colwise",
        "decoder.layers.*.self_attn.out_proj": "rowwise",
        "decoder.layers.*.fc1": "colwise",
        "decoder.layers.*.fc2": "rowwise",
    },
}
