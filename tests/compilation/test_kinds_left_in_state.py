"""Whatever kind of value compiled code leaves in its state, in several places and in the result at once: after each
call the same objects are in the same places as in torch."""

import collections
import dataclasses
import functools
import inspect
import re
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tpuport
from tpuport import PortError, compat

X = torch.arange(3.0)


@pytest.fixture(autouse=True)
def _environment() -> None:
    compat.environment()


@dataclasses.dataclass
class Plain:
    a: Any
    b: Any = None


@dataclasses.dataclass(frozen=True, eq=False)
class Frozen:
    a: Any


@dataclasses.dataclass(frozen=True)
class Key:
    number: int


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a: Any) -> None:
        self.a = a

    def double(self) -> Any:
        return self.a * 2


class Names(dict):
    """Which has attributes, and shows its items in another order."""

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self.label = "names"

    def __iter__(self) -> Any:
        return iter(sorted(self.keys()))


class Stack(list):
    pass


Point = collections.namedtuple("Point", "x label")


def _cycle(x: torch.Tensor) -> Any:
    first = Plain(x + 1)
    first.b = [first, Plain(x, first)]
    return first


def _stack(x: torch.Tensor) -> Any:
    stack = Stack([x, x + 1])
    stack.extra = stack[0]
    return stack


def _names(x: torch.Tensor) -> Any:
    names = Names(z=x, a=x + 1)
    names.total = x + 2
    return names


def _recursive_list(x: torch.Tensor) -> Any:
    values: list = [x]
    values.append(values)
    return values


def _weak(x: torch.Tensor) -> Any:
    owner = Plain(x)
    owner.b = weakref.ref(owner)
    return owner


def _nested(x: torch.Tensor) -> Any:
    offset = x + 1
    return lambda y: y + offset


def _counter(x: torch.Tensor) -> Any:
    total = x + 0

    def count(y: torch.Tensor) -> None:
        nonlocal total
        total = total + y

    return [count, lambda: total]


# How code makes a value of a tensor.
KINDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda x: x + 1,
    "integers": lambda x: x.to(torch.int32),
    "parameter": lambda x: nn.Parameter(x + 1, requires_grad=False),
    "list": lambda x: [x + 1, [x, 3]],
    "list that has itself": _recursive_list,
    "cycle of objects": _cycle,
    "dictionary": lambda x: {"b": x + 1, "a": {2: x}},
    "ordered dictionary": lambda x: collections.OrderedDict(b=x, a=x + 1),
    "default dictionary": lambda x: collections.defaultdict(list, {"a": [x]}),
    "counts": lambda x: collections.Counter(a=2, b=1),
    "derived dictionary": _names,
    "derived list": _stack,
    "tuple": lambda x: (x, ((x + 1), "text")),
    "named tuple": lambda x: Point(x + 1, "label"),
    "named result of torch": lambda x: torch.return_types.sort((x, x + 2)),
    "deque": lambda x: collections.deque([x, x + 1], maxlen=2),
    "set of objects": lambda x: {Frozen(x), Frozen([x])},
    "set of values with a hash": lambda x: [{Key(1), Key(2)}, Plain(x)],
    "frozen set": lambda x: frozenset([Frozen(x), 3]),
    "object": lambda x: Plain(x, Plain(x + 1)),
    "object without tensors": lambda x: Plain(3, ["text"]),
    "frozen object": lambda x: Frozen(x + 1),
    "object with slots": lambda x: Slotted(x + 1),
    "namespace": lambda x: types.SimpleNamespace(a=x, b=[x]),
    "weak reference": _weak,
    "bytes": lambda x: bytearray(b"ab"),
    "array of NumPy": lambda x: Plain(np.arange(2), x),
    "function with a tensor": _nested,
    "functions that share a variable": _counter,
    "bound method": lambda x: Slotted(x).double,
    "partial": lambda x: functools.partial(torch.add, x, alpha=2),
    "object of torch": lambda x: torch.distributions.Normal(x, x * 0 + 1, validate_args=False),
    "class and function": lambda x: [Plain, len, _nested],
}  # fmt: skip


class World(nn.Module):
    """Has places of every kind in which code leaves values."""

    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.make = make
        self.attribute: Any = None
        self.holder = Plain(None)
        self.items: list = []
        self.table: dict = {}
        self.recent: collections.deque = collections.deque(maxlen=3)
        self.read, self.assign = _variable()

    def forward(self, x: torch.Tensor) -> Any:
        value = self.make(x * 2)
        # What the last call has left goes from place to place.
        self.holder.b = self.holder.a
        self.attribute = self.holder.a = value
        self.items.append([value, value])
        self.table["latest", len(self.items)] = value
        self.recent.append(value)
        self.assign(value)
        return x + 1, value

    def places(self) -> list[Any]:
        return [self.attribute, self.holder, self.items, self.table, self.recent, self.read()]


def _variable() -> tuple[Callable[[], Any], Callable[[Any], None]]:
    variable: Any = None

    def assign(value: Any) -> None:
        nonlocal variable
        variable = value

    return lambda: variable, assign


# What a value of each kind consists of.
PARTS: list[tuple[Any, Callable[[Any], list[Any]]]] = [
    (torch.Tensor, lambda v: [str(v.dtype), isinstance(v, nn.Parameter), repr(tpuport.to_cpu(v).tolist())]),
    (np.ndarray, lambda v: [repr(v), v.flags.writeable]),
    (dict, lambda v: [*dict.keys(v), *dict.values(v)]),
    ((set, frozenset), lambda v: sorted(re.sub(r"#\d+", "#", repr(describe(part))) for part in v)),
    (collections.deque, lambda v: [*v, v.maxlen]),
    ((list, tuple, bytearray), list),
    (types.FunctionType, lambda v: [v.__qualname__, *(v.__closure__ or ())]),
    (types.CellType, lambda v: [v.cell_contents]),
    (types.MethodType, lambda v: [v.__func__.__qualname__, v.__self__]),
    (functools.partial, lambda v: [v.args, v.keywords, v.func.__name__]),
    (weakref.ReferenceType, lambda v: [v()]),
]
WHOLE = (str, int, float, type, types.NoneType, types.BuiltinFunctionType)
HAVE_NO_ATTRIBUTES = (torch.Tensor, tuple, types.FunctionType, types.MethodType, functools.partial)


def describe(value: Any) -> Any:
    """What a value consists of, with the number of each object at each place where it is."""
    numbers: dict[int, int] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, WHOLE):
            return value
        # Made anew at each access.
        if not isinstance(value, types.MethodType):
            if id(value) in numbers:
                return f"#{numbers[id(value)]}"
            numbers[id(value)] = len(numbers)
        parts = next((read(value) for kind, read in PARTS if isinstance(value, kind)), [])
        attributes: dict[str, Any] = {}
        if not isinstance(value, HAVE_NO_ATTRIBUTES):
            names = getattr(type(value), "__slots__", ())
            attributes = {name: getattr(value, name) for name in names if hasattr(value, name)}
            attributes |= getattr(value, "__dict__", {})
        name = "Tensor" if isinstance(value, torch.Tensor) else type(value).__name__
        return [name, [*map(walk, parts)], [(name, walk(part)) for name, part in attributes.items()]]

    return walk(value)


@pytest.mark.parametrize("kind", KINDS)
# A ported model's own call takes the path of a compiled one, and `test_what_goes_from_call_to_call` has it, too.
@pytest.mark.parametrize(
    "is_ported", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["compiled", "ported"]
)
def test_what_is_left_in_several_places_is_one_object(kind: str, is_ported: bool) -> None:
    theirs, mine = World(KINDS[kind]), World(KINDS[kind])
    call: Callable = tpuport.port(mine) if is_ported else tpuport.compile(mine)
    for number in range(3):
        x = torch.arange(3.0) + number
        result, expected = call(x), theirs(x)
        assert describe([result, mine.places()]) == describe([expected, theirs.places()])


class Keeping(nn.Module):
    """Keeps what `keep` makes of its input."""

    def __init__(self, keep: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.keep = keep
        self.kept: Any = None
        self.table: dict = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.keep(self, x)
        return x + 1


def _generator(model: Any, x: torch.Tensor) -> None:
    model.kept = (row for row in x)  # generator


def _iterator(model: Any, x: torch.Tensor) -> None:
    model.kept = [1, iter([x * 2])]  # list_iterator


def _view(model: Any, x: torch.Tensor) -> None:
    model.kept = {"a": x * 2}.values()  # dict_values


def _function(model: Any, x: torch.Tensor) -> None:
    model.kept = lambda y, z=x * 2: y + z  # function


def _module(model: Any, x: torch.Tensor) -> None:
    made = nn.Identity()
    made.scale = x * 2
    model.kept = [made]  # Identity


def _key(model: Any, x: torch.Tensor) -> None:
    model.kept = {x * 2: 1}  # dictionary with a tensor as a key


def _name(model: Any, x: torch.Tensor) -> None:
    model.table[x * 2] = 1  # dictionary with a tensor as a key


@pytest.mark.parametrize("keep", [_generator, _iterator, _view, _function, _module, _key, _name])
def test_what_cannot_leave_is_refused_at_the_line_of_the_assignment(keep: Callable) -> None:
    lines, first = inspect.getsourcelines(keep)
    [(number, what)] = [
        (n, line.split("# ")[1].strip()) for n, line in enumerate(lines, first) if "# " in line
    ]
    model = Keeping(keep)
    with pytest.raises(
        PortError, match=rf"(?s)assigned a {what}.*line {number}, in {keep.__name__}.*fix: return"
    ):
        tpuport.compile(model)(X)
    assert model.kept is None
    assert model.table == {}


def _first(model: Any, x: torch.Tensor) -> None:
    model.table["was"] = model.kept
    model.kept = x * 2


def _in_turn(model: Any, x: torch.Tensor) -> None:
    model.table["b"], model.table["a"] = model.table.get("a"), model.table.get("b")
    model.kept, model.table["a"] = model.table["a"], x * 2 if model.kept is None else model.kept + x


def _state_inside(model: Any, x: torch.Tensor) -> None:
    model.kept = Plain(model.table, [model.kept, x * 2][-1])
    model.table["owner"] = model.kept


def _counted(model: Any, x: torch.Tensor) -> None:
    model.count = getattr(model, "count", 0) + 1
    model.kept = Plain([model.count, (model.count * 2, x * model.count)])


def _of_two_calls(model: Any, x: torch.Tensor) -> None:
    value = Plain(x * 2)
    if model.kept is not None:
        model.kept.b, value.b = value, model.kept
    model.kept = value


def _alternating(model: Any, x: torch.Tensor) -> None:
    model.kept = Plain(x * 2) if model.kept is None else None
    if model.kept is not None:
        model.table["seen"] = model.kept


def _without_tensors(model: Any, x: torch.Tensor) -> None:
    """An object that a later call changes is a new one each time."""
    if model.kept is None or model.kept.a == 2:
        model.kept = Plain(0)
    model.kept.a += 1


KEPT = [_first, _in_turn, _state_inside, _counted, _of_two_calls, _alternating, _without_tensors]


@pytest.mark.parametrize("keep", KEPT)
def test_what_goes_from_call_to_call(keep: Callable) -> None:
    theirs, mine = Keeping(keep), tpuport.port(Keeping(keep))
    for number in range(5):
        x = X + number
        torch.testing.assert_close(mine(x).cpu(), theirs(x))
        assert describe([mine.kept, mine.table]) == describe([theirs.kept, theirs.table])


def test_an_array_that_the_state_has_stays_that_array() -> None:
    table = np.arange(3)
    model = Keeping(lambda model, x: setattr(model, "kept", Plain(table, x * 2)))
    tpuport.compile(model)(X)
    assert model.kept.a is table


def test_lists_that_a_result_has_twice_are_one_list() -> None:
    def function(x: torch.Tensor) -> Any:
        values = [x + 1]
        return values, {"a": (values, 3)}

    compiled = tpuport.compile(function)
    for number in range(2):
        assert describe(compiled(X + number)) == describe(function(X + number))


class Box:
    def __init__(self, device: str) -> None:
        self.k = torch.ones(3).to(device)
        self.count = 0
        self.log: list = []


def _keep_it(model: Any, x: torch.Tensor, box: Any) -> None:
    model.kept = box


def _change_it(model: Any, x: torch.Tensor, box: Any) -> None:
    box.k = box.k + x
    box.count += 1
    model.kept = box


def _change_what_was_kept(model: Any, x: torch.Tensor, box: Any) -> None:
    if model.kept is not None:
        model.kept.k.add_(x)
        model.kept.count += 1
    model.kept = box


def _keep_a_part(model: Any, x: torch.Tensor, box: Any) -> None:
    model.kept, model.table["k"] = box.log, box.k
    box.log.append(x * 2)


def _keep_and_write(model: Any, x: torch.Tensor, box: Any) -> None:
    box.k.add_(x)
    model.table["before"] = model.kept
    model.kept = (box.k, [box])


GIVEN = [_keep_it, _change_it, _change_what_was_kept, _keep_a_part, _keep_and_write]


@pytest.mark.parametrize("keep", GIVEN)
def test_an_argument_that_is_kept_is_the_callers_own(keep: Callable) -> None:
    """With the same argument again, and with another."""

    class Given(Keeping):
        def forward(self, x: torch.Tensor, box: Any) -> torch.Tensor:
            self.keep(self, x, box)
            return x + box.k

    theirs, mine = Given(keep), tpuport.port(Given(keep))
    our_boxes, boxes = [Box("jax"), Box("jax")], [Box("cpu"), Box("cpu")]
    for number in (0, 0, 1, 1, 0):
        x = X + number
        torch.testing.assert_close(mine(x, our_boxes[number]).cpu(), theirs(x, boxes[number]))
        places = [[each.kept, each.table, given] for each, given in ((mine, our_boxes), (theirs, boxes))]
        assert describe(places[0]) == describe(places[1])


def test_a_tensor_that_is_kept_is_the_callers_own() -> None:
    def keep(model: Any, x: torch.Tensor) -> None:
        x.add_(1)
        if model.kept is not None:
            model.table["sum"] = model.kept + x
        model.kept = x

    theirs, mine = Keeping(keep), tpuport.port(Keeping(keep))
    ours, given = [torch.ones(3, device="jax") for _ in range(2)], [torch.ones(3) for _ in range(2)]
    for number in (0, 0, 1, 0):
        torch.testing.assert_close(mine(ours[number]).cpu(), theirs(given[number]))
        assert describe([mine.kept, mine.table, ours]) == describe([theirs.kept, theirs.table, given])


def test_the_state_gets_tensors_on_the_device_in_a_copy_of_what_is_on_the_host() -> None:
    """Tensors of the host in the state are values of the program: each call would be compiled for its own."""

    class Given(Keeping):
        def forward(self, x: torch.Tensor, batch: dict) -> torch.Tensor:
            total = x if self.kept is None else x + self.kept["ids"][0]
            self.kept = batch
            return total

    model = Given(_keep_it)
    compiled = tpuport.compile(model)
    for number in range(4):
        batch = {"ids": [X + number]}
        expected = X + (X + number - 1 if number else 0)
        assert compiled(X, batch).tolist() == expected.tolist()
        assert model.kept["ids"][0].tolist() == batch["ids"][0].tolist()
        assert batch["ids"][0].device.type == "cpu"
    assert compiled.program.compilations == 2


def test_what_is_donated_and_kept_can_be_used() -> None:
    model = Keeping(lambda model, x: setattr(model, "kept", [x]))
    compiled = tpuport.compile(model, donate="x")
    for number in range(2):
        compiled((X + number).to("jax"))
        assert model.kept[0].tolist() == (X + number).tolist()
