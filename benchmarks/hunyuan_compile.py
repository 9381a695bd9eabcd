"""HunyuanVideo-1.5 at 121 frames of 720p, compiled for v6e:2x4: the reports that docs/hunyuan-video-v6e.md quotes.

    python -m benchmarks.hunyuan_compile --sp 4 --tp 2 --effort -1

adds the report for one mesh to docs/data/hunyuan-video-v6e.json. No weight is allocated; it takes minutes to an hour.
"""

import argparse
import itertools
import json
import logging
import math
import os
import resource
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import torch
from diffusers.models.transformers.transformer_hunyuan_video15 import HunyuanVideo15Transformer3DModel

import tpuport
from tpuport.topology import compile_for
from tpuport.topology.hlo import parse, square_arrays

logger = logging.getLogger(__name__)
OUT = Path(__file__).parent.parent / "docs" / "data" / "hunyuan-video-v6e.json"
TOPOLOGY = "v6e:2x4"
FRAMES, HEIGHT, WIDTH = 31, 45, 80  # of latents: 121 frames, 720 x 1280
TEXT, GLYPHS = 1000, 256


def inputs(config: Any, frames: int = FRAMES, height: int = HEIGHT, width: int = WIDTH) -> dict[str, Any]:
    """The arguments of one text-to-video call of batch 1, on the meta device."""

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    return {
        "hidden_states": empty(1, config.in_channels, frames, height, width),
        "timestep": empty(1),
        "encoder_hidden_states": empty(1, TEXT, config.text_embed_dim),
        "encoder_attention_mask": empty(1, TEXT, dtype=torch.int64),
        "encoder_hidden_states_2": empty(1, GLYPHS, config.text_embed_2_dim),
        "encoder_attention_mask_2": empty(1, GLYPHS, dtype=torch.int64),
        "image_embeds": None,
        "return_dict": False,
    }


def arithmetic(config: Any, frames: int = FRAMES, height: int = HEIGHT, width: int = WIDTH) -> dict[str, int]:
    """FLOPs of one call from the configuration, two for a multiplication with an addition, by part.

    Linear layers and attention; norms, activations and rotary embeddings are left out.
    """
    video = frames * height * width // (config.patch_size_t * config.patch_size**2)
    tokens, inner = video + TEXT + GLYPHS, config.num_attention_heads * config.attention_head_dim
    wide = round(config.mlp_ratio * inner)

    def linear(count: int, *widths: int) -> int:
        return sum(2 * count * before * after for before, after in itertools.pairwise(widths))

    def stream(count: int, hidden: int) -> int:
        """Queries, keys, values and output; then the feed-forward."""
        return 4 * linear(count, inner, inner) + linear(count, inner, hidden, inner)

    refiner = stream(TEXT, 4 * inner) + 4 * TEXT**2 * inner + linear(1, inner, 2 * inner)
    patch = config.patch_size_t * config.patch_size**2
    return {
        "attention": config.num_layers * 4 * tokens**2 * inner,
        "video stream": config.num_layers * stream(video, wide),
        "text stream": config.num_layers * stream(TEXT + GLYPHS, wide),
        "modulation": config.num_layers * 2 * linear(1, inner, 6 * inner) + linear(1, inner, 2 * inner),
        "text refiner": config.num_refiner_layers * refiner + linear(TEXT, config.text_embed_dim, inner),
        "glyph embedder": linear(GLYPHS, config.text_embed_2_dim, 2048, 2048, inner),
        "patches in and out": linear(video, config.in_channels * patch, inner)
        + linear(video, inner, config.out_channels * patch),
    }


def report(blocks: int, dp: int, sp: int, tp: int, effort: float | None) -> dict[str, Any]:
    """The report for one mesh, with what it is compared with."""
    with torch.device("meta"):
        config = HunyuanVideo15Transformer3DModel(num_layers=blocks).config
    made = compile_for(
        lambda: HunyuanVideo15Transformer3DModel(num_layers=blocks), inputs(config),
        topology=TOPOLOGY, dp=dp, sp=sp, tp=tp, dtype="bfloat16", effort=effort,
    )  # fmt: skip
    parts = arithmetic(config)
    tokens = FRAMES * HEIGHT * WIDTH + TEXT + GLYPHS
    least = math.floor(0.9 * tokens / made.devices)
    found = square_arrays(parse(made.program.as_text()).instructions, least) if made.program else []
    total = sum(parts.values())
    return made.to_dict() | {
        "blocks": blocks,
        "arithmetic": {**parts, "total": total},
        "flops_to_arithmetic": made.costs and made.costs.flops * made.devices / total,
        "seconds": made.seconds,
        "square_arrays": {"least": least, "found": [str(array) for array in found]},
        "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> None:
    """Compile for the mesh that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for axis in ("dp", "sp", "tp"):
        parser.add_argument(f"--{axis}", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=54)
    parser.add_argument("--effort", type=float, help="the compiler's, -1 to 1; by default what runs have")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    tpuport.enable()
    made = report(given.blocks, given.dp, given.sp, given.tp, given.effort)
    known = json.loads(given.out.read_text()) if given.out.is_file() else []
    key = ("blocks", "mesh", "effort")
    kept = [one for one in known if any(one[name] != made[name] for name in key)]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps([*kept, made], indent=1) + "\n")
    logger.info(
        "fits: %s; %s of arithmetic's FLOPs; in %s",
        made["memory"]["fits"],
        made["flops_to_arithmetic"],
        given.out,
    )


if __name__ == "__main__":
    main()
