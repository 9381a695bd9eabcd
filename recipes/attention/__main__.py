"""Run a language model and a video transformer on eight devices, compare with torch, and explain their attention.

    python -m recipes.attention                      on simulated devices of this CPU
    python -m recipes.attention --sequence ring

Both models are tiny, have random weights, and are transformers' and diffusers' own classes. Uses only the public
API of tpuport.
"""

import argparse
import os
from typing import Any

from rich.console import Console

import tpuport
from recipes.command import at_least, run_command, simulate_devices

console = Console(highlight=False)

LLAMA: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 1024,
}  # fmt: skip
VIDEO: dict[str, Any] = {
    "in_channels": 16, "out_channels": 16, "num_attention_heads": 4, "attention_head_dim": 32,
    "cross_attention_dim": 128, "num_layers": 2, "caption_channels": 64,
}  # fmt: skip
# Latent frames, height and width; caption tokens, and the number of real ones in each row.
FRAMES, HEIGHT, WIDTH = 5, 12, 16
CAPTION = 128
REAL = (100, 17)


def build_llama() -> tuple[Any, dict[str, Any]]:
    """A Llama, and three prompts of different lengths, padded on the left."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**LLAMA)).eval()
    lengths = (300, 211, 40)
    mask = torch.stack([torch.arange(300) >= 300 - n for n in lengths]).long()
    tokens = torch.randint(3, LLAMA["vocab_size"], mask.shape) * mask
    return model, {"input_ids": tokens, "attention_mask": mask}


def build_video_transformer() -> tuple[Any, dict[str, Any]]:
    """An LTX video transformer, and inputs for guidance: two rows whose captions are padded differently."""
    import torch
    from diffusers.models.transformers.transformer_ltx import LTXVideoTransformer3DModel

    torch.manual_seed(0)
    model = LTXVideoTransformer3DModel(**VIDEO).eval()
    inputs = {
        "hidden_states": torch.randn(2, FRAMES * HEIGHT * WIDTH, 16),
        "encoder_hidden_states": torch.randn(2, CAPTION, 64),
        "timestep": torch.tensor([500, 500]),
        "encoder_attention_mask": torch.arange(CAPTION)[None] < torch.tensor(REAL)[:, None],
        "num_frames": FRAMES,
        "height": HEIGHT,
        "width": WIDTH,
    }
    return model, inputs


def print_result(title: str, agreement: str) -> None:
    """Print a model's result, and what computed each of its attention calls."""
    console.rule(title)
    console.print(agreement)
    console.print(tpuport.attention.explain(clear=True))


def generate_on_mesh(mesh: Any) -> bool:
    """Generate with transformers on the CPU and with tpuport on the mesh; return whether the tokens are equal."""
    import torch

    model, inputs = build_llama()
    with torch.no_grad():
        expected = model.generate(**inputs, max_new_tokens=16, do_sample=False, pad_token_id=0)
    tokens = tpuport.generate(
        tpuport.port(model, mesh=mesh), **inputs, max_new_tokens=16, do_sample=False, pad_token_id=0
    )
    assert isinstance(tokens, torch.Tensor)  # prompts in a list would give a list
    is_equal = bool(torch.equal(tokens, expected))
    print_result("Llama, three prompts, 16 new tokens", f"tokens equal transformers' generate: {is_equal}")
    return is_equal


def denoise_on_mesh(mesh: Any) -> bool:
    """Call the video transformer with torch and on the mesh; return whether the outputs agree to 1e-4."""
    import torch

    model, inputs = build_video_transformer()
    with torch.no_grad():
        expected = model(**inputs, return_dict=False)[0]
        # The result of a port that drops the mask.
        unmasked = model(**inputs | {"encoder_attention_mask": None}, return_dict=False)[0]
    step = tpuport.compile(tpuport.port(model, mesh=mesh))
    output = tpuport.to_cpu(step(**inputs, return_dict=False)[0])
    scale = expected.abs().max()
    error = float((output - expected).abs().max() / scale)
    error_unmasked = float((unmasked - expected).abs().max() / scale)
    print_result(
        "LTX video transformer, one step",
        f"largest difference from torch: {error:.1e} of the largest output "
        f"(without the mask: {error_unmasked:.1e})",
    )
    return error < 1e-4 < error_unmasked


def parse_arguments() -> argparse.Namespace:
    """The options of the recipe."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.attention",
        description="Run a language model and a video transformer on several devices and explain their attention.",
    )
    parser.add_argument("--sequence", default="auto", help="auto (default), gather, ring or ulysses")
    parser.add_argument("--dp", type=at_least(1), default=1, help="devices that shard the batch (default 1)")
    parser.add_argument(
        "--sp", type=at_least(1), default=4, help="devices that shard the sequence (default 4)"
    )
    parser.add_argument("--tp", type=at_least(1), default=2, help="devices that shard the heads (default 2)")
    return parser.parse_args()


def main() -> None:
    """Run both models on dp x sp x tp devices; without a TPU, the CPU simulates them."""
    arguments = parse_arguments()
    if os.environ.get("JAX_PLATFORMS", "cpu") == "cpu":
        simulate_devices(arguments.dp * arguments.sp * arguments.tp)
    tpuport.enable()
    mesh = tpuport.create_mesh(dp=arguments.dp, sp=arguments.sp, tp=arguments.tp)
    with tpuport.attention.register(sequence=arguments.sequence):
        results = [generate_on_mesh(mesh), denoise_on_mesh(mesh)]
    if not all(results):
        raise tpuport.PortError("an output differs from torch", where="see above")


if __name__ == "__main__":
    run_command(main)
