"""Objects compared after a call of torch and one of a compiled function."""

import collections
import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tpuport


def _assert_same(mine: Any, theirs: Any, seen: dict | None = None) -> None:
    """Both have equal values of one class, and the same objects in the same places."""
    seen = {} if seen is None else seen
    if theirs is None or isinstance(theirs, str | int | float):
        assert mine == theirs
        assert type(mine) is type(theirs)
        return
    if not isinstance(theirs, tuple):
        assert seen.setdefault(id(theirs), id(mine)) == id(mine), "another identity"
        assert seen.setdefault(("mine", id(mine)), id(theirs)) == id(theirs), "another identity"
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(mine.detach().cpu(), theirs.detach())
        return
    assert type(mine) is type(theirs)
    for a, b in zip(_parts(mine), _parts(theirs), strict=True):
        _assert_same(a, b, seen)


def _parts(value: Any) -> list[Any]:
    """What an object consists of, names included."""
    result = [x for pair in getattr(value, "__dict__", {}).items() for x in pair]
    result += [getattr(value, name) for name in getattr(value, "__slots__", ()) if hasattr(value, name)]
    if isinstance(value, dict):
        result += [x for pair in dict.items(value) for x in pair]
    elif isinstance(value, np.ndarray):
        result += value.tolist()
    elif isinstance(value, list | tuple | collections.deque):
        result += value
    return result


def _agree(function: Any, *args: Any, calls: int = 2, **options: Any) -> Any:
    """Call torch and the compiled function side by side; compare results and arguments after each call."""
    mine = copy.deepcopy(args)
    compiled = tpuport.compile(function, **options)
    for _ in range(calls):
        expected = function(*args)
        result = compiled(*mine)
        _assert_same([result, mine], [expected, args])
    return compiled


@pytest.fixture(scope="session")
def agree() -> Callable[..., Any]:
    return _agree


@pytest.fixture(scope="session")
def parts() -> Callable[[Any], list[Any]]:
    return _parts
