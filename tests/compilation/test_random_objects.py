"""Random structures of objects, of which a compiled function changes every part."""

import dataclasses
import random
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

Parts = Callable[[Any], list[Any]]


@dataclasses.dataclass(slots=True)
class Slotted:
    a: Any
    b: Any = None


class Pair(NamedTuple):
    a: Any
    b: Any = None


def _random_value(generator: random.Random, depth: int, pool: list[Any]) -> Any:
    if pool and generator.random() < 0.2:
        return generator.choice(pool)
    kind = generator.choice(
        ["tensor", "number", *(["list", "dict", "object", "slots", "tuple"] * (depth > 0))]
    )

    def inner() -> Any:
        return _random_value(generator, depth - 1, pool)

    match kind:
        case "tensor":
            value: Any = torch.full((generator.randint(1, 3),), float(generator.randint(0, 5)))
        case "number":
            return generator.choice([1, 2.5, None, "text", True])
        case "list":
            value = [inner() for _ in range(generator.randint(0, 3))]
        case "dict":
            value = {key: inner() for key in generator.sample(["b", "a", 3, None], 2)}
        case "object":
            value = types.SimpleNamespace(x=inner(), y=inner())
        case "slots":
            value = Slotted(inner(), inner())
        case "tuple":
            return (inner(), Pair(inner(), inner()))
    pool.append(value)
    return value


def _collect(value: Any, parts: Parts, objects: dict[int, Any]) -> None:
    """Every object and tensor once, in a fixed order."""
    if value is None or isinstance(value, str | int | float):
        return
    if id(value) not in objects:
        objects[id(value)] = value
        for part in [] if isinstance(value, torch.Tensor) else parts(value):
            _collect(part, parts, objects)


def _change_everything(parts: Parts, root: Any) -> Any:
    """Write in place to some tensors, replace others, and add to containers."""
    objects: dict[int, Any] = {}
    _collect(root, parts, objects)
    tensors = [value for value in objects.values() if isinstance(value, torch.Tensor)]
    for number, tensor in enumerate(tensors[::2]):
        tensor.add_(number)
    for value in objects.values():
        match value:
            case list():
                value.append(tensors[-1] * 2 if tensors else 1)
            case dict():
                value["new"] = list(tensors[:1])
            case Slotted():
                value.a, value.b = value.b, value.a
            case types.SimpleNamespace():
                value.x = len(tensors)
    return [root, sum((tensor.sum() for tensor in tensors), torch.zeros(()))]


# The structures of a few seeds have parts of every kind.
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 20))]
)
def test_random_structures(agree: Callable, parts: Parts, seed: int) -> None:
    generator = random.Random(seed)
    pool: list[Any] = []

    def change_everything(root: Any) -> Any:
        return _change_everything(parts, root)

    agree(change_everything, [_random_value(generator, 3, pool) for _ in range(3)])
