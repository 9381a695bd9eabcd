"""Run a language model and a video transformer on eight devices, compare with torch, and say what computed attention.

    python -m recipes.attention                      on virtual devices of this CPU
    python -m recipes.attention --sequence ring

Both models are tiny, have random weights, and are transformers' and diffusers' own classes. Uses the public API of
tpuport alone.
"""

import os
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

import tpuport

console = Console(highlight=False)

LLAMA: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 1024,
}  # fmt: skip
VIDEO: dict[str, Any] = {
    "in_channels": 16, "out_channels": 16, "num_attention_heads": 4, "attention_head_dim": 32,
    "cross_attention_dim": 128, "num_layers": 2, "caption_channels": 64,
}  # fmt: skip
# Latent frames, height and width; caption tokens, and how many of them are real in each row.
FRAMES, HEIGHT, WIDTH = 5, 12, 16
CAPTION, REAL = 128, (100, 17)


def llama() -> tuple[Any, dict[str, Any]]:
    """A Llama, and three prompts of different lengths, padded on the left."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**LLAMA)).eval()
    lengths = (300, 211, 40)
    mask = torch.stack([torch.arange(300) >= 300 - n for n in lengths]).long()
    tokens = torch.randint(3, LLAMA["vocab_size"], mask.shape) * mask
    return model, {"input_ids": tokens, "attention_mask": mask}


def video() -> tuple[Any, dict[str, Any]]:
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


def show(title: str, agreement: str) -> None:
    """A model's result, and what computed each of its attention calls."""
    console.rule(title)
    console.print(agreement)
    console.print(tpuport.attention.explain(clear=True))


def speak(mesh: Any) -> bool:
    """Generate with transformers on the CPU and with tpuport on the mesh; whether the tokens are the same."""
    import torch

    model, inputs = llama()
    with torch.no_grad():
        expected = model.generate(**inputs, max_new_tokens=16, do_sample=False, pad_token_id=0)
    tokens = tpuport.generate(
        tpuport.port(model, mesh=mesh), **inputs, max_new_tokens=16, do_sample=False, pad_token_id=0
    )
    same = bool(torch.equal(tokens, expected))
    show("Llama, three prompts, 16 new tokens", f"tokens equal transformers' generate: {same}")
    return same


def denoise(mesh: Any) -> bool:
    """One call of the video transformer with torch and on the mesh; whether the outputs agree to 1e-4."""
    import torch

    model, inputs = video()
    with torch.no_grad():
        expected = model(**inputs, return_dict=False)[0]
        # What a port does that drops the mask.
        unmasked = model(**inputs | {"encoder_attention_mask": None}, return_dict=False)[0]
    step = tpuport.compile(tpuport.port(model, mesh=mesh))
    output = tpuport.to_cpu(step(**inputs, return_dict=False)[0])
    scale = expected.abs().max()
    error, dropped = (float((x - expected).abs().max() / scale) for x in (output, unmasked))
    text = (
        f"largest difference from torch: {error:.1e} of the largest output (the mask dropped: {dropped:.1e})"
    )
    show("LTX video transformer, one step", text)
    return error < 1e-4 < dropped


def main(
    sequence: Annotated[str, typer.Option(help="gather, ring or ulysses")] = "gather",
    dp: Annotated[int, typer.Option(min=1, help="devices that share out the batch")] = 1,
    sp: Annotated[int, typer.Option(min=1, help="devices that share out the sequence")] = 4,
    tp: Annotated[int, typer.Option(min=1, help="devices that share out the heads")] = 2,
) -> None:
    """Run both models on dp x sp x tp devices; on a machine without a TPU, the CPU stands in for them."""
    if os.environ.get("JAX_PLATFORMS", "cpu") == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={dp * sp * tp}".strip()
    tpuport.enable()
    mesh = tpuport.create_mesh(dp=dp, sp=sp, tp=tp)
    with tpuport.attention.register(sequence=sequence):
        agree = [speak(mesh), denoise(mesh)]
    if not all(agree):
        raise tpuport.PortError("an output differs from torch", where="see above")


if __name__ == "__main__":
    try:
        typer.run(main)
    except tpuport.PortError as error:
        sys.exit(f"error: {error}")
