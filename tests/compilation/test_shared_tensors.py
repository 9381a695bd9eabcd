"""Tensors that a model has in two places, or views of, are one in torch, and on the device too."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tpuport
from tpuport import PortError


@dataclasses.dataclass
class Memory:
    counts: torch.Tensor


class Counter(torch.nn.Module):
    """Has its buffer in five other places, and writes to it under all of its names."""

    counts: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("counts", torch.arange(3.0))
        self.alias = self.counts
        self.listed = [self.counts, self.linear.bias]
        self.named = {"counts": self.counts}
        self.memory = Memory(self.counts)
        self.pair = (self.counts, "counts")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counts.add_(1)
        first = self.alias * 1
        self.alias.mul_(2)
        second = self.listed[0] + self.named["counts"]
        self.memory.counts[0] = 5
        return self.linear(x) + first + second * self.pair[0] + self.counts + self.listed[1]


@pytest.fixture(autouse=True)
def enabled() -> None:
    tpuport.enable()


def call_model(model: torch.nn.Module) -> Callable:
    return model


def compile_function(model: torch.nn.Module) -> Callable:
    return tpuport.compile(lambda x: model(x))


@pytest.mark.parametrize("prepare", [call_model, compile_function])
def test_a_write_under_one_name_is_seen_under_the_others(prepare: Callable) -> None:
    host = Counter().eval()
    model = tpuport.port(copy.deepcopy(host))
    assert model.alias is model.counts is model.listed[0] is model.memory.counts is model.pair[0]
    step = prepare(model)
    x = torch.ones(2, 3)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(step(x).cpu(), host(x))
            assert torch.equal(model.counts.cpu(), host.counts)
            assert model.alias is model.counts
        # Whoever writes to one of them outside of the program writes to all.
        model.named["counts"].zero_()
        host.named["counts"].zero_()
        torch.testing.assert_close(step(x).cpu(), host(x))
    tpuport.to_cpu(model)
    assert model.alias is model.counts is model.listed[0] is model.memory.counts is model.pair[0]
    assert model.listed[1] is model.linear.bias
    with torch.no_grad():
        torch.testing.assert_close(model(x), host(x))


def test_a_shared_tensor_compiles_once_and_is_overwritten_in_its_memory() -> None:
    model = tpuport.port(Counter())
    step = tpuport.compile(model)
    for _ in range(3):
        step(torch.ones(2, 3))
    assert step.program.compilations == 1
    # Another buffer in its place leaves the alias what it was.
    host = copy.deepcopy(tpuport.to_cpu(model))
    tpuport.port(model)
    for each in (host, model):
        each.counts = each.counts * 2
    torch.testing.assert_close(step(torch.ones(2, 3)).cpu(), host(torch.ones(2, 3)).detach())
    assert torch.equal(model.alias.cpu(), host.alias)


def test_weights_in_another_mesh_and_dtype_keep_what_refers_to_them() -> None:
    model = tpuport.port(Counter(), dtype=torch.bfloat16)
    assert model.alias is model.counts
    assert model.alias.dtype == torch.bfloat16
    tpuport.port(model, mesh=tpuport.create_mesh(tp=8), dtype=torch.float32)
    assert model.alias is model.counts is model.listed[0]
    assert model.listed[1] is model.linear.bias


class Table(torch.nn.Module):
    """Keeps views of its buffers, and writes to some tensor in each mode."""

    table: torch.Tensor
    columns: torch.Tensor
    part: torch.Tensor

    def __init__(self, mode: str = "") -> None:
        super().__init__()
        self.mode = mode
        self.register_buffer("table", torch.arange(6.0).reshape(2, 3))
        self.first = self.table[0]
        self.register_buffer("columns", self.table.t())
        self.whole = torch.arange(4.0)
        self.register_buffer("part", self.whole[1:3])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mode:
            getattr(self, self.mode).add_(1)
        return x + self.first.sum() + self.columns[0, 0] + self.table[1, 2] + self.whole.sum() + self.part


NAMES = ("table", "first", "columns", "whole", "part")


@pytest.mark.parametrize("name", NAMES)
def test_views_are_written_to_outside_of_programs_and_refused_inside(name: str) -> None:
    host, model = Table(), tpuport.port(Table())
    for each in (host, model):
        getattr(each, name).mul_(2)
    for other in NAMES:
        assert torch.equal(getattr(model, other).cpu(), getattr(host, other)), other
    x = torch.ones(2)
    torch.testing.assert_close(model(x).cpu(), host(x))
    model.mode = name
    others = "whole|part" if name in ("whole", "part") else "table|first|columns"
    with pytest.raises(PortError, match=rf"writes to {name}, which shares memory with ({others})"):
        model(x)


def test_views_come_back_to_the_host() -> None:
    host, model = Table(), Table()
    tpuport.to_cpu(tpuport.port(model))
    for each in (host, model):
        each.table.add_(1)
        each.part.add_(1)
    for name in NAMES:
        assert torch.equal(getattr(model, name), getattr(host, name)), name


def test_an_argument_that_is_a_weight_too() -> None:
    """One tensor if the state has it beside the weights; else what is written to it is refused."""
    host = Counter().requires_grad_(False)
    model = tpuport.port(copy.deepcopy(host))

    def add(model: Any) -> Callable:
        def step(given: Any, x: torch.Tensor) -> torch.Tensor:
            given.add_(1)
            return model.linear(x) + model.counts

        return step

    compiled, x = tpuport.compile(add(model)), torch.ones(2, 3)
    for _ in range(2):
        torch.testing.assert_close(compiled(model.counts, x).cpu(), add(host)(host.counts, x))
        torch.testing.assert_close(model.counts.cpu(), host.counts)
    with pytest.raises(PortError, match="writes to given, which shares memory with"):
        compiled(model.linear.weight, x)


class Decoder(torch.nn.Module):
    """Its head is the embedding, by an attribute that torch does not know."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(11, 8)
        self.mix = torch.nn.Linear(8, 8)
        self.head = [self.embed.weight]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.mix(self.embed(ids).cumsum(1)) @ self.head[0].t()


def test_a_head_that_is_the_embedding_follows_its_new_weights() -> None:
    host, model = Decoder(), tpuport.port(Decoder())
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        torch.testing.assert_close(model(ids).cpu(), host(ids))
        for each in (host, model):
            each.load_state_dict(
                {**Decoder().state_dict(), "embed.weight": torch.linspace(-1, 1, 88).reshape(11, 8)}
            )
        torch.testing.assert_close(model(ids).cpu(), host(ids))


@pytest.mark.slow  # tests/generation/test_user_models.py, and the calls of models above
def test_generation_computes_with_the_head_as_a_weight() -> None:
    host, model = Decoder(), tpuport.port(Decoder())
    ids = torch.tensor([[1, 2, 3]])
    language_model = tpuport.LanguageModel(model, vocab_size=11, max_length=16)
    tokens: Any = tpuport.generate(language_model, ids, max_new_tokens=4, do_sample=False)
    expected = ids
    with torch.no_grad():
        for _ in range(4):
            expected = torch.cat([expected, host(expected)[:, -1:].argmax(-1)], 1)
    assert tokens.tolist() == expected.tolist()


class Repeated(torch.nn.Module):
    """Has one submodule under three names, one of them inside of another module, and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.second = self.first
        self.net = torch.nn.Sequential(self.first, self.norm, torch.nn.Linear(3, 3))
        self.net[2].weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.net(self.first(x))))


@pytest.mark.parametrize("prepare", [call_model, compile_function])
@pytest.mark.parametrize("training", [False, True])
def test_a_submodule_under_several_names_keeps_its_weights(prepare: Callable, training: bool) -> None:
    host = Repeated().train(training)
    model = tpuport.port(copy.deepcopy(host)).train(training)
    step = prepare(model)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(4, 3)
            torch.testing.assert_close(step(x).cpu(), host(x))
            torch.testing.assert_close(step(x[:3]).cpu(), host(x[:3]))
    for name, weight in host.state_dict().items():
        # Fails for what is left of a trace.
        torch.testing.assert_close(model.state_dict()[name].cpu(), weight, check_dtype=False)
