"""The patches that tpuport brings."""

from tpuport.patches.patch import Patch

_DIFFUSERS = ">=0.37,<0.43"

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
        name="hunyuan-video-1.5.vae-attention",
        target="diffusers.models.autoencoders.autoencoder_kl_hunyuanvideo15:HunyuanVideo15AttnBlock.forward",
        package="diffusers",
        versions=_DIFFUSERS,
        why="it builds a dense mask of all positions by all positions, a row at a time",
        replacement="tpuport.patches.hunyuan_video15_vae:attention_forward",
        source=("88dfa59960421ac967b076e15383ba7d7388f3edc6b60ff6cfcf3f3ce60e7730",),
    ),
]
