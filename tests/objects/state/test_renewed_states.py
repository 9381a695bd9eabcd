"""A state that is renewed after changes is the one that a new walk finds, or is given up."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tpuport import compat
from tpuport.objects.state.python_state import PythonState


def device(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return compat.to_device(torch.tensor(values, dtype=dtype))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.state = device(1.0)
        self.calls = 0
        self.parts = [device(2.0), {"k": device(3.0)}]
        self.name = "block"
        self.register_buffer("table", device(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.state + self.parts[0] + self.parts[1]["k"] + self.table + GLOBAL["shared"]


GLOBAL: dict[str, Any] = {}


def _replace_everything(first: Any, second: Any) -> None:
    for block in (first, second):
        block.state, block.parts[0], block.parts[1]["k"] = device(5.0), device(6.0), device(7.0)


CHANGES = {
    "nothing": lambda first, second: None,
    "a tensor": lambda first, second: setattr(first, "state", device(5.0)),
    "an item": lambda first, second: first.parts[1].update(k=device(5.0)),
    "one of two places": lambda first, second: first.parts.__setitem__(0, device(5.0)),
    "everything": _replace_everything,
    "a global": lambda first, second: GLOBAL.update(shared=device(8.0)),
    "exchanged": lambda first, second: first.parts.__setitem__(
        slice(None), [first.parts[1]["k"], {"k": first.parts[0]}]
    ),
    "exchanged between two": lambda first, second: (
        vars(first).update(state=second.state, calls=second.calls)
        or vars(second).update(state=first.parts[0])
    ),
    "made one": lambda first, second: setattr(first, "state", second.state),
    "made two": lambda first, second: second.parts.__setitem__(0, device(9.0)),
    "a buffer": lambda first, second: setattr(first, "table", device(9.0)),
    "another dtype": lambda first, second: setattr(first, "state", device(1, dtype=torch.int32)),
    "on the host": lambda first, second: setattr(first, "state", torch.ones(1)),
    "no tensor": lambda first, second: setattr(first, "state", None),
    "a number": lambda first, second: setattr(first, "calls", first.calls + 1),
    "numbers": lambda first, second: (setattr(first, "calls", 3), setattr(second, "calls", 4)),
    "a text": lambda first, second: setattr(first, "name", "other"),
    "another container": lambda first, second: setattr(first, "parts", list(first.parts)),
    "a new item": lambda first, second: first.parts.append(device(9.0)),
    "a new attribute": lambda first, second: setattr(first, "more", device(9.0)),
}
# What code does in each call, which has to cost no walk.
RENEWED = {"nothing", "a tensor", "an item", "a global"}
_NUMBERS = frozenset({("state", "0.calls"), ("state", "1.calls")})


@pytest.fixture
def model() -> nn.Module:
    compat.environment()
    GLOBAL["shared"] = device(0.0)
    model = nn.Sequential(Block(), Block())
    # Both have this one.
    model[1].parts[0] = model[0].parts[0]
    return model


def test_an_array_in_the_place_of_an_equal_one_is_watched(model: Any) -> None:
    model[0].mask = np.ones(2)
    before = PythonState(model, [model])
    model[0].mask = np.ones(2)
    state = before.renewed() or PythonState(model, [model])
    model[0].mask[0] = 0
    assert not state.is_current()


def _assert_same(renewed: PythonState, new: PythonState) -> None:
    assert renewed.key == new.key
    assert list(map(id, renewed.tensors)) == list(map(id, new.tensors))
    assert renewed.numbers == new.numbers
    assert {path: id(tensor) for path, tensor in renewed.tensor_paths()} == {
        path: id(tensor) for path, tensor in new.tensor_paths()
    }
    assert all(renewed.find_tensor(tensor) == new.find_tensor(tensor) for tensor in new.tensors)
    assert renewed.count_references() == new.count_references()
    assert renewed.is_current()
    assert renewed.key.state is renewed


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("varying", [frozenset(), _NUMBERS], ids=["numbers in the key", "varying numbers"])
def test_one_change(change: str, varying: frozenset, model: Any) -> None:
    before = PythonState(model, [model], varying=varying)
    CHANGES[change](model[0], model[1])
    renewed = before.renewed()
    new = PythonState(model, [model], varying=varying)
    if renewed is not None:
        _assert_same(renewed, new)
    if change in RENEWED or (varying and change in ("a number", "numbers")):
        assert renewed is not None
    assert before.key == new.key or renewed is None


@pytest.mark.parametrize("seed", range(8))
def test_one_change_after_another(seed: int, model: Any) -> None:
    generator = random.Random(seed)
    state = PythonState(model, [model], varying=_NUMBERS)
    for _ in range(12):
        CHANGES[generator.choice([*CHANGES])](*generator.sample([model[0], model[1]], 2))
        renewed = state.renewed()
        new = PythonState(model, [model], varying=_NUMBERS)
        if renewed is not None:
            _assert_same(renewed, new)
        state = renewed or new
