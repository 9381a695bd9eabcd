"""The command that recipes of images and sound share: load, generate, compare with torch on the CPU."""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

import tpuport
from recipes.checks import DTYPES, check_directory, check_dtype, check_output, check_sizes
from recipes.command import at_least, create_mesh, quiet_libraries, simulate_devices, timed
from recipes.model_linting import lint_model_code, read_model_config

console = Console(highlight=False, soft_wrap=True)


@dataclasses.dataclass(frozen=True)
class GenerationRecipe:
    """What a recipe adds to the command.

    Attributes:
        name: of the recipe's package, which has a folder `checkpoint` with a tiny model.
        model_class: of transformers, by name.
        model_types: of the checkpoints that it takes; None for all that answer questions about images.
        option: the name of the option that takes its files, which may be repeated.
        add_options: adds the recipe's options to a parser.
        write_examples: writes the tiny model's files into a folder, and returns them.
        check_inputs: raises PortError for files and texts that cannot be, before weights are read.
        read_processor: of a checkpoint.
        prepare: the arguments of the model's `generate`.
        describe: lines about the arguments and what was generated.
        heads: how many heads share the weights, of the checkpoint's configuration.
    """

    name: str
    model_class: str
    model_types: tuple[str, ...] | None
    option: str
    add_options: Callable[[argparse.ArgumentParser], None]
    write_examples: Callable[[Path], list[Path]]
    check_inputs: Callable[[argparse.Namespace], None]
    read_processor: Callable[[Path], Any]
    prepare: Callable[[Any, argparse.Namespace], dict[str, Any]]
    describe: Callable[[Any, dict[str, Any], Any], list[str]]
    heads: Callable[[dict[str, Any]], int]

    @property
    def checkpoint(self) -> Path:
        """The tiny model's."""
        return Path(__file__).parent / self.name / "checkpoint"


def run_recipe(recipe: GenerationRecipe) -> None:
    """Run a recipe from the command line; exits with 1 if torch generates something else."""
    arguments = parse_arguments(recipe)
    sizes = {"dp": arguments.dp, "tp": arguments.tp}
    check_request(recipe, arguments, sizes)
    if arguments.lint:
        lint_model_code(arguments.checkpoint, console)
    if arguments.cpu_devices:
        simulate_devices(arguments.cpu_devices)
    import tpuport.auto  # noqa: F401

    quiet_libraries()
    mesh = create_mesh(sizes, console)
    processor = recipe.read_processor(arguments.checkpoint)
    call = recipe.prepare(processor, arguments)
    model = load(recipe, arguments, mesh)
    # Inputs have the dtype of the model that reads them.
    call = {name: _as_dtype(value, DTYPES[arguments.dtype]) for name, value in call.items()}
    _, first = timed(lambda: model.generate(**call))
    result, seconds = timed(lambda: model.generate(**call))
    console.print(f"compiled in {first - seconds:.1f} s, then generated in {seconds:.2f} s")
    for line in recipe.describe(processor, call, result):
        console.print(escape(line))
    if arguments.compare and not compare(recipe, arguments.checkpoint, call, result):
        sys.exit(1)


def parse_arguments(recipe: GenerationRecipe, words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a recipe, from these words or from the command line; wrong usage exits with 2."""
    output = Path("outputs") / recipe.name
    parser = argparse.ArgumentParser(
        prog=f"python -m recipes.{recipe.name}",
        description="Load a model straight into sharded arrays, generate, compare with torch.",
    )
    add = parser.add_argument
    add(f"--{recipe.option}", type=Path, action="append", help="a file to read; may be repeated")
    recipe.add_options(parser)
    add("--checkpoint", type=Path, default=recipe.checkpoint, help="a local directory; default: a tiny model")
    add("--output", type=Path, default=output, help=f"the folder for examples (default {output})")
    add("--dtype", default="float32", help="float32 (default) or bfloat16")
    add("--tp", type=int, default=1, help="devices that shard the weights; -1: all that are left")
    add("--dp", type=int, default=1, help="devices that shard the batch; -1: all that are left")
    add("--cpu-devices", type=at_least(0), default=0, help="let the CPU simulate this many devices")
    add("--compare", action=argparse.BooleanOptionalAction, help="with torch; default for the tiny model")
    add("--lint", action=argparse.BooleanOptionalAction, default=True, help="first lint the model's code")
    arguments = parser.parse_args(words)
    is_float32 = arguments.dtype == "float32"
    if arguments.compare and not is_float32:
        parser.error("--compare: equal tokens are promised in float32")
    if arguments.compare is None:
        arguments.compare = arguments.checkpoint == recipe.checkpoint and is_float32
    return arguments


def check_request(recipe: GenerationRecipe, arguments: argparse.Namespace, sizes: dict[str, int]) -> None:
    """Raise PortError for what cannot be, before weights are read; without files, write the examples."""
    check_dtype(arguments.dtype)
    check_directory(arguments.checkpoint)
    config = read_model_config(arguments.checkpoint)
    check_kind(recipe, arguments.checkpoint, config["model_type"])
    check_sizes(sizes, recipe.heads(config))
    if getattr(arguments, recipe.option) is None:
        check_output(arguments.output)
        setattr(arguments, recipe.option, recipe.write_examples(arguments.output))
    recipe.check_inputs(arguments)
    rows = len(getattr(arguments, recipe.option))
    if sizes["dp"] > 0 and rows % sizes["dp"]:
        fix = f"give --{recipe.option} once for each row, or another dp"
        raise tpuport.PortError(f"{sizes['dp']} devices cannot share {rows} rows", where="--dp", fix=fix)


def check_kind(recipe: GenerationRecipe, checkpoint: Path, model_type: str) -> None:
    """Raise PortError for a checkpoint of another kind of model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    if model_type not in (recipe.model_types or MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES):
        what = f"this checkpoint is of a {model_type}"
        kind = (
            " or ".join(recipe.model_types)
            if recipe.model_types
            else f"a type that {recipe.model_class} loads"
        )
        raise tpuport.PortError(what, where=str(checkpoint), fix=f"give one of {kind}")


def load(recipe: GenerationRecipe, arguments: argparse.Namespace, mesh: Any) -> Any:
    """The model on the mesh."""
    import transformers

    model_class = getattr(transformers, recipe.model_class)
    model = tpuport.load(model_class, arguments.checkpoint, mesh=mesh, dtype=DTYPES[arguments.dtype])
    size = sum(weight.numel() for weight in model.parameters()) / 1e6
    console.print(f"loaded {type(model).__name__}, {size:.1f} M parameters")
    return model


def _as_dtype(value: Any, dtype: Any) -> Any:
    is_floating = hasattr(value, "is_floating_point") and value.is_floating_point()
    return value.to(dtype) if is_floating else value


def tokens_of(result: Any) -> Any:
    """The tokens [rows, columns] that a model's `generate` returned, alone or beside more."""
    return result["sequences"] if isinstance(result, dict) else result


def compare(recipe: GenerationRecipe, checkpoint: Path, call: dict[str, Any], result: Any) -> bool:
    """Whether transformers' own generate, on the CPU in float32, produces the same tokens."""
    import torch
    import transformers

    model_class = getattr(transformers, recipe.model_class)
    reference = model_class.from_pretrained(checkpoint, dtype=torch.float32, local_files_only=True).eval()
    expected, tokens = tokens_of(reference.generate(**call)), tokens_of(result)
    if torch.equal(expected, tokens):
        console.print(f"torch generates the same: all {tokens.numel()} tokens are equal", style="green")
        return True
    console.print(f"torch generates other tokens: {expected.tolist()}", style="red")
    return False
