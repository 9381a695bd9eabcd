"""The command that recipes of pipelines share: load or build, port, render, compare with torch on the CPU."""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import tpuport
from recipes.checks import DTYPES, check_dtype, check_output
from recipes.command import at_least, create_mesh, simulate_devices
from recipes.pipeline_checks import check_checkpoint, check_mesh
from recipes.pipeline_linting import lint_model_code

console = Console(highlight=False, soft_wrap=True)


def prompts_as_text(pipeline: Any, prompts: list[str], negative_prompt: str) -> dict[str, Any]:
    """The arguments of a pipeline's call that are its texts."""
    return {"prompt": prompts, "negative_prompt": [negative_prompt] * len(prompts)}


@dataclasses.dataclass(frozen=True)
class PipelineRecipe:
    """What a recipe adds to the command.

    Attributes:
        name: of the recipe's package.
        pipeline_class: of the checkpoints that it takes, by name.
        model_module: the module of diffusers with the transformer, for the linter.
        build_tiny: a pipeline with random weights, the same in each call.
        tiny_call: arguments of the tiny pipeline's call: sizes, steps, and the guidance scale by its name there.
        real_call: the same for a checkpoint.
        prompts: of the tiny pipeline.
        describe_texts: the arguments of a ported pipeline's call that are its texts.
    """

    name: str
    pipeline_class: str
    model_module: str
    build_tiny: Callable[[], Any]
    tiny_call: Mapping[str, Any]
    real_call: Mapping[str, Any]
    prompts: Sequence[str]
    describe_texts: Callable[[Any, list[str], str], dict[str, Any]] = prompts_as_text

    @property
    def guidance_argument(self) -> str:
        """What the pipeline calls its guidance scale."""
        return next(name for name in self.tiny_call if name.endswith("_scale"))


def run_recipe(recipe: PipelineRecipe) -> None:
    """Run a recipe from the command line; exits with 1 if torch renders something else."""
    arguments = parse_arguments(recipe)
    sizes = {"dp": arguments.dp, "sp": arguments.sp, "tp": arguments.tp}
    check_request(recipe, arguments, sizes)
    if arguments.lint:
        lint_model_code(recipe.model_module, console)
    if arguments.cpu_devices:
        simulate_devices(arguments.cpu_devices)
    from recipes import pipeline_running

    pipeline_running.start()
    mesh = create_mesh(sizes, console)
    pipeline = pipeline_running.port(load_pipeline(recipe, arguments), mesh, console)
    prompts = arguments.prompt or list(recipe.prompts)
    options = call_options(recipe, arguments)
    texts = recipe.describe_texts(pipeline, prompts, arguments.negative_prompt)

    def call(steps: int) -> np.ndarray:
        return render(
            pipeline, texts, {**options, "num_inference_steps": steps}, arguments.seed, len(prompts)
        )

    steps = options.pop("num_inference_steps")
    clips = pipeline_running.timed_call(pipeline, call, steps, console)
    write_clips(clips, prompts, arguments.output)
    if not arguments.compare:
        return
    console.print("rendering the same with torch on the CPU", style="dim")
    reference = load_pipeline(recipe, arguments)
    reference.set_progress_bar_config(disable=True)
    texts = prompts_as_text(reference, prompts, arguments.negative_prompt)
    options["num_inference_steps"] = steps
    reference_clips = render(reference, texts, options, arguments.seed, len(prompts))
    if not pipeline_running.report_difference(clips, reference_clips, console):
        sys.exit(1)


def parse_arguments(recipe: PipelineRecipe, words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a recipe, from these words or from the command line; wrong usage exits with 2."""
    output = Path("outputs") / recipe.name
    parser = argparse.ArgumentParser(
        prog=f"python -m recipes.{recipe.name}",
        description=f"Port a {recipe.pipeline_class}, render with it as before, compare with torch's own.",
    )
    add = parser.add_argument
    add("--prompt", action="append", help="what to show; may be repeated")
    add("--negative-prompt", default="", help="what to steer away from")
    add("--checkpoint", type=Path, help="a directory in diffusers' layout; default: a tiny pipeline")
    add("--output", type=Path, default=output, help=f"the folder for pictures (default {output})")
    add("--height", type=at_least(1), help="in pixels")
    add("--width", type=at_least(1), help="in pixels")
    if "num_frames" in recipe.tiny_call:
        add("--frames", type=at_least(1), help="1, plus a multiple of the frames of a latent")
    add("--steps", type=at_least(1), help="denoising steps")
    add("--guidance-scale", type=float, help="how closely to follow the prompt")
    add("--seed", type=at_least(0), default=0, help="of the noise (default 0)")
    add("--dtype", default="float32", help="float32 (default) or bfloat16")
    add("--tp", type=int, default=1, help="devices that shard the weights; -1: all that are left")
    add("--sp", type=int, default=1, help="devices that shard the sequence; -1: all that are left")
    add("--dp", type=int, default=1, help="devices that shard the batch; -1: all that are left")
    add("--cpu-devices", type=at_least(0), default=0, help="let the CPU simulate this many devices")
    add("--compare", action=argparse.BooleanOptionalAction, help="with torch; default for the tiny pipeline")
    add("--lint", action=argparse.BooleanOptionalAction, default=True, help="first lint the model's code")
    arguments = parser.parse_args(words)
    is_float32 = arguments.dtype == "float32"
    if arguments.compare and not is_float32:
        parser.error("--compare: results are compared in float32")
    if arguments.compare is None:
        arguments.compare = arguments.checkpoint is None and is_float32
    return arguments


def check_request(recipe: PipelineRecipe, arguments: argparse.Namespace, sizes: dict[str, int]) -> None:
    """Raise PortError for what cannot be, before weights are read."""
    check_dtype(arguments.dtype)
    check_output(arguments.output)
    if arguments.checkpoint is None:
        return
    check_checkpoint(arguments.checkpoint, recipe.pipeline_class)
    check_mesh(sizes, arguments.checkpoint)
    if not arguments.prompt:
        fix = '--prompt "a cat walks on the grass"'
        raise tpuport.PortError("there is no prompt", where="--prompt", fix=fix)


def call_options(recipe: PipelineRecipe, arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of the pipeline's call, without texts and random numbers."""
    defaults = recipe.tiny_call if arguments.checkpoint is None else recipe.real_call
    requested = {
        "height": arguments.height,
        "width": arguments.width,
        "num_frames": getattr(arguments, "frames", None),
        "num_inference_steps": arguments.steps,
        recipe.guidance_argument: arguments.guidance_scale,
    }
    return {**defaults, **{name: value for name, value in requested.items() if value is not None}}


def load_pipeline(recipe: PipelineRecipe, arguments: argparse.Namespace) -> Any:
    """The checkpoint's pipeline on the host, or the tiny one.

    Raises:
        PortError: diffusers cannot read the checkpoint.
    """
    import diffusers

    dtype = DTYPES[arguments.dtype]
    if arguments.checkpoint is None:
        return recipe.build_tiny().to(dtype)
    pipeline_class = getattr(diffusers, recipe.pipeline_class)
    try:
        return pipeline_class.from_pretrained(arguments.checkpoint, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        what = f"diffusers cannot load this checkpoint: {str(error).strip().splitlines()[0]}"
        fix = "give a complete directory in diffusers' layout"
        raise tpuport.PortError(what, where=str(arguments.checkpoint), fix=fix) from error


def render(
    pipeline: Any, texts: Mapping[str, Any], options: Mapping[str, Any], seed: int, count: int
) -> np.ndarray:
    """Call a pipeline, ported or not; each prompt has noise of its own.

    Returns:
        Clips [prompts, frames, height, width, 3] from 0 to 1; pictures are clips of one frame.
    """
    import torch

    generators = [torch.Generator().manual_seed(seed + row) for row in range(count)]
    result = pipeline(**texts, **options, generator=generators, output_type="np")[0]
    return result if result.ndim == 5 else result[:, None]


def write_clips(clips: np.ndarray, prompts: list[str], output: Path) -> None:
    """Write a contact sheet, and a GIF if there are several frames."""
    from recipes import pictures

    scale = max(1, 192 // clips.shape[2])
    if clips.shape[1] > 1:
        console.print(f"wrote {pictures.save_gif(list(clips), output / 'clips.gif', scale=scale)}")
    sheet = pictures.contact_sheet(list(clips), prompts, scale=max(1, scale // 2))
    console.print(f"wrote {pictures.save_image(sheet, output / 'contact_sheet.png')}")
