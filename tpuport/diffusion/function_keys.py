"""Functions of the user's as arguments of a program: the tensors that they hold are traced, the rest is static."""

import dataclasses
import functools
import types
from collections.abc import Callable, Hashable
from typing import Any

import jax
import torch

from tpuport import compat
from tpuport.errors import PortError
from tpuport.static_values import StaticValue

_DEPTH = 4


@dataclasses.dataclass(frozen=True)
class _Tensor:
    place: int


@dataclasses.dataclass(frozen=True)
class _Function:
    code: types.CodeType
    cells: tuple[Hashable, ...]
    defaults: tuple[Hashable, ...]
    keywords: tuple[tuple[str, Hashable], ...]
    named: tuple[tuple[str, Hashable], ...]
    known: dict[str, Any] = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class _Partial:
    function: Hashable
    args: tuple[Hashable, ...]
    keywords: tuple[tuple[str, Hashable], ...]


def lift(value: Any, tensors: list[jax.Array], depth: int = 0) -> Hashable:
    """A key of a function, equal for functions of the same code and plain values; its tensors go to `tensors`.

    Closures, defaults, tensors among the globals and `functools.partial` are followed, so that
    `lambda x: torch.cat([x, condition], 1)`, made anew for every call, is one program, and `condition` no constant of
    it.

    Raises:
        PortError: the function holds something that is neither a tensor nor hashable.
    """
    below = functools.partial(lift, tensors=tensors, depth=depth + 1)
    if isinstance(value, torch.Tensor | jax.Array):
        array = compat.to_jax(value) if isinstance(value, torch.Tensor) else value
        tensors.append(array)
        return _Tensor(len(tensors) - 1)
    if isinstance(value, types.FunctionType) and depth < _DEPTH:
        cells = tuple(below(cell.cell_contents) for cell in value.__closure__ or ())
        defaults = tuple(below(default) for default in value.__defaults__ or ())
        keywords = tuple((name, below(default)) for name, default in (value.__kwdefaults__ or {}).items())
        known = value.__globals__
        named = tuple(
            (name, below(known[name]))
            for name in value.__code__.co_names
            if isinstance(known.get(name), torch.Tensor | jax.Array)
        )
        return _Function(value.__code__, cells, defaults, keywords, named, known)
    if isinstance(value, functools.partial):
        keywords = tuple((name, below(held)) for name, held in value.keywords.items())
        return _Partial(below(value.func), tuple(below(held) for held in value.args), keywords)
    try:
        hash(value)
    except TypeError as error:
        raise PortError(
            f"a function holds a {type(value).__name__}, which is neither a tensor nor hashable",
            where=f"{value!r:.60}",
            fix="let it hold tensors and plain values",
        ) from error
    return StaticValue(value)


def lower(key: Any, tensors: list[jax.Array]) -> Callable | Any:
    """Traced. The function of a key again, with these arrays, as torch tensors, for the tensors that it held."""
    below = functools.partial(lower, tensors=tensors)
    if isinstance(key, _Tensor):
        return compat.wrap(tensors[key.place])
    if isinstance(key, _Function):
        cells = tuple(types.CellType(below(cell)) for cell in key.cells)
        defaults = tuple(below(default) for default in key.defaults) or None
        known = {**key.known, **{name: below(held) for name, held in key.named}} if key.named else key.known
        function = types.FunctionType(key.code, known, key.code.co_name, defaults, cells)
        function.__kwdefaults__ = {name: below(default) for name, default in key.keywords} or None
        return function
    if isinstance(key, _Partial):
        return functools.partial(
            below(key.function), *map(below, key.args), **{n: below(v) for n, v in key.keywords}
        )
    return key.value
