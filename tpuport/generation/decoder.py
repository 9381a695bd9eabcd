"""The decoding loop on the device: one program for the prompt, one for every token
after it.

Shapes: B batch, P prompt bucket, T cache length, V vocabulary.
"""

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuport import compat
from tpuport.base.mappings import only
from tpuport.compat import randomness
from tpuport.compat.tracing import trace_lock
from tpuport.compilation import Program, collect_weights, use_weights_in_loop
from tpuport.errors import PortError
from tpuport.generation import beam_search, decoding_cache
from tpuport.generation.beam_steps import select_beams
from tpuport.generation.cache_arguments import add_written_columns, cache_argument
from tpuport.generation.forward_signature import forward_parameters
from tpuport.generation.guidance import guide
from tpuport.generation.loop_state import (
    Arrays,
    PaddedPrompt,
    PromptParts,
    State,
    open_state,
    replicate_read,
    shard_only_rows,
    shard_rows,
)
from tpuport.generation.padding_check import depends_on_distances, hides_padding
from tpuport.generation.partial_prompts import run_parts
from tpuport.generation.residual_stream import summed_once
from tpuport.generation.restarted_texts import run_restart
from tpuport.generation.resumed_texts import run_resumed
from tpuport.generation.sampling import (
    Choice,
    SamplingSettings,
    choose_tokens,
    process_logits,
)
from tpuport.generation.step_outputs import begin_outputs, write_outputs
from tpuport.generation.unconditional_decoding import (
    begin_unconditional,
    continue_unconditional,
)
from tpuport.libraries.library_classes import cache_of_output
from tpuport.objects import pytrees

# In messages.
LOOP = "the loop of tpuport.generate"


class Decoder:
    """The compiled programs of one ported model: `prefill` for a prompt bucket,
    `advance` for the tokens that follow.

    Attributes:
        alternative: to `generate`, for a model that cannot be traced.
        spare_columns: of the cache, which a step may write beyond the last token that
            is asked for.
        continues: whether the model takes several tokens after a prompt, None until
            that has been asked.
        assisted: the programs of this model with drafts, by what drafts.
        takes_padding: whether rows of a batch may be padded.
        keeps_all_columns: whether layers with a window keep what is outside of it, for
            steps of several tokens.
        takes_kv_cache: whether keys and values may be kept in few bits; kv_cache: how
            they are, as `generate` says it.
        prefill, advance, restart, resume: `Program`s; their `compilations` count.
    """

    alternative = "decode with your own loop over tpuport.compile(model)"
    spare_columns = 0
    takes_padding = True
    keeps_all_columns = False
    takes_kv_cache = True
    kv_cache: str | None = None

    def __init__(self, model: Any, mesh: Mesh) -> None:
        pytrees.register()
        # Weakly, because the model is what keeps its decoder alive.
        self._model = weakref.ref(model)
        self.mesh = mesh
        self._hides_padding: bool | None = None
        self.continues: bool | None = None
        self.assisted: dict[Any, Decoder] = {}
        self.variants: dict[tuple, Self] = {}
        self._parameters = forward_parameters(model)
        self._cache_argument: Any = cache_argument(self._parameters)
        self._make_programs(type(model).__name__)

    def _make_programs(self, name: str) -> None:
        self.prefill = Program(self.run_prompt, f"{name} prefill")
        # The state is donated, because every call returns a new one.
        self.advance = Program(
            self.run_loop, f"{name} decode", donated=(1,), updates_cache=True
        )
        self.restart = Program(
            functools.partial(run_restart, self), f"{name} restart", donated=(1,)
        )
        # The states of the caller's cache.
        self.resume = Program(
            functools.partial(run_resumed, self), f"{name} continued", donated=(7,)
        )

    @property
    def model(self) -> Any:
        """The ported model."""
        return self._model()

    @classmethod
    def input_names(cls, model: Any) -> frozenset[str]:
        """What `generate` passes on to the model beside token ids and their mask, by
        the names in its signature.
        """
        return frozenset()

    @property
    def row_multiple(self) -> int:
        """Batches have a multiple of this many rows, so that dp divides them."""
        return self.mesh.shape.get("dp", 1)

    @property
    def uses_buckets(self) -> bool:
        """Whether prompts may be padded to a bucket.

        Not for models that take the number of a column for a position, nor for those
        whose recurrent states do not ignore padding. The first call of a model with
        such states, or without positions, finds that out.
        """
        takes_positions = "position_ids" in self._parameters
        if self._hides_padding is None:
            if takes_positions and not decoding_cache.has_states(self.model.config):
                self._hides_padding = True
            elif takes_positions or depends_on_distances(self.model):
                self._hides_padding = hides_padding(self)
            else:
                self._hides_padding = False
        return self._hides_padding

    def with_kv_cache(self, kv_cache: str | None) -> "Decoder":
        """The programs of the same model that keep keys and values in `kv_cache`;
        PortError if they cannot.
        """
        if kv_cache is None:
            return self
        if not self.takes_kv_cache:
            raise PortError(
                f"{type(self.model).__name__} does not decode with layers of keys and values, which kv_cache is for",
                where=f"kv_cache={kv_cache!r}",
                fix="leave kv_cache out",
            )
        variant = self.variant(self.keeps_all_columns, kv_cache)
        # Refuses layers of other kinds before anything is compiled.
        variant.make_cache(1)
        return variant

    def variant(self, keeps_all_columns: bool, kv_cache: str | None = None) -> Self:
        """The decoder of the same model with such caches."""
        kind = keeps_all_columns, kv_cache
        if kind not in self.variants:
            variant = type(self)(self.model, self.mesh)
            variant.keeps_all_columns, variant.kv_cache = kind
            self.variants[kind] = variant
        return self.variants[kind]

    @property
    def without_drafts(self) -> "Decoder":
        """The decoder of the model alone."""
        return self

    @property
    def arrays(self) -> Arrays:
        """The model's weights, arguments of both programs."""
        return collect_weights(self.model)

    def evaluate(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a traced function gives for the weights and the arguments, on the
        host.
        """
        # Whole on each device, because a process reads only what its own devices hold.
        replicated = NamedSharding(self.mesh, PartitionSpec())
        compiled = jax.jit(function, out_shardings=replicated)
        return jax.device_get(compiled(self.arrays, *arguments))

    def run_prompt(
        self,
        arrays: Arrays,
        tokens: jax.Array,
        mask: jax.Array,
        keys: jax.Array,
        prompt_columns: jax.Array,
        real_rows: jax.Array,
        settings: SamplingSettings,
        inputs: Arrays | None = None,
        *,
        slots: int,
        parts: PromptParts | None = None,
    ) -> State:
        """Traced. Run the prompt [B, P] and choose the first token; the buffer has
        `slots` columns.

        Rows from `real_rows` on only fill up the batch: they have ended before they
        begin. `inputs` are the model's further inputs, by the names of `input_names`.
        The prompt runs at once, or in `parts`.
        """
        batch, columns = tokens.shape
        # The layout of the batch decides that of everything computed from it.
        tokens, mask = shard_rows(self.mesh, tokens), shard_rows(self.mesh, mask)
        prompt = PaddedPrompt(tokens, mask, slots, inputs or {}, parts)
        logits, cache = self.forward_prompt(arrays, prompt)
        finished = jnp.arange(batch) >= real_rows
        state = open_state(tokens, mask, slots - columns, finished, cache)
        if settings.guidance is not None:
            unconditional = begin_unconditional(
                self, arrays, settings.guidance, slots - columns, prompt.inputs
            )
            state = state._replace(unconditional=unconditional)
        choice = Choice(keys, prompt_columns, settings)
        return self.choose_first(state, logits, choice, room=slots - columns)

    def choose_first(
        self, state: State, logits: jax.Array, choice: Choice, *, room: int
    ) -> State:
        """Traced. Choose the first token after a prompt; there is room for so many."""
        settings = choice.settings
        if settings.outputs is not None:
            state = state._replace(
                outputs=begin_outputs(settings.outputs, logits.shape, state.length)
            )
        if settings.beams is not None:
            columns = state.tokens.shape[1] - room
            beams = beam_search.begin_search(
                settings.beams, state.tokens, columns, ~state.finished
            )
            state = state._replace(beams=beams)
        return replicate_read(self.mesh, self.append(state, logits, choice))

    def run_loop(
        self,
        arrays: Arrays,
        state: State,
        keys: jax.Array,
        prompt_columns: jax.Array,
        limit: jax.Array,
        settings: SamplingSettings,
    ) -> State:
        """Traced. Generate until the buffer holds `limit` columns or every row has
        ended.
        """
        return self.loop(
            lambda state: self.run_step(arrays, state, keys, prompt_columns, settings),
            state,
            limit,
        )

    def loop(
        self, run_step: Callable[[State], State], state: State, limit: jax.Array
    ) -> State:
        """Traced. Run steps until the buffer holds `limit` columns or every row has
        ended.
        """

        def unfinished(state: State) -> jax.Array:
            return (state.length < limit) & ~jnp.all(state.finished)

        def step(state: State) -> State:
            with randomness.iteration(state.length):
                return run_step(state)

        # A loop's carry has one layout, and `prefill` has replicated what the host
        # reads.
        split = state._replace(
            tokens=shard_rows(self.mesh, state.tokens),
            finished=shard_rows(self.mesh, state.finished),
        )
        if split.outputs is not None:
            split = split._replace(outputs=split.outputs._replace(start=split.length))
        return replicate_read(self.mesh, jax.lax.while_loop(unfinished, step, split))

    def run_step(
        self,
        arrays: Arrays,
        state: State,
        keys: jax.Array,
        prompt_columns: jax.Array,
        settings: SamplingSettings,
    ) -> State:
        """Traced. Generate one token: the body of the loop."""
        if state.unconditional is not None:
            state = state._replace(
                unconditional=continue_unconditional(self, arrays, state)
            )
        logits, cache = self.forward_token(arrays, state)
        choice = Choice(keys, prompt_columns, settings)
        return self.append(state._replace(cache=cache), logits, choice)

    def forward_prompt(
        self, arrays: Arrays, prompt: PaddedPrompt
    ) -> tuple[jax.Array, Any]:
        """Traced. Float32 logits [B, V] after the prompt [B, P], and the cache with it.

        What is computed once from further inputs, and needed for every token, is a part
        of the cache.
        """
        if prompt.parts is not None:
            return run_parts(self, arrays, prompt)
        cache = self.make_cache(prompt.slots)
        return self.forward_first(arrays, prompt.tokens, prompt.mask, cache)

    def make_cache(self, slots: int, *, keeps_all: bool = False) -> Any:
        """An empty cache of the model for `slots` columns, as
        `decoding_cache.make_cache` makes it.
        """
        keeps_all = keeps_all or self.keeps_all_columns
        return decoding_cache.make_cache(
            self.model.config,
            slots,
            self.mesh,
            keeps_all=keeps_all,
            kv_cache=self.kv_cache,
        )

    def forward_first(
        self, arrays: Arrays, tokens: jax.Array, mask: jax.Array, cache: Any
    ) -> tuple[jax.Array, Any]:
        """Traced. Float32 logits [B, V] after the prompt [B, P], and the cache with it,
        which has been empty.
        """
        # Padding on the left does not count as positions.
        positions = jnp.maximum(jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1, 0)
        # The model is changed while it is traced: no other thread may trace it.
        with trace_lock, summed_once(self.model, self.mesh):
            return self._forward(arrays, tokens, mask, positions, cache)

    def forward_tokens(
        self,
        arrays: Arrays,
        tokens: jax.Array,
        present: jax.Array,
        column: jax.Array,
        end: jax.Array,
        cache: Any,
        *,
        only_last: bool = False,
    ) -> tuple[jax.Array, Any]:
        """Traced. Float32 logits [B, N, V] after each of several tokens [B, N], or
        [B, 1, V], and the cache.

        Args:
            present: [B, T], False at padding.
            column: of the first of the tokens, where earlier ones may have been written
                before.
            end: behind the last column that matters; positions do not grow beyond it.
        """
        count = tokens.shape[1]
        columns = jnp.arange(present.shape[1])
        mask = present & (columns < jnp.minimum(column + count, end))
        positions = jnp.maximum(jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1, 0)
        positions = jax.lax.dynamic_slice_in_dim(positions, column, count, axis=1)
        logit_count = 1 if only_last else count
        cache = decoding_cache.set_length(cache, column)
        logits, cache = self.call_model(
            arrays, tokens, mask, positions, cache, logit_count
        )
        return logits[:, -logit_count:].astype(jnp.float32), cache

    def forward_token(self, arrays: Arrays, state: State) -> tuple[jax.Array, Any]:
        """Traced. Float32 logits [B, V] after the token chosen last, which is not in
        the cache yet, and the cache.
        """
        return self._forward(arrays, *self.token_inputs(state), state.cache)

    def check_prompt(self, state: State, inputs: Mapping[str, Any]) -> None:
        """PortError if a prompt's program found that its inputs do not fit together."""

    def token_inputs(self, state: State) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Traced. The token chosen last [B, 1], the columns that it sees [B, T], and
        its position [B, 1].
        """
        column = state.length - 1
        token = jax.lax.dynamic_slice_in_dim(state.tokens, column, 1, axis=1)
        is_written = jnp.arange(state.present.shape[1]) <= column
        # The causal mask hides columns to come, but not every decoder is causal.
        present = state.present & is_written
        position = jnp.sum(present, axis=1, keepdims=True, dtype=jnp.int32) - 1
        return token, present, position

    def _forward(
        self,
        arrays: dict,
        tokens: jax.Array,
        mask: jax.Array,
        positions: jax.Array,
        cache: Any,
    ) -> tuple[jax.Array, Any]:
        """Traced. Float32 logits [B, V] of the last column, and the cache written."""
        logits, cache = self.call_model(arrays, tokens, mask, positions, cache, 1)
        return logits[:, -1].astype(jnp.float32), cache

    def call_model(
        self,
        arrays: dict,
        tokens: jax.Array,
        mask: jax.Array,
        positions: jax.Array,
        cache: Any,
        logits_to_keep: int | jax.Array,
    ) -> tuple[jax.Array, Any]:
        """Traced. The logits of so many last columns, or of these ones, at least, and
        the cache written.
        """
        inputs = compat.as_torch(
            {"input_ids": tokens, "attention_mask": mask, "position_ids": positions}
        )
        inputs = only(inputs, self._parameters)
        cache = compat.as_torch(cache)
        add_written_columns(
            inputs, self._parameters, lambda: cache.get_seq_length(), tokens.shape[1]
        )
        if "logits_to_keep" in self._parameters:
            # The head is large, and a prompt needs its last column alone.
            inputs["logits_to_keep"] = compat.as_torch(logits_to_keep)
        with use_weights_in_loop(self.model, arrays, LOOP):
            inputs[self._cache_argument] = cache
            out = self.model(**inputs, use_cache=True, return_dict=True)
        # Encoders with a language head, such as BERT's, write to the cache that they
        # get, and return none.
        return compat.as_jax((out.logits, cache_of_output(out, default=cache)))

    def append(self, state: State, logits: jax.Array, choice: Choice) -> State:
        """Traced. Choose the next token of each row and write it; rows that have ended
        get the padding id.
        """
        keys, prompt_columns, settings = choice
        # Draws are numbered by tokens generated, whatever the bucket's padding.
        new_tokens = state.length - prompt_columns
        is_token = state.present & (jnp.arange(state.tokens.shape[1]) < state.length)
        scores = (
            logits if settings.beams is None else jax.nn.log_softmax(logits, axis=-1)
        )
        if settings.guidance is not None:
            assert state.unconditional is not None
            scores = guide(scores, state.unconditional.logits, settings.guidance.scale)
        scores = process_logits(scores, state.tokens, is_token, new_tokens, settings)
        if state.outputs is not None:
            state = state._replace(
                outputs=write_outputs(state.outputs, state.length, scores, logits)
            )
        if settings.beams is not None:
            return select_beams(self, state, scores, keys, new_tokens, settings)
        token = choose_tokens(scores, keys, new_tokens, settings)
        token = jnp.where(state.finished & (settings.pad >= 0), settings.pad, token)
        ends = jnp.any(token[:, None] == settings.eos, axis=1)
        tokens = jax.lax.dynamic_update_slice_in_dim(
            state.tokens, token[:, None], state.length, axis=1
        )
        return state._replace(
            tokens=tokens, length=state.length + 1, finished=state.finished | ends
        )

    def reorder_cache(self, cache: Any, rows: jax.Array) -> Any:
        """Traced. The cache with, for each beam of each prompt, that of the beam [I, N]
        that it goes on from.
        """

        def reorder(array: jax.Array) -> jax.Array:
            return shard_only_rows(
                self.mesh, beam_search.reorder_rows(array, rows), rows.size
            )

        return jax.tree.map(reorder, cache)
