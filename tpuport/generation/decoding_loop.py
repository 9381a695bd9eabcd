"""The host's side of the decoding loop: between compiled chunks it asks stopping
criteria, and feeds the streamer.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import numpy as np
import torch
from jax.experimental import multihost_utils
from transformers import StoppingCriteriaList
from transformers.generation.stopping_criteria import (
    MaxTimeCriteria,
    StopStringCriteria,
)

from tpuport.errors import PortError
from tpuport.generation.beam_search import Result, read_result
from tpuport.generation.callers_cache import CallersCache
from tpuport.generation.decoder import Decoder
from tpuport.generation.generation_options import Options
from tpuport.generation.guidance import Guidance
from tpuport.generation.logits_processors import make_processors
from tpuport.generation.loop_state import PromptParts, State
from tpuport.generation.model_errors import explained_for_generate
from tpuport.generation.prompts import Prompts
from tpuport.generation.restarted_texts import restart_column
from tpuport.generation.sampling import SamplingSettings, sampling_settings
from tpuport.generation.step_functions import StepFunction, StepFunctions, as_ids
from tpuport.generation.step_outputs import STEPS, CollectedOutputs
from tpuport.hardware import process_watch

# New tokens of a compiled chunk, if the host has to look in between.
CHUNK: Final = 16


class DecodingLoop:
    """One call of `generate`, from the prompt's program on.

    Args:
        begin: runs another program for the prompt, with the weights and the settings.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompts: Prompts,
        options: Options,
        slots: int,
        functions: dict[str, StepFunction] | None = None,
        guidance: Guidance | None = None,
        parts: PromptParts | None = None,
        begin: Callable[[Any, SamplingSettings], State] | None = None,
    ) -> None:
        self._decoder, self._prompts, self._options = decoder, prompts, options
        self._arrays = decoder.arrays
        process_watch.begin_call("generate", self._arrays)
        self._functions = StepFunctions(functions or {}, prompts)
        if functions and self._is_divided_over_processes():
            raise PortError(
                "logits processors, watermarks and criteria that the host computes in each step need a single process",
                where=", ".join(functions),
                fix="leave them out, or run on one host",
            )
        self._settings = sampling_settings(options)._replace(
            processors=make_processors(options, prompts, self._functions.settings),
            guidance=guidance,
        )
        self._prompt_columns = np.int32(prompts.tokens.shape[1])
        self._end = int(self._prompt_columns) + options.max_new
        self._restart = restart_column(decoder.model, prompts, options)
        self._is_resumed = begin is not None
        self._collected = CollectedOutputs(prompts.real_rows)
        with explained_for_generate(decoder):
            self._state: State = (
                self._prefill(slots, parts)
                if begin is None
                else begin(self._arrays, self._settings)
            )
        decoder.check_prompt(self._state, prompts.inputs)
        self._collect(1)
        if not decoder.advance.compilations:
            # No step, only the program: what cannot be traced is an error before a
            # streamer has seen anything.
            self._run_program(decoder.advance.rehearse, int(self._state.length))

    def _prefill(self, slots: int, parts: PromptParts | None) -> State:
        prompts = self._prompts
        static: dict[str, Any] = {"slots": slots}
        if parts is not None:
            static["parts"] = parts
        return self._decoder.prefill(
            self._arrays, prompts.tokens, prompts.mask, prompts.keys, self._prompt_columns,
            np.int32(prompts.real_rows), self._settings, dict(prompts.inputs), **static,
        )  # fmt: skip

    def write_cache(self, caller: CallersCache, sequences: torch.Tensor) -> None:
        """Let a caller's cache have what belongs to the text so far, but for the last
        token, which no step has read.
        """
        columns = self._first + sequences.shape[1]
        if self._state.beams is not None:
            # The sequences that were chosen may have ended earlier.
            columns = int(self._state.length)
        caller.write(self._state.cache, columns - 1, self._prompts.real_rows)

    def run(self) -> torch.Tensor:
        """Generate to the end without looking in between, but for the outputs of the
        steps.
        """
        if self._settings.outputs is None:
            # One call of the program, so that the host waits once and not for every
            # token.
            self._advance(self._end)
        else:
            while (
                int(self._state.length) < self._end
                and not np.asarray(self._state.finished).all()
            ):
                self._advance(min(int(self._state.length) + STEPS, self._end))
        if self._state.beams is None:
            return as_ids(self._tokens())
        return self._search_result().sequences

    def as_output(self, sequences: Any, *, has_encoder: bool) -> Any:
        """The output class of transformers with these sequences, after `run` or
        `run_in_chunks`.
        """
        search = None if self._state.beams is None else self._search_result()
        return self._collected.as_output(
            sequences, self._options, search, has_encoder=has_encoder
        )

    def _search_result(self) -> Result:
        assert self._state.beams is not None
        return read_result(
            self._state.beams, self._options, self._first, int(self._prompt_columns)
        )

    def run_in_chunks(
        self, criteria: StoppingCriteriaList, streamer: Any
    ) -> torch.Tensor:
        """Generate chunk by chunk, ask the criteria about each new column, and feed the
        streamer.
        """
        options = self._options
        # What a row gives after its end depends on the padding there, and so does a
        # caller's cache.
        is_seen = self._settings.outputs is not None or self._is_resumed
        chunk = 1 if is_seen else CHUNK
        # transformers' streamers get the prompt first.
        columns = self._prompts.length
        finished = np.zeros(self._prompts.real_rows, bool)
        try:
            streamer.put(as_ids(self._tokens()[:, :columns]))
            while True:
                tokens, finished = apply_criteria(
                    criteria,
                    self._tokens(),
                    finished,
                    columns,
                    options.pad,
                    options.eos,
                )
                tokens, finished = self._agree(tokens, finished)
                for column in range(columns, tokens.shape[1]):
                    streamer.put(as_ids(tokens[:, column]))
                columns = tokens.shape[1]
                if finished.all() or columns == self._prompts.length + options.max_new:
                    return as_ids(tokens)
                self._write_back(tokens, finished)
                self._advance(min(int(self._state.length) + chunk, self._end))
        finally:
            # In any case: a consumer in another thread waits for it.
            streamer.end()

    def _advance(self, limit: int) -> None:
        """Generate until the device's buffer has `limit` columns, or every row has
        ended.
        """
        restart = self._restart
        if restart is not None and restart < limit:
            self._run_program(self._decoder.advance, restart)
            program = functools.partial(self._decoder.restart, columns=restart)
            self._run_program(program, restart + 1)
            self._restart = None
        self._run_program(self._decoder.advance, limit)

    def _run_program(self, program: Callable[..., State], limit: int) -> None:
        length = None if self._settings.outputs is None else int(self._state.length)
        with explained_for_generate(self._decoder):
            self._state = program(
                self._arrays,
                self._state,
                self._prompts.keys,
                self._prompt_columns,
                np.int32(limit),
                self._settings,
            )
        self._collect(0 if length is None else int(self._state.length) - length)

    def _collect(self, steps: int) -> None:
        """Read the outputs of the steps that have just run, or raise what the host's
        functions raised in them.
        """
        if (
            self._settings.processors is not None
            and self._settings.processors.host is not None
        ):
            jax.block_until_ready(self._state.length)
            self._functions.raise_error()
        self._collected.read(self._state.outputs, steps)

    def _is_divided_over_processes(self) -> bool:
        return (
            len({device.process_index for device in self._decoder.mesh.devices.flat})
            > 1
        )

    def _tokens(self) -> np.ndarray:
        """[real rows, length + generated] so far, without the bucket's padding."""
        return np.asarray(self._state.tokens)[
            : self._prompts.real_rows, self._first : int(self._state.length)
        ]

    @property
    def _first(self) -> int:
        """The first column that the bucket did not add."""
        return int(self._prompt_columns) - self._prompts.length

    def _agree(
        self, tokens: np.ndarray, finished: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The tokens and ended rows of the first of several processes.

        Clocks differ between processes, and one that went on alone would wait for ever.
        """
        if not self._is_divided_over_processes():
            return tokens, finished
        process_watch.begin_call("generate, between tokens", self._state.tokens)
        # All processes have to send arrays of one shape.
        buffer = np.zeros(
            (len(tokens), self._prompts.length + self._options.max_new), tokens.dtype
        )
        buffer[:, : tokens.shape[1]] = tokens
        columns = np.int32(tokens.shape[1])
        buffer, finished, columns = multihost_utils.broadcast_one_to_all(
            (buffer, finished, columns)
        )
        return buffer[:, : int(columns)], finished

    def _write_back(self, tokens: np.ndarray, finished: np.ndarray) -> None:
        """Tell the device which rows the criteria ended; without EOS ids such a row
        goes on, as in transformers.
        """
        real_rows = len(finished)
        is_known = (finished == np.asarray(self._state.finished)[:real_rows]).all()
        if not self._options.eos or is_known:
            return
        # Rows that only fill up the batch have ended.
        rows = np.ones(len(self._state.finished), bool)
        rows[:real_rows] = finished
        # A copy: arrays of jax cannot be written to.
        buffer = np.array(self._state.tokens)
        buffer[:real_rows, self._first : self._first + tokens.shape[1]] = tokens
        self._state = self._state._replace(
            tokens=jax.device_put(buffer, self._state.tokens.sharding),
            finished=jax.device_put(rows, self._state.finished.sharding),
        )


class SilentStreamer:
    """A streamer for a call without one."""

    def put(self, tokens: torch.Tensor) -> None: ...

    def end(self) -> None: ...


def collect_criteria(
    options: Options, user_criteria: Any, tokenizer: Any
) -> StoppingCriteriaList:
    """transformers' criteria for this call: the user's own, stop strings, max_time.

    The device itself stops at lengths and EOS ids.
    """
    if user_criteria is None:
        user_criteria = ()
    if not isinstance(user_criteria, Sequence) or not all(map(callable, user_criteria)):
        raise PortError(
            "stopping_criteria is not a list of StoppingCriteria",
            where=f"stopping_criteria={user_criteria!r:.60}",
            fix="stopping_criteria=[criterion], each called with (input_ids, None)",
        )
    criteria = StoppingCriteriaList(user_criteria)
    if options.stop_strings:
        if tokenizer is None:
            raise PortError(
                "stop strings need the tokenizer",
                where="stop_strings",
                fix="pass tokenizer=",
            )
        criteria.append(StopStringCriteria(tokenizer, list(options.stop_strings)))
    if options.max_time is not None:
        criteria.append(MaxTimeCriteria(options.max_time))
    return criteria


def apply_criteria(
    criteria: StoppingCriteriaList,
    tokens: np.ndarray,
    finished: np.ndarray,
    start: int,
    pad: int | None,
    eos: tuple[int, ...],
) -> tuple[np.ndarray, np.ndarray]:
    """Ask the criteria about every column from `start` on, as if the chunk had been
    generated token by token.

    Args:
        tokens: [B, N] prompt and output so far, without the bucket's padding.
        finished: [B], rows that had ended before column `start`.

    Returns:
        The tokens, cut at the column where the last row ended, with padding after the
        end of a row that ended in the chunk (only if there are EOS ids, as transformers
        does), and which rows have ended.
    """
    tokens, finished = tokens.copy(), finished.copy()
    for column in range(start, tokens.shape[1]):
        if eos and pad is not None:
            tokens[finished, column] = pad
        if criteria:
            prefix: Any = as_ids(tokens[:, : column + 1])
            finished |= _ask(criteria, prefix)
        finished |= np.isin(tokens[:, column], eos)
        if finished.all():
            return tokens[:, : column + 1], finished
    return tokens, finished


def _ask(criteria: StoppingCriteriaList, tokens: torch.Tensor) -> np.ndarray:
    """bool [B], which rows the criteria would end after these tokens [B, N].

    Raises:
        PortError: one of them fails, or answers with anything else.
    """
    rows = len(tokens)
    fix = f"return torch.full(({rows},), ...) of booleans, one for each row, from __call__(input_ids, scores)"
    try:
        answer: Any = criteria(tokens, None)  # type: ignore[arg-type]
    except PortError:
        raise
    except Exception as error:
        message = f"a stopping criterion fails: {type(error).__name__}: {error}"
        raise PortError(message, where="stopping_criteria", fix=fix) from error
    is_right = (
        isinstance(answer, torch.Tensor)
        and answer.dtype == torch.bool
        and answer.shape == (rows,)
    )
    if not is_right:
        raise PortError(
            f"a stopping criterion does not answer for {rows} rows: {answer!r:.80}",
            where="stopping_criteria",
            fix=fix,
        )
    return answer.cpu().numpy()
