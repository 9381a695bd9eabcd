"""The first part of the training: the VAE, and the latents of the clips that the transformer learns from.

Shapes: `B` clips in a step, `C` channels (of pixels or of latents), `F H W` frames, rows and columns.
"""

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_hunyuanvideo15 import HunyuanVideo15AttnBlock

from recipes.hunyuan_video import clips
from recipes.hunyuan_video.storing import ROUNDED_SHARE, as_stored, round_weights

CLIPS, FIRST_SEED = 3072, 1_000_000  # the clips that the transformer learns from
BATCH = 4
PHASES = (
    (1000, 5, 8e-3),
    (350, clips.FRAMES, 5e-3),
)  # steps, frames, peak rate; short clips first, for speed
DECODER_STEPS, DECODER_RATE = 900, 8e-3


def frame_mask(
    n_frame: int, n_hw: int, dtype: torch.dtype, device: Any, batch_size: int | None = None
) -> Any:
    """The mask of the VAE's attention as one array for the whole batch, which torch can broadcast."""
    frame = torch.arange(n_frame, device=device).repeat_interleave(n_hw)
    return torch.zeros((), dtype=dtype).where(frame[:, None] >= frame[None], -torch.inf)


@contextlib.contextmanager
def batched_vae(vae: Any) -> Iterator[None]:
    """Let the VAE take a batch at once."""
    mask = HunyuanVideo15AttnBlock.prepare_causal_attention_mask
    HunyuanVideo15AttnBlock.prepare_causal_attention_mask = staticmethod(frame_mask)
    slicing, vae.use_slicing = vae.use_slicing, False
    try:
        yield
    finally:
        HunyuanVideo15AttnBlock.prepare_causal_attention_mask = staticmethod(mask)
        vae.use_slicing = slicing


def half_precision() -> Any:
    """Products in bfloat16, which this CPU does about twice as fast; weights and sums stay float32."""
    return torch.autocast("cpu", dtype=torch.bfloat16)


def rate(step: int, steps: int, warmup: int = 40) -> float:
    """Share of the peak learning rate: a short warm-up, then half a cosine down to zero."""
    return min((step + 1) / warmup, 1.0) * 0.5 * (1 + math.cos(math.pi * step / steps))


def set_rates(tools: list[torch.optim.Optimizer], share: float) -> None:
    """Every group's learning rate becomes this share of its peak."""
    for tool in tools:
        for group in tool.param_groups:
            group["lr"] = share * group.setdefault("peak", group["lr"])


def pixel_loss(made_BCFHW: torch.Tensor, clips_BCFHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and the mean absolute error; the shape and what is around it count more than the still background."""
    wrong = made_BCFHW - clips_BCFHW
    drawn = (clips_BCFHW - clips_BCFHW[:, :, :, :1, :1]).abs().amax(1, keepdim=True) > 0.02
    weight = 1 + 4 * torch.nn.functional.max_pool3d(drawn.float(), (1, 5, 5), stride=1, padding=(0, 2, 2))
    return (weight * (wrong.abs() + wrong**2)).mean(), wrong.abs().mean()


def vae_loss(vae: Any, clips_BCFHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The pixels' loss, a little to keep latents centred and near one, and the mean absolute error of the pixels."""
    posterior = vae.encode(clips_BCFHW).latent_dist
    loss, error = pixel_loss(vae.decode(posterior.sample()).sample, clips_BCFHW)
    centre = posterior.mean.mean(dim=(0, 2, 3, 4)).square().mean()
    return loss + 0.02 * centre + 1e-6 * posterior.kl().mean(), error


class FlatKernels:
    """The 3D convolutions' kernels as matrices `[out, rest]` that share their memory, so that Muon takes them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.kernels = [weight for weight in model.parameters() if weight.ndim == 5]
        self.matrices = []
        for weight in self.kernels:
            # The layout that shares memory with a matrix is also the one that a CPU convolves fastest.
            weight.data = weight.data.contiguous(memory_format=torch.channels_last_3d)
            self.matrices.append(torch.nn.Parameter(self.flat(weight.data)))

    @staticmethod
    def flat(kernel: torch.Tensor) -> torch.Tensor:
        return kernel.permute(0, 2, 3, 4, 1).flatten(1)

    def take_gradients(self) -> None:
        for weight, matrix in zip(self.kernels, self.matrices, strict=True):
            assert weight.grad is not None
            matrix.grad, weight.grad = self.flat(weight.grad), None


def vae_optimizers(flat: FlatKernels, vae: Any, peak: float) -> list[torch.optim.Optimizer]:
    """Muon for the convolutions, Adam for norms and biases."""
    others = [weight for weight in vae.parameters() if weight.ndim != 5]
    return [
        torch.optim.Muon(flat.matrices, lr=peak, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=peak / 2, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def update(model: torch.nn.Module, flat: FlatKernels, tools: list[torch.optim.Optimizer]) -> None:
    """One step of the optimizers with the gradients that the model has."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    flat.take_gradients()
    for tool in tools:
        tool.step()
        tool.zero_grad()


def train_vae(vae: Any, phase: int, file: Path) -> None:
    """One phase of the VAE's training, on fresh clips; rounded weights are written to `file`."""
    steps, frames, peak = PHASES[phase]
    flat = FlatKernels(vae)
    tools = vae_optimizers(flat, vae, peak)
    started = time.perf_counter()
    vae.train()
    for step in range(steps):
        seed = (phase * 100_000 + step) * BATCH
        batch = torch.stack([clips.clip(seed + index)[2] for index in range(BATCH)])
        first = step % (clips.FRAMES - frames + 1)
        batch = batch[:, :, first : first + frames].contiguous(memory_format=torch.channels_last_3d)
        set_rates(tools, rate(step, steps))
        with batched_vae(vae), as_stored(vae, phase > 0 or step > steps * (1 - ROUNDED_SHARE)):
            with half_precision():
                loss, error = vae_loss(vae, batch)
            loss.backward()
        update(vae, flat, tools)
        if step % 25 == 24:
            text = f"vae {phase} {step + 1}/{steps}  loss {loss.item():.4f}  pixels {error.item():.4f}"
            print(f"{text}  {time.perf_counter() - started:.0f} s", flush=True)
    round_weights(vae.eval())
    torch.save(vae.state_dict(), file)


def polish_decoder(vae: Any, latents: torch.Tensor, file: Path, steps: int = DECODER_STEPS) -> None:
    """Train the decoder alone, on the clips' unscaled latents with a little noise; written to `file`."""
    flat = FlatKernels(vae.decoder)
    tools = vae_optimizers(flat, vae.decoder, DECODER_RATE)
    started, chance = time.perf_counter(), torch.Generator().manual_seed(0)
    spread = 0.03 * latents.std()
    for step in range(steps):
        chosen = torch.randint(len(latents), (BATCH,), generator=chance)
        shown = torch.stack([clips.clip(FIRST_SEED + index)[2] for index in chosen.tolist()])
        given = latents[chosen] + spread * torch.randn(latents[chosen].shape, generator=chance)
        set_rates(tools, rate(step, steps))
        with batched_vae(vae), as_stored(vae.decoder, True):
            with half_precision():
                made = vae.decode(given.contiguous(memory_format=torch.channels_last_3d)).sample
            loss, error = pixel_loss(made.float(), shown)
            loss.backward()
        update(vae.decoder, flat, tools)
        if step % 25 == 24:
            text = f"decoder {step + 1}/{steps}  loss {loss.item():.4f}  pixels {error.item():.4f}"
            print(f"{text}  {time.perf_counter() - started:.0f} s", flush=True)
    round_weights(vae)
    torch.save(vae.state_dict(), file)


@torch.no_grad()
def encode_clips(vae: Any, count: int = CLIPS, batch: int = 8) -> torch.Tensor:
    """Latents `[count, C, F, H, W]` of the clips with seeds from `FIRST_SEED`, not yet scaled."""
    parts = []
    with batched_vae(vae):
        for first in range(0, count, batch):
            shown = torch.stack([clips.clip(FIRST_SEED + first + index)[2] for index in range(batch)])
            shown = shown.to(memory_format=torch.channels_last_3d)
            parts.append(vae.encode(shown).latent_dist.mode())
    return torch.cat(parts)
