"""A scheduler as tables: every step is a row of numbers, and the row's index is traced.

Shapes: N timesteps, I inputs of a step (sample, model output, noise, history), O
outputs (next sample, other fields of diffusers' output, history). If a scheduler bounds
a value within its step (`Bound`), that value is an additional last input, and what it
is computed from is an additional last output.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Tables are padded to a multiple of this many rows, so that a warm-up of two steps and
# a run of fifty fit one program.
ROWS = 64

State = tuple[jax.Array, ...]


class Bound(NamedTuple):
    """How a scheduler bounds the sample that it predicts.

    Attributes:
        kind: "clamp", to between `low` and `high`; or "threshold", dynamic thresholding
            (Imagen, arXiv:2205.11487, section 2.3): by each sample's quantile `low` of
            magnitudes, itself between 1 and `high`.
    """

    kind: Literal["clamp", "threshold"]
    low: float
    high: float

    def __call__(self, value: jax.Array) -> jax.Array:
        """Traced. The bounded value, of the same shape [batch, ...], in float32."""
        value = value.astype(jnp.float32)
        if self.kind == "clamp":
            return jnp.clip(value, self.low, self.high)
        samples = value.reshape(len(value), -1)
        quantile = jnp.quantile(jnp.abs(samples), self.low, axis=1, keepdims=True)
        limit = jnp.clip(quantile, 1, self.high)
        return (jnp.clip(samples, -limit, limit) / limit).reshape(value.shape)


@dataclasses.dataclass(frozen=True)
class StepTables:
    """What a scheduler does in each of its steps; a pytree whose arrays are leaves.

    Attributes:
        timesteps: [N], what the model is told: float32, or int32 if the scheduler
            counts in whole numbers.
        coefficients: [N, O, I] float32; a step's outputs are these sums of its inputs.
        scales: [N] float32, what the sample is multiplied with before it goes into the
            model.
        slots: names of the history tensors, such as "model_outputs.0".
        fields: names of the outputs before the history, the next sample's first.
        noises: how many normal noise tensors a step takes.
        bound: what bounds the last input; None if no step bounds anything.
    """

    timesteps: Any  # arrays, or what a tree of them is mapped to
    coefficients: Any
    scales: Any
    slots: tuple[str, ...] = ()
    fields: tuple[str, ...] = ("prev_sample",)
    noises: int = 0
    bound: Bound | None = None

    def __len__(self) -> int:
        return self.timesteps.shape[0]

    def padded(self, multiple: int = ROWS) -> "StepTables":
        """The same tables with rows of zeros after the last, up to a multiple of
        `multiple`.
        """
        missing = -len(self) % multiple

        def pad(array: jax.Array) -> jax.Array:
            return jnp.pad(array, ((0, missing),) + ((0, 0),) * (array.ndim - 1))

        return jax.tree.map(pad, self)


jax.tree_util.register_dataclass(
    StepTables,
    data_fields=["timesteps", "coefficients", "scales"],
    meta_fields=["slots", "fields", "noises", "bound"],
)


def initial_state(tables: StepTables, sample: jax.Array) -> State:
    """The empty history of a run: for every slot a float32 array of zeros with the
    shape and layout of `sample`.
    """
    return tuple(jnp.zeros_like(sample, dtype=jnp.float32) for _ in tables.slots)


def compute_outputs(
    tables: StepTables,
    index: jax.Array | int,
    model_output: jax.Array,
    sample: jax.Array,
    state: State,
    noise: Sequence[jax.Array] = (),
) -> tuple[State, State]:
    """Traced. (the fields of a step's output, in the sample's dtype; the next state, in
    float32).

    Args:
        tables: of any number of rows.
        index: the step's row in the tables, traced or not.
        model_output: of the sample's shape, any floating dtype.
        sample: any shape, any floating dtype.
        state: from `initial_state` or from the step before.
        noise: `tables.noises` arrays of the sample's shape, drawn from a normal
            distribution.
    """
    row = jax.lax.dynamic_index_in_dim(
        tables.coefficients, index, keepdims=False
    )  # [O, I]
    inputs = jnp.stack(
        [x.astype(jnp.float32) for x in (sample, model_output, *noise, *state)]
    )
    row = row.reshape(*row.shape, *[1] * sample.ndim)
    if tables.bound is not None:
        bounded = tables.bound(_weighted_sums(row[-1:, :-1], inputs)[0])
        inputs = jnp.concatenate([inputs, bounded[None]])
        row = row[:-1]
    sums = _weighted_sums(row, inputs)
    fields = len(tables.fields)
    return tuple(x.astype(sample.dtype) for x in sums[:fields]), tuple(sums[fields:])


def _weighted_sums(row: jax.Array, inputs: jax.Array) -> jax.Array:
    """Traced. The outputs [O, ...] of a row [O, I, 1, ...] for inputs [I, ...]."""
    # Products and a sum, because a product of matrices would round its inputs on a TPU.
    # An input whose coefficient is zero must not count even if it is infinite or NaN.
    return jnp.sum(jnp.where(row == 0, 0, row * inputs), axis=1)


def take_step(
    tables: StepTables,
    index: jax.Array | int,
    model_output: jax.Array,
    sample: jax.Array,
    state: State,
    noise: Sequence[jax.Array] = (),
) -> tuple[jax.Array, State]:
    """Traced. A step of the scheduler: (next sample in the sample's dtype, next state);
    see `compute_outputs`.
    """
    (next_sample, *_), state = compute_outputs(
        tables, index, model_output, sample, state, noise
    )
    return next_sample, state


def from_numpy(
    timesteps: np.ndarray,
    coefficients: np.ndarray,
    scales: np.ndarray,
    slots: Sequence[str],
    fields: Sequence[str],
    noises: int,
    bound: Bound | None = None,
) -> StepTables:
    """Tables on the default device, in 32 bits."""
    timestep_dtype = np.float32
    if np.issubdtype(timesteps.dtype, np.integer):
        timestep_dtype = np.int32
    return StepTables(
        jnp.asarray(timesteps.astype(timestep_dtype)),
        jnp.asarray(coefficients.astype(np.float32)),
        jnp.asarray(scales.astype(np.float32)),
        tuple(slots),
        tuple(fields),
        noises,
        bound,
    )
