"""The carry of the decoding loop, and how its arrays are laid out on a mesh.

Shapes: B batch, P prompt bucket, T cache length.
"""

import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuport.generation.beam_search import Beams
from tpuport.generation.guidance import Unconditional
from tpuport.generation.step_outputs import StepOutputs
from tpuport.hardware.mesh import dividing_axis

# Weights, or further inputs of a model, by name.
Arrays = dict[str, jax.Array]


class PromptParts(NamedTuple):
    """How a prompt is divided; static in its program.

    Attributes:
        chunk: columns that run at a time; None: all.
        shared: tokens that all rows begin with, which run once; 0: none.
    """

    chunk: int | None = None
    shared: int = 0


class PaddedPrompt(NamedTuple):
    """What a prompt's program runs.

    Attributes:
        tokens: int32 [B, P]; mask: bool of the same shape, False at padding.
        slots: columns of the cache, T.
        inputs: further ones of the model, such as audio features, by the names in its
            signature.
        parts: None: it runs at once.
    """

    tokens: jax.Array
    mask: jax.Array
    slots: int
    inputs: Mapping[str, Any] = types.MappingProxyType({})
    parts: PromptParts | None = None


class State(NamedTuple):
    """The loop's carry.

    Attributes:
        tokens: [B, T], prompt and output; present: [B, T], False at padding.
        length: how many columns have been written; finished: [B], the rows that have
            ended.
        cache: a transformers cache of jax arrays.
        beams, outputs, unconditional: of a beam search, of the steps, and of guidance,
            if they were asked for.
    """

    tokens: jax.Array
    present: jax.Array
    length: jax.Array
    finished: jax.Array
    cache: Any
    beams: Beams | None = None
    outputs: StepOutputs | None = None
    unconditional: Unconditional | None = None


def open_state(
    tokens: jax.Array, mask: jax.Array, room: int, finished: jax.Array, cache: Any
) -> State:
    """Traced. The carry after a prompt [B, P], with so many columns for new tokens."""
    pad = ((0, 0), (0, room))
    return State(
        tokens=jnp.pad(tokens, pad),
        # Columns to come are open: the causal mask hides them until they are written.
        present=jnp.pad(mask, pad, constant_values=True),
        length=jnp.asarray(tokens.shape[1], jnp.int32),
        finished=finished,
        cache=cache,
    )


def replicate_read(mesh: Mesh, state: State) -> State:
    """Traced. Replicate what the host reads: a process sees only what its own
    devices hold.
    """
    if mesh.size == 1:
        return state
    replicated = NamedSharding(mesh, PartitionSpec())
    read = (state.tokens, state.length, state.finished, state.beams, state.outputs)
    tokens, length, finished, beams, outputs = jax.lax.with_sharding_constraint(
        read, replicated
    )
    unconditional = state.unconditional
    if unconditional is not None:
        unconditional = Unconditional(
            replicate_read(mesh, unconditional.state),
            shard_rows(mesh, unconditional.logits),
        )
    # The rest is sharded as `advance` takes it, so that one compilation serves
    # every chunk.
    return state._replace(
        tokens=tokens, length=length, finished=finished, beams=beams, outputs=outputs,
        present=shard_rows(mesh, state.present), unconditional=unconditional,
    )  # fmt: skip


def shard_only_rows(mesh: Mesh, array: jax.Array, rows: int) -> jax.Array:
    """Traced. Divide an array of the cache over dp, if it has rows, and leave the
    rest to the compiler.
    """
    if mesh.size == 1 or array.ndim == 0 or array.shape[0] != rows:
        return array
    others = [PartitionSpec.UNCONSTRAINED] * (array.ndim - 1)
    spec = PartitionSpec(dividing_axis(mesh, "dp", rows), *others)
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, spec))


def shard_rows(mesh: Mesh, array: jax.Array) -> jax.Array:
    """Traced. Divide the batch over dp; all else is whole on each device."""
    if mesh.size == 1:
        return array
    spec = PartitionSpec(dividing_axis(mesh, "dp", array.shape[0]))
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, spec))
