"""The patches that are part of tpuport, and those for diffusers and torch.

Each target is one place of its source; copies in other models are found by the source.
"""

from tpuport.patches.builtin_transformers import TRANSFORMERS_PATCHES
from tpuport.patches.patch import Patch

_DENSE_MASK = "its mask is dense; a padding mask, which kernels support, is the same for every valid token"
_COMPLEX = "it multiplies complex numbers; real arithmetic gives the same, and every TPU supports it"
_ROW_BY_ROW = "it writes one row of a tile at a time, each time in a separate program and with a copy of the tile"
_TORCH_VMAP = "it maps a function of indices with torch.vmap, which does not reach what runs on the device"

PATCHES: list[Patch] = [
    Patch(
        name="hunyuan-video-1.5.forward",
        target="diffusers.models.transformers.transformer_hunyuan_video15:HunyuanVideo15Transformer3DModel.forward",
        why="it tests in Python whether image embeddings are zero, and selects valid tokens by boolean masks",
        replacement="tpuport.patches.hunyuan_video15:forward",
        source=(
            "5a420465-c6c1e29c0d6af57607ffdfc61b23321e",  # diffusers 0.36
            "5a420465-d8a032a3fb0120b9eea8f5cb7d03e9ee",
        ),
    ),
    Patch(
        name="hunyuan-video.text-refiner",
        target="diffusers.models.transformers.transformer_hunyuan_video:HunyuanVideoIndividualTokenRefiner.forward",
        why=_DENSE_MASK,
        replacement="tpuport.patches.hunyuan_video:refiner_forward",
        source=("321b1389-40f79e2a4b509118024a05816cf516f5",),
    ),
    Patch(
        name="hunyuan-image.text-refiner",
        target="diffusers.models.transformers.transformer_hunyuanimage:HunyuanImageIndividualTokenRefiner.forward",
        why=_DENSE_MASK,
        replacement="tpuport.patches.hunyuan_video:refiner_forward",
        source=("321b1389-ac65a8ed089079f444de313d63e3e148",),
    ),
    Patch(
        name="hunyuan-image.forward",
        target="diffusers.models.transformers.transformer_hunyuanimage:HunyuanImageTransformer2DModel.forward",
        why="it selects valid tokens by boolean masks",
        replacement="tpuport.patches.hunyuan_image:forward",
        source=(
            "5b4a8355-bf984d019165519dac6f633b809b36d9",  # diffusers 0.36
            "5b4a8355-72d3975d0707986bef022e0e013d39fe",
        ),
    ),
    Patch(
        name="framepack.forward",
        target="diffusers.models.transformers.transformer_hunyuan_video_framepack:HunyuanVideoFramepackTransformer3DModel.forward",
        why="it cuts text to its number of valid tokens, or writes a mask row by row up to such numbers",
        replacement="tpuport.patches.hunyuan_video:framepack_forward",
        source=(
            "769901d1-1aa0475cb11fc23a960642ceaad14294",  # diffusers 0.36
            "769901d1-40d5eaa9eeb439278b055449da66d207",
        ),
    ),
    Patch(
        name="mochi.attention",
        target="diffusers.models.attention_processor:MochiAttnProcessor2_0.__call__",
        why="it looks up the positions of valid text tokens in each sample",
        replacement="tpuport.patches.mochi:attention_call",
        source=("752d825b-c06e59587333710ecb651c464be6e65b",),
    ),
    Patch(
        name="hidream-image.experts",
        target="diffusers.models.transformers.transformer_hidream_image:MOEFeedForwardSwiGLU.moe_infer",
        why="it cuts the tokens where their expert changes, which depends on values",
        replacement="tpuport.patches.hidream_image:route_to_experts",
        source=("bb4ca114-e243c2790517889a47f2d6102f81b391",),
    ),
    Patch(
        name="hidream-image.patchify",
        target="diffusers.models.transformers.transformer_hidream_image:HiDreamImageTransformer2DModel.patchify",
        why="it puts the sizes of images into a tensor, by which the result is cut",
        replacement="tpuport.patches.hidream_image:patchify",
        source=("635ab60f-3399548d7db33958063fa142d3c3332a",),
    ),
    Patch(
        name="lumina-2.forward",
        target="diffusers.models.transformers.transformer_lumina2:Lumina2Transformer2DModel.forward",
        why="it reads the number of each prompt's tokens, and cuts sequences to the longest",
        replacement="tpuport.patches.lumina2:forward",
        source=(
            "f5275b7a-dcf553404b264dd58996153725802716",  # diffusers 0.36
            "f5275b7a-1708c1fe7090f3d3d7fa0e62b07154da",
        ),
    ),
    Patch(
        name="omnigen.rotary",
        target="diffusers.models.transformers.transformer_omnigen:OmniGenSuScaledRotaryEmbedding.forward",
        why="it compares the largest position, a value of a tensor, with the length that the model was trained for",
        replacement="tpuport.patches.omnigen:rotary_forward",
        source=("4035bea0-efc54814f9ab4843df53b2ab31c5297a",),
    ),
    Patch(
        name="hunyuan-video-1.5.vae-attention",
        target="diffusers.models.autoencoders.autoencoder_kl_hunyuanvideo15:HunyuanVideo15AttnBlock.forward",
        why="it builds a dense mask of all positions by all positions, one row at a time",
        replacement="tpuport.patches.hunyuan_video15_vae:attention_forward",
        source=("34efc6f9-a430d2bd7096b6c7fff6c61c09161b93",),
    ),
    Patch(
        name="qwen-image.rotary",
        target="diffusers.models.transformers.transformer_qwenimage:apply_rotary_emb_qwen",
        why=_COMPLEX,
        replacement="tpuport.patches.complex_rotary:apply_with_sequence_first",
        source=("b99e09fa-bb9fe1198552a58734b4993ebe332d32",),
    ),
    Patch(
        name="anyflow.rotary",
        target="diffusers.models.transformers.transformer_anyflow:apply_rotary_emb",
        why=_COMPLEX,
        replacement="tpuport.patches.complex_rotary:apply_anyflow",
        source=("4b70874a-622eaf9f372adbe3f31ed1cbd3ab6faf",),
    ),
    Patch(
        name="diffusers.rotary",
        target="diffusers.models.embeddings:apply_rotary_emb",
        why=_COMPLEX,
        replacement="tpuport.patches.complex_rotary:apply_with_heads_first",
        source=("ea97b3e1-b2decf2642d51bb1a7715868d36c6e70",),
    ),
    Patch(
        name="rope-embedder.tables",
        target="diffusers.models.transformers.transformer_z_image:RopeEmbedder.__call__",
        why="it computes its tables in the first call, so that the second is another program",
        replacement="tpuport.patches.z_image:rotary_call",
        source=("4709a09d-126c6ab77a9f9d0ec594c2941a65a5e6",),
    ),
    Patch(
        name="tiles.blend-v",
        target="diffusers.models.autoencoders.autoencoder_kl_hunyuanvideo15:AutoencoderKLHunyuanVideo15.blend_v",
        why=_ROW_BY_ROW,
        replacement="tpuport.patches.tile_blending:blend_v",
        source=("649adba0-ea8907273debe894b816a5b4ee3e06ac",),
    ),
    Patch(
        name="tiles.blend-h",
        target="diffusers.models.autoencoders.autoencoder_kl_hunyuanvideo15:AutoencoderKLHunyuanVideo15.blend_h",
        why=_ROW_BY_ROW,
        replacement="tpuport.patches.tile_blending:blend_h",
        source=("649adba0-b7066c03a45f313fc80d939cd1074420",),
    ),
    Patch(
        name="tiles.blend-t",
        target="diffusers.models.autoencoders.autoencoder_kl_hunyuanvideo15:AutoencoderKLHunyuanVideo15.blend_t",
        why=_ROW_BY_ROW,
        replacement="tpuport.patches.tile_blending:blend_t",
        source=("649adba0-f146fcb6e0ac1726fda3ad1c307b7e76",),
    ),
    Patch(
        name="torch.flex-attention",
        target="torch.nn.attention.flex_attention:flex_attention",
        why="it supports a fixed list of devices",
        replacement="tpuport.attention.register.flex_attention:flex_attention",
        source=(
            "222104bc-213cd8e75d6f371c29c2f7a4114fb012",  # torch 2.9
            "222104bc-89924a28d7d4637ca6bd1bf135f22877",  # torch 2.10
            "222104bc-bca6faf231111c0e94987f67070292e3",  # torch 2.11
            "222104bc-cc49d547f0e7eee23a94493120f53bef",  # torch 2.12
            "222104bc-a8ed90b8245d0706bbd6d6162b42e769",  # torch 2.13
            "222104bc-87f9aa76f40ad5f6e56eb362a28b8fb9",  # torch 2.14, 2.15
        ),
    ),
    Patch(
        name="torch.create-mask",
        target="torch.nn.attention.flex_attention:create_mask",
        why=_TORCH_VMAP,
        replacement="tpuport.attention.register.flex_attention:create_mask",
        source=(
            "c1a1e4ba-98553bbe1b9dbe6a56080f518c03faaf",  # torch 2.9
            "c1a1e4ba-c73a7ac36cfe67a57e7118c4c58d0438",  # torch 2.10
            "c1a1e4ba-eb225da62079b19429dfa75856430a56",
        ),
        when="always",
    ),
    Patch(
        name="torch.ordered-to-dense",
        target="torch.nn.attention.flex_attention:_ordered_to_dense",
        why=_TORCH_VMAP,
        replacement="tpuport.attention.register.flex_attention:ordered_to_dense",
        source=(
            "65bddb4d-109893eb01240e4e2eb06e3e259e0388",  # torch 2.9 to 2.12
            "662af319-e19d51e7c240e16885cf5fd46e4e2f75",
        ),
    ),
    Patch(
        name="torch.causal-mask",
        target="torch.nn.modules.transformer:_detect_is_causal_mask",
        why="it compares a mask's values with those of a causal one",
        replacement="tpuport.patches.transformer_masks:detect_is_causal_mask",
        source=("e051c474-a426e20f60fd0bb33f494f94b12ae304",),
    ),
    Patch(
        name="torch.recurrent-weights",
        target="torch.nn.modules.rnn:RNNBase._update_flat_weights",
        why="it keeps weak references to the weights of one trace, so that each call would be another program",
        replacement="tpuport.patches.recurrent_weights:update_flat_weights",
        source=(
            "06c604b3-e45f45fa69c8000b98a48fa881911e98",  # torch 2.9
            "06c604b3-0d158d7520dcb4ec52c943017e59237b",
        ),
    ),
    *TRANSFORMERS_PATCHES,
]
