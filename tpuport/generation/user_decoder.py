"""The decoding loop of a user's own language model: rows without padding, with a cache
each or in windows.

The loop's buffers are padded on the left, as for transformers. A model of one's own
knows nothing of padding, so each row is moved to the left here; what comes after its
last token is hidden by the model's own causal mask, and written again. Shapes: B batch,
P prompt bucket, C columns of a buffer, W window, V vocabulary.
"""

import logging
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import Mesh

from tpuport import compat
from tpuport.compilation import collect_weights, use_weights_in_loop
from tpuport.errors import PortError
from tpuport.generation import written_columns
from tpuport.generation.decoder import LOOP, Decoder
from tpuport.generation.language_model import LanguageModel
from tpuport.generation.loop_state import Arrays, PaddedPrompt, State, shard_only_rows
from tpuport.generation.row_caches import (
    CacheLayout,
    RowCaches,
    check_unchanged,
    named_arrays,
    put_together,
    take_apart,
)
from tpuport.generation.written_columns import WrittenColumns
from tpuport.hardware.mesh import dividing_axis
from tpuport.objects import pytrees

logger = logging.getLogger("tpuport")

# Tokens of the check: some before the junk, and two that are decoded over it.
_CHECKED = 6
_DECODED = 2
# Of the spread of the logits. Rounding stays below, also in bfloat16; a wrong mask or
# position is far above.
_LARGEST_ERROR = 0.05


class UserDecoder(Decoder):
    """The compiled programs of a `LanguageModel`."""

    takes_kv_cache = False

    def __init__(self, language_model: LanguageModel, mesh: Mesh) -> None:
        pytrees.register()
        # Weakly, because the language model is what keeps its decoder alive.
        self._language_model = weakref.ref(language_model)
        self.mesh = mesh
        self._states: tuple[str, ...] = ()
        self._make_programs(type(language_model.model).__name__)

    @property
    def language_model(self) -> LanguageModel:
        """What the decoder was made for."""
        return self._language_model()  # type: ignore[return-value]

    @property
    def model(self) -> Any:
        """The ported model."""
        return self.language_model.model

    @property
    def uses_buckets(self) -> bool:
        """Always: each row runs without its padding."""
        return True

    def forward_prompt(
        self, arrays: Arrays, prompt: PaddedPrompt
    ) -> tuple[jax.Array, Any]:
        """Traced. Float32 logits [B, V] of each row's last token, and the caches."""
        tokens, mask, slots, *_ = prompt
        columns = tokens.shape[1]
        padding = jnp.sum(~mask, axis=1, dtype=jnp.int32)
        if self.language_model.make_cache is None:
            return self._slide_window(
                arrays, tokens, padding, jnp.asarray(columns, jnp.int32)
            ), ()
        width = self.language_model.limit(columns)
        rows = _move_left(tokens, padding, jnp.asarray(columns, jnp.int32), width)
        with use_weights_in_loop(self.model, arrays, LOOP):
            return self._prefill(slots, rows, columns - padding)

    def forward_token(self, arrays: Arrays, state: State) -> tuple[jax.Array, Any]:
        """Traced. As `forward_prompt`, for the token chosen last."""
        padding = jnp.sum(~state.present, axis=1, dtype=jnp.int32)
        if self.language_model.make_cache is None:
            return self._slide_window(arrays, state.tokens, padding, state.length), ()
        column = state.length - 1
        token = jax.lax.dynamic_slice_in_dim(state.tokens, column, 1, axis=1)
        with use_weights_in_loop(self.model, arrays, LOOP):
            logits, caches = self._map_rows(
                self._continue_row(state.cache.layout),
                token,
                column - padding,
                state.cache.arrays,
            )
        return logits[:, 0], caches

    def _prefill(
        self, slots: int, rows: jax.Array, lengths: jax.Array
    ) -> tuple[jax.Array, RowCaches]:
        """Traced. Float32 logits [B, V] of the last token of prompts [B, P] of these
        lengths, and the caches.
        """
        if not self._states:
            logits, caches = self._map_rows(self._begin_row(slots), rows)
            return _select(logits, lengths - 1), caches
        return self._prefill_by_tokens(slots, rows, lengths)

    def _prefill_by_tokens(
        self, slots: int, rows: jax.Array, lengths: jax.Array
    ) -> tuple[jax.Array, RowCaches]:
        """Traced. As `_prefill`, one token at a time, so that a state sees no token
        behind a row's last one.
        """
        fresh, layout = self._new_cache(self.language_model.limit(slots))
        run = self._continue_row(layout)
        batch = rows.shape[0]

        def step(position: jax.Array, carry: tuple) -> tuple:
            token = jax.lax.dynamic_slice_in_dim(rows, position, 1, axis=1)
            positions = jnp.full((batch,), position, jnp.int32)
            logits, caches = self._map_rows(run, token, positions, carry[1])

            def keep(new: jax.Array, old: jax.Array) -> jax.Array:
                is_token = (position < lengths).reshape(-1, *[1] * (new.ndim - 1))
                return jnp.where(is_token, new, old)

            return jax.tree.map(keep, (logits[:, 0], caches.arrays), carry)

        logits = jnp.zeros((batch, self.language_model.vocab_size), jnp.float32)
        arrays = [jnp.broadcast_to(array, (batch, *array.shape)) for array in fresh]
        arrays = [shard_only_rows(self.mesh, array, batch) for array in arrays]
        logits, arrays = jax.lax.fori_loop(0, jnp.max(lengths), step, (logits, arrays))
        return logits, RowCaches(arrays, layout)

    def find_states(self) -> tuple[str, ...]:
        """The tensors of the cache that a token changes beside columns, by what was
        there before or by what the token is.
        """
        if self.language_model.make_cache is None:
            return ()
        names: list[str] = []

        def run(arrays: Arrays, token: jax.Array) -> jax.Array:
            with use_weights_in_loop(self.model, arrays, LOOP):
                fresh, layout = self._new_cache(1)
                _, longer = self._new_cache(2)

                def run_row(
                    position: jax.Array, token: jax.Array, cached: list
                ) -> dict:
                    cache = put_together(cached, layout)
                    _, (arrays, new_layout) = self._forward_row(token, position, cache)
                    return named_arrays(arrays, new_layout)

                columns = written_columns.column_axes(layout, longer)
                states = written_columns.find_states(
                    run_row, token, dict(named_arrays(fresh, layout))
                )
            names.extend(name for name in states if name not in columns)
            return token

        jax.eval_shape(run, collect_weights(self.model), jnp.zeros(1, jnp.int32))
        return tuple(names)

    def _begin_row(self, slots: int) -> Callable:
        """Traced. A function that runs a row's prompt [P] with a new cache."""

        def run(tokens: jax.Array) -> tuple[jax.Array, Any]:
            cache = put_together(*self._new_cache(self.language_model.limit(slots)))
            return self._forward_row(tokens, jnp.zeros((), jnp.int32), cache)

        return run

    def _new_cache(self, length: int) -> tuple[list[jax.Array], CacheLayout]:
        """Traced. The arrays of a row's cache with room for as many columns, and the
        rest.
        """
        assert self.language_model.make_cache is not None
        # As on a GPU, a tensor is on the host unless somebody says otherwise.
        with torch.device("jax"):
            cache = self.language_model.make_cache(length)
        # What is on the host nevertheless moves.
        return take_apart(cache)

    def _continue_row(self, layout: CacheLayout) -> Callable:
        """Traced. A function that runs tokens [n] from a position on, with the arrays
        of a row's cache.
        """

        def run(
            tokens: jax.Array, position: jax.Array, cached: list[jax.Array]
        ) -> tuple[jax.Array, Any]:
            logits, (arrays, new_layout) = self._forward_row(
                tokens, position, put_together(cached, layout)
            )
            check_unchanged(layout, new_layout)
            return logits, (arrays, new_layout)

        return run

    def _forward_row(
        self, tokens: jax.Array, position: jax.Array, cache: Any
    ) -> tuple[jax.Array, Any]:
        """Traced. Float32 logits [n, V] of one row, and its cache taken apart."""
        logits = self.language_model.logits(
            compat.wrap(tokens[None]), cache, compat.wrap(position)
        )
        return compat.as_jax(logits)[0].astype(jnp.float32), take_apart(cache)

    def _map_rows(self, run: Callable, *rows: Any) -> tuple[jax.Array, RowCaches]:
        """Traced. Run every row by itself: logits [B, n, V], and the caches."""
        layouts: list[CacheLayout] = []

        def run_arrays(*row: Any) -> tuple[jax.Array, list[jax.Array]]:
            logits, (arrays, layout) = run(*row)
            layouts.append(layout)
            return logits, arrays

        batch = rows[0].shape[0]
        axis = dividing_axis(self.mesh, "dp", batch) if self.mesh.size > 1 else None
        logits, arrays = jax.vmap(run_arrays, spmd_axis_name=axis)(*rows)
        arrays = [shard_only_rows(self.mesh, array, batch) for array in arrays]
        return logits, RowCaches(arrays, layouts[-1])

    def _slide_window(
        self, arrays: Arrays, tokens: jax.Array, padding: jax.Array, length: jax.Array
    ) -> jax.Array:
        """Traced. Float32 logits [B, V] after `length` columns [B, C], from the last W
        tokens of each row.
        """
        width = self.language_model.limit(tokens.shape[1])
        start = jnp.maximum(length - padding - width, 0)
        rows = _move_left(tokens, padding + start, length, width)
        with use_weights_in_loop(self.model, arrays, LOOP):
            logits = self.language_model.logits(compat.wrap(rows))
        return _select(
            compat.as_jax(logits).astype(jnp.float32), length - padding - start - 1
        )

    def verify(self) -> None:
        """Run a few tokens in two ways that must agree.

        Raises:
            PortError: logits depend on later tokens, or the cache on more than the
                tokens and positions.
        """
        language_model = self.language_model
        self._states = self.find_states()
        if self._states:
            logger.warning(
                "%s keeps %s beside the columns of its cache, so the tokens of a prompt run one by one. If these are "
                "columns, let make_cache(length) allocate `length` of them.",
                type(self.model).__name__, ", ".join(self._states),
            )  # fmt: skip
        count = min(_CHECKED, language_model.limit(_CHECKED), language_model.vocab_size)
        if not language_model.check or count <= _DECODED:
            return
        run = (
            self._compare_windows
            if language_model.make_cache is None
            else self._compare_caches
        )
        tokens = np.arange(count, dtype=np.int32)
        expected, actual, written = self.evaluate(run, tokens)
        spread = max(float(np.std(expected)), 1e-9)
        error = float(np.abs(expected - actual).max()) / spread
        if np.isfinite(expected).all() and not error <= _LARGEST_ERROR:
            self._raise_disagreement(error)
        written_columns.check_columns(written, type(self.model).__name__)

    def _raise_disagreement(self, error: float) -> None:
        name = type(self.model).__name__
        if self.language_model.make_cache is None:
            raise PortError(
                f"the logits of {name} depend on tokens that come later: they change by {error:.2g} of their spread",
                where=name,
                fix="mask later positions (is_causal=True); check=False if the model is meant to be so",
            )
        if self._states:
            raise PortError(
                f"{name} does not give the same logits token by token as at once, with {', '.join(self._states)} in "
                f"its cache beside columns: they differ by {error:.2g} of their spread",
                where=self._states[0],
                fix="let forward(tokens, cache, position) leave there what the next token needs, and begin with it, "
                "however many tokens come. With check=False the text may be another one than your own loop's",
            )
        raise PortError(
            f"{name} does not give the same logits token by token as at once: they differ by {error:.2g} of their "
            "spread",
            where=name,
            fix="forward(tokens, cache, position) writes to the columns from `position` on, takes positions from it, "
            "and masks every column after a token's own: columns there may have been written before. With "
            "check=False the text may be another one than your own loop's",
        )

    def _compare_windows(
        self, arrays: Arrays, tokens: jax.Array
    ) -> tuple[jax.Array, jax.Array, WrittenColumns]:
        """Traced. Logits of the first tokens, with these behind them and with others;
        no cache is written.
        """
        others = tokens.at[-_DECODED:].set(tokens[0])
        with use_weights_in_loop(self.model, arrays, LOOP):
            logits = self.language_model.logits(
                compat.wrap(jnp.stack([tokens, others]))
            )
        first, second = compat.as_jax(logits).astype(jnp.float32)[:, :-_DECODED]
        return first, second, written_columns.nothing()

    def _compare_caches(
        self, arrays: Arrays, tokens: jax.Array
    ) -> tuple[jax.Array, jax.Array, WrittenColumns]:
        """Traced. Logits of the last tokens, all at once, and one by one over columns
        with something else in them.

        Returns:
            (both, and where single tokens are written).
        """
        count = tokens.shape[0]
        others = tokens.at[-_DECODED:].set(tokens[0])
        steps = []
        with use_weights_in_loop(self.model, arrays, LOOP):
            begin = self._begin_row(count)
            at_once, _ = self._map_rows(begin, tokens[None])
            _, caches = self._prefill(
                count, others[None], jnp.full((1,), count - _DECODED)
            )
            for position in range(count - _DECODED, count):
                logits, caches = self._map_rows(
                    self._continue_row(caches.layout),
                    tokens[None, position : position + 1],
                    jnp.full((1,), position, jnp.int32),
                    caches.arrays,
                )
                steps.append(logits[0, 0])
            written = self._write_columns(tokens)
        return at_once[0, -_DECODED:], jnp.stack(steps), written

    def _write_columns(self, tokens: jax.Array) -> WrittenColumns:
        """Traced. What a token changes, alone in a new cache."""
        count = tokens.shape[0]
        fresh, layout = self._new_cache(count)
        _, longer = self._new_cache(count + 1)
        axes = written_columns.column_axes(layout, longer)

        def run(position: jax.Array, cached: list[jax.Array]) -> tuple[dict, dict]:
            _, (arrays, new_layout) = self._forward_row(
                tokens[:1], position, put_together(cached, layout)
            )
            before = named_arrays(cached, layout)
            after = named_arrays(arrays, new_layout)
            columns = {
                name: written_columns.changed_columns(before[name], after[name], axis)
                for name, axis in axes.items()
                if name in after and after[name].shape == before[name].shape
            }
            integers = [
                name
                for name, array in after.items()
                if written_columns.is_counter(array)
            ]
            return columns, {name: after[name] for name in integers}

        positions = written_columns.choose_positions(count)
        at_positions = jax.vmap(run, in_axes=(0, None))
        columns, counters = at_positions(positions, fresh)
        otherwise = [
            written_columns.fill_otherwise(array) if name in axes else array
            for name, array in named_arrays(fresh, layout).items()
        ]
        columns_again, _ = at_positions(positions, otherwise)
        return WrittenColumns(
            positions, jax.tree.map(jnp.logical_or, columns, columns_again), counters
        )


def _move_left(
    tokens: jax.Array, first: jax.Array, length: jax.Array, width: int
) -> jax.Array:
    """Traced. [B, width] of tokens [B, C] from column `first` [B] on; 0 from column
    `length` on.
    """
    columns = first[:, None] + jnp.arange(width, dtype=jnp.int32)
    moved = jnp.take_along_axis(
        tokens, jnp.minimum(columns, tokens.shape[1] - 1), axis=1
    )
    return jnp.where(columns < length, moved, 0)


def _select(logits: jax.Array, columns: jax.Array) -> jax.Array:
    """Traced. [B, V] of logits [B, n, V] at one column of each row."""
    return jnp.take_along_axis(logits, columns[:, None, None], axis=1)[:, 0]
