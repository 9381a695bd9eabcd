"""Seconds a denoising step of HunyuanVideo-1.5's transformer: `tpuport.denoise` against its rivals, in one run.

    python benchmarks/denoise.py            both sizes (about ten minutes on two cores)
    python benchmarks/denoise.py --quick    the small size, fewer rounds, without torch.compile

Every rival takes the same noise through the same steps with the same weights, float32, two conditions of different
length a step (classifier-free guidance), in interleaved rounds; times are of whole loops, compilation excluded. Their
results are compared first.
"""

import argparse
import dataclasses
import functools
import logging
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, HunyuanVideo15Transformer3DModel
from rich.console import Console
from rich.table import Table

import tpuport
from tpuport import compat
from tpuport.patches import registry

OURS = "tpuport.denoise"
GUIDE = "jitted transformer, scheduler on the host"
GUIDANCE_SCALE = 6.0
# Text, glyphs and image tokens stand to each other as in the published pipelines: 1,000, 256 and 729.
TEXT_WIDTH, GLYPH_WIDTH, IMAGE_WIDTH = 64, 48, 48


@dataclasses.dataclass(frozen=True)
class Size:
    """A transformer and a video: latent frames, height and width; `words`: valid tokens of the two texts."""

    name: str
    heads: int
    head_dim: int
    layers: int
    video: tuple[int, int, int]
    text: int
    glyphs: int
    image: int
    words: tuple[int, int]
    steps: int

    def model(self) -> HunyuanVideo15Transformer3DModel:
        """The same random weights in every process."""
        torch.manual_seed(0)
        third = self.head_dim // 8 * 2
        return HunyuanVideo15Transformer3DModel(
            in_channels=17, out_channels=8, num_attention_heads=self.heads, attention_head_dim=self.head_dim,
            num_layers=self.layers, num_refiner_layers=2, text_embed_dim=TEXT_WIDTH, text_embed_2_dim=GLYPH_WIDTH,
            image_embed_dim=IMAGE_WIDTH, rope_axes_dim=(self.head_dim - 2 * third, third, third),
        ).eval()  # fmt: skip

    def latents(self) -> torch.Tensor:
        """Noise [1, 8, frames, height, width]."""
        return torch.randn(1, 8, *self.video, generator=torch.Generator().manual_seed(1))

    def conditions(self) -> list[dict[str, torch.Tensor]]:
        """What the pipeline gives the transformer for the prompt and for the negative prompt."""
        draw = functools.partial(torch.randn, generator=torch.Generator().manual_seed(2))
        return [
            {
                "encoder_hidden_states": draw(1, self.text, TEXT_WIDTH),
                "encoder_attention_mask": (torch.arange(self.text) < words)[None].float(),
                "encoder_hidden_states_2": torch.zeros(1, self.glyphs, GLYPH_WIDTH),
                "encoder_attention_mask_2": torch.zeros(1, self.glyphs),
                "image_embeds": torch.zeros(1, self.image, IMAGE_WIDTH),
            }
            for words in self.words
        ]


SIZES = (
    Size("tiny", 4, 24, 3, (3, 8, 8), 32, 8, 23, (17, 1), 8),
    Size("larger", 6, 64, 6, (5, 14, 14), 250, 64, 182, (110, 1), 4),
)


def schedule(size: Size) -> FlowMatchEulerDiscreteScheduler:
    """The published pipelines' scheduler, its steps set as they set them."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=7.0)
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 0.0, size.steps + 1)[:-1])
    return scheduler


def with_condition(latents: torch.Tensor) -> torch.Tensor:
    """What the transformer takes for text-to-video: latents, no image, no mask. [B, 8, ...] -> [B, 17, ...]."""
    return torch.cat([latents, torch.zeros_like(latents), torch.zeros_like(latents[:, :1])], dim=1)


@torch.no_grad()
def host_loop(size: Size, predict: Callable[..., torch.Tensor]) -> np.ndarray:
    """The pipeline's own loop: one call a condition, guidance and the scheduler's step in torch."""
    scheduler, latents, conditions = schedule(size), size.latents(), size.conditions()
    for t in scheduler.timesteps:
        hidden, timestep = with_condition(latents), t.expand(1).to(latents.dtype)
        positive, negative = (predict(hidden, timestep, given) for given in conditions)
        guided = negative + GUIDANCE_SCALE * (positive - negative)
        latents = scheduler.step(guided, t, latents, return_dict=False)[0]
    return latents.numpy()


def torch_eager(size: Size) -> Callable[[], np.ndarray]:
    """diffusers as it is."""
    model = size.model()
    predict = lambda hidden, timestep, given: model(hidden, timestep, **given, return_dict=False)[0]  # noqa: E731
    return lambda: host_loop(size, predict)


def serve_torch_compiled(connection: Connection, size: Size) -> None:
    """In a process of its own: the same with a torch.compiled transformer, on demand.

    torch.compile fails in a process where torchax has told torch of its device.
    """
    try:
        model = torch.compile(size.model())
        predict = lambda hidden, timestep, given: model(hidden, timestep, **given, return_dict=False)[0]  # noqa: E731
        while connection.recv():
            connection.send(host_loop(size, predict))
    except EOFError:
        return  # the benchmark has ended
    except Exception as error:  # noqa: BLE001  whatever it is, the table is made without this rival
        connection.send(f"{type(error).__name__}: {str(error)[:200]}")


def torch_compiled(size: Size) -> Callable[[], np.ndarray]:
    """The rival that `serve_torch_compiled` serves."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=serve_torch_compiled, args=(theirs, size), daemon=True).start()

    def call() -> np.ndarray:
        ours.send(True)
        answer = ours.recv()
        if isinstance(answer, np.ndarray):
            return answer
        raise RuntimeError(answer)

    return call


def jitted_transformer(size: Size, ported: Any) -> Callable[[], np.ndarray]:
    """As published guides do it: the transformer jitted over torchax, weights as arguments, everything else in torch.

    It has the patches that it cannot be traced without, the empty streams left out, and torchax's attention with the
    dense mask; latents go to the device and back in each call.
    """
    weights = compat.as_jax(dict(ported.named_parameters()) | dict(ported.named_buffers()))

    @jax.jit
    def forward(weights: dict, hidden: jax.Array, timestep: jax.Array, given: dict) -> jax.Array:
        with compat.environment():
            tensors, hidden, timestep, given = compat.as_torch((weights, hidden, timestep, given))
            options = {"return_dict": False, **given}
            return compat.as_jax(torch.func.functional_call(ported, tensors, (hidden, timestep), options)[0])

    def predict(hidden: torch.Tensor, timestep: torch.Tensor, given: dict) -> torch.Tensor:
        _, kept = registry.prepared(ported, (hidden, timestep), given)
        kept = {name: compat.to_jax(x) for name, x in kept.items() if x is not None}
        hidden, timestep = kept.pop("hidden_states"), kept.pop("timestep")
        return compat.to_torch(forward(weights, hidden, timestep, kept))

    return lambda: host_loop(size, predict)


def whole_loop(size: Size, ported: Any) -> Callable[[], np.ndarray]:
    """tpuport.denoise."""
    positive, negative = size.conditions()

    def run() -> np.ndarray:
        out = tpuport.denoise(
            ported, schedule(size), size.latents(), conditions=positive, negative=negative,
            guidance_scale=GUIDANCE_SCALE, model_input=with_condition, progress=False,
        )  # fmt: skip
        return out.numpy()

    return run


def build(size: Size, quick: bool) -> tuple[dict[str, Callable[[], np.ndarray]], list[str]]:
    """The rivals by name, and remarks on rivals that could not run."""
    rivals, remarks = {"torch eager": torch_eager(size)}, []
    if not quick:
        compiled = torch_compiled(size)
        try:
            compiled()
            rivals["torch.compile"] = compiled
        except RuntimeError as error:  # no C++ compiler on this machine, say
            remarks.append(f"torch.compile did not run: {error}")
    ported = tpuport.port(size.model())
    rivals[GUIDE] = jitted_transformer(size, ported)
    rivals[OURS] = whole_loop(size, ported)
    return rivals, remarks


def measure(rivals: dict[str, Callable[[], np.ndarray]], rounds: int) -> dict[str, list[float]]:
    """Seconds a loop in interleaved rounds, after one that compiles. All must give the same latents."""
    found = {name: call() for name, call in rivals.items()}
    first = found["torch eager"]
    for name, got in found.items():
        error = np.abs(got - first).max() / np.abs(first).max()
        if not error < 1e-3:
            raise SystemExit(f"{name} does not give the latents that torch gives: off by {error:.1e}")
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, call in rivals.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def report(size: Size, times: dict[str, list[float]], remarks: list[str], console: Console) -> None:
    """Print the table of one size and its main line."""
    steps = {name: statistics.median(values) / size.steps for name, values in times.items()}
    frames, height, width = size.video
    table = Table(
        title=f"{size.name}: {size.layers} blocks of width {size.heads * size.head_dim}, {frames * height * width} "
        f"video tokens, {size.text} + {size.glyphs} + {size.image} of text, glyphs and image, {os.cpu_count()} cores"
    )
    for heading in ("", "ms a step", "tpuport is faster, times"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, value in steps.items():
        table.add_row(name, f"{value * 1e3:.1f}", f"{value / steps[OURS]:.2f} x")
    console.print(table)
    for remark in remarks:
        console.print(remark)
    console.print(
        f"In short, {size.name}: {OURS} is "
        + ", ".join(f"{steps[name] / steps[OURS]:.2f} x {name}" for name in steps if name != OURS)
        + "."
    )


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the small size, three rounds, no torch.compile")
    parser.add_argument("--rounds", type=int, default=None, help="interleaved rounds (default 7, quick 3)")
    parser.add_argument("--size", choices=[size.name for size in SIZES], help="only this one")
    args = parser.parse_args()
    logging.getLogger("diffusers").setLevel(logging.ERROR)
    tpuport.enable()
    for size in SIZES[:1] if args.quick else [s for s in SIZES if args.size in (None, s.name)]:
        rivals, remarks = build(size, args.quick)
        times = measure(rivals, args.rounds or (3 if args.quick else 7))
        report(size, times, remarks, Console())


if __name__ == "__main__":
    main()
