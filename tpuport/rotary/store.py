"""Tables kept on the device from call to call, and their use inside of a trace."""

import contextlib
import itertools
import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch

from tpuport.checkpoint import model_mesh, port_count
from tpuport.rotary.finding import Arguments
from tpuport.rotary.hosting import Host
from tpuport.rotary.positions import Positions
from tpuport.rotary.probing import Need, instead, needs
from tpuport.rotary.tables import Table, keep, put_again
from tpuport.tracing import trace_lock

logger = logging.getLogger("tpuport")

# What names of arrays that are tables begin with, where those of parameters stand beside them.
_PREFIX = "rotary table:"
# Tables of one module that are kept; a shape that comes back after as many others has its table made again.
_MOST = 8
_kept: weakref.WeakKeyDictionary[torch.nn.Module, OrderedDict[tuple, Table]] = weakref.WeakKeyDictionary()
_positions: weakref.WeakKeyDictionary[torch.nn.Module, dict[Hashable, Positions]] = (
    weakref.WeakKeyDictionary()
)


def table(model: torch.nn.Module, need: Need) -> Table:
    """The table of one call, on the model's mesh: one that is kept, or made now."""
    module = model.get_submodule(need.name)
    mesh: Any = model_mesh(model)
    kept = _kept.setdefault(module, OrderedDict())
    key = (port_count(model), mesh, need.key)
    for other in [other for other in kept if other[:2] != key[:2]]:
        del kept[other]  # of the devices that the model was on, or of a module that was changed since
    if key not in kept:
        output = Host(module)(need.arguments)
        kept[key] = made = keep(output, mesh, need.signature, need.shapes_decide)
        logger.info(
            "rotary table of %s (%s): %s, %.1f MB on each device", need.name, type(module).__name__,
            ", ".join(str(tuple(array.shape)) for array in made.arrays), made.nbytes / 1e6,
        )  # fmt: skip
    kept.move_to_end(key)
    return kept[key]


def tables(models: Sequence[torch.nn.Module], needed: Sequence[Need]) -> list[dict[str, Table]]:
    """The tables of a program's calls by name, for each of its models: arguments of the program beside the weights."""
    found: list[dict[str, Table]] = [{} for _ in models]
    for need in needed:
        found[need.place][f"{_PREFIX}{need.name}:{need.call}"] = table(models[need.place], need)
    for model, names in zip(models, found, strict=True):
        for name in {name.removeprefix(_PREFIX).rpartition(":")[0] for name in names}:
            _evict(model.get_submodule(name), sum(n.startswith(f"{_PREFIX}{name}:") for n in names))
    return found


def _evict(module: torch.nn.Module, in_use: int) -> None:
    kept = _kept[module]
    while len(kept) > max(_MOST, in_use):
        kept.popitem(last=False)


def _found(models: Sequence[torch.nn.Module], traced: Callable[..., Any], arguments: tuple) -> list[Need]:
    try:
        with trace_lock:
            return needs(models, traced, arguments)
    except Exception as error:  # noqa: BLE001 - the program's own trace meets it again, and says it better
        logger.info("not looked for rotary tables: %s: %.200s", type(error).__name__, error)
        return []


class ProgramTables:
    """The tables that the programs of one function need: found when a program is new, handed over in every call."""

    def __init__(self) -> None:
        self._needed: dict[Hashable, list[Need]] = {}

    def add_to(
        self,
        weights: Sequence[dict[str, Any]],
        key: Hashable,
        models: Sequence[torch.nn.Module],
        traced: Callable[..., Any],
        *others: Any,
    ) -> list[dict[str, Any]]:
        """The weights of each model, with the tables for this call beside them.

        A program has the tables of its own shapes among its arguments and no others, so that a new shape leaves the
        programs of other shapes as they are.

        Args:
            weights: of each model, by name.
            key: of the program, equal for equal shapes and static values.
            traced: the function that is compiled, called as `traced(weights, *others)`.
        """
        if key not in self._needed:
            self._needed[key] = _found(models, traced, (list(weights), *others))
        found = tables(models, self._needed[key])
        return [{**arrays, **beside} for arrays, beside in zip(weights, found, strict=True)]


def keep_positions(module: torch.nn.Module, signature: Hashable, positions: Positions) -> None:
    """Let every program serve calls of the module from a table over positions."""
    _positions.setdefault(module, {})[signature] = positions


def forget_positions(model: torch.nn.Module) -> None:
    """Take away what `keep_positions` gave to the modules of a model."""
    for module in model.modules():
        _positions.pop(module, None)


def position_tables(model: torch.nn.Module) -> dict[str, Any]:
    """The tables over positions that a model was given, as arguments of its programs beside the weights."""
    if not _positions:
        return {}
    mesh = model_mesh(model)
    tables: dict[str, Any] = {}
    for name, module in model.named_modules():
        held = _positions.get(module, {})
        for number, (signature, found) in enumerate(list(held.items())):
            held[signature] = put_again(found, mesh)
            tables[f"{_PREFIX}{name}:positions {number}"] = held[signature]
    return tables


def split_tables(arrays: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What a program was given for one model: (weights by name, tables by the name of their module and the call)."""
    weights = {name: array for name, array in arrays.items() if not name.startswith(_PREFIX)}
    found: dict[str, dict[str, Any]] = {}
    for name in arrays.keys() - weights.keys():
        module, _, call = name.removeprefix(_PREFIX).rpartition(":")
        found.setdefault(module, {})[call] = arrays[name]
    return weights, found


@contextlib.contextmanager
def use_tables(model: torch.nn.Module, found: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Traced. Let rotary modules of the model return their tables."""
    with contextlib.ExitStack() as stack:
        for name, held in found.items():
            module = model.get_submodule(name)
            stack.enter_context(instead(module, _forward(module, held)))
        yield


def _forward(module: torch.nn.Module, held: Mapping[str, Any]) -> Callable[..., Any]:
    own = module.forward
    by_shape = {call: x for call, x in held.items() if isinstance(x, Table)}
    by_position = [x for x in held.values() if isinstance(x, Positions)]
    calls = itertools.count()

    def forward(*args: Any, **kwargs: Any) -> Any:
        arguments = Arguments(args, kwargs)
        signature, call = arguments.signature(), str(next(calls))
        for made_for, found in by_shape.items():
            if found.form.signature == signature and (found.form.shapes_decide or made_for == call):
                return found.output()
        for positions in by_position:
            if positions.serves(arguments):
                return positions.output(arguments)
        return own(*args, **kwargs)

    return forward
