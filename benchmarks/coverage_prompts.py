"""Generation from images, videos and audio, as `benchmarks.coverage` tries it, beside transformers' own."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from benchmarks.tiny_multimodal import Call, other_contents

# Of the largest logit: what other images have to change, and what tpuport's may differ by.
LEAST_EFFECT = 1e-2
MOST_ERROR = 1e-4
Check = dict[str, Any]


def forms(prompts: Mapping[str, Callable[[int], Call]]) -> Iterator[tuple[str, Call, bool]]:
    """What is tried with a model: the name of a check, its call, and whether it runs on a mesh."""
    modality, *others = prompts
    yield "generate", prompts[modality](1), False
    yield "generate_batch", prompts[modality](2), False
    for other in others:
        yield f"generate_{other}", prompts[other](2), False
    yield "generate_mesh", prompts[modality](2), True


def expect_contents(model: Any, call: Call, options: dict[str, Any]) -> tuple[Any, float]:
    """transformers' output for a call, with its logits, and how much other contents change the first of them.

    Raises:
        Exception: whatever torch raises.
    """
    options = {**options, "output_logits": True, "return_dict_in_generate": True}
    theirs, other = (
        copy.deepcopy(model).generate(**copy.deepcopy(given), **options)
        for given in (call, other_contents(call))
    )
    return theirs, deviation_of_logits(theirs.logits[:1], other.logits[:1])


def compare_contents(model: Any, call: Call, theirs: Any, effect: float, options: dict[str, Any]) -> Check:
    """Generate as torch did, on a ported model, and compare the tokens and the logits of each of them."""
    options = {**options, "output_logits": True, "return_dict_in_generate": True}
    ours = model.generate(**copy.deepcopy(call), **options)
    tokens = torch.as_tensor(ours.sequences)
    if not torch.equal(tokens, theirs.sequences):
        reason = f"{tokens[:, -8:].tolist()}, in torch {theirs.sequences[:, -8:].tolist()}"
        return {"verdict": "different", "reason": reason}
    error = deviation_of_logits(ours.logits, theirs.logits)
    if error > MOST_ERROR:
        return {
            "verdict": "different",
            "reason": f"logits differ by {error:.0e} of the largest",
            "error": error,
        }
    if effect < LEAST_EFFECT:
        return {"verdict": "not compared", "reason": "images ignored by the test model", "error": error}
    return {"verdict": "equal", "error": error}


def deviation_of_logits(first: Any, second: Any) -> float:
    """The largest difference of logits [steps][B, V], as a part of the largest of the second.

    The least number of the dtype, by which a model hides tokens (Chameleon those of images), is none of a size.
    """
    ours, theirs = (
        torch.stack([torch.as_tensor(step).float() for step in steps]) for steps in (first, second)
    )
    hidden = theirs == torch.finfo(theirs.dtype).min
    if not torch.equal(ours[hidden], theirs[hidden]):
        return math.inf
    return float((ours - theirs)[~hidden].abs().max() / theirs[~hidden].abs().max())
