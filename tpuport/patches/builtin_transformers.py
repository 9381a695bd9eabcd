"""The patches that are part of tpuport for transformers."""

from tpuport.patches.patch import Patch

_VERSIONS = ">=5.23,<5.24"
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
# Recurrences of transformers' models: name, target, function of
# `transformers_recurrences`, digest.
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

# Linear attention by the delta rule: target, digest; all of them are
# `delta_rules:chunk_delta_rule`.
_GATED_DELTA_RULE = "be5acee836d3a950622e9e7df4c69d2719369fa47c9763e8261a885c854f19f4"
_KIMI_DELTA_RULE = "d35292212fc62917fcabd5ac67fab9cab424c86098e1ac2634819320006ea7d4"
_DELTA_RULES = dict.fromkeys(
    ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen4_exp", "olmo_hybrid"),
    ("torch_chunk_gated_delta_rule", _GATED_DELTA_RULE),
) | dict.fromkeys(
    ("kimi_linear", "bailing_hybrid", "glm5_next"),
    ("chunk_kimi_delta_attention", _KIMI_DELTA_RULE),
)

# Experts that transformers runs one by one: target, function of `separate_experts`,
# digest.
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
    (
        "idefics2",
        "Idefics2Model",
        "ae7f5ab2025e4bc3ea3e2cb234387298c57d92d0c608006e89ec4859a89b2aca",
    ),
    (
        "idefics3",
        "Idefics3Model",
        "71ad853a10914366592a4f5ceafa8c6bad6f015892a63650d69982ec7bb5e9b8",
    ),
    (
        "smolvlm",
        "SmolVLMModel",
        "3af162600fc596accd6d480b560fed826a8e61c3f84669807d8a47c7d4fa07d9",
    ),
]
# Models whose images are tokens: name, direction, method, function of `image_tokens`,
# digest.
_IMAGE_TOKENS = [
    (
        "chameleon",
        "encode",
        "convert_img2bpe",
        "chameleon_tokens",
        "53a61d0401c64c8658dd9d926d697227b3d2d3ccef7b4f6fb40df77924f32a92",
    ),
    (
        "emu3",
        "encode",
        "convert_img2bpe",
        "emu3_tokens",
        "69975d1bad4dee8b96b5f684de6ae2c857bc0fb4145d3359344523feed6d625c",
    ),
    (
        "emu3",
        "decode",
        "convert_bpe2img",
        "emu3_codes",
        "1e47e42fd68c67a16576af1807d6367df0c1a34384c6a0ae2edf2a7c21b6fa40",
    ),
]
_LENGTHS_WHY = "it takes the longest length to Python, to assert that it does not exceed the number of columns"
_PATCHES_WHY = "its number of patches follows from what it computes, and is not known while tracing"
# Models that look at values: model, name, target, function, digest, reason.
_METHODS_OF_MODELS = [
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
    (
        "longformer",
        "encoder",
        "LongformerEncoder.forward",
        "longformer:encode",
        "86154eddcf49209d7f2f2d7a8921aa3b82627cbc404c01506c93164bf03d271f",
        "it asks whether any token attends globally",
    ),
    (
        "longformer",
        "attention",
        "LongformerSelfAttention.forward",
        "led:attend",
        "8068c828018de67c813a88d3376e5f37bcbda7c08c11ea7540d5430baeeeabef",
        "it looks up which tokens attend globally, and their number is not known while tracing",
    ),
    (
        "oneformer",
        "mask",
        "OneFormerTransformerDecoderLayer.forward",
        "oneformer:decode_layer",
        "ce37f0eb4d106d9919e4ab5d4212bdc775be26d032dbb7acef7a3a7f25eabe12",
        "it looks up which queries see no pixel, and their number is not known while tracing",
    ),
    (
        "reformer",
        "positions",
        "AxialPositionEmbeddings.forward",
        "reformer:embed_axial_positions",
        "8c00c36f04d9c4b42e62da2704a996aad6053b2392cab16e89d082356f3c698d",
        "it takes the largest position to Python, to cut its table",
    ),
    (
        "blt",
        "hashes",
        "byte_group_hash_function",
        "blt:hash_groups",
        "2d8aace5bdcd142eca9489d2e3ad4e323de8bd1e315fdc6bcf32cbe76c0ab0f6",
        "it computes with integers of 64 bits, which overflow",
    ),
    (
        "blt",
        "lengths",
        "BltPatcher.patch_lengths_from_entropies",
        "blt:lengths_from_entropies",
        "71d43ef73205bd94707fa127fc0ed933983f93febd32e737bd189a60f69ff367",
        _PATCHES_WHY,
    ),
    (
        "blt",
        "parts",
        "process_patch_lengths",
        "blt:split_lengths",
        "93ec8139750862e27670acfdff8aae9c232a9426c3b1bf1cf6d4b8ac7dc80c6f",
        _PATCHES_WHY,
    ),
    (
        "blt",
        "bytes",
        "BltModel._patch_ids_from_lengths",
        "blt:patch_of_each_byte",
        "ba62d2fb11392210e06f5211df489706164ce584002d2e12be138337b56126f6",
        _PATCHES_WHY,
    ),
    (
        "hunyuan_vl",
        "placeholders",
        "HunYuanVLModel.get_placeholder_mask",
        "hunyuan_vl:placeholder_mask",
        "1ccf9bfea7d0c782af5baa35379440317c86bbe47826923f4dd9e2b34e1f8081",
        "it selects the placeholders of images to count them, and their number is not known while tracing",
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
# Models that read back what they have written, until they write blanks: the beginning
# of their classes' names.
_TRANSDUCERS = {
    "parakeet": "Parakeet",
    "nemotron3_5_asr": "Nemotron3_5Asr",
    "nemotron_asr_streaming": "NemotronAsrStreaming",
}
_ENCODEC_CONVOLUTION = (
    "5012d7aa6ad001b177708a772a5dd3f131b4c6fc9c78e963926db28be99c7031"
)
_MIMI_CONVOLUTION = "8260ca4f99905efe699eeb5550e34903833182af0fbec0052d178a59dcbded6f"
_LONGCAT_EXPERTS = "6f90d62ee5e560dfbb8dcc5200004f7c0e54265a541bb8ec093289bf85c4c078"

TRANSFORMERS_PATCHES = [
    *(
        Patch(
            name=name,
            target=f"transformers.models.{target}",
            package="transformers",
            versions=_VERSIONS,
            why="it looks up which tokens each expert has, and their number is not known while tracing",
            replacement=f"tpuport.patches.separate_experts:{function}",
            source=(source,),
        )
        for name, (target, function, source) in _EXPERTS.items()
    ),
    Patch(
        name="xmod.lang_adapter",
        target="transformers.models.xmod.modeling_xmod:XmodOutput.lang_adapter",
        package="transformers",
        versions=_VERSIONS,
        why="it selects the rows of each language by a mask",
        replacement="tpuport.patches.xmod:lang_adapter",
        source=("59cd9a99f0cbe8315502dde3b1b8ec368ccd21ef1ef82314dbcdbdb9e7c14519",),
    ),
    *(
        Patch(
            name=f"{model.replace('_', '-')}.convolution",
            target=f"transformers.models.{model}.modeling_{model}:{name}Conv1d.forward",
            package="transformers",
            versions=_VERSIONS,
            why="its padding follows from buffers, whose values are not known while tracing",
            replacement=f"tpuport.patches.codec_convolutions:{function}",
            source=(source,),
        )
        for model, name, function, source in (
            ("encodec", "Encodec", "encodec_forward", _ENCODEC_CONVOLUTION),
            ("mimi", "Mimi", "mimi_forward", _MIMI_CONVOLUTION),
            (
                "pocket_tts_audio_tokenizer",
                "PocketTTSAudioTokenizer",
                "pocket_tts_forward",
                _MIMI_CONVOLUTION,
            ),
        )
    ),
    Patch(
        name="esm.predicted-score",
        target="transformers.models.esm.openfold_utils.loss:compute_tm",
        package="transformers",
        versions=_VERSIONS,
        why="it looks for the best alignment among those that are equal to it, whose number is a value",
        replacement="tpuport.patches.esm:compute_tm",
        source=("dd51164666c5a5281a3330ab4e1c1bcacb398d509ec0c932945cf215f5535c02",),
    ),
    *(
        Patch(
            name=f"jetmoe.{name}",
            target=f"transformers.models.jetmoe.modeling_jetmoe:{target}",
            package="transformers",
            versions=_VERSIONS,
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
            versions=_VERSIONS,
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
            versions=_VERSIONS,
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
            versions=_VERSIONS,
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
            versions=_VERSIONS,
            why=why,
            replacement=f"tpuport.patches.{replacement}",
            source=(source,),
        )
        for name, what, target, replacement, source, why in _METHODS_OF_MODELS
    ),
    *(
        Patch(
            name=f"led.{name}",
            target=f"transformers.models.led.modeling_led:{target}",
            package="transformers",
            versions=_VERSIONS,
            why=why,
            replacement=f"tpuport.patches.led:{function}",
            source=(source,),
        )
        for name, target, function, source, why in _LED
    ),
    *(
        Patch(
            name=f"{name}.image-tokens.{direction}",
            target=f"transformers.models.{name}.modeling_{name}:{name.title()}ImageVocabularyMapping.{method}",
            package="transformers",
            versions=_VERSIONS,
            why="it looks up the codes of images on the host",
            replacement=f"tpuport.patches.image_tokens:{function}",
            source=(source,),
        )
        for name, direction, method, function, source in _IMAGE_TOKENS
    ),
    *(
        Patch(
            name=f"{model.replace('_', '-')}.decoder",
            target=f"transformers.models.{model}.modeling_{model}:{name}RNNTDecoder.forward",
            package="transformers",
            versions=_VERSIONS,
            why="it asks whether all rows have written a blank",
            replacement="tpuport.patches.transducers:decoder_forward",
            source=(
                "58f14ae777dbf3cd8b10443eec744c3e9001ea854a6d1797bb703e933ebbd13b",
            ),
        )
        for model, name in _TRANSDUCERS.items()
    ),
    Patch(
        name="chmv2.depths",
        target=(
            "transformers.models.chmv2.modeling_chmv2:CHMv2FeaturesToDepth._create_outputs_with_mixlog_norm"
        ),
        package="transformers",
        versions=_VERSIONS,
        why="it adds 256 positive numbers, which XLA adds one after another: five times torch's rounding error",
        replacement="tpuport.patches.chmv2:mix_depths",
        source=("b5b6f14de5b736e214c4bdf3d9cc702fa17f167c725ac96b736060b4c9926c7d",),
    ),
    Patch(
        name="qwen4-exp.indexer",
        target="transformers.models.qwen4_exp.modeling_qwen4_exp:Qwen4ExpTextQSAIndexer.forward",
        package="transformers",
        versions=_VERSIONS,
        why="it looks up the positions of visible tokens for each query, whose number is not known while tracing",
        replacement="tpuport.patches.qwen4_exp:select_tokens",
        source=("bf589553251577d01c665956afb362484eca732cf8dcedb7624b3fc3135b2c9e",),
    ),
    Patch(
        name="glm5-next.indexer",
        target="transformers.models.glm5_next.modeling_glm5_next:Glm5NextTextIndexer.get_pooled_states",
        package="transformers",
        versions=_VERSIONS,
        why="it leaves out pools of keys that are complete in no row, whose number is not known while tracing",
        replacement="tpuport.patches.glm5_next:pool_states",
        source=("6ecb9f6c8dc4b811d15fdd3a378d75a1c95b804c0e4f14aeba06fd5cc06628ce",),
    ),
    Patch(
        name="glm5-next.mask",
        target=(
            "transformers.models.glm5_next.modeling_glm5_next:"
            "Glm5NextTextAttention.build_attention_mask_from_topk"
        ),
        package="transformers",
        versions=_VERSIONS,
        why="it asks for torch's attention by name, and for another gives queries of padding other results",
        replacement="tpuport.attention.register.selected_keys:mask_of_selected_keys",
        source=("bac876730c9e8a33862acaa502d0695e41b4c590e0de53f5ed7c6fb4cb6c24a3",),
    ),
    Patch(
        name="longcat-flash.experts",
        target="transformers.models.longcat_flash.modeling_longcat_flash:LongcatFlashExperts.forward",
        package="transformers",
        versions=_VERSIONS,
        why="it looks up which tokens each expert has, and their number is not known while tracing",
        replacement="tpuport.patches.transformers_experts:longcat_forward",
        source=(_LONGCAT_EXPERTS,),
    ),
]
