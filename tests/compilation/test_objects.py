"""Objects of a user's own classes cross a compiled call as they cross a call of torch: written, aliased, nested."""

import collections
import copy
import dataclasses
import functools
import logging
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import tpuport
from tests.cache_names import CACHE
from tpuport import PortError, compat


class KVCache:
    """As people write it."""

    def __init__(self, layers: int, length: int = 8) -> None:
        self.k = [torch.zeros(1, 2, length, 4) for _ in range(layers)]
        self.v = [torch.zeros(1, 2, length, 4) for _ in range(layers)]
        self.pos = 0
        self.name = "cache"
        self.mask = None

    def update(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple:
        n = k.shape[2]
        self.k[layer][:, :, self.pos : self.pos + n] = k
        self.v[layer][:, :, self.pos : self.pos + n] = v
        return self.k[layer], self.v[layer]


class GrowingCache:
    def __init__(self) -> None:
        self.k = None
        self.steps = []

    def update(self, k: torch.Tensor) -> torch.Tensor:
        self.k = k if self.k is None else torch.cat([self.k, k], dim=1)
        self.steps.append(k.shape[1])
        return self.k


def test_a_cache_that_is_written_in_place_and_counts(agree) -> None:
    def step(x: torch.Tensor, cache: KVCache) -> torch.Tensor:
        for layer in range(2):
            k, v = cache.update(layer, x, 2 * x)
            x = x + (k * v).sum()
        cache.pos += x.shape[2]
        return x

    cache = KVCache(2)
    compiled = agree(step, torch.randn(1, 2, 3, 4), cache)
    assert compiled.program.compilations == 2  # one for each position
    assert isinstance(cache.pos, int)


def test_a_cache_that_grows_and_is_returned(agree) -> None:
    def step(x: torch.Tensor, cache: GrowingCache) -> tuple:
        return cache.update(x).sum(), cache

    cache = GrowingCache()
    x = torch.randn(2, 3)
    agree(step, x, cache)
    mine = GrowingCache()
    _, returned = tpuport.compile(step)(x, mine)
    assert returned is mine
    assert mine.k is x
    tpuport.compile(step)(x, mine)
    assert compat.is_ported(mine.k)
    mine.steps.pop()
    assert mine.steps == [3]


@dataclasses.dataclass
class Plain:
    a: torch.Tensor
    b: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: torch.Tensor
    b: Any = None


@dataclasses.dataclass(slots=True)
class Slotted:
    a: torch.Tensor
    b: Any = None


class Pair(NamedTuple):
    a: torch.Tensor
    b: Any = None


class Names(dict):
    """A dictionary that says more."""

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self.label = "names"

    def __iter__(self):  # what a class shows is not what it has
        return iter(sorted(self.keys()))


class Stack(list):
    """A list with an attribute."""


class Secret:
    """Odd habits: private slots, a property over an attribute, `__setattr__`, `__eq__` of tensors."""

    __slots__ = ("__dict__", "__hidden")

    def __init__(self, a: torch.Tensor) -> None:
        self.__hidden = a
        object.__setattr__(self, "b", 1)

    @property
    def a(self) -> torch.Tensor:
        return self.__hidden

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "b":
            raise AttributeError(name)
        object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> Any:
        return isinstance(other, Secret) and self.a == other.a

    def replace(self, a: torch.Tensor) -> None:
        self.__hidden = a


def double(holder: Any) -> Any:
    holder.a.mul_(2)
    return holder.a.sum()


@pytest.mark.parametrize("cls", [Plain, Frozen, Slotted, Pair, types.SimpleNamespace])
def test_kinds_of_classes(agree, cls: type) -> None:
    agree(double, cls(a=torch.randn(3), b=("x", 1.5, None, [torch.ones(2)])))


def test_subclasses_of_containers(agree) -> None:
    def function(names: Names, stack: Stack, queue: collections.deque) -> Any:
        names["sum"] = names["x"] + stack.extra
        stack.append(names["sum"] * 2)
        queue.append(stack[-1])
        return queue[0] * 1

    stack = Stack([torch.ones(2)])
    stack.extra = torch.ones(2) * 3
    agree(
        function,
        Names(z=torch.ones(2), x=torch.zeros(2)),
        stack,
        collections.deque([torch.ones(1)], maxlen=2),
    )


def test_odd_classes() -> None:
    def function(secret: Secret) -> torch.Tensor:
        secret.replace(secret.a + 1)
        return secret.a

    secret = Secret(torch.zeros(2))
    result = tpuport.compile(function)(secret)
    assert secret.a is result
    assert result.cpu().tolist() == [1, 1]


def test_the_same_tensor_in_two_places_and_an_object_twice() -> None:
    def function(first: Plain, second: Plain) -> torch.Tensor:
        first.a.add_(1)
        first.b.a = first.a * second.a
        return second.b.a

    shared = torch.ones(2)
    inner = Plain(torch.zeros(2))
    first, second = Plain(shared, inner), Plain(shared, inner)
    compiled = tpuport.compile(function)
    assert compiled(first, second).cpu().tolist() == [4, 4]
    assert shared.tolist() == [2, 2]
    assert first.b is second.b is inner
    # Other objects with the same shapes, but without anything in common, are another program.
    other = Plain(torch.ones(2), Plain(torch.ones(2)))
    assert compiled(Plain(torch.ones(2), inner), other).cpu().tolist() == [1, 1]


def test_an_object_that_leads_back_to_itself() -> None:
    def function(node: Plain) -> Plain:
        node.b.b.a = node.a + 1
        return node.b

    node = Plain(torch.zeros(2))
    node.b = Plain(torch.ones(2), node)
    assert tpuport.compile(function)(node) is node.b
    assert node.a.cpu().tolist() == [1, 1]


def test_views_of_one_memory_are_refused_when_written() -> None:
    buffer = torch.zeros(2, 3)
    function = tpuport.compile(lambda holder: holder.a.add_(1).sum() + holder.b.sum())
    function(Plain(buffer[0], buffer[1]))  # nothing in common
    function(Plain(buffer[:, ::2], buffer[:, 1]))
    function(Plain(buffer[0, 1], buffer[0, ::2]))
    buffer[:, ::2] -= 1
    buffer[0, 1] -= 1
    assert buffer.tolist() == [[1, 1, 1], [0, 0, 0]]
    with pytest.raises(PortError, match=r"holder\.a, which shares memory with holder\.b"):
        function(Plain(buffer[0], buffer))
    assert buffer.tolist() == [[1, 1, 1], [0, 0, 0]]
    on_device = compat.wrap(compat.to_jax(buffer))
    with pytest.raises(PortError, match="shares memory"):
        function(Plain(on_device[0], on_device))


def test_views_that_stay_in_objects_are_refused(agree) -> None:
    def halves(x: torch.Tensor, holder: Any) -> None:
        holder.a, holder.b = (2 * x).chunk(2, dim=-1)

    def window(x: torch.Tensor, holder: Any) -> None:
        holder.a = 2 * x
        holder.b = holder.a[:, :2]

    agree(halves, torch.randn(2, 4), Plain(None))
    with pytest.raises(PortError, match=r"leaves an argument\.b as a view of the memory of an argument\.a"):
        tpuport.compile(window)(torch.randn(2, 4), Plain(None))


def test_a_number_that_changes_is_named_or_traced(caplog: pytest.LogCaptureFixture) -> None:
    def step(x: torch.Tensor, cache: Any) -> torch.Tensor:
        cache.k[cache.pos] = x
        cache.pos += 1
        return cache.k.sum()

    def new() -> Any:
        return types.SimpleNamespace(k=torch.zeros(8), pos=0)

    compiled, cache = tpuport.compile(step, name="step"), new()
    with caplog.at_level(logging.WARNING, "tpuport"):
        for _ in range(4):
            compiled(torch.ones(()), cache)
    assert "cache.pos keeps changing (0, 1, 2, 3)" in caplog.text
    assert "traced=['cache.pos']" in caplog.text
    assert "must not slice with it" in caplog.text
    traced, cache = tpuport.compile(step, traced=["cache.pos"]), new()
    for count in range(1, 5):
        assert traced(torch.ones(()), cache).item() == count
        assert int(cache.pos) == count
    assert traced.program.compilations <= 2  # a number, then a tensor
    with pytest.raises(
        PortError, match=r"(?s)no argument of this call is called cache\.position.*cache\.pos"
    ):
        tpuport.compile(step, traced=["cache.position"])(torch.ones(()), cache)


def test_what_is_static_decides_the_program(agree) -> None:
    class Config:
        def __init__(self) -> None:
            self.scale, self.table = 2, np.arange(3.0, dtype=np.float32)

    config = Config()
    compiled = agree(lambda x, config: x * config.scale + float(np.sum(config.table)), torch.ones(2), config)
    assert compiled.program.compilations == 1
    for scale in (2, 3):
        config.scale = scale
        assert compiled(torch.ones(2), config).cpu().tolist() == [scale + 3.0] * 2
    config.table[0] = 10
    assert compiled(torch.ones(2), config).cpu().tolist() == [16.0] * 2
    table = config.table
    tpuport.compile(lambda x, config: setattr(config, "scale", x * 2))(torch.ones(2), config)
    assert config.table is table
    table[1] = 5  # the caller's own can be written to
    with pytest.raises(ValueError, match="read-only"):
        tpuport.compile(lambda x, config: config.table.fill(0))(torch.ones(2), config)


def test_results_that_jax_does_not_know(agree) -> None:
    def function(x: torch.Tensor) -> Any:
        return (
            Plain(x + 1, {"n": 3, "text": "a"}),
            Pair(x - 1, None),
            torch.return_types.sort((x * 1, x + 2)),
            7,
            "b",
        )

    agree(function, torch.randn(3, 2))


def test_results_that_captured_tensors_are_refused() -> None:
    with pytest.raises(PortError, match="has captured tensors of the trace"):
        tpuport.compile(lambda x: (row for row in x))(torch.ones(2))


def test_partial_functions_are_taken_apart() -> None:
    def bind(x: torch.Tensor, function: Callable) -> dict[str, Callable]:
        return {"given": function, "later": functools.partial(torch.add, x, alpha=2)}

    compiled = tpuport.compile(bind)
    for number in range(1, 3):
        x = torch.full((2,), float(number))
        result = compiled(x, functools.partial(torch.mul, x))
        torch.testing.assert_close(result["later"](x.to("jax")).cpu(), 3 * x)
        torch.testing.assert_close(tpuport.to_cpu(result["given"](x.to("jax"))), x * x)
    assert compiled.program.compilations == 1


class Linked:
    """Knows itself, and what it belongs to, by weak references."""

    def __init__(self, owner: Any) -> None:
        self.value, self.itself, self.owner = torch.zeros(2), weakref.ref(self), weakref.ref(owner)


def test_weak_references_lead_to_the_same_objects() -> None:
    def step(x: torch.Tensor, owner: Any) -> torch.Tensor:
        linked = owner.linked
        linked.itself().value = linked.value + x
        linked.owner().count += 1
        return linked.value * owner.count

    owner = GrowingCache()
    owner.count, owner.linked = 0, Linked(owner)
    compiled = tpuport.compile(step)
    for number in range(1, 4):
        assert compiled(torch.ones(2), owner).tolist() == [number * number] * 2
        assert owner.count == number
        assert owner.linked.itself() is owner.linked
        assert owner.linked.owner() is owner


def test_frozen_sets_of_tensors_are_taken_apart() -> None:
    compiled = tpuport.compile(lambda x, given: (sum(given) + x, frozenset([x + 1])))
    for number in (1.0, 2.0):
        total, made = compiled(torch.zeros(2), frozenset([torch.full((2,), number)]))
        assert total.tolist() == [number] * 2
        assert next(iter(made)).tolist() == [1, 1]
    assert compiled.program.compilations == 1


def test_functions_and_other_values_are_returned_as_they_are() -> None:
    assert tpuport.compile(lambda x: (x, KVCache, len))(torch.ones(2))[1:] == (KVCache, len)


def test_an_object_made_in_a_compiled_function_is_on_the_device() -> None:
    cache = tpuport.compile(KVCache)(2, length=4)
    assert type(cache) is KVCache
    assert all(map(compat.is_ported, cache.k + cache.v))


def test_objects_that_cannot_be_taken_apart_are_named() -> None:
    normal = torch.distributions.Normal(torch.zeros(2), torch.ones(2))
    with pytest.raises(PortError, match=r"(?s)torch\.distributions\.normal\.Normal has tensors \(loc, scale\).*"
                       r"where: normal.*register_pytree_node\(Normal, "):  # fmt: skip
        tpuport.compile(lambda normal: normal.loc)(normal)


class Registered:
    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


jax.tree_util.register_pytree_node(Registered, lambda r: ([[r.a, r.b]], None), lambda _, c: Registered(*c[0]))


def test_registered_classes_are_values() -> None:
    def add(r: Registered) -> Registered:
        r.a.add_(1)
        return Registered(r.a + r.b, r.b)

    mine = Registered(torch.zeros(2), torch.ones(2))
    result = tpuport.compile(add)(mine)
    assert mine.a.tolist() == [1, 1]
    assert result.a.cpu().tolist() == [2, 2]
    with pytest.raises(PortError, match=r"(?s)changes a tests.*Registered in place.*return it"):
        tpuport.compile(lambda r: setattr(r, "a", r.b + 1))(mine)


def test_a_cache_of_transformers_in_an_object_is_donated() -> None:
    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    reference = LlamaForCausalLM(config).eval()
    model = tpuport.port(copy.deepcopy(reference))

    def step(ids: torch.Tensor, state: Any) -> torch.Tensor:
        return model(ids, **{CACHE: state.cache}).logits

    compiled = tpuport.compile(step)
    state = types.SimpleNamespace(cache=StaticCache(config=config, max_cache_len=8))
    ids = torch.tensor([[1, 2, 3]])
    compiled(ids, state)
    keys = compat.as_jax(state.cache.layers[0].keys)
    second = compiled(ids, state)
    assert keys.is_deleted()
    expected = reference(torch.cat([ids, ids], dim=1)).logits[:, 3:]
    torch.testing.assert_close(second.cpu(), expected, atol=1e-5, rtol=1e-5)


class Engine:
    """A model, its cache and a counter in one object, whose method is compiled."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.total, self.calls = model, torch.zeros(3), 0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.total += self.model(x)
        self.calls += 1
        return self.total * 2


def test_a_method_changes_its_own_object() -> None:
    reference = torch.nn.Linear(3, 3).requires_grad_(False)
    theirs, mine = Engine(reference), Engine(tpuport.port(copy.deepcopy(reference)))
    step = tpuport.compile(mine.step)
    for _ in range(2):
        x = torch.randn(3)
        torch.testing.assert_close(step(x).cpu(), theirs.step(x), atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(mine.total, theirs.total, atol=1e-6, rtol=1e-5)
        assert mine.calls == theirs.calls


@pytest.mark.parametrize(
    "make", [dict, collections.OrderedDict, lambda items: collections.defaultdict(list, items)]
)
def test_dictionaries_in_a_result_keep_their_order(make: Callable) -> None:
    def step(x: torch.Tensor) -> Any:
        return make({"b": x, "a": make({"z": x + 1, "y": [x + 2]}), "c": x + 3}), make({2: x, "1": x * 2})

    result, expected = tpuport.compile(step)(torch.ones(2)), step(torch.ones(2))
    for ours, theirs in zip((*result, result[0]["a"]), (*expected, expected[0]["a"]), strict=True):
        assert list(ours) == list(theirs)
        assert type(ours) is type(theirs)
    first, inner, last = result[0].values()
    assert (first.tolist(), inner["y"][0].tolist(), last.tolist()) == ([1, 1], [3, 3], [4, 4])
    assert [value.tolist() for value in result[1].values()] == [[1, 1], [2, 2]]


def test_what_a_function_among_the_arguments_has_captured_is_an_argument() -> None:
    """As of masks of `flex_attention`, whose function looks up the documents of a text."""

    def adds(number: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        def add(x: torch.Tensor) -> torch.Tensor:
            return x + number

        return lambda x: 2 * add(x)

    compiled = tpuport.compile(lambda x, function: function(x))
    x = torch.arange(3.0)
    for number in (torch.ones(3), 2 * torch.ones(3), torch.ones(3).to("jax")):
        expected = adds(tpuport.to_cpu(number))(x)
        torch.testing.assert_close(tpuport.to_cpu(compiled(x, adds(number))), expected)
    assert compiled.program.compilations == 1


def test_variables_that_functions_share() -> None:
    def counter() -> tuple[Callable[[torch.Tensor], None], Callable[[], torch.Tensor]]:
        total = torch.zeros(3)

        def count(x: torch.Tensor) -> None:
            nonlocal total
            total = total + x

        return count, lambda: total

    def run(x: torch.Tensor, functions: Any) -> torch.Tensor:
        count, read = functions
        count(x)
        return 10 * read()

    compiled = tpuport.compile(run)
    ours, theirs = counter(), counter()
    x = torch.arange(3.0)
    for _ in range(2):
        torch.testing.assert_close(tpuport.to_cpu(compiled(x, ours)), run(x, theirs))
        torch.testing.assert_close(tpuport.to_cpu(ours[1]()), theirs[1]())


def test_a_function_that_is_returned_has_captured_what_the_program_computes() -> None:
    compiled = tpuport.compile(lambda x: lambda y: 3 * x + y)
    x = torch.arange(3.0)
    later = compiled(x)
    torch.testing.assert_close(tpuport.to_cpu(later(x.to("jax"))), 4 * x)
    later = compiled(2 * x)
    torch.testing.assert_close(tpuport.to_cpu(later(x.to("jax"))), 7 * x)
