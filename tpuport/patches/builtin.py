"""The patches that tpuport brings."""

from tpuport.patches.patch import Patch

_DIFFUSERS = ">=0.37,<0.43"

# Rotary embeddings written with complex numbers: (name, target, replacement, digest).
_COMPLEX_ROTARY = [
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

_TRANSFORMERS = "diffusers.models.transformers"

# Autoencoders of videos whose tiles are blended by the same loops, and the loops' digests.
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
_NO_TIME = ("wan", "qwen-image")  # they blend no frames

PATCHES: list[Patch] = [
    Patch(
        name="hunyuan-video-1.5.forward",
        target="diffusers.models.transformers.transformer_hunyuan_video15:HunyuanVideo15Transformer3DModel.forward",
        package="diffusers",
        versions=_DIFFUSERS,
        why="it asks in Python whether image embeddings are zero, and reads valid tokens by boolean masks",
        replacement="tpuport.patches.hunyuan_video15:forward",
        source=("cc4a7977ea978e86ad850c38c594e3b456e4e899f9a03ad70ea3d1dbf24831c3",),
    ),
    Patch(
        name="hunyuan-video.text-refiner",
        target=f"{_TRANSFORMERS}.transformer_hunyuan_video:HunyuanVideoIndividualTokenRefiner.forward",
        package="diffusers",
        versions=_DIFFUSERS,
        why="its mask is dense; the same for every valid token as padding, which kernels take",
        replacement="tpuport.patches.hunyuan_video:refiner_forward",
        source=("5e13e99063b438453cd382c6d90c6576ccfaad08c6e4b5c22b5085683c38aa88",),
    ),
    Patch(
        name="hunyuan-image.text-refiner",
        target=f"{_TRANSFORMERS}.transformer_hunyuanimage:HunyuanImageIndividualTokenRefiner.forward",
        package="diffusers",
        versions=_DIFFUSERS,
        why="its mask is dense; the same for every valid token as padding, which kernels take",
        replacement="tpuport.patches.hunyuan_video:refiner_forward",
        source=("1b2e70e298498773536558edabc92958ff35a786f0098c51c7b896e1b9bfb4d9",),
    ),
    Patch(
        name="framepack.forward",
        target=f"{_TRANSFORMERS}.transformer_hunyuan_video_framepack:HunyuanVideoFramepackTransformer3DModel.forward",
        package="diffusers",
        versions=_DIFFUSERS,
        why="it cuts text to its number of valid tokens, or writes a mask row by row up to such numbers",
        replacement="tpuport.patches.hunyuan_video:framepack_forward",
        source=("d48b113cb1086f41d8dc0a9ca37768d2b18e211c1e5311590a7710c42944cf26",),
    ),
    Patch(
        name="mochi.attention",
        target="diffusers.models.attention_processor:MochiAttnProcessor2_0.__call__",
        package="diffusers",
        versions=_DIFFUSERS,
        why="it looks up the places of valid text tokens in each sample",
        replacement="tpuport.patches.mochi:attention_call",
        source=("ec92ebf1a868dda5692d6824268d5b1792c737258583faf769568a5e60947f64",),
    ),
    Patch(
        name="hunyuan-video-1.5.vae-attention",
        target="diffusers.models.autoencoders.autoencoder_kl_hunyuanvideo15:HunyuanVideo15AttnBlock.forward",
        package="diffusers",
        versions=_DIFFUSERS,
        why="it builds a dense mask of all positions by all positions, a row at a time",
        replacement="tpuport.patches.hunyuan_video15_vae:attention_forward",
        source=("88dfa59960421ac967b076e15383ba7d7388f3edc6b60ff6cfcf3f3ce60e7730",),
    ),
    *(
        Patch(
            name=name,
            target=f"diffusers.models.{target}",
            package="diffusers",
            versions=">=0.36,<0.43",
            why="it multiplies complex numbers; the same in real arithmetic, which every TPU has",
            replacement=f"tpuport.patches.complex_rotary:{replacement}",
            source=(source,),
        )
        for name, target, replacement, source in _COMPLEX_ROTARY
    ),
    *(
        Patch(
            name=f"{name}.{method.replace('_', '-')}",
            target=f"diffusers.models.autoencoders.{target}.{method}",
            package="diffusers",
            versions=_DIFFUSERS,
            why="it writes one row of a tile at a time, each time a program of its own and a copy of the tile",
            replacement=f"tpuport.patches.tile_blending:{method}",
            source=(source,),
        )
        for name, target in _TILED.items()
        for method, source in _BLENDING.items()
        if method != "blend_t" or name not in _NO_TIME
    ),
]
