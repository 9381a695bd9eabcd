"""Numbers of Python that change from call to call: the results are torch's, and what the code does not need for itself
compiles nothing more."""

import copy
import functools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    StaticCache,
)

import tpuport
from tests.cache_names import CACHE
from tpuport.internals.torch_internals import torch_pytree

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 8, "max_position_embeddings": 64,
}  # fmt: skip
MODELS: dict[str, Callable[[], Any]] = {
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES)),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**SIZES, layer_types=["sliding_attention", "full_attention"])
    ),
    "gpt_oss": lambda: GptOssForCausalLM(
        GptOssConfig(
            **SIZES, num_local_experts=2, num_experts_per_tok=1,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        )
    ),
}  # fmt: skip
X = torch.arange(6.0).reshape(2, 3)


@pytest.fixture(autouse=True)
def enabled() -> None:
    tpuport.enable()


@pytest.mark.parametrize("prompt", [4, 12])
@pytest.mark.parametrize("name", MODELS)
def test_a_sliding_window_fills_and_stays_full(
    name: str, prompt: int, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    reference = MODELS[name]().eval().requires_grad_(False)
    step = tpuport.compile(tpuport.port(copy.deepcopy(reference)))
    cache: Any = StaticCache(config=reference.config, max_cache_len=32)
    text = tokens = torch.randint(64, (2, prompt))
    counts = []
    with caplog.at_level(logging.WARNING, "tpuport"):
        for _ in range(16):
            output = step(tokens, **{CACHE: cache}, use_cache=True)
            cache = getattr(output, CACHE)
            expected = reference(text, use_cache=False).logits[:, -1:]
            torch.testing.assert_close(tpuport.to_cpu(output.logits[:, -1:]), expected, atol=2e-5, rtol=2e-5)
            tokens = expected.argmax(-1)
            text = torch.cat([text, tokens], 1)
            counts.append(step.program.compilations)
    # The prompt; the window fills, has one place left, is full.
    assert counts[-1] <= (4 if prompt == 4 else 2)
    assert "compiled" not in caplog.text


@pytest.mark.parametrize("place", ["an object", "a closure", "a dictionary beside an object"])
def test_a_cache_in_any_place_has_counted(place: str) -> None:
    torch.manual_seed(0)
    reference = MODELS["mistral"]().eval().requires_grad_(False)
    model = tpuport.port(copy.deepcopy(reference))
    cache: Any = StaticCache(config=reference.config, max_cache_len=32)
    held = Holder()
    held.cache = cache

    def use(tokens: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        output = model(tokens, **{CACHE: cache}, use_cache=True)
        return output.logits[:, -1:], getattr(output, CACHE)

    def in_object(tokens: torch.Tensor, holder: Holder) -> Any:
        logits, holder.cache = use(tokens, holder.cache)
        return logits, holder

    def in_closure(tokens: torch.Tensor, unused: Any) -> Any:
        logits, held.cache = use(tokens, held.cache)
        return logits, None

    def in_dictionary(tokens: torch.Tensor, given: dict) -> Any:
        logits, cache = use(tokens, given["cache"])
        return logits, {"cache": cache, "other": Holder()}

    functions: dict[str, tuple[Callable, Any, Callable]] = {
        "an object": (in_object, held, lambda state: state.cache),
        "a closure": (in_closure, None, lambda state: held.cache),
        "a dictionary beside an object": (in_dictionary, {"cache": cache}, lambda state: state["cache"]),
    }
    function, state, cache_in = functions[place]
    step = tpuport.compile(function)
    text = tokens = torch.randint(64, (2, 4))
    for _ in range(8):
        logits, state = step(tokens, state)
        expected = reference(text, use_cache=False).logits[:, -1:]
        torch.testing.assert_close(tpuport.to_cpu(logits), expected, atol=2e-5, rtol=2e-5)
        counted = [layer.cumulative_length_int for layer in cache_in(state).layers]
        assert [(type(count), count) for count in counted] == [(int, text.shape[1])] * 2
        tokens = expected.argmax(-1)
        text = torch.cat([text, tokens], 1)
    assert step.program.compilations <= 5


class Counting(torch.nn.Module):
    """Counts in an attribute, a list and a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.seen = [0, 0]
        self.by_name = {"calls": 5}

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        self.seen[1] = self.seen[1] + 2
        self.by_name["calls"] -= 1
        self.last = self.calls * 2
        scale = self.calls + self.seen[1] * self.by_name["calls"]
        return x * scale, self.calls, torch.arange(self.calls, self.calls + 3, device=x.device)


def same(result: Any, expected: Any) -> None:
    leaves, others = map(torch_pytree.tree_leaves, (result, expected))
    assert len(leaves) == len(others)
    for leaf, other in zip(leaves, others, strict=True):
        if isinstance(other, torch.Tensor):
            assert leaf.dtype is other.dtype
            torch.testing.assert_close(tpuport.to_cpu(leaf), other)
        else:
            assert (type(leaf), leaf) == (type(other), other)


def test_counters_of_a_model() -> None:
    reference = Counting()
    model = tpuport.port(Counting())
    step = tpuport.compile(model)
    for number in range(6):
        if number == 4:
            # A user's own change is one, too.
            reference.calls = model.calls = 40
        same(step(X), reference(X))
        for name in ("calls", "seen", "by_name", "last"):
            same(getattr(model, name), getattr(reference, name))
    # `last` is new in the second call, and changes in the third.
    assert step.program.compilations == 3


def test_what_differs_only_by_an_unread_counter_is_compiled_once() -> None:
    class Model(torch.nn.Linear):
        calls = 0

        def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - as of Linear
            self.calls += 1
            return super().forward(input)

    torch.manual_seed(0)
    model = tpuport.port(Model(3, 3).eval())
    step = tpuport.compile(model)
    for number in range(5):
        step(X)
        assert model.calls == number + 1
    assert step.program.compilations == 1


@pytest.mark.parametrize("kind", ["closure", "global", "object", "attribute of an argument"])
def test_counters_anywhere(kind: str) -> None:
    def make() -> tuple[Callable, Callable]:
        count = 0
        holder = Holder()

        def closure(x: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += 3
            return x + count

        def of_global(x: torch.Tensor) -> torch.Tensor:
            global total
            total += 3
            return x + total

        def of_object(x: torch.Tensor) -> torch.Tensor:
            holder.count += 3
            return x + holder.count

        def of_argument(x: torch.Tensor, holder: Holder = holder) -> torch.Tensor:
            holder.count += 3
            return x + holder.count

        functions = {"closure": closure, "global": of_global, "object": of_object}
        if kind in functions:
            return functions[kind], lambda step: step(X)
        return of_argument, lambda step: step(X, holder)

    global total
    total = 0
    function, call = make()
    expected = [call(function) for _ in range(5)]
    total = 0
    function, call = make()
    step = tpuport.compile(function)
    results = [call(step) for _ in range(5)]
    same(results, expected)
    assert step.program.compilations == 2


total = 0


class Holder:
    def __init__(self) -> None:
        self.count = 0
        self.cache: Any = None


def test_branches_are_programs_of_their_own() -> None:
    class Model(torch.nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls % 3 == 0:
                return x * 2
            return x if self.calls < 5 else x - self.calls

    reference, model = Model(), tpuport.port(Model())
    step = tpuport.compile(model)
    for _ in range(12):
        same(step(X), reference(X))
    # The first call; every third; the others up to 4, and from 5 on.
    assert step.program.compilations <= 5


def keep_a_shape(x: torch.Tensor, n: int) -> Any:
    return x.repeat(1, n), torch.zeros(n).to(x.device) + n


def ask_for_the_type(x: torch.Tensor, n: int) -> Any:
    if type(n) is not int:
        raise TypeError("n has to be an int")
    return x * n


@functools.lru_cache
def table(n: int) -> tuple[int, str]:
    return n * n, f"{n:04d}"


def use_a_table(x: torch.Tensor, n: int) -> Any:
    return x * table(n)[0], table(n)[1], {1: 2, 4: 5}.get(n, 7)


def write_at(x: torch.Tensor, n: int) -> Any:
    y = x.clone()
    y[:, n % 3] = n
    y[:, n % 3].add_(1)
    return y, x[:, n % 3 :], n


def make_tensors(x: torch.Tensor, n: int) -> Any:
    like = x.new_zeros(2)
    return (
        torch.full_like(x, n), torch.tensor(n, device=x.device), torch.tensor([1, n], device=x.device), like + n,
        torch.where(x > n, x, n), x.masked_fill(x > n, n), n - x, x / n, x // n, x.clamp(max=n), x > n, x**n, -n, n / 2,
    )  # fmt: skip


def narrow_types(x: torch.Tensor, n: int) -> Any:
    return [
        (x.to(dtype) * n, x.to(dtype) < n) for dtype in (torch.bfloat16, torch.int32, torch.int64, torch.bool)
    ]


FUNCTIONS = (keep_a_shape, ask_for_the_type, use_a_table, write_at, make_tensors, narrow_types)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_an_argument_that_is_a_number(function: Callable) -> None:
    step = tpuport.compile(function)
    for n in (3, 4, 1, 3, 4):
        same(step(X, n), function(X, n))
    if function in (keep_a_shape, ask_for_the_type, use_a_table, write_at):
        assert step.program.compilations == 3


def test_what_is_static_stays_so() -> None:
    step = tpuport.compile(lambda x, n: x * n, static="n")
    for n in (3, 4, 5):
        same(step(X, n), X * n)
    assert step.program.compilations == 3


def test_a_default_is_the_first_value() -> None:
    step = tpuport.compile(lambda x, n=0: x * n)
    same(step(X), X * 0)
    for n in (3, 4, 5):
        same(step(X, n), X * n)
    assert step.program.compilations == 2


def test_numbers_that_no_int32_has() -> None:
    step = tpuport.compile(lambda x, n: (x * (n > 0), n + 1))
    for n in (3, 2**40, 5, 2**70, 2**31 - 1):
        same(step(X, n), (X * (n > 0), n + 1))


def test_an_error_is_that_of_the_code() -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        if n > 4:
            raise ValueError(f"{n} is too much")
        return x * n

    step = tpuport.compile(function)
    for n in (2, 3):
        same(step(X, n), X * n)
    with pytest.raises(ValueError, match="7 is too much"):
        step(X, 7)
    same(step(X, 4), X * 4)


def set_item(model: Any, first: int, second: int, constant: int) -> None:
    model.items[0] = first + model.items[0] % 4


COUNTS: dict[str, Callable] = {
    "add": lambda model, first, second, constant: setattr(model, "a", first + second + constant),
    "subtract": lambda model, first, second, constant: setattr(model, "b", first - second),
    "multiply": lambda model, first, second, constant: setattr(model, "a", first * constant),
    "remainder": lambda model, first, second, constant: setattr(model, "b", (first + second) % 5),
    "maximum": lambda model, first, second, constant: setattr(model, "a", max(first, second, constant)),
    "item": set_item,
}
COMPUTES: dict[str, Callable] = {
    "less": lambda x, first, second, constant: x + 1 if first < second + constant else x * 2,
    "equal": lambda x, first, second, constant: x - 1 if first == constant else x,
    "scale": lambda x, first, second, constant: x * first + second,
    "positions": lambda x, first, second, constant: x + torch.arange(first, first + 3, device=x.device),
    "loop": lambda x, first, second, constant: x + sum(range(abs(first) % 3)),
}
names = st.sampled_from(["a", "b", "argument"])
operations = st.lists(
    st.tuples(st.sampled_from([*COUNTS, *COMPUTES]), names, names, st.integers(-3, 3)), min_size=1, max_size=5
)


class Drawn(torch.nn.Module):
    """Runs a drawn program over two attributes and an argument."""

    def __init__(self, program: list) -> None:
        super().__init__()
        self.program = program
        self.a, self.b = 1, 2
        self.items = [0]

    def forward(self, x: torch.Tensor, argument: int) -> Any:
        for kind, left, right, constant in self.program:
            first = argument if left == "argument" else getattr(self, left)
            second = argument if right == "argument" else getattr(self, right)
            if kind in COUNTS:
                COUNTS[kind](self, first, second, constant)
            else:
                x = COMPUTES[kind](x, first, second, constant)
        return x, self.a, self.items[0]


@settings(settings.get_profile("few"))
@given(operations, st.lists(st.integers(-4, 4), min_size=3, max_size=5))
def test_drawn_programs(program: list, arguments: list[int]) -> None:
    reference, model = Drawn(program), tpuport.port(Drawn(program))
    step = tpuport.compile(model)
    for argument in arguments:
        same(step(X, argument), reference(X, argument))
        same([model.a, model.b, model.items], [reference.a, reference.b, reference.items])
