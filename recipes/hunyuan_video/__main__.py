"""Port a diffusion pipeline and render clips: `python -m recipes.hunyuan_video --prompt "a red circle moves left"`.

Uses only the public API of tpuport; README.md beside this file explains it step by step.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import tpuport
from recipes.checks import DTYPES, check_dtype, check_output
from recipes.command import at_least, create_mesh, run_command, simulate_devices
from recipes.hunyuan_video import request as requests
from recipes.pipeline_checks import check_checkpoint, check_mesh
from recipes.pipeline_linting import lint_model_code

MODEL_MODULE = "diffusers.models.transformers.transformer_hunyuan_video15"
DEFAULT_CHECKPOINT = Path(__file__).parent / "checkpoint"
DEFAULT_OUTPUT = Path("outputs/hunyuan_video")
DEFAULT_PROMPTS = (
    "red triangle left",
    "the large blue square slides quickly to the right",
    "in this short clip a small green triangle drifts upwards in front of a dark background",
    "one tiny yellow box is moving gently towards the left side",
)
# Of the tiny model, and of a real one.
DEFAULT_SIZE = {"height": 48, "width": 48, "frames": 9, "steps": 30}
REAL_SIZE = {"height": 480, "width": 848, "frames": 121, "steps": 50}

console = Console(highlight=False, soft_wrap=True)


def write_latents(latents: Any, output: Path) -> None:
    """Write the latents to a safetensors file."""
    from safetensors.torch import save

    from recipes.pictures import whole_file

    path = output / "latents.safetensors"
    with whole_file(path) as file:
        file.write(save({"latents": latents.contiguous()}))
    console.print(f"wrote {path}  {list(latents.shape)}")


def write_clips(clips: Any, names: list[str], output: Path) -> None:
    """Write a GIF of all clips, and a contact sheet."""
    from recipes import pictures

    scale = max(1, 192 // clips.shape[2])
    console.print(f"wrote {pictures.save_gif(list(clips), output / 'clips.gif', scale=scale)}")
    sheet = pictures.contact_sheet(list(clips), names, scale=max(1, scale // 2))
    console.print(f"wrote {pictures.save_image(sheet, output / 'contact_sheet.png')}")


def compare(clips: Any, checkpoint: Path, request: requests.Request, output: Path) -> bool:
    """Draw the lesson's figure and print the differences; return whether none from torch exceeds 1/255."""
    import torch

    from recipes import pictures, pipeline_running
    from recipes.hunyuan_video import generation

    console.print(
        "rendering the same clips with torch on the CPU, and with two wrong ways to handle padding",
        style="dim",
    )
    if checkpoint == DEFAULT_CHECKPOINT:
        torch.set_num_threads(1)  # with such a small model, more threads only wait for each other
    reference = generation.load(checkpoint, request, torch.float32)
    reference.set_progress_bar_config(disable=True)
    reference_clips = generation.call(reference, request)
    wrong_clips = generation.wrong_ways(reference, request)
    versions: dict[str, Any] = {"tpuport": clips, "torch": reference_clips} | wrong_clips
    figure = pictures.lesson_figure(request.names, versions, "torch", scale=max(1, 96 // request.height))
    path = pictures.save_image(figure, output / "lesson.png")
    is_equal = pipeline_running.report_difference(clips, reference_clips, console)
    console.print("for comparison, two wrong ways to handle padding:")
    for name, wrong in wrong_clips.items():
        pipeline_running.print_difference(name, wrong, reference_clips, console)
    console.print(f"wrote {path}")
    return is_equal


def port_and_generate(arguments: argparse.Namespace, request: requests.Request, mesh: Any) -> Any:
    """Load, port, generate and write the results; return the clips, or the latents."""
    from recipes import pipeline_running
    from recipes.hunyuan_video import generation

    pipeline = generation.load(arguments.checkpoint, request, DTYPES[arguments.dtype])
    pipeline = pipeline_running.port(pipeline, mesh, console)
    options: dict[str, Any] = {}
    if arguments.latents_only:
        options["output_type"] = "latent"

    def call(steps: int) -> Any:
        return generation.call(pipeline, request, num_inference_steps=steps, **options)

    results = pipeline_running.timed_call(pipeline, call, request.steps, console)
    if arguments.latents_only:
        write_latents(results, arguments.output)
    else:
        write_clips(results, request.names, arguments.output)
    return results


def read_request(arguments: argparse.Namespace) -> requests.Request:
    """The request, checked; nothing large is read.

    Raises:
        PortError: it is impossible.
    """
    checkpoint = arguments.checkpoint
    has_embeddings = arguments.prompt_embeds is not None
    if has_embeddings and (arguments.prompt or arguments.negative_prompt is not None):
        fix = "leave out --prompt and --negative-prompt; the file contains both"
        raise tpuport.PortError("there are both embeddings and prompts", where="--prompt-embeds", fix=fix)
    check_checkpoint(checkpoint, requests.PIPELINE)
    is_tiny = checkpoint.resolve() == DEFAULT_CHECKPOINT.resolve()
    prompts = arguments.prompt or []
    if not prompts and not has_embeddings:
        if not is_tiny:
            fix = '--prompt "a cat walks on the grass"'
            raise tpuport.PortError("there is no prompt", where="--prompt", fix=fix)
        prompts = list(DEFAULT_PROMPTS)
    sizes = dict(DEFAULT_SIZE if is_tiny else REAL_SIZE)
    for name in sizes:
        if getattr(arguments, name) is not None:
            sizes[name] = getattr(arguments, name)
    requests.check_size(checkpoint, sizes["height"], sizes["width"], sizes["frames"])
    embeddings = {}
    if has_embeddings:
        is_guided = arguments.guidance_scale != 1.0
        embeddings = requests.read_embeddings(arguments.prompt_embeds, checkpoint, guided=is_guided)
    return requests.Request(
        tuple(prompts),
        arguments.negative_prompt or "",
        embeddings,
        **sizes,
        guidance_scale=arguments.guidance_scale,
        seed=arguments.seed,
    )


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the recipe, from these words or from the command line; wrong usage exits with 2."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.hunyuan_video",
        description="Port a HunyuanVideo-1.5 pipeline, generate clips with it as before, compare with torch's own.",
    )
    add = parser.add_argument
    add("--prompt", action="append", help="what to show; may be repeated")
    add("--negative-prompt", help="what to steer away from")
    add("--prompt-embeds", type=Path, help="a safetensors file with embeddings and their masks")
    add("--checkpoint", type=Path, default=DEFAULT_CHECKPOINT, help="a directory in diffusers' layout")
    add(
        "--output",
        type=Path,
        default=DEFAULT_OUTPUT,
        help=f"the folder for pictures (default {DEFAULT_OUTPUT})",
    )
    add("--height", type=int, help="in pixels")
    add("--width", type=int, help="in pixels")
    add("--frames", type=int, help="1, plus a multiple of the frames of a latent")
    add("--steps", type=at_least(1), help="denoising steps")
    add("--guidance-scale", type=float, help="1: no guidance; default: the checkpoint's")
    add("--seed", type=at_least(0), default=0, help="of the noise (default 0)")
    add("--dtype", default="float32", help="float32 (default) or bfloat16")
    add("--tp", type=int, default=1, help="devices that shard the weights; -1: all that are left")
    add("--sp", type=int, default=1, help="devices that shard the sequence; -1: all that are left")
    add("--dp", type=int, default=1, help="devices that shard the batch; -1: all that are left")
    add("--cpu-devices", type=at_least(0), default=0, help="let the CPU simulate this many devices")
    add("--latents-only", action="store_true", help="neither decode nor write pictures")
    add("--compare", action=argparse.BooleanOptionalAction, help="with torch; default for the tiny model")
    add("--lint", action=argparse.BooleanOptionalAction, default=True, help="first lint the model's code")
    arguments = parser.parse_args(words)
    if arguments.compare and not is_comparable(arguments):
        parser.error("--compare: clips are compared in float32, and decoded")
    return arguments


def is_comparable(arguments: argparse.Namespace) -> bool:
    """Whether torch must generate the same clips."""
    return arguments.dtype == "float32" and not arguments.latents_only


def main() -> None:
    """Run the recipe."""
    arguments = parse_arguments()
    sizes = {"dp": arguments.dp, "sp": arguments.sp, "tp": arguments.tp}
    check_dtype(arguments.dtype)
    request = read_request(arguments)
    check_mesh(sizes, arguments.checkpoint)
    check_output(arguments.output)
    if arguments.lint:
        lint_model_code(MODEL_MODULE, console)
    if arguments.cpu_devices:
        simulate_devices(arguments.cpu_devices)
    from recipes import pipeline_running

    pipeline_running.start()
    clips = port_and_generate(arguments, request, create_mesh(sizes, console))
    is_compared = arguments.compare
    if is_compared is None:
        is_compared = arguments.checkpoint == DEFAULT_CHECKPOINT and is_comparable(arguments)
    if is_compared and not compare(clips, arguments.checkpoint, request, arguments.output):
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
