"""Port a diffusion pipeline and let it draw: `python -m recipes.hunyuan_video --prompt "a red circle moves left"`.

Uses the public API of tpuport alone; README.md beside this file goes through it step by step.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import tpuport
from recipes.hunyuan_video import request as requests
from recipes.hunyuan_video.linting import look

DEFAULT_CHECKPOINT = Path(__file__).parent / "checkpoint"
DEFAULT_OUTPUT = Path("outputs/hunyuan_video")
DEFAULT_PROMPTS = (
    "red triangle left",
    "the large blue square slides quickly to the right",
    "in this short clip a small green triangle drifts upwards in front of a dark background",
    "one tiny yellow box is moving gently towards the left side",
)
DEFAULT_SIZE = {"height": 48, "width": 48, "frames": 9, "steps": 30}  # of the tiny model; of a real one:
REAL_SIZE = {"height": 480, "width": 848, "frames": 121, "steps": 50}

console = Console(highlight=False, soft_wrap=True)


def pretend_devices(count: int) -> None:
    """Let the CPU stand in for `count` devices; must come before jax is used."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={count}".strip()


def make_mesh(sizes: dict[str, int]) -> Any:
    """The mesh, of as many devices as it needs, and a line that says what it is."""
    import jax

    needed = 1
    for size in sizes.values():
        needed *= size
    devices = None if -1 in sizes.values() else jax.devices()[:needed]
    mesh = tpuport.create_mesh(**sizes, devices=devices)
    shape = " ".join(f"{axis}={mesh.shape[axis]}" for axis in sizes)
    console.print(f"mesh: {shape}, {mesh.devices.flat[0].platform}")
    return mesh


def write_latents(latents: Any, output: Path) -> None:
    """The latents in a safetensors file."""
    from safetensors.torch import save

    from recipes.hunyuan_video.pictures import whole_file

    path = output / "latents.safetensors"
    with whole_file(path) as file:
        file.write(save({"latents": latents.contiguous()}))
    console.print(f"wrote {path}  {list(latents.shape)}")


def write_clips(clips: Any, names: list[str], output: Path) -> None:
    """A GIF of all clips, and a contact sheet."""
    from recipes.hunyuan_video import pictures

    scale = max(1, 192 // clips.shape[2])
    console.print(f"wrote {pictures.save_gif(list(clips), output / 'clips.gif', scale=scale)}")
    sheet = pictures.contact_sheet(list(clips), names, scale=max(1, scale // 2))
    console.print(f"wrote {pictures.save_image(sheet, output / 'contact_sheet.png')}")


def largest(a: Any, b: Any) -> float:
    """The largest difference of two arrays."""
    return float(abs(a - b).max())


def compare(ours: Any, checkpoint: Path, request: requests.Request, output: Path) -> bool:
    """Draw the lesson's figure and say the numbers; whether no pixel is off by more than 1/255 from torch's."""
    import torch

    from recipes.hunyuan_video import generation, pictures

    console.print("torch draws the same, on the CPU, without tpuport; then wrongly, in two ways", style="dim")
    if checkpoint == DEFAULT_CHECKPOINT:
        torch.set_num_threads(1)  # of a model so small, more threads only wait for each other
    reference = generation.load(checkpoint, request, torch.float32)
    reference.set_progress_bar_config(disable=True)
    torchs = generation.call(reference, request)
    ways: dict[str, Any] = {"tpuport": ours, "torch": torchs} | generation.wrong_ways(reference, request)
    figure = pictures.lesson_figure(request.names, ways, "torch", scale=max(1, 96 // request.height))
    path = pictures.save_image(figure, output / "lesson.png")
    relative = float(((ours - torchs) ** 2).sum() ** 0.5 / (torchs**2).sum() ** 0.5)
    for name, clips in ways.items():
        if name != "torch":
            console.print(
                f"{name}: a pixel is off from torch's by up to {largest(clips, torchs) * 255:.3g} of 255"
            )
    good = largest(ours, torchs) <= 1 / 255
    style = "green" if good else "red"
    verdict = "the same clips" if good else "other clips"
    console.print(f"torch draws {verdict}: relative error {relative:.1e}", style=style)
    console.print(f"wrote {path}")
    return good


def port_and_draw(
    checkpoint: Path, request: requests.Request, mesh: Any, dtype: str, output: Path, latents_only: bool
) -> Any:
    """Load, port, generate, write; returns the clips, or the latents."""
    from recipes.hunyuan_video import generation

    pipeline = generation.load(checkpoint, request, requests.DTYPES[dtype])
    size = sum(weight.numel() for weight in pipeline.transformer.parameters()) / 1e6
    pipeline = tpuport.port(pipeline, mesh=mesh)
    console.print(f"ported {type(pipeline).__name__}, its transformer has {size:.1f} M parameters")
    options = {"output_type": "latent"} if latents_only else {}
    made, timing = generation.timed_call(pipeline, request, **options)
    console.print(
        f"{timing.first:.1f} s for a first call of two steps, then {timing.whole:.2f} s for {timing.steps} steps: "
        f"{timing.step:.3f} s a step, text encoders and VAE counted in"
    )
    counts = ", ".join(f"{name} {count}" for name, count in generation.compilations(pipeline).items())
    console.print(f"programs compiled over both calls: {counts}")
    if latents_only:
        write_latents(made, output)
    else:
        write_clips(made, request.names, output)
    return made


def read_request(
    checkpoint: Path,
    prompts: list[str] | None,
    negative: str | None,
    embeds: Path | None,
    options: dict[str, Any],
) -> requests.Request:
    """What was asked for, checked; nothing large is read for it.

    Raises:
        PortError: something cannot be.
    """
    if embeds is not None and (prompts or negative is not None):
        fix = "leave --prompt and --negative-prompt out; the file has both"
        raise tpuport.PortError("there are embeddings and prompts", where="--prompt-embeds", fix=fix)
    requests.check_checkpoint(checkpoint)
    tiny = checkpoint.resolve() == DEFAULT_CHECKPOINT.resolve()
    if not tiny and embeds is None and not prompts:
        raise tpuport.PortError(
            "nothing is asked for", where="--prompt", fix='--prompt "a cat walks on the grass"'
        )
    given: dict[str, Any] = {"guidance_scale": None} | (DEFAULT_SIZE if tiny else REAL_SIZE)
    given |= {name: value for name, value in options.items() if value is not None}
    requests.check_size(checkpoint, given["height"], given["width"], given["frames"])
    scale = given["guidance_scale"]
    held = {} if embeds is None else requests.read_embeddings(embeds, checkpoint, guided=scale != 1.0)
    texts = () if embeds else tuple(prompts or DEFAULT_PROMPTS)
    return requests.Request(texts, negative or "", held, **given)


def run(
    prompt: Annotated[list[str] | None, typer.Option(help="What to show; may be repeated.")] = None,
    negative_prompt: Annotated[str | None, typer.Option(help="What to steer away from.")] = None,
    prompt_embeds: Annotated[
        Path | None, typer.Option(help="A safetensors file with embeddings and their masks.")
    ] = None,
    checkpoint: Annotated[Path, typer.Option(help="In diffusers' layout.")] = DEFAULT_CHECKPOINT,
    output: Annotated[Path, typer.Option(help="The folder for pictures.")] = DEFAULT_OUTPUT,
    height: Annotated[int | None, typer.Option(help="Pixels.")] = None,
    width: Annotated[int | None, typer.Option(help="Pixels.")] = None,
    frames: Annotated[int | None, typer.Option(help="1, and a multiple of what a latent spans.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Of denoising.")] = None,
    guidance_scale: Annotated[float | None, typer.Option(help="1: no guidance.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the noise.")] = 0,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    tp: Annotated[int, typer.Option(help="Devices that share the weights; -1: all left.")] = 1,
    sp: Annotated[int, typer.Option(help="Devices that share the sequence; -1: all left.")] = 1,
    dp: Annotated[int, typer.Option(help="Devices that share the batch; -1: all left.")] = 1,
    cpu_devices: Annotated[int, typer.Option(min=0, help="Let the CPU stand in for so many devices.")] = 0,
    latents_only: Annotated[bool, typer.Option("--latents-only", help="No VAE, no pictures.")] = False,
    comparing: Annotated[
        bool | None, typer.Option("--compare/--no-compare", help="With torch; on for the tiny model.")
    ] = None,
    lint: Annotated[
        bool, typer.Option(help="Look first for what in the model's code cannot be traced.")
    ] = True,
) -> None:
    """Port a HunyuanVideo-1.5 pipeline, generate clips with it as before, compare them with torch's own."""
    requests.check_dtype(dtype)
    if comparing and (dtype != "float32" or latents_only):
        raise typer.BadParameter("clips are compared in float32, and decoded", param_hint="--compare")
    size = {"height": height, "width": width, "frames": frames, "steps": steps}
    options = size | {"guidance_scale": guidance_scale, "seed": seed}
    request = read_request(checkpoint, prompt, negative_prompt, prompt_embeds, options)
    requests.check_mesh({"dp": dp, "sp": sp, "tp": tp}, checkpoint)
    requests.check_output(output)
    if lint:
        look(console)
    if cpu_devices:
        pretend_devices(cpu_devices)
    start()
    mesh = make_mesh({"dp": dp, "sp": sp, "tp": tp})
    made = port_and_draw(checkpoint, request, mesh, dtype, output, latents_only)
    by_default = checkpoint == DEFAULT_CHECKPOINT and dtype == "float32" and not latents_only
    if (by_default if comparing is None else comparing) and not compare(made, checkpoint, request, output):
        sys.exit(1)


def start() -> None:
    """Let tpuport in, now that the devices are chosen, and leave out what the libraries say while they load."""
    import diffusers
    from transformers.utils import logging as transformers_logging

    import tpuport.auto  # noqa: F401

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("diffusers").setLevel(logging.ERROR)
    diffusers.utils.logging.disable_progress_bar()


def main() -> None:
    """Run the recipe; what cannot work is said in a sentence and exits with 1."""
    try:
        typer.run(run)
    except tpuport.PortError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(str(error), style="red", markup=False)
        sys.exit(1)


if __name__ == "__main__":
    main()
