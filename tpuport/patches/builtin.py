"""The patches that are part of tpuport, for diffusers and transformers."""

import itertools

from tpuport.patches.patch import Patch

_VERSIONS = ">=0.37,<0.43"
# The sources of functions with complex rotary embeddings are the same in one release more.
_VERSIONS_ROTARY = ">=0.36,<0.43"


def _patch(
    name: str, target: str, replacement: str, source: str, why: str, versions: str = _VERSIONS
) -> Patch:
    return Patch(
        name=name,
        target=f"diffusers.models.{target}",
        package="diffusers",
        versions=versions,
        why=why,
        replacement=f"tpuport.patches.{replacement}",
        source=(source,),
    )


_DENSE_MASK = "its mask is dense; a padding mask, which kernels support, is the same for every valid token"

_FORWARDS = [
    _patch(
        "hunyuan-video-1.5.forward",
        "transformers.transformer_hunyuan_video15:HunyuanVideo15Transformer3DModel.forward",
        "hunyuan_video15:forward",
        "cc4a7977ea978e86ad850c38c594e3b456e4e899f9a03ad70ea3d1dbf24831c3",
        why="it tests in Python whether image embeddings are zero, and selects valid tokens by boolean masks",
    ),
    _patch(
        "hunyuan-video.text-refiner",
        "transformers.transformer_hunyuan_video:HunyuanVideoIndividualTokenRefiner.forward",
        "hunyuan_video:refiner_forward",
        "5e13e99063b438453cd382c6d90c6576ccfaad08c6e4b5c22b5085683c38aa88",
        why=_DENSE_MASK,
    ),
    _patch(
        "hunyuan-image.text-refiner",
        "transformers.transformer_hunyuanimage:HunyuanImageIndividualTokenRefiner.forward",
        "hunyuan_video:refiner_forward",
        "1b2e70e298498773536558edabc92958ff35a786f0098c51c7b896e1b9bfb4d9",
        why=_DENSE_MASK,
    ),
    _patch(
        "framepack.forward",
        "transformers.transformer_hunyuan_video_framepack:HunyuanVideoFramepackTransformer3DModel.forward",
        "hunyuan_video:framepack_forward",
        "d48b113cb1086f41d8dc0a9ca37768d2b18e211c1e5311590a7710c42944cf26",
        why="it cuts text to its number of valid tokens, or writes a mask row by row up to such numbers",
    ),
    _patch(
        "mochi.attention",
        "attention_processor:MochiAttnProcessor2_0.__call__",
        "mochi:attention_call",
        "ec92ebf1a868dda5692d6824268d5b1792c737258583faf769568a5e60947f64",
        why="it looks up the positions of valid text tokens in each sample",
    ),
    _patch(
        "hidream-image.experts",
        "transformers.transformer_hidream_image:MOEFeedForwardSwiGLU.moe_infer",
        "hidream_image:route_to_experts",
        "e4224eb87d54a9df792e02d8addd7a09c01c860281cc09406ed97386b400a22b",
        why="it cuts the tokens where their expert changes, which depends on values",
    ),
    _patch(
        "hidream-image.patchify",
        "transformers.transformer_hidream_image:HiDreamImageTransformer2DModel.patchify",
        "hidream_image:patchify",
        "035474b6fe70892b6a75338cb095b7436dbad004f89d5ecce29191546090051a",
        why="it puts the sizes of images into a tensor, by which the result is cut",
    ),
    _patch(
        "lumina-2.forward",
        "transformers.transformer_lumina2:Lumina2Transformer2DModel.forward",
        "lumina2:forward",
        "fe931e6ed4650c1a62bc71ba35b45699781c713714c891d87f1597292ff01131",
        why="it reads the number of each prompt's tokens, and cuts sequences to the longest",
    ),
    _patch(
        "glm-image.forward",
        "transformers.transformer_glm_image:GlmImageTransformer2DModel.forward",
        "glm_image:forward",
        "3a7201d3df886b2c81e371b74a6560e99a0cb26aa61754d876332aeccc8fb93a",
        why="it reads and writes the positions of a boolean mask",
    ),
    _patch(
        "omnigen.rotary",
        "transformers.transformer_omnigen:OmniGenSuScaledRotaryEmbedding.forward",
        "omnigen:rotary_forward",
        "225687eb326583561b736942d6473cb38b4afbfd7e3de6d85121d59169790757",
        why="it compares the largest position, a value of a tensor, with the length that the model was trained for",
    ),
    _patch(
        "hunyuan-video-1.5.vae-attention",
        "autoencoders.autoencoder_kl_hunyuanvideo15:HunyuanVideo15AttnBlock.forward",
        "hunyuan_video15_vae:attention_forward",
        "88dfa59960421ac967b076e15383ba7d7388f3edc6b60ff6cfcf3f3ce60e7730",
        why="it builds a dense mask of all positions by all positions, one row at a time",
    ),
]

# Rotary tables that are computed in the first call: module of `RopeEmbedder` by the name of the model.
_LAZY_TABLES = {
    "z-image": "transformers.transformer_z_image",
    "z-image-controlnet": "controlnets.controlnet_z_image",
    "bria-fibo-2": "transformers.transformer_bria_fibo2",
}
# Rotary embeddings written with complex numbers: name, target, function of `complex_rotary`, digest.
_ROTARY = [
    (
        "qwen-image.rotary",
        "transformers.transformer_qwenimage:apply_rotary_emb_qwen",
        "apply_qwen",
        "2d95f05f306b6acc5f33048da3d364bf61801bbdae98087fcc3453824504bce4",
    ),
    (
        "qwen-image-2.1.rotary",
        "transformers.transformer_qwenimage21:apply_rotary_emb_qwen",
        "apply_qwen21",
        "2d95f05f306b6acc5f33048da3d364bf61801bbdae98087fcc3453824504bce4",
    ),
    (
        "nucleus-moe-image.rotary",
        "transformers.transformer_nucleusmoe_image:_apply_rotary_emb_nucleus",
        "apply_nucleus",
        "113f50483bd939a9846bc1c02ffe4a7562f6c3375b67b8620ba00c7098a063df",
    ),
    (
        "anyflow.rotary",
        "transformers.transformer_anyflow:apply_rotary_emb",
        "apply_anyflow",
        "30f0c471c9d3bbb574444a3bebe4e27202c1ecbabc267eb6e29723f2cbf69851",
    ),
    (
        "anyflow-far.rotary",
        "transformers.transformer_anyflow_far:apply_rotary_emb",
        "apply_anyflow",
        "30f0c471c9d3bbb574444a3bebe4e27202c1ecbabc267eb6e29723f2cbf69851",
    ),
    (
        "diffusers.rotary",
        "embeddings:apply_rotary_emb",
        "apply_common",
        "178a75b8e05800ade22fde3d33178a1e09e57c298aafd13abe6d47286e5bbc3b",
    ),
]
_COMPLEX = "it multiplies complex numbers; real arithmetic gives the same, and every TPU supports it"

# Video autoencoders that blend their tiles with the same loops, and the loops' digests.
_TILED = {
    "hunyuan-video-1.5": "autoencoder_kl_hunyuanvideo15:AutoencoderKLHunyuanVideo15",
    "hunyuan-video": "autoencoder_kl_hunyuan_video:AutoencoderKLHunyuanVideo",
    "wan": "autoencoder_kl_wan:AutoencoderKLWan",
    "qwen-image": "autoencoder_kl_qwenimage:AutoencoderKLQwenImage",
}
_BLENDING = {
    "blend_v": "2c5096663734582ae6e76dff2bc629e1fa736f67f4aa7aa2d2f1a1c4ace1421c",
    "blend_h": "34dedb86e0eb85f0c0ece07f64d36d25ad265ece872fe38e3b7e2f77d32ea78b",
    "blend_t": "880be8ff02ec21ce5c53163d84ca4955e1ed78503f1336fbc8b2a6c8ccafb726",
}
# These do not tile along time.
_LACKING = {("wan", "blend_t"), ("qwen-image", "blend_t")}
_ROW_BY_ROW = (
    "it writes one row of a tile at a time, each time in a separate program and with a copy of the tile"
)

_VERSIONS_TRANSFORMERS = ">=5.23,<5.24"
# JetMoE's experts: name, target, function of `jetmoe`, digest.
_JETMOE = [
    (
        "gating",
        "JetMoeTopKGating.forward",
        "gating_forward",
        "c1e7445235f36cbcba79f1db57aefd1a727974a8e6eb3d0be5c09e8b66f44e2d",
    ),
    (
        "experts",
        "JetMoeParallelExperts.forward",
        "experts_forward",
        "eae39dce0efbac79cd6d6b458a0f1c87f432916927b9b192097af879229f2641",
    ),
]
# Recurrences of transformers' models: name, target, function of `transformers_recurrences`, digest.
_RECURRENCES = [
    *(
        (
            f"{name.replace('_', '-')}.scan",
            f"{name}.modeling_{name}:mamba_selective_scan",
            "mamba_selective_scan",
            "2cf1258d096e078b4031c57d416ff0ecd7a739a90c740263a317fabf3b40fcc6",
        )
        for name in ("mamba", "falcon_mamba", "jamba", "zamba")
    ),
    (
        "rwkv.attention",
        "rwkv.modeling_rwkv:rwkv_linear_attention_cpu",
        "rwkv_linear_attention",
        "1d645ef29cdde914674cd1f6b361f4f8a0e847391cd3da68d097774faf39a46d",
    ),
    (
        "recurrent-gemma.scan",
        "recurrent_gemma.modeling_recurrent_gemma:RecurrentGemmaRglru._rnn_scan",
        "rg_lru_scan",
        "d06c609a0b1fe9bf34a0e3845f80561e0379895c98d2754c3ffb9f97f1eb2673",
    ),
]

# Linear attention by the delta rule: target, digest; all of them are `delta_rules:chunk_delta_rule`.
_GATED_DELTA_RULE = "be5acee836d3a950622e9e7df4c69d2719369fa47c9763e8261a885c854f19f4"
_KIMI_DELTA_RULE = "d35292212fc62917fcabd5ac67fab9cab424c86098e1ac2634819320006ea7d4"
_DELTA_RULES = dict.fromkeys(
    ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen4_exp", "olmo_hybrid"),
    ("torch_chunk_gated_delta_rule", _GATED_DELTA_RULE),
) | dict.fromkeys(
    ("kimi_linear", "bailing_hybrid", "glm5_next"),
    ("chunk_kimi_delta_attention", _KIMI_DELTA_RULE),
)

# Experts that transformers runs one by one: target, function of `separate_experts`, digest.
_EXPERTS = {
    "switch-transformers.experts": (
        "switch_transformers.modeling_switch_transformers:SwitchTransformersExperts.forward",
        "switch_forward",
        "9ab5bedecfbc29dbc965af34b3289e9b5e10ed63b4d55baa92f393bb7eac0d6c",
    ),
    "nllb-moe.experts": (
        "nllb_moe.modeling_nllb_moe:NllbMoeExperts.forward",
        "nllb_forward",
        "e322db342a25a7e187f4019d2461c15287731e919417a3180ff5c039f0640094",
    ),
    "dbrx.experts": (
        "dbrx.modeling_dbrx:DbrxExperts.forward",
        "dbrx_forward",
        "78707590f3ec344f4e964a30cb855b89ff7bdc118a2a0e0fb7e6247cbacc176e",
    ),
}

# Models with rows of images: name, class, digest.
_IMAGES = [
    ("idefics2", "Idefics2Model", "ae7f5ab2025e4bc3ea3e2cb234387298c57d92d0c608006e89ec4859a89b2aca"),
    ("idefics3", "Idefics3Model", "71ad853a10914366592a4f5ceafa8c6bad6f015892a63650d69982ec7bb5e9b8"),
    ("smolvlm", "SmolVLMModel", "3af162600fc596accd6d480b560fed826a8e61c3f84669807d8a47c7d4fa07d9"),
]
_LENGTHS_WHY = (
    "it takes the longest length to Python, to assert that it does not exceed the number of columns"
)
# Models that look at lengths: model, target, function of `xlm`, digest.
_LENGTHS = [
    (
        "xlm",
        "lengths",
        "XLMModel.forward",
        "xlm:xlm_forward",
        "1b00ca8bb38bbf1e5a9b08a6333fce7ff6d21de18d0cc357e412f4d70d5cad23",
        _LENGTHS_WHY,
    ),
    (
        "flaubert",
        "lengths",
        "FlaubertModel.forward",
        "xlm:flaubert_forward",
        "cadf46ebde90e1e93f865f97c142f9eb34b91594a1b40bc25a5b3f98ea9a6fbd",
        _LENGTHS_WHY,
    ),
]
# LED: name, target, function of `led`, digest, reason.
_LED = [
    (
        "mask",
        "_prepare_4d_attention_mask_inverted",
        "mask_columns",
        "a6a8794e25bb71808cc2a36fc749f5ae55d69cab9d13593ecab23f5e9c8daa1f",
        "the encoder asks of its result whether any token attends globally",
    ),
    (
        "attention",
        "LEDEncoderSelfAttention.forward",
        "attend",
        "8068c828018de67c813a88d3376e5f37bcbda7c08c11ea7540d5430baeeeabef",
        "it looks up which tokens attend globally, and their number is not known while tracing",
    ),
    (
        "positions",
        "LEDLearnedPositionalEmbedding.forward",
        "embed_positions",
        "837c54d0d16109ae04c4dc9fd0fd6bcb1455a5d42ae0f58367c5b85e3b1f2e55",
        "it makes positions by a range between two tensors, whose size is not known while tracing",
    ),
    (
        "cache",
        "LEDDecoderAttention.forward",
        "attend_in_decoder",
        "8fd3dc76acc2945dc582a921e10d89494caef0e75c9c564e61712d675bfb0483",
        "a step of one token has no mask, and would see columns of the cache that are not written yet",
    ),
]
_LONGCAT_EXPERTS = "6f90d62ee5e560dfbb8dcc5200004f7c0e54265a541bb8ec093289bf85c4c078"

_TORCH_VMAP = "it maps a function of indices with torch.vmap, which does not reach what runs on the device"
# FlexAttention: function, what replaces it, digest, reason.
_FLEX_ATTENTION = [
    (
        "flex_attention",
        "flex_attention",
        "7b6633bed41c75cfed00330cf9e2bac053f461f3af7645780cec7cac337798ec",
        "it supports a fixed list of devices",
    ),
    (
        "create_mask",
        "create_mask",
        "cf30d3274038c9415dba6b62b46a8057b466378d61761162389e635b02959387",
        _TORCH_VMAP,
    ),
    (
        "_ordered_to_dense",
        "ordered_to_dense",
        "4ee2dd61f883d526d64290480c720804729f77061eb379375964b0dde47f31ac",
        _TORCH_VMAP,
    ),
]

PATCHES: list[Patch] = [
    *_FORWARDS,
    *(
        Patch(
            name=name,
            target=f"transformers.models.{target}",
            package="transformers",
            versions=">=5.23,<5.24",
            why="it looks up which tokens each expert has, and their number is not known while tracing",
            replacement=f"tpuport.patches.separate_experts:{function}",
            source=(source,),
        )
        for name, (target, function, source) in _EXPERTS.items()
    ),
    *(
        _patch(name, target, f"complex_rotary:{function}", source, _COMPLEX, _VERSIONS_ROTARY)
        for name, target, function, source in _ROTARY
    ),
    *(
        _patch(
            f"{name}.rotary-tables",
            f"{module}:RopeEmbedder.__call__",
            "z_image:rotary_call",
            "52228171250555715c5bd107397f43876834216f4f75cd069c59e78911b6a42b",
            "it computes its tables in the first call, so that the second is another program",
        )
        for name, module in _LAZY_TABLES.items()
    ),
    *(
        _patch(
            f"{name}.{method.replace('_', '-')}",
            f"autoencoders.{_TILED[name]}.{method}",
            f"tile_blending:{method}",
            _BLENDING[method],
            _ROW_BY_ROW,
        )
        for name, method in itertools.product(_TILED, _BLENDING)
        if (name, method) not in _LACKING
    ),
    Patch(
        name="xmod.lang_adapter",
        target="transformers.models.xmod.modeling_xmod:XmodOutput.lang_adapter",
        package="transformers",
        versions=_VERSIONS_TRANSFORMERS,
        why="it selects the rows of each language by a mask",
        replacement="tpuport.patches.xmod:lang_adapter",
        source=("59cd9a99f0cbe8315502dde3b1b8ec368ccd21ef1ef82314dbcdbdb9e7c14519",),
    ),
    *(
        Patch(
            name=f"jetmoe.{name}",
            target=f"transformers.models.jetmoe.modeling_jetmoe:{target}",
            package="transformers",
            versions=_VERSIONS_TRANSFORMERS,
            why="it takes the number of tokens of each expert to Python",
            replacement=f"tpuport.patches.jetmoe:{function}",
            source=(source,),
        )
        for name, target, function, source in _JETMOE
    ),
    *(
        Patch(
            name=name,
            target=f"transformers.models.{target}",
            package="transformers",
            versions=_VERSIONS_TRANSFORMERS,
            why="it computes token by token in Python, so that a program grows with the prompt",
            replacement=f"tpuport.patches.transformers_recurrences:{function}",
            source=(source,),
        )
        for name, target, function, source in _RECURRENCES
    ),
    *(
        Patch(
            name=f"{name.replace('_', '-')}.delta-rule",
            target=f"transformers.models.{name}.modeling_{name}:{function}",
            package="transformers",
            versions=_VERSIONS_TRANSFORMERS,
            why="it computes chunk by chunk in Python, so that a program grows with the prompt",
            replacement="tpuport.patches.delta_rules:chunk_delta_rule",
            source=(source,),
        )
        for name, (function, source) in _DELTA_RULES.items()
    ),
    *(
        Patch(
            name=f"{name}.images",
            target=f"transformers.models.{name}.modeling_{name}:{model_class}.get_image_features",
            package="transformers",
            versions=_VERSIONS_TRANSFORMERS,
            why="it selects images by a boolean mask, whose number of true elements is in a tensor",
            replacement=f"tpuport.patches.transformers_images:{name}_features",
            source=(source,),
        )
        for name, model_class, source in _IMAGES
    ),
    *(
        Patch(
            name=f"{name}.{what}",
            target=f"transformers.models.{name}.modeling_{name}:{target}",
            package="transformers",
            versions=_VERSIONS_TRANSFORMERS,
            why=why,
            replacement=f"tpuport.patches.{replacement}",
            source=(source,),
        )
        for name, what, target, replacement, source, why in _LENGTHS
    ),
    *(
        Patch(
            name=f"led.{name}",
            target=f"transformers.models.led.modeling_led:{target}",
            package="transformers",
            versions=_VERSIONS_TRANSFORMERS,
            why=why,
            replacement=f"tpuport.patches.led:{function}",
            source=(source,),
        )
        for name, target, function, source, why in _LED
    ),
    Patch(
        name="qwen4-exp.indexer",
        target="transformers.models.qwen4_exp.modeling_qwen4_exp:Qwen4ExpTextQSAIndexer.forward",
        package="transformers",
        versions=_VERSIONS_TRANSFORMERS,
        why="it looks up the positions of visible tokens for each query, whose number is not known while tracing",
        replacement="tpuport.patches.qwen4_exp:select_tokens",
        source=("bf589553251577d01c665956afb362484eca732cf8dcedb7624b3fc3135b2c9e",),
    ),
    Patch(
        name="glm5-next.indexer",
        target="transformers.models.glm5_next.modeling_glm5_next:Glm5NextTextIndexer.get_pooled_states",
        package="transformers",
        versions=_VERSIONS_TRANSFORMERS,
        why="it leaves out pools of keys that are complete in no row, whose number is not known while tracing",
        replacement="tpuport.patches.glm5_next:pool_states",
        source=("6ecb9f6c8dc4b811d15fdd3a378d75a1c95b804c0e4f14aeba06fd5cc06628ce",),
    ),
    Patch(
        name="longcat-flash.experts",
        target="transformers.models.longcat_flash.modeling_longcat_flash:LongcatFlashExperts.forward",
        package="transformers",
        versions=_VERSIONS_TRANSFORMERS,
        why="it looks up which tokens each expert has, and their number is not known while tracing",
        replacement="tpuport.patches.transformers_experts:longcat_forward",
        source=(_LONGCAT_EXPERTS,),
    ),
    *(
        Patch(
            name=f"torch.{target.strip('_').replace('_', '-')}",
            target=f"torch.nn.attention.flex_attention:{target}",
            package="torch",
            versions=">=2.13,<2.14",
            why=why,
            replacement=f"tpuport.attention.register.flex_attention:{function}",
            source=(source,),
            # It has no tensors as arguments, and looks at the device that is asked for.
            when="always" if target == "create_mask" else "ported",
        )
        for target, function, source, why in _FLEX_ATTENTION
    ),
]
