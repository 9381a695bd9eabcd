"""Port two models of research code: `python -m recipes.own_model`.

A GPT with its own cache, and a diffusion transformer, as they were (`before/`) and ported (`after/`). README.md beside
this file explains the steps.
"""

import argparse
import copy
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

import tpuport
from recipes.command import at_least, run_command, simulate_devices
from tpuport import lint

HERE = Path(__file__).parent
PROMPTS = ("On Wednesday", "Tom counted the", '"What is')
# Pixels are from 0 to 255; torch and XLA round differently in 25 steps of float32.
LARGEST_DIFFERENCE = 0.01

console = Console(highlight=False, soft_wrap=True)


def lint_folder(name: str) -> int:
    """Print the linter's errors in a folder of this recipe; returns how many there are."""
    report = lint.lint_paths([HERE / name])
    errors = [finding for finding in report.findings if finding.severity == lint.Severity.ERROR]
    for finding in errors:
        console.print(
            f"  {name}/{Path(finding.path).name}:{finding.line} {finding.rule}: {escape(finding.reason)}"
        )
    console.print(f"lint {name}/: {len(errors)} errors. {escape(report.verdict())}")
    return len(errors)


def read_weights(model: Any, name: str, checkpoint: Path) -> Any:
    """The model with its trained weights, in float32."""
    from safetensors.torch import load_file

    path = checkpoint / f"{name}.safetensors"
    if not path.is_file():
        raise tpuport.PortError(
            "no trained weights", where=str(path), fix="train: python -m recipes.own_model.train"
        )
    model.load_state_dict({key: value.float() for key, value in load_file(path).items()})
    return model.eval()


def port_model(reference: Any, inputs: tuple, mesh: Any) -> Any:
    """A ported copy, sharded by what the structure of a call shows, after a comparison with torch module by module."""
    result = tpuport.check(reference, inputs)
    console.print(f"check {type(reference).__name__}: {escape(result.verdict)}")
    rules = tpuport.ShardingRules.infer(reference, inputs)
    return tpuport.port(copy.deepcopy(reference), mesh=mesh, rules=rules)


def write_texts(mesh: Any, checkpoint: Path, count: int) -> bool:
    """Generate text with the GPT; whether its plain loop in torch chooses the same tokens."""
    import torch

    from recipes.own_model.after.gpt import GPT, GPTConfig, describe
    from recipes.own_model.train import decode, encode

    reference = read_weights(GPT(GPTConfig()), "gpt", checkpoint)
    model = port_model(reference, (torch.tensor([encode(PROMPTS[0])]),), mesh)
    prompts = [encode(prompt) for prompt in PROMPTS]
    start = time.perf_counter()
    described = describe(model)
    rows = tpuport.generate(described, prompts, max_new_tokens=count)
    console.print(
        f"generated {len(rows)} x {count} characters in {time.perf_counter() - start:.1f} s, compiled once"
    )
    for row in rows:
        console.rule()
        console.print(escape(decode(row.tolist())))
    console.rule()
    sampled = tpuport.generate(
        described, prompts[:1], max_new_tokens=count, do_sample=True, temperature=0.8, top_k=20, seed=1
    )
    console.print("sampled: " + escape(decode(sampled[0].tolist())))
    return [row.tolist() for row in rows] == [greedy(reference, prompt, count) for prompt in prompts]


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """The tokens of a plain loop in torch, without a cache."""
    import torch

    tokens = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(count):
            tokens = torch.cat([tokens, model(tokens)[:, -1].argmax(-1, keepdim=True)], dim=1)
    return tokens[0].tolist()


def draw_pictures(mesh: Any, checkpoint: Path, path: Path, columns: int, steps: int) -> float:
    """Sample a grid of pictures, one class a row, and write it; returns the largest difference from torch, of 255."""
    import torch
    from PIL import Image

    from recipes.own_model.after.dit import DiT, sample, timestep_embedding

    reference = read_weights(DiT(), "dit", checkpoint)
    y = torch.arange(reference.classes).repeat_interleave(columns)
    example = (torch.zeros(2, 1, 16, 16), timestep_embedding([0.5, 0.5], reference.dim), torch.tensor([0, 1]))
    model = port_model(reference, example, mesh)
    pictures = sample(model, y, steps, generator=torch.Generator().manual_seed(0), compiled=tpuport.compile)
    expected = sample(reference, y, steps, generator=torch.Generator().manual_seed(0))
    grid = pictures.reshape(-1, columns, 16, 16).permute(0, 2, 1, 3).reshape(-1, columns * 16)
    pixels = ((grid + 1) * 127.5).round().to(torch.uint8).numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.kron(pixels, np.ones((4, 4), np.uint8))).save(path)
    console.print(f"wrote {path}")
    return float((pictures - expected).abs().max()) * 127.5


def parse_arguments() -> argparse.Namespace:
    """The options of the recipe."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.own_model",
        description="Port two models of research code, and look at what they make.",
    )
    add = parser.add_argument
    add("--tp", type=at_least(1), default=1, help="devices that shard the weights")
    add("--dp", type=at_least(1), default=1, help="devices that shard the batch")
    add("--cpu-devices", type=at_least(0), default=0, help="let the CPU simulate this many devices")
    add("--checkpoint", type=Path, default=HERE / "checkpoint", help="a directory that train.py wrote")
    add(
        "--out", type=Path, default=Path("own_model.png"), help="the grid of pictures (default own_model.png)"
    )
    add("--characters", type=at_least(1), default=100, help="to generate for each prompt (default 100)")
    add("--columns", type=at_least(1), default=8, help="pictures of each class (default 8)")
    add("--steps", type=at_least(1), default=25, help="steps of the sampler (default 25)")
    return parser.parse_args()


def main() -> None:
    """Run the recipe."""
    arguments = parse_arguments()
    lint_folder("before")
    if lint_folder("after"):
        sys.exit(1)
    if arguments.cpu_devices:
        simulate_devices(arguments.cpu_devices)
    import jax

    import tpuport.auto

    count = arguments.dp * arguments.tp
    mesh = tpuport.create_mesh(dp=arguments.dp, tp=arguments.tp, devices=jax.devices()[:count])
    same_text = write_texts(mesh, arguments.checkpoint, arguments.characters)
    difference = draw_pictures(mesh, arguments.checkpoint, arguments.out, arguments.columns, arguments.steps)
    console.print(
        f"torch chooses the same characters: {same_text}; pixels differ by at most {difference:.4f} of 255"
    )
    if not same_text or difference > LARGEST_DIFFERENCE:
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
