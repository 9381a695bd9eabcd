"""What is traced for each task: a forward call, or a program of the decoding loop, with all of its arguments abstract.

Shapes: B batch, P prompt columns, T cache length, K key/value heads, D head dimension.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuport import compat, pytrees, rotary
from tpuport.checkpoint.device_layout import as_torch_dtype, one_device_mesh, replicated_sharding
from tpuport.compilation import claim_cache, is_transformers_cache, prepare_arguments, use_weights
from tpuport.errors import PortError
from tpuport.generation.cache import FixedLayer
from tpuport.generation.loop import Decoder, State
from tpuport.generation.prompts import bucket
from tpuport.generation.sampling import EOS_SLOTS, Settings
from tpuport.patches import transformers_rotary
from tpuport.topology.abstract_weights import device_dtype, placed
from tpuport.topology.generation_tasks import Decode, Prefill


class Step(NamedTuple):
    """A function to trace and what it is traced with.

    Attributes:
        arguments: jax.ShapeDtypeStruct with shardings; the first is the weights.
        donated: positions of donated arguments.
        cache: keys and values that the step reads, or makes in a prefill.
        cache_is_argument: whether it is given them.
        units: what the step makes: ("tokens", 32).
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...] = ()
    cache: tuple[jax.ShapeDtypeStruct, ...] = ()
    cache_is_argument: bool = False
    units: tuple[str, float] = ("steps", 1.0)


@contextlib.contextmanager
def on(model: Any, mesh: Mesh) -> Iterator[None]:
    """Let the model be on a mesh for as long as it is traced."""
    before = getattr(model, "tpuport_mesh", None)
    model.tpuport_mesh = mesh
    try:
        yield
    finally:
        model.tpuport_mesh = before


def forward(model: Any, inputs: Mapping[str, Any], weights: dict[str, Any], mesh: Mesh) -> Step:
    """One call, with the weights and the tensors among its inputs as arguments; a cache is donated, as it will be."""
    pytrees.register()
    given: dict[int, Any] = {}
    described = {name: _described(value, name, given) for name, value in inputs.items()}
    _, named = prepare_arguments(model, (), described)
    kept = _in_caches(named)
    leaves, tree = jax.tree_util.tree_flatten(named)
    dynamic = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    plain, caches = [n for n in dynamic if n not in kept], [n for n in dynamic if n in kept]
    tensors, donated = ([_shape(leaves[place]) for place in places] for places in (plain, caches))

    def call(weights: dict[str, Any], tensors: list[Any], donated: list[Any]) -> Any:
        values = list(leaves)
        for place, array in zip(plain + caches, tensors + donated, strict=True):
            values[place] = compat.as_torch(array)
        with use_weights([model], [weights]):
            out = model(**jax.tree_util.tree_unflatten(tree, values))
            pytrees.register_used(out)
            return compat.as_jax(out)

    def of_list(weights: list[dict[str, Any]], tensors: list[Any], donated: list[Any]) -> Any:
        return call(weights[0], tensors, donated)

    with on(model, one_device_mesh()):  # tables are computed, and no device of the mesh is there to hold them
        [arguments] = rotary.ProgramTables().add_to([weights], None, [model], of_list, tensors, donated)
    # Those of the weights come as they are; tables, on every device.
    arguments = {
        name: value
        if name in weights
        else jax.tree.map(lambda x: placed(x, replicated_sharding(mesh)), value)
        for name, value in arguments.items()
    }
    # Where the caller has said so; `tpuport.compile` gives the whole of any other to every device.
    tensors, donated = (
        [
            placed(shape, _place_of(leaves[place], given, mesh))
            for shape, place in zip(shapes, places, strict=True)
        ]
        for shapes, places in ((tensors, plain), (donated, caches))
    )
    cache = tuple(array for array in donated if array.ndim)
    return Step(call, (arguments, tensors, donated), (2,) if donated else (), cache, bool(cache))


def _shape(tensor: torch.Tensor) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(tensor.shape), device_dtype(tensor.dtype))


def _in_caches(named: Any) -> set[int]:
    """The places, among the leaves of a call's arguments, of what caches hold; `tpuport.compile` donates it."""
    found: set[int] = set()
    place = 0
    for leaf in jax.tree_util.tree_leaves(named, is_leaf=is_transformers_cache):
        count = len(jax.tree_util.tree_leaves(leaf)) if is_transformers_cache(leaf) else 1
        if is_transformers_cache(leaf):
            claim_cache(leaf)
            found.update(range(place, place + count))
        place += count
    return found


def _place_of(leaf: Any, given: Mapping[int, Any], mesh: Mesh) -> NamedSharding:
    sharding = given.get(id(leaf))
    return (
        NamedSharding(mesh, sharding.spec)
        if isinstance(sharding, NamedSharding)
        else replicated_sharding(mesh)
    )


def prefill(model: Any, task: Prefill, weights: dict[str, Any], mesh: Mesh) -> Step:
    """`generate`'s program for a prompt, with its first token chosen greedily."""
    decoder = _decoder(model, mesh)
    columns = bucket(task.length)
    slots = bucket(max(task.max_cache_len or columns, columns))
    _check_positions(model, slots, task)
    rows = _rows(task.batch, mesh)
    arguments = (weights, *_prompt(rows, columns, mesh))
    state = _state(model, _first(decoder, slots), arguments, mesh)
    # Another function than the state's: jax would trace nothing again, and the attention calls would not be seen.
    return Step(
        _first(decoder, slots), arguments, (), _kept(state), units=("tokens", float(task.batch * task.length))
    )


def decode(model: Any, task: Decode, weights: dict[str, Any], mesh: Mesh) -> Step:
    """One turn of `generate`'s loop: a token for each row, chosen greedily."""
    decoder = _decoder(model, mesh)
    slots = bucket(task.max_cache_len)
    _check_positions(model, slots, task)
    rows = _rows(task.batch, mesh)
    prompt = _prompt(rows, min(bucket(1), slots), mesh)
    state = _state(model, _first(decoder, slots), (weights, *prompt), mesh)
    _, _, keys, columns, _ = prompt

    def step(weights: dict[str, Any], state: State, keys: jax.Array, columns: jax.Array) -> State:
        return decoder.step(weights, state, keys, columns, _greedy())

    arguments = (weights, state, keys, columns)
    return Step(step, arguments, (1,), _kept(state), True, ("tokens", float(task.batch)))


def _decoder(model: Any, mesh: Mesh) -> Decoder:
    with on(model, one_device_mesh()):
        transformers_rotary.prepare(model)
    return Decoder(model, mesh)


def _greedy() -> Settings:
    """Traced. The greedy choice, known when the program is made: the compiler leaves out what sampling would add."""
    return Settings(
        do_sample=jnp.asarray(False), temperature=jnp.float32(1), top_k=jnp.int32(0), top_p=jnp.float32(1),
        min_p=jnp.float32(0), repetition_penalty=jnp.float32(1), min_new=jnp.int32(0),
        eos=jnp.full(EOS_SLOTS, -1, jnp.int32), pad=jnp.int32(-1),
    )  # fmt: skip


def _first(decoder: Decoder, slots: int) -> Callable[..., State]:
    def first(weights: Any, tokens: Any, mask: Any, keys: Any, columns: Any, real: Any) -> State:
        return decoder.first(weights, tokens, mask, keys, columns, real, _greedy(), slots=slots)

    return first


def _rows(batch: int, mesh: Mesh) -> int:
    """The rows that `generate` fills the batch up to."""
    multiple = mesh.shape.get("dp", 1)
    return -(-batch // multiple) * multiple


def _prompt(rows: int, columns: int, mesh: Mesh) -> tuple[Any, ...]:
    """Tokens and mask [B, P], keys [B, 2], and the number of columns and of rows, as the host gives them."""
    whole = replicated_sharding(mesh)
    shapes = (
        ((rows, columns), jnp.int32), ((rows, columns), jnp.bool_), ((rows, 2), jnp.uint32), ((), jnp.int32),
        ((), jnp.int32),
    )  # fmt: skip
    return tuple(jax.ShapeDtypeStruct(shape, dtype, sharding=whole) for shape, dtype in shapes)


def _state(model: Any, function: Callable[..., State], arguments: tuple[Any, ...], mesh: Mesh) -> State:
    """The loop's carry, each array where the prefill leaves it."""
    with on(model, mesh):
        state = jax.eval_shape(function, *arguments)
    kept: dict[int, Any] = {id(state.present): NamedSharding(mesh, PartitionSpec("dp"))}
    for layer in state.cache.layers:
        if isinstance(layer, FixedLayer):
            arrays: tuple[Any, Any] = layer.keys, layer.values
            kept |= {id(array): FixedLayer.sharding(mesh, array.shape) for array in arrays}
    return jax.tree.map(lambda x: placed(x, kept.get(id(x), replicated_sharding(mesh))), state)


def _kept(state: State) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The arrays of the cache; its counters are no part of it."""
    return tuple(array for array in jax.tree.leaves(state.cache) if array.ndim)


def _check_positions(model: Any, slots: int, task: Prefill | Decode) -> None:
    """PortError where the cache is longer than what the model has positions for."""
    config = getattr(model, "config", None)
    text = config.get_text_config(decoder=True) if config is not None else None
    limit = getattr(text, "max_position_embeddings", None)
    asked = task.length if isinstance(task, Prefill) else task.max_cache_len
    wanted = max(asked, getattr(task, "max_cache_len", None) or 0)
    if limit is not None and wanted > limit:
        raise PortError(
            f"{type(model).__name__} knows {limit} positions, and {wanted} are asked for ({slots} columns)",
            where=f"{task}",
            fix=f"ask for {limit} at most, or raise max_position_embeddings in the config",
        )


def _described(value: Any, name: str, given: dict[int, Any]) -> Any:
    """A tensor of the meta device for what is described, its place noted by id; in lists and mappings too."""
    if type(value) is dict:
        return {key: _described(one, f"{name}.{key}", given) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_described(one, f"{name}.{place}", given) for place, one in enumerate(value))
    if not isinstance(value, jax.ShapeDtypeStruct):
        return value
    dtype = as_torch_dtype(value.dtype)
    if dtype is None:
        raise PortError(f"torch has no {value.dtype}", where=f"inputs[{name!r}]")
    tensor = torch.empty(value.shape, dtype=dtype, device="meta")
    given[id(tensor)] = value.sharding
    return tensor
