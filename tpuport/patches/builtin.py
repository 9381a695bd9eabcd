"""The patches that are part of tpuport, and those for diffusers and torch."""

import itertools

from tpuport.patches.builtin_transformers import TRANSFORMERS_PATCHES
from tpuport.patches.patch import Patch

_VERSIONS = ">=0.37,<0.43"
# The sources of functions with complex rotary embeddings are the same in one release
# more.
_VERSIONS_ROTARY = ">=0.36,<0.43"


def _patch(
    name: str,
    target: str,
    replacement: str,
    source: str,
    why: str,
    versions: str = _VERSIONS,
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
        "hunyuan-image.forward",
        "transformers.transformer_hunyuanimage:HunyuanImageTransformer2DModel.forward",
        "hunyuan_image:forward",
        "a1c2ee2671edfe970c5210d49656a0b84202052b69106ec0616bd8bb0d2eda89",
        why="it selects valid tokens by boolean masks",
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

# Rotary tables that are computed in the first call: module of `RopeEmbedder` by the
# name of the model.
_LAZY_TABLES = {
    "z-image": "transformers.transformer_z_image",
    "z-image-controlnet": "controlnets.controlnet_z_image",
    "bria-fibo-2": "transformers.transformer_bria_fibo2",
}
# Rotary embeddings written with complex numbers: name, target, function of
# `complex_rotary`, digest.
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
_ROW_BY_ROW = "it writes one row of a tile at a time, each time in a separate program and with a copy of the tile"

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
        _patch(
            name,
            target,
            f"complex_rotary:{function}",
            source,
            _COMPLEX,
            _VERSIONS_ROTARY,
        )
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
    Patch(
        name="torch.causal-mask",
        target="torch.nn.modules.transformer:_detect_is_causal_mask",
        package="torch",
        versions=">=2.13,<2.14",
        why="it compares a mask's values with those of a causal one",
        replacement="tpuport.patches.transformer_masks:detect_is_causal_mask",
        source=("177c5a0daa2ef4487fcfe13888722417129afe76d42711666f65aaab5c7c0707",),
    ),
    Patch(
        name="torch.recurrent-weights",
        target="torch.nn.modules.rnn:RNNBase._update_flat_weights",
        package="torch",
        versions=">=2.13,<2.14",
        why="it keeps weak references to the weights of one trace, so that each call would be another program",
        replacement="tpuport.patches.recurrent_weights:update_flat_weights",
        source=("77408943ee719f32e4c0baeb3170809f6dc2c655e0895045e2bf26db5be35ad3",),
    ),
    *TRANSFORMERS_PATCHES,
]
