"""The patches that are part of tpuport for transformers.

Each target is one place of its source; copies in other models are found by the source.
"""

from tpuport.patches.patch import Patch

_EXPERTS = "it looks up which tokens each expert has, and their number is not known while tracing"
_EXPERT_SIZES = "it takes the number of tokens of each expert to Python"
_STEP_BY_STEP = (
    "it computes token by token in Python, so that a program grows with the prompt"
)
_CHUNK_BY_CHUNK = (
    "it computes chunk by chunk in Python, so that a program grows with the prompt"
)
_IMAGES = (
    "it selects images by a boolean mask, whose number of true elements is in a tensor"
)
_PATCHES_OF_BYTES = "its number of patches follows from what it computes, and is not known while tracing"

TRANSFORMERS_PATCHES = [
    Patch(
        name="switch-transformers.experts",
        target="transformers.models.switch_transformers.modeling_switch_transformers:SwitchTransformersExperts.forward",
        why=_EXPERTS,
        replacement="tpuport.patches.separate_experts:switch_forward",
        source=("9b47249d-e9f7d59f97407037573a32292f686e31",),
    ),
    Patch(
        name="nllb-moe.experts",
        target="transformers.models.nllb_moe.modeling_nllb_moe:NllbMoeExperts.forward",
        why=_EXPERTS,
        replacement="tpuport.patches.separate_experts:nllb_forward",
        source=("3a44f812-e2a2060805f369eafb974d3a8de02969",),
    ),
    Patch(
        name="dbrx.experts",
        target="transformers.models.dbrx.modeling_dbrx:DbrxExperts.forward",
        why=_EXPERTS,
        replacement="tpuport.patches.separate_experts:dbrx_forward",
        source=("7d311486-4d01d8995a89154c1e8113832973b1d3",),
    ),
    Patch(
        name="esm.predicted-score",
        target="transformers.models.esm.openfold_utils.loss:compute_tm",
        why="it looks for the best alignment among those that are equal to it, whose number is a value",
        replacement="tpuport.patches.esm:compute_tm",
        source=("ccfd3880-9efec7962efa11554287b37a1a2de55f",),
    ),
    Patch(
        name="jetmoe.gating",
        target="transformers.models.jetmoe.modeling_jetmoe:JetMoeTopKGating.forward",
        why=_EXPERT_SIZES,
        replacement="tpuport.patches.jetmoe:gating_forward",
        source=("635ab60f-456b4dbb43cfc636a69ef4271e674859",),
    ),
    Patch(
        name="jetmoe.experts",
        target="transformers.models.jetmoe.modeling_jetmoe:JetMoeParallelExperts.forward",
        why=_EXPERT_SIZES,
        replacement="tpuport.patches.jetmoe:experts_forward",
        source=("f8577552-256100a921cd4b532dbf2e91e297f86d",),
    ),
    Patch(
        name="mamba.scan",
        target="transformers.models.mamba.modeling_mamba:mamba_selective_scan",
        why=_STEP_BY_STEP,
        replacement="tpuport.patches.transformers_recurrences:mamba_selective_scan",
        source=("5d97e722-da002cf9653436565cd6afff4a1b90d3",),
    ),
    Patch(
        name="rwkv.attention",
        target="transformers.models.rwkv.modeling_rwkv:rwkv_linear_attention_cpu",
        why=_STEP_BY_STEP,
        replacement="tpuport.patches.transformers_recurrences:rwkv_linear_attention",
        source=("a5a69d80-0a9250d7389281507868278913c7dcbe",),
    ),
    Patch(
        name="recurrent-gemma.scan",
        target="transformers.models.recurrent_gemma.modeling_recurrent_gemma:RecurrentGemmaRglru._rnn_scan",
        why=_STEP_BY_STEP,
        replacement="tpuport.patches.transformers_recurrences:rg_lru_scan",
        source=("ba6ce16e-3b8bc71d70e60246d204d63123fbefc2",),
    ),
    Patch(
        name="gated-delta-rule",
        target="transformers.models.qwen3_next.modeling_qwen3_next:torch_chunk_gated_delta_rule",
        why=_CHUNK_BY_CHUNK,
        replacement="tpuport.patches.delta_rules:chunk_delta_rule",
        source=("084886cd-6cf1bf676bb85b088f81823f16931ef0",),
    ),
    Patch(
        name="kimi-delta-rule",
        target="transformers.models.kimi_linear.modeling_kimi_linear:chunk_kimi_delta_attention",
        why=_CHUNK_BY_CHUNK,
        replacement="tpuport.patches.delta_rules:chunk_delta_rule",
        source=("084886cd-7b046bf7095f273fcf00d8ab6457057d",),
    ),
    Patch(
        name="idefics2.images",
        target="transformers.models.idefics2.modeling_idefics2:Idefics2Model.get_image_features",
        why=_IMAGES,
        replacement="tpuport.patches.transformers_images:idefics2_features",
        source=("0b8a3ca9-c63a60f286cca181c3d1b37e263bf301",),
    ),
    Patch(
        name="idefics3.images",
        target="transformers.models.idefics3.modeling_idefics3:Idefics3Model.get_image_features",
        why=_IMAGES,
        replacement="tpuport.patches.transformers_images:any_pixel_features",
        source=("0b8a3ca9-d398ec2d8d9032711908c66f2d3c0aaa",),
    ),
    Patch(
        name="smolvlm.images",
        target="transformers.models.smolvlm.modeling_smolvlm:SmolVLMModel.get_image_features",
        why=_IMAGES,
        replacement="tpuport.patches.transformers_images:any_pixel_features",
        source=("0b8a3ca9-5998530c2e6fb386196254229c41de31",),
    ),
    Patch(
        name="longformer.encoder",
        target="transformers.models.longformer.modeling_longformer:LongformerEncoder.forward",
        why="it asks whether any token attends globally",
        replacement="tpuport.patches.longformer:encode",
        source=("bccc4ea6-818f601429ef2cc17a1fba2b07739a5f",),
    ),
    Patch(
        name="longformer.attention",
        target="transformers.models.longformer.modeling_longformer:LongformerSelfAttention.forward",
        why="it looks up which tokens attend globally, and their number is not known while tracing",
        replacement="tpuport.patches.led:attend",
        source=("75399d46-11e140144b05e983c0d3d27fce6698ca",),
    ),
    Patch(
        name="blt.hashes",
        target="transformers.models.blt.modeling_blt:byte_group_hash_function",
        why="it computes with integers of 64 bits, which overflow",
        replacement="tpuport.patches.blt:hash_groups",
        source=("e5d81809-30df7df2198258d8bc2758b263c3a723",),
    ),
    Patch(
        name="blt.lengths",
        target="transformers.models.blt.modeling_blt:BltPatcher.patch_lengths_from_entropies",
        why=_PATCHES_OF_BYTES,
        replacement="tpuport.patches.blt:lengths_from_entropies",
        source=("992b199a-f8ab4a417a46f9a09643ad84a0730959",),
    ),
    Patch(
        name="blt.parts",
        target="transformers.models.blt.modeling_blt:process_patch_lengths",
        why=_PATCHES_OF_BYTES,
        replacement="tpuport.patches.blt:split_lengths",
        source=("126ead21-ddb45c8170d557b6712f8ab7b1ee2c70",),
    ),
    Patch(
        name="blt.bytes",
        target="transformers.models.blt.modeling_blt:BltModel._patch_ids_from_lengths",
        why=_PATCHES_OF_BYTES,
        replacement="tpuport.patches.blt:patch_of_each_byte",
        source=("f57a7dc7-01a5510637fe7c89d0c057e93e88861e",),
    ),
    Patch(
        name="led.mask",
        target="transformers.models.led.modeling_led:_prepare_4d_attention_mask_inverted",
        why="the encoder asks of its result whether any token attends globally",
        replacement="tpuport.patches.led:mask_columns",
        source=("91a9ec29-ed404808e60e945a7e50aaf3e9f23c73",),
    ),
    Patch(
        name="led.positions",
        target="transformers.models.led.modeling_led:LEDLearnedPositionalEmbedding.forward",
        why="it makes positions by a range between two tensors, whose size is not known while tracing",
        replacement="tpuport.patches.led:embed_positions",
        source=(
            "be12adb4-3e59ad4bd20f12b10245535887693653",
            "98c0f23e-ee2a76f2112b8bf0e4d3c4b2cff593db",
        ),
    ),
    Patch(
        name="led.cache",
        target="transformers.models.led.modeling_led:LEDDecoderAttention.forward",
        why="a step of one token has no mask, and would see columns of the cache that are not written yet",
        replacement="tpuport.patches.led:attend_in_decoder",
        source=(
            "853a6547-59b9f97ea224276d3454c98b22db1a92",
            "00312df0-3f28c0f40208322e49c796f67405cdd5",
        ),
    ),
    Patch(
        name="rnnt.decoder",
        target="transformers.models.parakeet.modeling_parakeet:ParakeetRNNTDecoder.forward",
        why="it asks whether all rows have written a blank",
        replacement="tpuport.patches.transducers:decoder_forward",
        source=("f350c1fd-0f960ef6e706deeaf53f03506d7960ac",),
    ),
    Patch(
        name="chmv2.depths",
        target="transformers.models.chmv2.modeling_chmv2:CHMv2FeaturesToDepth._create_outputs_with_mixlog_norm",
        why="it adds 256 positive numbers, which XLA adds one after another: five times torch's rounding error",
        replacement="tpuport.patches.chmv2:mix_depths",
        source=("9fe3c327-9ecf8a07e722ac08010f725561b9ee9c",),
    ),
    Patch(
        name="qwen4-exp.indexer",
        target="transformers.models.qwen4_exp.modeling_qwen4_exp:Qwen4ExpTextQSAIndexer.forward",
        why="it looks up the positions of visible tokens for each query, whose number is not known while tracing",
        replacement="tpuport.patches.qwen4_exp:select_tokens",
        source=(
            "e14d824f-b1f09cd905117377b8d4f0eeab9b0bc3",
            "a2cfb9a1-d6253d57f3148bb0006319f10aa3c054",
        ),
    ),
    Patch(
        name="glm5-next.indexer",
        target="transformers.models.glm5_next.modeling_glm5_next:Glm5NextTextIndexer.get_pooled_states",
        why="it leaves out pools of keys that are complete in no row, whose number is not known while tracing",
        replacement="tpuport.patches.glm5_next:pool_states",
        source=("1ae2eaeb-1439f00f0b353ef781c510c1d652a875",),
    ),
    Patch(
        name="glm5-next.mask",
        target="transformers.models.glm5_next.modeling_glm5_next:Glm5NextTextAttention.build_attention_mask_from_topk",
        why="it asks for torch's attention by name, and for another gives queries of padding other results",
        replacement="tpuport.attention.register.selected_keys:mask_of_selected_keys",
        source=("53bc5a98-428ea5825f4c74adc56286ee391d0a0f",),
    ),
    Patch(
        name="longcat-flash.experts",
        target="transformers.models.longcat_flash.modeling_longcat_flash:LongcatFlashExperts.forward",
        why=_EXPERTS,
        replacement="tpuport.patches.transformers_experts:longcat_forward",
        source=("7d311486-685c101d7447e1d3aa71d97aa7218fc9",),
    ),
]
