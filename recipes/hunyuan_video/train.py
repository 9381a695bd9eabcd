"""Trains the tiny HunyuanVideo-1.5 of this recipe with plain torch on one CPU core, and saves a checkpoint.

    python -m recipes.hunyuan_video.train --work build/hunyuan_video --out recipes/hunyuan_video/checkpoint

First the VAE, then the transformer on the VAE's latents; what is done is kept in `--work`, and a second call goes on
from there. Shapes: `B` clips in a step, `C` latent channels, `F H W` latent frames, rows and columns, `T` text tokens.
"""

import argparse
import random
import time
from pathlib import Path
from typing import Any

import torch

from recipes.hunyuan_video import clips
from recipes.hunyuan_video.storing import ROUNDED_SHARE, as_stored, round_weights, save_small
from recipes.hunyuan_video.tiny import SHIFT, build_pipeline
from recipes.hunyuan_video.train_vae import (
    FIRST_SEED,
    PHASES,
    encode_clips,
    half_precision,
    polish_decoder,
    rate,
    set_rates,
    train_vae,
)

STEPS, BATCH, MUON_RATE, ADAM_RATE = 10_000, 32, 5e-3, 2.5e-3
CAPTION_DROPOUT = 0.1
UNTRAINED = (
    "context_embedder_2",
    "image_embedder",
)  # no caption holds quoted text, no clip begins with an image
LONGEST = (
    22  # tokens of the longest caption, the end of its turn included; columns after it are padding for all
)


def read_captions(pipeline: Any, captions: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings `[B, T, D]` and mask `[B, T]` as the pipeline makes them; nothing but padding is cut off."""
    with torch.no_grad():
        embeds, mask, _, _ = pipeline.encode_prompt(captions, batch_size=len(captions))
    return embeds[:, :LONGEST], mask[:, :LONGEST]


def flow_loss(
    pipeline: Any, latents: torch.Tensor, captions: list[str], chance: torch.Generator
) -> torch.Tensor:
    """Mean squared error of the predicted velocity, noise less data, at noise levels that sampling visits."""
    count = len(latents)
    even = torch.rand(count, generator=chance)
    bell = torch.randn(count, generator=chance).sigmoid()
    even = even.where(torch.rand(count, generator=chance) < 0.5, bell)
    level = SHIFT * even / (1 + (SHIFT - 1) * even)
    level_BCFHW = level.view(-1, 1, 1, 1, 1)
    noise = torch.randn(latents.shape, generator=chance)
    mixed = (1 - level_BCFHW) * latents + level_BCFHW * noise
    nothing = torch.zeros_like(mixed)  # where image-to-video has its first frame
    embeds, mask = read_captions(pipeline, captions)
    config = pipeline.transformer.config
    predicted = pipeline.transformer(
        hidden_states=torch.cat([mixed, nothing, nothing[:, :1]], dim=1),
        timestep=level * 1000,
        encoder_hidden_states=embeds,
        encoder_attention_mask=mask,
        # Padding is masked and gives no gradient, so none is computed.
        encoder_hidden_states_2=torch.zeros(count, 0, config.text_embed_2_dim),
        encoder_attention_mask_2=torch.zeros(count, 0),
        image_embeds=torch.zeros(count, 0, config.image_embed_dim),
        return_dict=False,
    )[0]
    return (predicted - (noise - latents)).square().mean()


def begin_at_zero(transformer: Any) -> None:
    """Blocks begin as the identity and the prediction as nothing, which makes the first steps safe."""
    layers = [
        layer for block in transformer.transformer_blocks for layer in (block.norm1, block.norm1_context)
    ]
    for linear in [*(layer.linear for layer in layers), transformer.norm_out.linear, transformer.proj_out]:
        torch.nn.init.zeros_(linear.weight)
        torch.nn.init.zeros_(linear.bias)


def optimizers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, Adam for the rest."""
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    inside = [weight for name, weight in named if weight.ndim == 2 and "blocks" in name]
    known = {id(weight) for weight in inside}
    return [
        torch.optim.Muon(inside, lr=MUON_RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(
            [weight for _, weight in named if id(weight) not in known],
            lr=ADAM_RATE,
            betas=(0.9, 0.98),
            weight_decay=0.0,
        ),
    ]


class Training:
    """The transformer's training: model, average, optimizers and step, kept in a file so that it can go on."""

    def __init__(self, pipeline: Any, latents: torch.Tensor, file: Path, steps: int) -> None:
        self.pipeline, self.latents, self.file, self.steps, self.step = pipeline, latents, file, steps, 0
        self.model = pipeline.transformer
        for name, weight in self.model.named_parameters():
            weight.requires_grad_(not name.startswith(UNTRAINED))
        self.scenes = [clips.clip(FIRST_SEED + index)[0] for index in range(len(latents))]
        self.tools = optimizers(self.model)
        self.average = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}

    def parts(self) -> dict[str, Any]:
        tools = [tool.state_dict() for tool in self.tools]
        return {"model": self.model.state_dict(), "average": self.average, "tools": tools, "step": self.step}

    def save(self) -> None:
        """Write all to the file, at once or not at all."""
        beside = self.file.with_suffix(".part")
        torch.save(self.parts(), beside)
        beside.replace(self.file)

    def load(self) -> None:
        """Go on where the file stopped."""
        kept = torch.load(self.file)
        self.model.load_state_dict(kept["model"])
        self.average, self.step = kept["average"], kept["step"]
        for tool, state in zip(self.tools, kept["tools"], strict=True):
            tool.load_state_dict(state)

    def advance(self) -> float:
        """One step; returns its loss. What it sees depends on the step's number alone."""
        chance, words = torch.Generator().manual_seed(self.step), random.Random(self.step)
        chosen = torch.randint(len(self.latents), (BATCH,), generator=chance)
        captions = [
            "" if words.random() < CAPTION_DROPOUT else clips.caption(self.scenes[index], words)
            for index in chosen.tolist()
        ]
        set_rates(self.tools, rate(self.step, self.steps))
        with as_stored(self.model, self.step > self.steps * (1 - ROUNDED_SHARE)):
            with half_precision():
                loss = flow_loss(self.pipeline, self.latents[chosen], captions, chance)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for tool in self.tools:
            tool.step()
            tool.zero_grad()
        self.step += 1
        keep = min(0.998, (1 + self.step) / (10 + self.step))
        for name, weight in self.model.named_parameters():
            self.average[name].lerp_(weight.detach(), 1 - keep)
        return loss.item()

    def run(self) -> None:
        """Train to the end; the file is written every 200 steps."""
        started, recent = time.perf_counter(), 0.0
        while self.step < self.steps:
            loss = self.advance()
            recent = loss if recent == 0 else 0.98 * recent + 0.02 * loss
            if self.step % 25 == 0:
                seconds = time.perf_counter() - started
                print(f"step {self.step}/{self.steps}  loss {recent:.4f}  {seconds:.0f} s", flush=True)
            if self.step % 200 == 0 or self.step == self.steps:
                self.save()

    @torch.no_grad()
    def finish(self) -> None:
        """Put the averaged weights, as the checkpoint will hold them, into the model."""
        for name, weight in self.model.named_parameters():
            weight.copy_(self.average[name])
        round_weights(self.model)


def prepare(pipeline: Any, work: Path, seed: int) -> torch.Tensor:
    """Train the VAE or load it, encode the clips or load them; returns scaled latents."""
    torch.manual_seed(seed)
    with torch.no_grad():  # latents begin nearly without noise, or nothing gets through it at first
        pipeline.vae.encoder.conv_out.conv.bias[pipeline.vae.config.latent_channels :] -= 5
    for phase in range(len(PHASES)):
        file = work / f"vae{phase}.pt"
        if not file.is_file():
            train_vae(pipeline.vae, phase, file)
        pipeline.vae.load_state_dict(torch.load(file))
    if not (work / "latents.pt").is_file():
        torch.save(encode_clips(pipeline.vae), work / "latents.pt")
    latents = torch.load(work / "latents.pt")
    if not (work / "decoder.pt").is_file():
        polish_decoder(pipeline.vae, latents, work / "decoder.pt")
    pipeline.vae.load_state_dict(torch.load(work / "decoder.pt"))
    scale = round(1 / latents.std().item(), 4)
    pipeline.vae.register_to_config(scaling_factor=scale)
    print(f"latents {tuple(latents.shape)}  mean {latents.mean():.3f}  scaling_factor {scale}", flush=True)
    return latents * scale


def main() -> None:
    """Train and save by the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m recipes.hunyuan_video.train", description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path("build/hunyuan_video"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "checkpoint")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    pipeline = build_pipeline(options.seed)
    begin_at_zero(pipeline.transformer)
    latents = prepare(pipeline, options.work, options.seed)
    training = Training(pipeline, latents, options.work / "transformer.pt", options.steps)
    if training.file.is_file():
        training.load()
    training.run()
    training.finish()
    save_small(pipeline, options.out)
    print(f"saved in {options.out}")


if __name__ == "__main__":
    main()
