"""What is traced for each task: a forward call, or a program of the decoding loop, with
all of its arguments abstract.

Shapes: B batch, P prompt columns, T cache length, K key/value heads, D head dimension.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuport import compat
from tpuport.base.mappings import without
from tpuport.base.temporary import temporary_attributes
from tpuport.checkpoint.device_layout import (
    as_torch_dtype,
    one_device_mesh,
    replicated_sharding,
)
from tpuport.compat.asked_values import AskedValues
from tpuport.compilation import claim_cache, prepare_arguments, rotary, use_weights
from tpuport.compilation.decisions.decided_values import DecidedValues, Path
from tpuport.compilation.decisions.host_inputs import small_counts, values_known
from tpuport.errors import PortError
from tpuport.generation.decoder import Decoder
from tpuport.generation.decoder_choice import decoder_class
from tpuport.generation.fixed_layers import FixedLayer
from tpuport.generation.loop_state import State
from tpuport.generation.prompts import bucket_length
from tpuport.generation.recurrent_decoder import state_sharding
from tpuport.generation.row_caches import RowCaches
from tpuport.generation.sampling import EOS_SLOTS, SamplingSettings
from tpuport.libraries.library_classes import is_transformers_cache
from tpuport.objects import object_graph, pytrees
from tpuport.objects.state import left_as_it_was
from tpuport.patches import transformers_rotary
from tpuport.topology.abstract_weights import (
    abstract_array,
    device_dtype,
    known_buffers,
)
from tpuport.topology.generation_tasks import Decode, Prefill


class Step(NamedTuple):
    """A function to trace, and the arguments to trace it with.

    Attributes:
        arguments: jax.ShapeDtypeStruct with shardings; the first is the weights.
        donated: positions of donated arguments.
        cache: keys and values that the step reads, or that a prefill makes.
        cache_is_argument: whether the step receives them.
        units: what the step produces: ("tokens", 32).
        on_host: names of inputs whose values are a part of the program.
        decided: values that the code asks for and that follow from sizes and buffers;
            None if they were not looked for.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...] = ()
    cache: tuple[jax.ShapeDtypeStruct, ...] = ()
    cache_is_argument: bool = False
    units: tuple[str, float] = ("steps", 1.0)
    on_host: tuple[str, ...] = ()
    decided: Path | None = None


def on_mesh(model: Any, mesh: Mesh) -> contextlib.AbstractContextManager[None]:
    """Put the model on a mesh while it is traced."""
    return temporary_attributes(model, tpuport_mesh=mesh)


def forward(
    model: Any,
    inputs: Mapping[str, Any],
    weights: dict[str, Any],
    mesh: Mesh,
    on_host: tuple[str, ...] = (),
    *,
    decides: bool = False,
) -> Step:
    """One call, whose arguments are the weights and the tensors among its inputs.

    A cache among the inputs is donated, as `tpuport.compile` does it.

    Args:
        on_host: names of inputs whose values are a part of the program.
        decides: whether the code asks for values, all of which follow from sizes and
            buffers.

    Raises:
        PortError: it `decides` by other values.
    """
    pytrees.register()
    shardings: dict[int, Any] = {}
    tensors_by_name = {
        name: _as_meta_tensor(value, name, shardings) for name, value in inputs.items()
    }
    _, named = prepare_arguments(model, (), tensors_by_name)
    cache_leaves = _claim_cache_leaves(named)
    leaves, tree = jax.tree_util.tree_flatten(named)
    host_ids = {id(named[name]) for name in on_host}
    tensors = {
        index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)
    }
    host = {index for index in tensors if id(leaves[index]) in host_ids}
    traced = tensors - host
    plain = sorted(traced - cache_leaves)
    donated = sorted(traced & cache_leaves)
    buffers = known_buffers(model, weights) if decides else {}

    def call(
        weights: dict[str, Any],
        plain_arrays: list[Any],
        donated_arrays: list[Any],
        answers: AskedValues | None = None,
    ) -> Any:
        if answers is None and decided is not None:
            answers = AskedValues([value.as_tensor() for value in decided])
        values = list(leaves)
        for index, array in zip(
            plain + donated, plain_arrays + donated_arrays, strict=True
        ):
            values[index] = compat.as_torch(array)
        for index in host:
            values[index] = leaves[index].clone()
        with (
            left_as_it_was(model),
            use_weights([model], [weights]),
            values_known(model, on_host=bool(host) or answers is not None),
            answers or contextlib.nullcontext(),
        ):
            if answers is not None:
                answers.ask(small_counts([{name: weights[name] for name in buffers}]))
            return _result_arrays(model(**jax.tree_util.tree_unflatten(tree, values)))

    # What the caller described has the sharding of that description. Anything else is
    # taken to be whole on each device, although in a real program the compiler may
    # divide an argument that comes from the host.
    def abstract_leaf(index: int) -> jax.ShapeDtypeStruct:
        tensor = leaves[index]
        sharding = shardings.get(id(tensor))
        if isinstance(sharding, NamedSharding):
            sharding = NamedSharding(mesh, sharding.spec)
        else:
            sharding = replicated_sharding(mesh)
        return jax.ShapeDtypeStruct(
            tuple(tensor.shape), device_dtype(tensor.dtype), sharding=sharding
        )

    plain_arrays = list(map(abstract_leaf, plain))
    donated_arrays = list(map(abstract_leaf, donated))
    decided: Path | None = None
    if decides:
        decided = _find_decided(
            model, call, (weights | buffers, plain_arrays, donated_arrays)
        )
    arguments = _add_rotary_tables(
        model, call, weights, plain_arrays, donated_arrays, mesh
    )
    # Counters of a cache have no dimensions.
    cache = tuple(array for array in donated_arrays if array.ndim)
    return Step(
        call, (arguments, plain_arrays, donated_arrays), donated=(2,) if donated else (), cache=cache,
        cache_is_argument=bool(cache), on_host=on_host, decided=decided,
    )  # fmt: skip


def _find_decided(
    model: Any, call: Callable[..., Any], arrays: tuple[Any, ...]
) -> Path:
    """The values that the call asks for, which follow from sizes and from those of the
    weights that are there; PortError if they do not.
    """
    # The described devices cannot compute.
    with on_mesh(model, one_device_mesh()):
        decided = DecidedValues(only_from_weights=True).find(
            None, call, jax.tree.map(_without_sharding, arrays)
        )
    if decided is None:
        raise PortError(
            "the code decides by values of its inputs", where=type(model).__name__
        )
    return decided


def _without_sharding(array: Any) -> Any:
    if not isinstance(array, jax.ShapeDtypeStruct):
        return array
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _result_arrays(result: Any) -> Any:
    """Traced. A result as the program returns it: of an object that jax does not know,
    its arrays.
    """
    pytrees.register_used(result)
    flattener = object_graph.Flattener(caches_are_leaves=False)
    flattener.add_root("the result", result)
    graph = flattener.graph()
    if object_graph.is_for_jax(graph):
        return compat.as_jax(result)
    return [compat.as_jax(leaf) for leaf in graph.leaves if object_graph.is_array(leaf)]


def _add_rotary_tables(
    model: Any,
    call: Callable[..., Any],
    weights: dict[str, Any],
    plain: list[Any],
    donated: list[Any],
    mesh: Mesh,
) -> dict[str, Any]:
    """The weights with the rotary tables that the call uses, which are whole on every
    device.
    """

    def call_with_list(
        weights: list[dict[str, Any]], plain: list[Any], donated: list[Any]
    ) -> Any:
        return call(weights[0], plain, donated)

    # Tables are computed, and the described devices cannot hold values.
    with on_mesh(model, one_device_mesh()):
        [arguments] = rotary.ProgramTables().add_to(
            [weights], None, [model], call_with_list, jax.tree.map(_without_sharding, plain),
            jax.tree.map(_without_sharding, donated),
        )  # fmt: skip
    whole = replicated_sharding(mesh)
    tables = without(arguments, weights)
    return arguments | jax.tree.map(lambda table: abstract_array(table, whole), tables)


def _claim_cache_leaves(named: Any) -> set[int]:
    """Claim the caches among a call's arguments, and return the indices of their leaves
    among all leaves.
    """
    indices: set[int] = set()
    first = 0
    for value in jax.tree_util.tree_leaves(named, is_leaf=is_transformers_cache):
        if not is_transformers_cache(value):
            first += 1
            continue
        claim_cache(value)
        count = len(jax.tree_util.tree_leaves(value))
        indices.update(range(first, first + count))
        first += count
    return indices


def _as_meta_tensor(value: Any, name: str, shardings: dict[int, Any]) -> Any:
    """A meta tensor for each jax.ShapeDtypeStruct, also in lists and dicts; `shardings`
    maps its id to a sharding.
    """
    if type(value) is dict:
        return {
            key: _as_meta_tensor(item, f"{name}.{key}", shardings)
            for key, item in value.items()
        }
    if type(value) in (list, tuple):
        items = (
            _as_meta_tensor(item, f"{name}.{index}", shardings)
            for index, item in enumerate(value)
        )
        return type(value)(items)
    if not isinstance(value, jax.ShapeDtypeStruct):
        return value
    dtype = as_torch_dtype(value.dtype)
    if dtype is None:
        raise PortError(f"torch has no {value.dtype}", where=f"inputs[{name!r}]")
    tensor = torch.empty(value.shape, dtype=dtype, device="meta")
    shardings[id(tensor)] = value.sharding
    return tensor


def prefill(model: Any, task: Prefill, weights: dict[str, Any], mesh: Mesh) -> Step:
    """`generate`'s program for a prompt, with its first token chosen greedily."""
    decoder = _decoder(model, mesh).with_kv_cache(task.kv_cache)
    columns = bucket_length(task.length)
    slots = bucket_length(max(task.max_cache_len or columns, columns))
    _check_positions(model, slots, task)
    arguments = (
        weights,
        *_abstract_prompt(_padded_batch(task.batch, mesh), columns, mesh),
    )
    state = _abstract_state(model, _first_step(decoder, slots), arguments, mesh)
    # A new function, because jax would not trace that of the state again, and no
    # attention call would be recorded.
    return Step(
        _first_step(decoder, slots), arguments, cache=_cache_arrays(state),
        units=("tokens", float(task.batch * task.length)),
    )  # fmt: skip


def decode(model: Any, task: Decode, weights: dict[str, Any], mesh: Mesh) -> Step:
    """One iteration of `generate`'s loop: a token for each row, chosen greedily."""
    decoder = _decoder(model, mesh).with_kv_cache(task.kv_cache)
    slots = bucket_length(task.max_cache_len)
    _check_positions(model, slots, task)
    # The state after the shortest prompt: only its shapes matter, which follow from the
    # batch and the cache's length.
    prompt = _abstract_prompt(
        _padded_batch(task.batch, mesh), min(bucket_length(1), slots), mesh
    )
    state = _abstract_state(
        model, _first_step(decoder, slots), (weights, *prompt), mesh
    )

    def step(
        weights: dict[str, Any], state: State, keys: jax.Array, columns: jax.Array
    ) -> State:
        return decoder.run_step(weights, state, keys, columns, _greedy_settings())

    return Step(
        step, (weights, state, prompt.keys, prompt.columns), donated=(1,), cache=_cache_arrays(state),
        cache_is_argument=True, units=("tokens", float(task.batch)),
    )  # fmt: skip


def _decoder(model: Any, mesh: Mesh) -> Decoder:
    with on_mesh(model, one_device_mesh()):
        transformers_rotary.prepare(model)
    return decoder_class(model)(model, mesh)


def _greedy_settings() -> SamplingSettings:
    """Settings of the greedy choice. Call it while tracing: as constants, they let the
    compiler drop the sampling.
    """
    return SamplingSettings(
        do_sample=jnp.asarray(False), temperature=jnp.float32(1), top_k=jnp.int32(0), top_p=jnp.float32(1),
        min_p=jnp.float32(0), repetition_penalty=jnp.float32(1), min_new=jnp.int32(0),
        eos=jnp.full(EOS_SLOTS, -1, jnp.int32), pad=jnp.int32(-1),
    )  # fmt: skip


def _first_step(decoder: Decoder, slots: int) -> Callable[..., State]:
    def first_step(
        weights: Any, tokens: Any, mask: Any, keys: Any, columns: Any, real: Any
    ) -> State:
        return decoder.run_prompt(
            weights, tokens, mask, keys, columns, real, _greedy_settings(), slots=slots
        )

    return first_step


def _padded_batch(batch: int, mesh: Mesh) -> int:
    """The rows after `generate` has padded the batch to a multiple of dp."""
    dp = mesh.shape.get("dp", 1)  # a mesh of the caller's may have other axes
    return -(-batch // dp) * dp


class _Prompt(NamedTuple):
    """Tokens and mask [B, P], keys [B, 2], and the numbers of columns and of real rows,
    as the host passes them.
    """

    tokens: jax.ShapeDtypeStruct
    mask: jax.ShapeDtypeStruct
    keys: jax.ShapeDtypeStruct
    columns: jax.ShapeDtypeStruct
    real: jax.ShapeDtypeStruct


def _abstract_prompt(rows: int, columns: int, mesh: Mesh) -> _Prompt:
    whole = replicated_sharding(mesh)
    return _Prompt(
        tokens=jax.ShapeDtypeStruct((rows, columns), jnp.int32, sharding=whole),
        mask=jax.ShapeDtypeStruct((rows, columns), jnp.bool_, sharding=whole),
        keys=jax.ShapeDtypeStruct((rows, 2), jnp.uint32, sharding=whole),
        columns=jax.ShapeDtypeStruct((), jnp.int32, sharding=whole),
        real=jax.ShapeDtypeStruct((), jnp.int32, sharding=whole),
    )


def _abstract_state(
    model: Any, function: Callable[..., State], arguments: tuple[Any, ...], mesh: Mesh
) -> State:
    """The loop's carry, each array sharded as the prefill leaves it."""
    with on_mesh(model, mesh):
        state = jax.eval_shape(function, *arguments)
    shardings: dict[int, NamedSharding] = {
        id(state.present): NamedSharding(mesh, PartitionSpec("dp"))
    }
    if isinstance(state.cache, RowCaches):
        shardings |= {
            id(array): state_sharding(mesh, array.shape) for array in state.cache.arrays
        }
    for layer in getattr(state.cache, "layers", ()):
        # Layers of states have no heads to divide.
        if isinstance(layer, FixedLayer):
            shardings |= {
                id(getattr(layer, name)): sharding
                for name, sharding in layer.shardings(mesh).items()
            }
    whole = replicated_sharding(mesh)
    return jax.tree.map(
        lambda array: abstract_array(array, shardings.get(id(array), whole)), state
    )


def _cache_arrays(state: State) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The arrays of the cache, without its counters."""
    return tuple(array for array in jax.tree.leaves(state.cache) if array.ndim)


def _check_positions(model: Any, slots: int, task: Prefill | Decode) -> None:
    """PortError if the cache is longer than the positions that the model knows."""
    config = getattr(model, "config", None)
    if config is None:
        return
    limit = getattr(
        config.get_text_config(decoder=True), "max_position_embeddings", None
    )
    if limit is not None and task.positions > limit:
        raise PortError(
            f"{type(model).__name__} has {limit} positions, and the task needs {task.positions} ({slots} columns)",
            where=f"{task}",
            fix=f"request at most {limit}, or raise max_position_embeddings in the config",
        )
