"""What a user waits for, added up from the programs that it calls: a picture, a clip,
an answer. Needs no torch.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Final

from tpuport.topology.compile_messages import CompileResult

# Programs that a step of denoising calls; the user's own code may be one.
STEPPED_KINDS: Final = ("denoiser", "code")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How often programs are called.

    Attributes:
        steps: of denoising; None for anything else.
        guidance: whether each step needs a second prediction, without the prompt.
        length: tokens of a prompt; new_tokens: that follow; None if nothing is
            generated.
    """

    steps: int | None = None
    guidance: bool = False
    length: int | None = None
    new_tokens: int | None = None


@dataclasses.dataclass(frozen=True)
class RunPart:
    """A program's part of a run.

    Attributes:
        target: the name of the program.
        times: how often it is called; less than once if a call does it for several
            images.
        seconds: of one call.
    """

    target: str
    times: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class WholeRun:
    """A run from the user's input to the result.

    Attributes:
        product: what it makes, for people; topology: the slice's full name.
        seconds: of all calls; what the host does between them is not counted.
        parts: in the order of the calls.
        missing: programs that have no time, as they do not fit or cannot be traced;
            then seconds are of the others.
    """

    product: str
    topology: str
    seconds: float
    parts: tuple[RunPart, ...]
    missing: tuple[str, ...] = ()


def whole_runs(
    results: Sequence[CompileResult], recipe: Recipe
) -> list[dict[str, Any]] | None:
    """A run on each topology as plain values; None if the recipe says nothing.

    Args:
        results: of all programs, as `document` takes them.
    """
    if recipe.steps is None and recipe.new_tokens is None:
        return None
    # Compiling may have stopped before it came to what takes steps.
    main = [
        result
        for result in results
        if recipe.steps is None or result.kind in STEPPED_KINDS
    ]
    topologies = dict.fromkeys(result.topology for result in main)
    return [
        dataclasses.asdict(
            _run([result for result in results if result.topology == topology], recipe)
        )
        for topology in topologies
    ]


def _run(results: list[CompileResult], recipe: Recipe) -> WholeRun:
    if recipe.steps is None:
        times = {result.target: _generation_calls(result, recipe) for result in results}
        product = (
            f"a prompt of {recipe.length:,} tokens and {recipe.new_tokens:,} new ones"
        )
    else:
        times, product = _denoising_calls(results, recipe, recipe.steps)
    parts = [
        RunPart(
            result.target, times[result.target], result.report["profile"]["seconds"]
        )
        for result in results
        if result.report is not None and result.report["profile"] is not None
    ]
    timed = {part.target for part in parts}
    missing = [result.target for result in results if result.target not in timed]
    seconds = sum(part.times * part.seconds for part in parts)
    return WholeRun(product, results[0].topology, seconds, tuple(parts), tuple(missing))


def _generation_calls(result: CompileResult, recipe: Recipe) -> float:
    assert recipe.new_tokens is not None
    # The prompt's program makes the first token.
    return 1.0 if result.target.endswith("prefill") else recipe.new_tokens - 1.0


def _denoising_calls(
    results: Iterable[CompileResult], recipe: Recipe, steps: int
) -> tuple[dict[str, float], str]:
    """How often each program is called, and what comes of it."""
    results = list(results)
    denoisers = [result for result in results if result.kind in STEPPED_KINDS]
    # A model that was distilled takes the scale of guidance as an input, and predicts
    # once.
    second = recipe.guidance and not any(result.is_distilled for result in denoisers)
    rows = max((result.rows for result in denoisers), default=1)
    # An even number of rows has both predictions of half as many images.
    in_one_call = second and rows % 2 == 0
    rows_per_image = 2 if in_one_call else 1
    predictions = 2 if second and not in_one_call else 1
    times: dict[str, float] = {}
    for result in results:
        if result.kind in STEPPED_KINDS:
            # Of several, each denoises a part of the steps.
            times[result.target] = steps * predictions / len(denoisers)
        elif "text_encoder" in result.target:
            times[result.target] = float(predictions)
        elif result.kind == "vae":
            # It decodes as many images as there are rows, of which a call with both
            # predictions wants half.
            times[result.target] = 1 / rows_per_image
        else:
            times[result.target] = 1.0
    images = rows // rows_per_image
    product = next(
        (result.product for result in denoisers if result.product), denoisers[0].target
    )
    if images > 1:
        product = f"{images} times {product}"
    if len(times) == len(denoisers):
        product = f"{steps:,} steps of {product}"
    return times, product
