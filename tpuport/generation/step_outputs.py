"""The scores and logits of every step, for `output_scores` and `output_logits`: written
by the loop, read in chunks.

Shapes: B rows, V vocabulary, R steps of a chunk.
"""

import dataclasses
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers.generation.utils import (
    GenerateBeamDecoderOnlyOutput,
    GenerateBeamEncoderDecoderOutput,
    GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput,
)

from tpuport.generation.beam_search import Result
from tpuport.generation.generation_options import Options

# Steps whose outputs are on the device at a time: each takes rows times vocabulary.
STEPS: Final = 16


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OutputSettings:
    """Which outputs the loop writes."""

    scores: bool = dataclasses.field(metadata={"static": True})
    logits: bool = dataclasses.field(metadata={"static": True})


# By whether it is of a beam search, and of an encoder-decoder.
_OUTPUTS: Final[dict[tuple[bool, bool], Any]] = {
    (False, False): GenerateDecoderOnlyOutput,
    (False, True): GenerateEncoderDecoderOutput,
    (True, False): GenerateBeamDecoderOnlyOutput,
    (True, True): GenerateBeamEncoderDecoderOutput,
}


class StepOutputs(NamedTuple):
    """float32 [R, B, V] each, None if it was not asked for; the first is of the step at
    column `start`.
    """

    start: jax.Array
    scores: jax.Array | None
    logits: jax.Array | None


def output_settings(options: Options) -> OutputSettings | None:
    """None if nothing is to be written."""
    if not (options.output_scores or options.output_logits):
        return None
    return OutputSettings(options.output_scores, options.output_logits)


def begin_outputs(
    settings: OutputSettings, shape: tuple[int, ...], start: jax.Array
) -> StepOutputs:
    """Traced. Room for some steps of [B, V]."""
    zeros = jnp.zeros((STEPS, *shape), jnp.float32)
    return StepOutputs(
        start, zeros if settings.scores else None, zeros if settings.logits else None
    )


def write_outputs(
    outputs: StepOutputs, column: jax.Array, scores: jax.Array, logits: jax.Array
) -> StepOutputs:
    """Traced. Add those of the step at this column, [B, V] each."""
    step = column - outputs.start

    def write(array: jax.Array | None, values: jax.Array) -> jax.Array | None:
        return (
            None
            if array is None
            else jax.lax.dynamic_update_index_in_dim(array, values, step, axis=0)
        )

    return outputs._replace(
        scores=write(outputs.scores, scores), logits=write(outputs.logits, logits)
    )


class CollectedOutputs:
    """What the host has read so far.

    Attributes:
        scores, logits: a tensor [B, V] for each step.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.scores: list[torch.Tensor] = []
        self.logits: list[torch.Tensor] = []

    def read(self, outputs: StepOutputs | None, steps: int) -> None:
        """Add the steps of a chunk."""
        if outputs is None:
            return
        for array, collected in (
            (outputs.scores, self.scores),
            (outputs.logits, self.logits),
        ):
            if array is not None:
                chunk = np.asarray(array)[:steps, : self._rows]
                collected.extend(torch.from_numpy(step) for step in chunk.copy())

    def as_output(
        self,
        sequences: Any,
        options: Options,
        search: Result | None,
        *,
        has_encoder: bool,
    ) -> Any:
        """transformers' output class for `return_dict_in_generate`."""
        fields: dict[str, Any] = {
            "sequences": sequences,
            "scores": tuple(self.scores) if options.output_scores else None,
            "logits": tuple(self.logits) if options.output_logits else None,
        }
        if search is not None:
            fields["beam_indices"] = search.beam_indices
            if options.output_scores:
                fields["sequences_scores"] = search.scores
        return _OUTPUTS[search is not None, has_encoder](**fields)
