"""`precompute_rotary`: make a model's rotary tables now, and say what was made."""

import dataclasses
import inspect
import logging
from typing import Any

import jax
import torch

from tpuport import compat
from tpuport.checkpoint import model_mesh
from tpuport.errors import PortError
from tpuport.rotary import positions, probing, store
from tpuport.rotary.finding import by_position, by_shape
from tpuport.tracing import trace_lock

logger = logging.getLogger("tpuport")

# Their frequencies depend on the length of each call; tpuport.patches.transformers_rotary serves them.
_LENGTH_DEPENDENT = ("dynamic", "longrope")


@dataclasses.dataclass(frozen=True)
class Found:
    """What `precompute_rotary` did for one rotary module.

    Attributes:
        name: the module's, in the model.
        module: its class.
        kind: "table" (for the shapes of one call), "positions" (rows taken by position), or "program" (it is computed
            inside of the program).
        shapes: of the arrays kept.
        nbytes: of them together, on each device.
        why: it is computed inside of the program.
    """

    name: str
    module: str
    kind: str
    shapes: tuple[tuple[int, ...], ...] = ()
    nbytes: int = 0
    why: str = ""


def precompute_rotary(model: Any, *args: Any, max_length: int | None = None, **kwargs: Any) -> list[Found]:
    """Make the rotary tables that calls of a ported model with inputs of these shapes need, and log what was made.

    Tables that depend on nothing but shapes and plain values need no call of this: compiled functions make them when
    they meet a new shape. Modules that are given positions as values (transformers' `position_ids`, the ids of Flux)
    are computed inside of the program unless this gave them a table over positions, of which the program then takes
    rows, bit for bit what the module gives. A position outside of such a table gives NaN. Another call of this replaces
    the tables over positions.

    Args:
        model: a ported module.
        args, kwargs: example inputs of the model: tensors, or anything with shape and dtype
            (`jax.ShapeDtypeStruct`) for tensors whose values are not known yet.
        max_length: positions in tables over positions; None for as many as the config's `max_position_embeddings`,
            or as the example's ids have.

    Returns:
        One entry for each module and call.

    Raises:
        PortError: the model is not on the device, or there are no example inputs.
    """
    _check(model, args, kwargs, max_length)
    store.forget_positions(model)
    # Not above: a compiled function imports this package.
    from tpuport.compilation import CompiledFunction

    values = not any(_is_described(leaf) for leaf in jax.tree.leaves((args, kwargs), is_leaf=_is_described))
    args, kwargs = jax.tree.map(_example, (args, kwargs), is_leaf=_is_described)
    traced, arguments = CompiledFunction(model).traced_parts(args, kwargs)
    with trace_lock:
        probed = probing.probe([model], traced, arguments, lambda m: by_shape(m) | by_position(m))
    inputs = jax.tree.leaves(arguments) if values else None
    found = _tables(model, traced, arguments) + _over_positions(model, probed, inputs, max_length)
    served = {entry.name for entry in found}
    for entry in found:
        logger.info("precomputed rotary: %s", entry)
    return found + [
        Found(name, type(module).__name__, "program", why="the example does not call it")
        for name, module in (by_shape(model) | by_position(model)).items()
        if name not in served
    ]


def _check(model: Any, args: tuple, kwargs: dict[str, Any], max_length: int | None) -> None:
    if not isinstance(model, torch.nn.Module) or model_mesh(model) is None:
        raise PortError(
            f"this {type(model).__name__} is not a ported model, and has no devices to keep tables on",
            where="model",
            fix="model = tpuport.port(model, mesh=mesh) first",
        )
    if not args and not kwargs:
        raise PortError(
            "there are no example inputs, and rotary tables depend on shapes",
            where="precompute_rotary",
            fix="give the inputs that the model will be called with: precompute_rotary(model, hidden_states=...)",
        )
    if max_length is not None and max_length < 1:
        raise PortError(f"max_length is {max_length}", where="max_length", fix="give a number of positions")


def _is_described(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)


def _example(leaf: Any) -> Any:
    return torch.zeros(leaf.shape, dtype=compat.torch_dtype(leaf.dtype)) if _is_described(leaf) else leaf


def _tables(model: torch.nn.Module, traced: Any, arguments: tuple) -> list[Found]:
    found = []
    with trace_lock:
        needed = probing.needs([model], traced, arguments)
    for need in needed:
        table = store.table(model, need)
        shapes = tuple(tuple(array.shape) for array in table.arrays)
        module = type(model.get_submodule(need.name)).__name__
        found.append(Found(need.name, module, "table", shapes, table.nbytes))
    return found


def _over_positions(
    model: torch.nn.Module, probed: probing.Probed, inputs: list[Any] | None, max_length: int | None
) -> list[Found]:
    """An entry for each call whose shapes do not decide, with a table over positions where one serves it."""
    known = probing.constant_outputs(probed.program)
    found = []
    for call, numbers in zip(probed.calls, probed.outputs(), strict=True):
        if call.served or all(number in known for number in numbers.values()):
            continue
        values = {}
        if inputs is not None:
            computed = probing.outputs(probed.program, sorted(numbers.values()), inputs)
            values = {place: computed[number] for place, number in numbers.items()}
        found.append(_by_position(model, call, values, max_length))
    return found


def _by_position(
    model: torch.nn.Module, call: probing.Call, values: dict[int, jax.Array], max_length: int | None
) -> Found:
    module: Any = model.get_submodule(call.name)
    mesh: Any = model_mesh(model)
    left = Found(call.name, type(module).__name__, "program")
    if call.name in by_position(model):
        if any(kind in str(getattr(module, "rope_type", "")) for kind in _LENGTH_DEPENDENT):
            return dataclasses.replace(left, why="its frequencies depend on the length of each call")
        place, like = _places(call, module)
        length = max_length or getattr(module.config, "max_position_embeddings", None)
    else:
        place, like = call.arguments.tensors[0], None
        if len(call.arguments.tensors) > 1:
            return dataclasses.replace(left, why="it takes several tensors")
        length = max_length or _length(values.get(place))
    if length is None:
        return dataclasses.replace(left, why="the example has no whole positions from 0 on: give max_length")
    made = positions.make(call.host, call.shapes(), place, like, int(length), mesh)
    if made is None:
        return dataclasses.replace(left, why="what it gives is not decided position by position")
    store.keep_positions(module, made.plan, made)
    shapes = tuple(tuple(array.shape) for array in made.arrays)
    return dataclasses.replace(left, kind="positions", shapes=shapes, nbytes=made.nbytes)


def _length(ids: jax.Array | None) -> int | None:
    """Positions that a table for these ids has; None for ids that are no indices."""
    if ids is None or (ids < 0).any() or (ids != ids.round()).any():
        return None
    return int(ids.max()) + 1


def _places(call: probing.Call, module: torch.nn.Module) -> tuple[int, int]:
    """The places of `position_ids`, and of the tensor beside it, among the leaves of a call's arguments."""
    numbered = call.arguments.replaced({n: n for n in range(len(call.arguments.leaves))})
    args, kwargs = numbered.call()
    place = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments["position_ids"]
    return place, next(n for n in call.arguments.tensors if n != place)
