"""`tpuport.generate`: transformers' generate, with the loop on the device."""

import weakref
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax.experimental import multihost_utils
from transformers import GenerationConfig

from tpuport import checkpoint, trace_errors
from tpuport.compilation import settings_key
from tpuport.errors import PortError
from tpuport.generation import stopping
from tpuport.generation.loop import Decoder, State
from tpuport.generation.options import Options, check_padding, resolve
from tpuport.generation.prompts import Prompts, bucket, checked, checked_seed, prepare, token_ids
from tpuport.generation.sampling import Settings, settings
from tpuport.patches import transformers_rotary

# What models raise that ask for a cache of another kind, or for a value.
_MODEL_ERRORS = (AttributeError, IndexError, NotImplementedError, TypeError, ValueError)
_OWN_LOOP = "decode with your own loop over tpuport.compile(model)"
# Tokens in a compiled chunk when the host has to look in between.
CHUNK = 16

_decoders: weakref.WeakKeyDictionary[Any, tuple[Hashable, Decoder]] = weakref.WeakKeyDictionary()


def decoder_of(model: torch.nn.Module) -> Decoder:
    """The compiled programs of a ported model, made on first use and kept as long as the model.

    Made anew when the model has been ported again, to a mesh or not, and when its config has changed; attributes of
    single modules that change after the first use are not noticed.
    """
    key = settings_key(model)
    if model not in _decoders or _decoders[model][0] != key:
        _decoders[model] = key, Decoder(model, checkpoint.model_mesh(model))
    return _decoders[model][1]


def generate(
    model: Any,
    input_ids: Any,
    attention_mask: Any = None,
    generation_config: GenerationConfig | None = None,
    streamer: Any = None,
    seed: int = 0,
    *,
    stopping_criteria: Sequence[Any] | None = None,
    tokenizer: Any = None,
    **options: Any,
) -> torch.Tensor:
    """Generate token ids as transformers' `model.generate` does, prompt included.

    The prompt runs in one compiled program, all tokens after it in another that stops when every row has ended. With
    a streamer, stop strings or stopping criteria the second runs in chunks, and what the host decides in between
    counts from the very token it would have stopped at. On a mesh over several processes each of them calls this with
    the same arguments and gets the same tokens; criteria count as the first process finds them.

    Args:
        model: a ported transformers causal language model (`tpuport.load` or `tpuport.port`).
        input_ids: [batch, length] integers, padded on the left; or what a tokenizer gives, a mapping with input_ids
            and attention_mask.
        attention_mask: [batch, length], 0 at padding. None infers it from the padding id, as transformers does.
        generation_config: transformers' object; its fields may also be given by name, which wins.
        streamer: has put(token_ids) and end(), as transformers' streamers do.
        seed: what is drawn depends on it and on a row's own prompt, not on the rest of the batch.
        stopping_criteria: transformers' StoppingCriteria objects, called with (input_ids, None).
        tokenizer: needed for stop strings only.
        options: fields of GenerationConfig, such as max_new_tokens, do_sample, temperature.

    Returns:
        LongTensor [batch * num_return_sequences, length + generated] on the host; rows that end early are padded.

    Raises:
        PortError: before anything is compiled, for an option that is not supported, a prompt that does not fit, or
            a model that is not on the device, has no head, or cannot be traced.
    """
    _check_model(model)
    _check_streamer(streamer)
    input_ids, attention_mask = _taken_apart(input_ids, attention_mask)
    prompt = token_ids(input_ids)
    chosen = resolve(model, generation_config, options, prompt.shape[-1])
    vocabulary = model.get_input_embeddings().weight.shape[0]
    tokens, mask = checked(prompt, attention_mask, chosen.pad, chosen.eos, vocabulary)
    seed = checked_seed(seed)
    stops = stopping.criteria(chosen, stopping_criteria, tokenizer)
    check_padding(chosen, len(tokens) * chosen.num_return_sequences, vocabulary, bool(stops))
    decoder = decoder_of(model)
    prompts = prepare(tokens, mask, chosen, seed, decoder.mesh.shape.get("dp", 1) if decoder.mesh else 1)
    if streamer is not None and hasattr(streamer, "skip_prompt") and prompts.real > 1:
        raise PortError(
            "this streamer takes one row", where=type(streamer).__name__, fix="stream rows one by one"
        )
    run = _Run(decoder, prompts, chosen, _slots(model, prompts, chosen))
    if streamer is None and not stops:
        return run.to_the_end()
    return run.in_chunks(stops, streamer)


def _check_model(model: Any) -> None:
    """PortError unless the model is a decoder of transformers with a head that gives logits."""
    config, name = getattr(model, "config", None), type(model).__name__
    if not isinstance(model, torch.nn.Module) or config is None:
        raise PortError(
            f"generate() takes a transformers model, and this is a {name}",
            where="the first argument of generate",
            fix="give the ported model itself, generate(model, ...): its programs are compiled and kept by generate",
        )
    if getattr(config, "is_encoder_decoder", False):
        raise PortError("generate() serves decoder-only models", where=name)
    if not getattr(model, "can_generate", lambda: True)():
        heads = ", ".join(getattr(config, "architectures", None) or ())
        raise PortError(
            "this model has no head that gives logits to choose a token from",
            where=name,
            fix=f"load it as AutoModelForCausalLM{f' (the checkpoint was saved from {heads})' if heads else ''}",
        )


def _check_streamer(streamer: Any) -> None:
    if streamer is not None and not (hasattr(streamer, "put") and hasattr(streamer, "end")):
        raise PortError(
            "a streamer has put(token_ids) and end()",
            where=f"streamer={type(streamer).__name__}",
            fix="give transformers.TextStreamer(tokenizer), say",
        )


def _taken_apart(input_ids: Any, attention_mask: Any) -> tuple[Any, Any]:
    """(input_ids, attention_mask) out of what a tokenizer gives, if that came for the ids."""
    if not isinstance(input_ids, Mapping):
        return input_ids, attention_mask
    others = sorted(str(name) for name in input_ids.keys() - {"input_ids", "attention_mask"})
    if others or "input_ids" not in input_ids:
        raise PortError(
            "generate() takes input_ids and attention_mask",
            where=f"input_ids is a {type(input_ids).__name__} with {', '.join(map(str, input_ids))}",
            fix="pass the two by name: generate(model, inputs['input_ids'], inputs['attention_mask'])",
        )
    return input_ids["input_ids"], input_ids.get(
        "attention_mask"
    ) if attention_mask is None else attention_mask


def _is_of_model(error: Exception) -> bool:
    """Whether this may be what a model's code raises where it cannot be traced with a cache of fixed shape."""
    return trace_errors.is_trace_error(error) or isinstance(error, _MODEL_ERRORS)


def _slots(model: Any, prompts: Prompts, chosen: Options) -> int:
    """Cache length in columns; the bucket's own padding takes columns as the prompt does.

    max_cache_len fixes it, so that requests for fewer tokens run in the same program.

    Raises:
        PortError: the tokens asked for do not fit max_cache_len or the positions that the model knows.
    """
    total = prompts.length + chosen.max_new
    text = model.config.get_text_config(decoder=True)
    for limit, name in (
        (chosen.max_cache_len, "max_cache_len"),
        (getattr(text, "max_position_embeddings", None), "max_position_embeddings"),
    ):
        if limit is not None and total > limit:
            raise PortError(
                f"a prompt of {prompts.length} tokens and {chosen.max_new} new ones do not fit {name} = {limit}",
                where=name,
                fix="shorten the prompt, or ask for fewer new tokens",
            )
    switch = transformers_rotary.switch_length(model)
    if switch is not None and prompts.length <= switch < total - 1:
        raise PortError(
            f"this model has one rotary table up to {switch} positions and another one beyond, and a prompt of "
            f"{prompts.length} tokens and {chosen.max_new} new ones cross from one to the other",
            where="original_max_position_embeddings",
            fix=f"ask for at most {switch + 1 - prompts.length} new tokens, then go on from what you have",
        )
    new = chosen.max_new if chosen.max_cache_len is None else chosen.max_cache_len - prompts.length
    slots = bucket(prompts.tokens.shape[1] + new)
    _check_window(model, slots)
    return slots


def _check_window(model: Any, slots: int) -> None:
    """PortError where a local layer (GPT-Neo's) would look back from the cache's end, and not from the token's place.

    Its module takes the length of the keys for the number of positions. Where the window is as long as the cache,
    nothing is cut off and the place does not matter.
    """
    if "local" not in (getattr(model.config, "attention_layers", None) or ()):
        return
    window = model.config.window_size
    if slots > window:
        raise PortError(
            f"this model's local layers see {window} positions, counted back from the end of the cache, which has "
            f"{slots} columns here",
            where=f"{type(model).__name__}, window_size",
            fix=f"keep the prompt, rounded up to a multiple of 32, and the new tokens within {window} together, or use "
            "transformers' own generate",
        )


class _Run:
    """One call of `generate`: the host's side of the loop."""

    def __init__(self, decoder: Decoder, prompts: Prompts, chosen: Options, slots: int) -> None:
        self._decoder, self._prompts, self._chosen = decoder, prompts, chosen
        self._arrays = decoder.arrays
        self._settings: Settings = settings(chosen)
        self._columns = np.int32(prompts.tokens.shape[1])
        self._end = int(self._columns) + chosen.max_new
        with trace_errors.explained(decoder.model, catch=_is_of_model, alternative=_OWN_LOOP):
            self._state: State = decoder.prefill(
                self._arrays, prompts.tokens, prompts.mask, prompts.keys,
                self._columns, np.int32(prompts.real), self._settings, slots=slots,
            )  # fmt: skip

    def _advance(self, limit: int) -> None:
        self._state = self._decoder.advance(
            self._arrays, self._state, self._prompts.keys, self._columns, np.int32(limit), self._settings
        )

    def _tokens(self) -> np.ndarray:
        """[real, length + generated] so far, without the bucket's padding and the rows of filling."""
        first = int(self._columns) - self._prompts.length
        return np.asarray(self._state.tokens)[: self._prompts.real, first : int(self._state.length)]

    def to_the_end(self) -> torch.Tensor:
        self._advance(self._end)
        return torch.from_numpy(self._tokens().astype(np.int64))

    def in_chunks(self, stops: Any, streamer: Any) -> torch.Tensor:
        chosen, done = self._chosen, self._prompts.length
        finished = np.zeros(self._prompts.real, bool)
        put = streamer.put if streamer is not None else lambda token: None
        try:
            put(torch.from_numpy(self._tokens()[:, :done].astype(np.int64)))
            while True:
                tokens, finished = self._agreed(
                    *stopping.apply(stops, self._tokens(), finished, done, chosen.pad, chosen.eos)
                )
                for column in range(done, tokens.shape[1]):
                    put(torch.from_numpy(tokens[:, column].astype(np.int64)))
                done = tokens.shape[1]
                if finished.all() or done == self._prompts.length + chosen.max_new:
                    return torch.from_numpy(tokens.astype(np.int64))
                self._write_back(tokens, finished)
                self._advance(min(int(self._state.length) + CHUNK, self._end))
        finally:
            # A consumer in another thread waits for this, also when the stream was interrupted.
            if streamer is not None:
                streamer.end()

    def _agreed(self, tokens: np.ndarray, finished: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the first of several processes found: clocks differ, and one that goes on alone would wait for ever."""
        mesh = self._decoder.mesh
        owners = {device.process_index for device in mesh.devices.flat} if mesh else {0}
        if len(owners) == 1:
            return tokens, finished
        whole = np.zeros((len(tokens), self._prompts.length + self._chosen.max_new), tokens.dtype)
        whole[:, : tokens.shape[1]] = tokens
        columns = np.int32(tokens.shape[1])
        whole, finished, columns = multihost_utils.broadcast_one_to_all((whole, finished, columns))
        return whole[:, : int(columns)], finished

    def _write_back(self, tokens: np.ndarray, finished: np.ndarray) -> None:
        """Tell the device which rows the criteria ended; without EOS ids such a row goes on, as in transformers."""
        if not self._chosen.eos or (finished == np.asarray(self._state.finished)[: len(finished)]).all():
            return
        rows = np.ones(len(self._state.finished), bool)
        rows[: len(finished)] = finished
        buffer = np.array(self._state.tokens)
        first = int(self._columns) - self._prompts.length
        buffer[: len(tokens), first : first + tokens.shape[1]] = tokens
        place = lambda new, old: jax.device_put(new, old.sharding)  # noqa: E731
        self._state = self._state._replace(
            tokens=place(buffer, self._state.tokens), finished=place(rows, self._state.finished)
        )
