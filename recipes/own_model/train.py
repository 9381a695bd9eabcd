"""Trains the two models of this recipe with plain torch on the CPU: `python -m recipes.own_model.train`.

It takes about three minutes. The GPT learns the characters of a text of the repository, the diffusion transformer small
drawn shapes.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from safetensors.torch import save_file
from torch.nn import functional

from recipes.own_model.after.dit import DiT, timestep_embedding
from recipes.own_model.after.gpt import GPT, GPTConfig

CORPUS = Path(__file__).parents[1] / "llama" / "corpus" / "days.txt"
CHECKPOINT = Path(__file__).parent / "checkpoint"
SHAPES = ("disc", "ring", "square", "triangle", "cross")
_ENLARGED = 4  # shapes are drawn large and made small, for soft edges


def encode(text: str) -> list[int]:
    """One token for each character from the space on; a line break is token 95."""
    return [95 if character == "\n" else min(max(ord(character) - 32, 0), 94) for character in text]


def decode(tokens: list[int]) -> str:
    """The text of tokens."""
    return "".join("\n" if token == 95 else chr(token + 32) for token in tokens)


def draw(kind: int, generator: np.random.Generator, size: int = 16) -> np.ndarray:
    """A picture [size, size] from -1 to 1 with one shape, somewhere and of some size."""
    radius = generator.uniform(4, 6)
    x, y = generator.uniform(radius + 1, size - radius - 1, 2)
    image = Image.new("L", (size * _ENLARGED, size * _ENLARGED))
    pen = ImageDraw.Draw(image)
    left, top, right, bottom = (_ENLARGED * v for v in (x - radius, y - radius, x + radius, y + radius))
    middle, third = (left + right) / 2, (right - left) / 3
    match SHAPES[kind]:
        case "disc":
            pen.ellipse((left, top, right, bottom), fill=255)
        case "ring":
            pen.ellipse((left, top, right, bottom), outline=255, width=8)
        case "square":
            pen.rectangle((left, top, right, bottom), fill=255)
        case "triangle":
            pen.polygon(((middle, top), (right, bottom), (left, bottom)), fill=255)
        case "cross":
            pen.rectangle((left + third, top, right - third, bottom), fill=255)
            pen.rectangle((left, top + third, right, bottom - third), fill=255)
    small = image.resize((size, size), Image.Resampling.BOX)
    return np.asarray(small, np.float32) / 127.5 - 1


def _optimizer(model: torch.nn.Module, steps: int, peak: float) -> tuple[Any, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
    )
    return optimizer, schedule


def train_gpt(steps: int) -> tuple[GPT, float]:
    """A GPT after so many steps, and its last loss."""
    torch.manual_seed(0)
    model = GPT(GPTConfig())
    tokens = torch.tensor(encode(CORPUS.read_text(encoding="utf-8")))
    optimizer, schedule = _optimizer(model, steps, 6e-3)
    loss = torch.tensor(math.nan)
    for _ in range(steps):
        starts = torch.randint(len(tokens) - model.config.block_size - 1, (16,))
        rows = torch.stack([tokens[start : start + model.config.block_size + 1] for start in starts])
        logits = model(rows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval(), loss.item()


def train_dit(steps: int) -> tuple[DiT, float]:
    """A diffusion transformer after so many steps, and its last loss."""
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    model = DiT()
    pictures = np.stack([draw(kind, generator) for kind in range(len(SHAPES)) for _ in range(400)])
    data, kinds = torch.from_numpy(pictures)[:, None], torch.arange(len(SHAPES)).repeat_interleave(400)
    optimizer, schedule = _optimizer(model, steps, 2e-3)
    loss = torch.tensor(math.nan)
    for _ in range(steps):
        chosen = torch.randint(len(data), (48,))
        target, y = data[chosen], kinds[chosen]
        # One in ten is trained without its class, for guidance.
        y = torch.where(torch.rand(len(y)) < 0.1, model.classes, y)
        t, noise = torch.rand(len(y)), torch.randn_like(target)
        mixed = (1 - t)[:, None, None, None] * noise + t[:, None, None, None] * target
        loss = functional.mse_loss(model(mixed, timestep_embedding(t.numpy(), model.dim), y), target - noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval(), loss.item()


def main() -> None:
    """Train both, and save their weights as float16."""
    parser = argparse.ArgumentParser(prog="python -m recipes.own_model.train")
    parser.add_argument("--out", type=Path, default=CHECKPOINT)
    parser.add_argument("--gpt-steps", type=int, default=2000, help="0 leaves its weights as they are")
    parser.add_argument("--dit-steps", type=int, default=1500, help="0 leaves its weights as they are")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, train, steps in (
        ("gpt", train_gpt, arguments.gpt_steps),
        ("dit", train_dit, arguments.dit_steps),
    ):
        if not steps:
            continue
        model, loss = train(steps)
        weights = {key: value.half() for key, value in model.state_dict().items()}
        save_file(weights, arguments.out / f"{name}.safetensors")
        print(f"{name}: last loss {loss:.3f}")


if __name__ == "__main__":
    main()
