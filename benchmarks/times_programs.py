"""The programs whose times on real TPUs are published, as they are compiled here."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
from diffusers.models.transformers.cogvideox_transformer_3d import CogVideoXTransformer3DModel
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from diffusers.models.transformers.transformer_hunyuan_video15 import HunyuanVideo15Transformer3DModel
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from jax.sharding import PartitionSpec
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.times_attention import PublishedAttention, splash_attention
from benchmarks.times_kernels import KernelModule, multiply
from tpuport.sharding import ShardingRules

_BY_ROWS, _BY_COLUMNS, _BIAS, WHOLE = (
    PartitionSpec(None, "tp"), PartitionSpec("tp", None), PartitionSpec("tp"), PartitionSpec(),
)  # fmt: skip
ROWWISE: Final = _BY_ROWS

Rules = Mapping[str, PartitionSpec]


@dataclasses.dataclass(frozen=True)
class Program:
    """One call of a model on a slice.

    Attributes:
        name: also of the directory that keeps it.
        model: builds the model; inputs: arguments of one call by name.
        topology, dp, sp, tp: the slice and the mesh.
        rules: of the weights; None takes the model's own.
        attention: as the publication computed it; None is tpuport's.
        partitioner: of XLA, which divides the program: "shardy", or "gspmd", the older one.
        scan_layers: as in `compile_for`.
    """

    name: str
    model: Callable[[], Any]
    inputs: Callable[[], Mapping[str, Any]]
    topology: str
    dp: int = 1
    sp: int = 1
    tp: int = 1
    rules: Rules | None = None
    attention: PublishedAttention | None = None
    partitioner: str = "shardy"
    scan_layers: bool | None = None

    @property
    def mesh(self) -> dict[str, int]:
        return {"dp": self.dp, "sp": self.sp, "tp": self.tp}

    def options(self) -> dict[str, Any]:
        """For `lower_for`."""
        rules = None if self.rules is None else ShardingRules(self.rules)
        options = {"rules": rules, "dtype": "bfloat16", "scan_layers": self.scan_layers}
        return {"topology": self.topology, **self.mesh, **options}


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


# Flux: 1024 x 1024 pixels are 64 x 64 packed latents, or 128 x 128 for the decoder.


def flux(variant: str, slice_name: str, topology: str, attention: PublishedAttention) -> Program:
    """A step for an image on each of four chips; `variant` is "dev" or "schnell"."""
    guided = variant == "dev"
    text = 512 if guided else 256
    return Program(
        f"flux-{variant}-{slice_name}",
        lambda: _flux_model(guided), lambda: _flux_inputs(4, text, guided), topology, dp=4, attention=attention,
    )  # fmt: skip


def flux_attention(block: int) -> PublishedAttention:
    """jax's splash kernel, with blocks that are all of one size."""
    return PublishedAttention("splash", (block, block, block))


def flux_decoder(generation: str) -> Program:
    """The decoder of one image; where no slice has a single chip, every chip decodes the same."""
    topology, chips = {"v6e": ("v6e:1x1", 1), "v4": ("v4:2x2x1", 4)}[generation]
    return Program(
        f"flux-decoder-{generation}-1", _FluxDecoder, lambda: {"latents": _empty(1, 16, 128, 128)}, topology, dp=chips
    )  # fmt: skip


class _FluxDecoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config: dict[str, Any] = {
            "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4,
            "block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "latent_channels": 16,
            "use_quant_conv": False, "use_post_quant_conv": False,
        }  # fmt: skip
        self.vae = AutoencoderKL(**config)

    def forward(self, latents: Any) -> Any:
        """Pixels of latents."""
        return self.vae.decode(latents, return_dict=False)[0]


def _flux_model(guided: bool) -> Any:
    return FluxTransformer2DModel(guidance_embeds=guided)


def _flux_inputs(batch: int, text: int, guided: bool) -> dict[str, Any]:
    return {
        "hidden_states": _empty(batch, 4096, 64),
        "encoder_hidden_states": _empty(batch, text, 4096),
        "pooled_projections": _empty(batch, 768),
        "timestep": _empty(batch),
        "img_ids": _empty(4096, 3),
        "txt_ids": _empty(text, 3),
        "guidance": _empty(batch, dtype=torch.float32) if guided else None,
        "return_dict": False,
    }


# Wan 2.1 14B, 81 frames.


def wan(
    name: str, topology: str, size: tuple[int, int], text: int, rules: Rules | None = None,
    attention: PublishedAttention | None = None, **mesh: int,
) -> Program:  # fmt: skip
    """A step with guidance: two rows."""
    return Program(
        f"wan-2.1-14b-{name}", _wan_model, lambda: _wan_inputs(*size, text), topology, rules=rules,
        attention=attention, **mesh,
    )  # fmt: skip


def _wan_model() -> Any:
    return WanTransformer3DModel()


def _wan_inputs(height: int, width: int, text: int) -> dict[str, Any]:
    return {
        "hidden_states": _empty(2, 16, 21, height // 8, width // 8),
        "timestep": _empty(2, dtype=torch.int64),
        "encoder_hidden_states": _empty(2, text, 4096),
        "return_dict": False,
    }


def wan_decoder() -> Program:
    """Four frames of 720 x 1280 from a latent one, and from the last two of each layer; the same on every device."""
    return Program("wan-decoder-720p-tpu7x", _WanDecoder, _wan_decoder_inputs, "tpu7x:2x2x1", dp=8)


class _WanDecoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vae = AutoencoderKLWan()

    def forward(self, latents: Any, caches: list[Any]) -> Any:
        """Pixels of a latent frame, and the caches for the next one."""
        pixels = self.vae.decoder(self.vae.post_quant_conv(latents), feat_cache=caches, feat_idx=[0])
        return pixels, caches


# How many causal convolutions of the decoder take arrays of (channels, height, width); each keeps two frames.
_WAN_CACHES: Final = (
    (1, (16, 90, 160)), (11, (384, 90, 160)), (1, (192, 180, 320)), (6, (384, 180, 320)), (6, (192, 360, 640)),
    (7, (96, 720, 1280)),
)  # fmt: skip


def _wan_decoder_inputs() -> dict[str, Any]:
    shapes = [shape for layers, shape in _WAN_CACHES for _ in range(layers)]
    caches = [_empty(1, channels, 2, *size) for channels, *size in shapes]
    return {"latents": _empty(1, 16, 1, 90, 160), "caches": caches}


WAN_RULES: Final = {
    r".*(time_embedder|text_embedder)\.linear_1\.weight": _BY_COLUMNS,
    r".*(time_embedder|text_embedder)\.linear_1\.bias": _BIAS,
    r".*(time_embedder|text_embedder)\.linear_2\.weight": _BY_ROWS,
    r"blocks\.\d+\.attn[12]\.to_[qkv]\.weight": _BY_COLUMNS,
    r"blocks\.\d+\.attn[12]\.to_[qkv]\.bias": _BIAS,
    r"blocks\.\d+\.attn[12]\.to_out\.0\.weight": _BY_ROWS,
    r"blocks\.\d+\.ffn\.net\.0\.proj\.weight": _BY_COLUMNS,
    r"blocks\.\d+\.ffn\.net\.0\.proj\.bias": _BIAS,
    r"blocks\.\d+\.ffn\.net\.2\.weight": _BY_ROWS,
}
WAN_ATTENTION: Final = PublishedAttention(
    "exp2", (3328, 2816, 256), few_keys=20_000, smooth=True, divides_inputs=True, divides_output=True
)


# HunyuanVideo-1.5, 121 frames of 720 x 1280.


_HUNYUAN_BLOCKS: Final = 54


def hunyuan(
    name: str, outputs: PartitionSpec, attention: PublishedAttention, blocks: int = _HUNYUAN_BLOCKS,
    **options: Any,
) -> Program:  # fmt: skip
    """A step with guidance, two rows, on eight chips; `outputs` divides the layers that narrow."""
    return Program(
        f"hunyuan-video-1.5-{name}-v6e-8", lambda: _hunyuan_model(blocks), _hunyuan_inputs, "v6e:2x4", tp=8,
        rules=_hunyuan_rules(outputs), attention=attention, **options,
    )  # fmt: skip


def hunyuan_one_by_one(name: str, outputs: PartitionSpec) -> tuple[tuple[Program, int], ...]:
    """The same with all blocks one after another, as the port runs them, and divided by GSPMD.

    Blocks are alike: what two more of them take in a program of four, all others take too.
    """
    few, more = (
        hunyuan(
            f"{name}-{blocks}-blocks", outputs, HUNYUAN_SPLASH, blocks, partitioner="gspmd", scan_layers=False
        )
        for blocks in (2, 4)
    )
    pairs_left = (_HUNYUAN_BLOCKS - 2) // 2
    return (few, 1 - pairs_left), (more, pairs_left)


def _hunyuan_model(blocks: int) -> Any:
    return HunyuanVideo15Transformer3DModel(num_layers=blocks, target_size=960, task_type="t2v")


def _hunyuan_inputs() -> dict[str, Any]:
    return {
        "hidden_states": _empty(2, 65, 31, 45, 80),
        "timestep": _empty(2),
        "encoder_hidden_states": _empty(2, 1000, 3584),
        "encoder_attention_mask": _empty(2, 1000, dtype=torch.int64),
        "encoder_hidden_states_2": _empty(2, 256, 1472),
        "encoder_attention_mask_2": _empty(2, 256, dtype=torch.int64),
        "image_embeds": None,
        "return_dict": False,
    }


def _hunyuan_rules(outputs: PartitionSpec) -> Rules:
    """Rules of the port: weights of the blocks only, neither biases nor modulation."""
    block = r"transformer_blocks\.\d+"
    return {
        rf"{block}\.attn\.(to_[qkv]|add_[qkv]_proj)\.weight": _BY_COLUMNS,
        rf"{block}\.attn\.(to_out\.0|to_add_out)\.weight": outputs,
        rf"{block}\.(ff|ff_context)\.net\.0\.proj\.weight": _BY_COLUMNS,
        rf"{block}\.(ff|ff_context)\.net\.2\.weight": outputs,
    }


HUNYUAN_SPLASH: Final = PublishedAttention("splash", (2048, 2048, 1024), few_keys=1256)
HUNYUAN_EXP2: Final = PublishedAttention(
    "exp2", (3072, 2048, 1024), widen=True, few_keys=1256, divides_output=True
)


# CogVideoX-1.5 5B.


def cogvideox(
    name: str, topology: str, size: tuple[int, int, int], rows: int, rules: Rules,
    attention: PublishedAttention, **mesh: int,
) -> Program:  # fmt: skip
    """A step for `rows` rows of `size`: height, width and frames."""
    return Program(
        f"cogvideox-1.5-5b-{name}", _cogvideox_model, lambda: _cogvideox_inputs(rows, *size), topology, rules=rules,
        attention=attention, **mesh,
    )  # fmt: skip


def _cogvideox_model() -> Any:
    return CogVideoXTransformer3DModel(
        num_attention_heads=48, num_layers=42, patch_size_t=2, sample_height=300, sample_width=300, sample_frames=81,
        patch_bias=False, use_rotary_positional_embeddings=True, max_text_seq_length=226,
    )  # fmt: skip


def _cogvideox_inputs(rows: int, height: int, width: int, frames: int) -> dict[str, Any]:
    latents = (frames - 1) // 4 + 1
    # Patches are two frames deep.
    latents += latents % 2
    tokens = latents // 2 * (height // 16) * (width // 16)
    table = _empty(tokens, 64, dtype=torch.float32)
    return {
        "hidden_states": _empty(rows, latents, 16, height // 8, width // 8),
        "encoder_hidden_states": _empty(rows, 226, 4096),
        "timestep": _empty(rows, dtype=torch.int64),
        "image_rotary_emb": (table, table.clone()),
        "return_dict": False,
    }


# The port calls the first tensor parallel, and the second FSDP: its first divides what a product sums over.
COGVIDEOX_BY_INPUTS: Final = {
    r".*\.to_[qkv]\.weight": _BY_ROWS,
    r".*\.to_out\.0\.weight": _BY_COLUMNS,
    r".*\.ff\.net\.2\.weight": _BY_COLUMNS,
}
COGVIDEOX_BY_OUTPUTS: Final = {
    r".*\.to_[qkv]\.weight": _BY_COLUMNS,
    r".*\.to_out\.0\.weight": _BY_ROWS,
    r".*\.ff\.net\.2\.weight": _BY_ROWS,
}
COGVIDEOX_EXP2: Final = PublishedAttention(
    "exp2", (3328, 2816, 256), widen=True, smooth=True, divides_output=True
)
COGVIDEOX_SPLASH: Final = dataclasses.replace(COGVIDEOX_EXP2, kernel="splash", blocks=(2048, 1024, 512))


# Single kernels.


def product(size: int, blocks: tuple[int, int, int] | None) -> Program:
    """A product of two square matrices by XLA, or by a kernel of blocks."""
    name = "-".join(map(str, blocks or ("xla",)))
    return Program(
        f"product-{size}-{name}-v5e-1", lambda: KernelModule(functools.partial(multiply, blocks=blocks)),
        lambda: {"x": _empty(size, size), "y": _empty(size, size)}, "v5e:1x1",
    )  # fmt: skip


def splash_kernel(heads: int, queries: int, keys: int, blocks: tuple[int, int, int]) -> Program:
    """One call of jax's splash kernel, with heads of 128."""
    shapes = {"query": queries, "key": keys, "value": keys}
    return Program(
        "attention-splash-v6e-1", lambda: KernelModule(functools.partial(splash_attention, blocks=blocks)),
        lambda: {name: _empty(1, heads, length, 128) for name, length in shapes.items()}, "v6e:1x1",
    )  # fmt: skip


# Llama-2 7B.


def llama_prompt(length: int, tp: int, topology: str) -> Program:
    """The logits of a prompt's tokens."""
    return Program(
        f"llama-2-7b-prompt-{length}-{topology.replace(':', '-')}", _llama_model,
        lambda: {"input_ids": _empty(1, length, dtype=torch.int64), "use_cache": False}, topology, tp=tp,
    )  # fmt: skip


def _llama_model() -> Any:
    config = LlamaConfig(
        hidden_size=4096, intermediate_size=11_008, num_hidden_layers=32, num_attention_heads=32, vocab_size=32_000,
        max_position_embeddings=4096,
    )  # fmt: skip
    return LlamaForCausalLM(config)
