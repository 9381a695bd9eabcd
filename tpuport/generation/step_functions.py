"""Functions of the host that the loop calls in every step: a user's logits processors,
watermarks, criteria of beams.

The compiled program knows a number for them, so that other functions need no other
program. Shapes: B rows, T token buffer, V vocabulary, I prompts of a beam search, C
candidates of a step.
"""

import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.experimental import io_callback
from transformers import LogitsProcessorList
from transformers.generation import logits_process
from transformers.generation.stopping_criteria import StoppingCriteriaList

from tpuport.errors import PortError
from tpuport.generation.generation_options import Options
from tpuport.generation.prompts import Prompts

# The stages at which a function is called, in the order of transformers' processors.
PREFIX, CUSTOM, WATERMARK, CRITERIA = "prefix", "custom", "watermark", "criteria"
# Called with token ids [rows, length] and scores [rows, V], or with the ids alone.
StepFunction = Callable[..., torch.Tensor]
_numbers = itertools.count(1)
_registered: weakref.WeakValueDictionary[int, "StepFunctions"] = (
    weakref.WeakValueDictionary()
)
# Of an option, the class that transformers makes, in whose place it takes a processor
# of the same class.
_CLASSES = {
    "sequence_bias": logits_process.SequenceBiasLogitsProcessor,
    "encoder_repetition_penalty": logits_process.EncoderRepetitionPenaltyLogitsProcessor,
    "no_repeat_ngram_size": logits_process.NoRepeatNGramLogitsProcessor,
    "encoder_no_repeat_ngram_size": logits_process.EncoderNoRepeatNGramLogitsProcessor,
    "bad_words_ids": logits_process.NoBadWordsLogitsProcessor,
    "forced_bos_token_id": logits_process.ForcedBOSTokenLogitsProcessor,
    "forced_eos_token_id": logits_process.ForcedEOSTokenLogitsProcessor,
    "remove_invalid_values": logits_process.InfNanRemoveLogitsProcessor,
    "exponential_decay_length_penalty": logits_process.ExponentialDecayLengthPenalty,
    "suppress_tokens": logits_process.SuppressTokensLogitsProcessor,
    "begin_suppress_tokens": logits_process.SuppressTokensAtBeginLogitsProcessor,
    "repetition_penalty": logits_process.RepetitionPenaltyLogitsProcessor,
    "min_length": logits_process.MinLengthLogitsProcessor,
    "min_new_tokens": logits_process.MinNewTokensLengthLogitsProcessor,
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RegisteredFunctions:
    """In the program: `number`, an argument, of the functions; `stages`, where there
    are some.
    """

    number: Any
    stages: frozenset[str] = dataclasses.field(metadata={"static": True})


class StepFunctions:
    """The functions of one call of `generate`, by stage; known to the program as long
    as this object lives.
    """

    def __init__(self, functions: dict[str, StepFunction], prompts: Prompts) -> None:
        self._functions = functions
        self._first = prompts.tokens.shape[1] - prompts.length
        self._rows = prompts.real_rows
        self._error: Exception | None = None
        self._number = next(_numbers)
        _registered[self._number] = self

    @property
    def settings(self) -> RegisteredFunctions | None:
        """What the program gets; None without functions."""
        return (
            RegisteredFunctions(np.int32(self._number), frozenset(self._functions))
            if self._functions
            else None
        )

    def raise_error(self) -> None:
        """Raise what a function has raised; the program itself goes on to its end."""
        if self._error is not None:
            raise self._error

    def process(
        self, stage: str, tokens: np.ndarray, length: int, scores: np.ndarray
    ) -> np.ndarray:
        """Scores [B, V] after the function, those of rows that fill up the batch as
        they were.
        """
        ids, values = tokens[: self._rows, self._first : length], scores[: self._rows]
        processed = self._call(stage, as_ids(ids), torch.from_numpy(values.copy()))
        result = scores.copy()
        if processed is not None:
            result[: self._rows] = processed.to(torch.float32).numpy()
        return result

    def ask_criteria(self, sequences: np.ndarray, length: int) -> np.ndarray:
        """For sequences [I, C, T], of which `length` columns are written, whether each
        ends: [I, C].
        """
        items, candidates = sequences.shape[:2]
        ids = sequences[..., self._first : length].reshape(items * candidates, -1)
        ends = self._call(CRITERIA, as_ids(ids))
        if ends is None:
            return np.ones((items, candidates), bool)
        return ends.numpy().reshape(items, candidates)

    def _call(self, stage: str, *arguments: torch.Tensor) -> torch.Tensor | None:
        """The function's result; None once one has failed."""
        if self._error is not None:
            return None
        try:
            with torch.no_grad():
                return self._functions[stage](*arguments).cpu()
        except Exception as error:  # noqa: BLE001 - `raise_error` raises it where the user called `generate`
            self._error = error
            return None


def as_ids(tokens: np.ndarray) -> torch.Tensor:
    """Token ids as torch's code has them, in 64 bits."""
    return torch.from_numpy(tokens.astype(np.int64))


def process_on_host(
    host: RegisteredFunctions | None,
    stage: str,
    tokens: jax.Array,
    length: jax.Array,
    scores: jax.Array,
) -> jax.Array:
    """Traced. Scores [B, V] after the function of this stage, unchanged if there is
    none.
    """
    if host is None or stage not in host.stages:
        return scores

    def process(number: Any, tokens: Any, length: Any, scores: Any) -> np.ndarray:
        functions = _registered[int(number)]
        return functions.process(
            stage, np.asarray(tokens), int(length), np.asarray(scores)
        )

    shape = jax.ShapeDtypeStruct(scores.shape, scores.dtype)
    return io_callback(process, shape, host.number, tokens, length, scores)


def ask_criteria(
    host: RegisteredFunctions | None, sequences: jax.Array, length: jax.Array
) -> jax.Array:
    """Traced. Which of the candidates [I, C, T] of a beam search the host's criteria
    end: [I, C].
    """
    if host is None or CRITERIA not in host.stages:
        return jnp.zeros(sequences.shape[:2], jnp.bool_)

    def ask(number: Any, sequences: Any, length: Any) -> np.ndarray:
        return _registered[int(number)].ask_criteria(np.asarray(sequences), int(length))

    shape = jax.ShapeDtypeStruct(sequences.shape[:2], jnp.bool_)
    return io_callback(ask, shape, host.number, sequences, length)


def collect_functions(
    options: Options,
    logits_processor: Any,
    prefix_allowed_tokens_fn: Any,
    criteria: StoppingCriteriaList,
    vocabulary: int,
) -> dict[str, StepFunction]:
    """The functions of a call, by place.

    Args:
        criteria: asked in every step of a beam search, and between chunks otherwise.

    Raises:
        PortError: something that cannot be called, or a processor that an option makes
            as well.
    """
    functions: dict[str, StepFunction] = {}
    if prefix_allowed_tokens_fn is not None:
        _check_callable("prefix_allowed_tokens_fn", prefix_allowed_tokens_fn)
        functions[PREFIX] = logits_process.PrefixConstrainedLogitsProcessor(
            prefix_allowed_tokens_fn, options.num_beams
        )
    processors = _read_processors(logits_processor, options)
    if processors:
        functions[CUSTOM] = processors
    if options.watermarking_config is not None:
        functions[WATERMARK] = options.watermarking_config.construct_processor(
            vocabulary, "cpu"
        )
    if criteria and options.num_beams > 1:
        functions[CRITERIA] = functools.partial(_ask, criteria)
    return functions


def _ask(criteria: StoppingCriteriaList, ids: Any) -> torch.Tensor:
    return criteria(ids, None)  # type: ignore[arg-type]


def _check_callable(name: str, value: Any) -> None:
    if not callable(value):
        raise PortError(f"{name} cannot be called", where=f"{name}={value!r:.60}")


def _read_processors(processors: Any, options: Options) -> LogitsProcessorList:
    if processors is None:
        return LogitsProcessorList()
    if not isinstance(processors, Sequence):
        raise PortError(
            "logits_processor is not a list of LogitsProcessors",
            where=f"logits_processor={processors!r:.60}",
            fix="logits_processor=[processor], each called with (input_ids, scores)",
        )
    for processor in processors:
        _check_callable("logits_processor", processor)
        for name, processor_class in _CLASSES.items():
            if type(processor) is processor_class and _is_asked_for(name, options):
                raise PortError(
                    f"{name} makes a {processor_class.__name__} too",
                    where="logits_processor",
                    fix="leave one out",
                )
    return LogitsProcessorList(processors)


def _is_asked_for(name: str, options: Options) -> bool:
    match name:
        case "repetition_penalty":
            return options.repetition_penalty != 1.0
        case "min_length" | "min_new_tokens":
            return options.min_new > 0
    return name in options.processors
