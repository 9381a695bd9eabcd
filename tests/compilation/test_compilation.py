"""Weights as arguments, static flags, donated caches, counted compilations, programs kept on disk."""

import array
import copy
import datetime as dt
import functools
import logging
import re
from typing import Any

import jax
import numpy as np
import pytest
import torch
from transformers import Cache, LlamaConfig, LlamaForCausalLM, MistralConfig, StaticCache

import tpuport
from tests.cache_names import CACHE
from tpuport import PortError, compat

CONFIG = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
)


@pytest.fixture(scope="module")
def pair() -> tuple[torch.nn.Module, torch.nn.Module]:
    torch.manual_seed(0)
    model, twin = (LlamaForCausalLM(CONFIG).eval() for _ in range(2))
    twin.load_state_dict(model.state_dict())
    return model, tpuport.port(twin)


def _host(tensor: torch.Tensor) -> torch.Tensor:
    return compat.to_torch(compat.as_jax(tensor))


IDS = torch.arange(10).reshape(2, 5)


@pytest.mark.slow  # each of them has no weight as a constant below
def test_a_module_a_method_and_functions_that_use_it(pair: tuple) -> None:
    model, ported = pair
    expected = model(IDS).logits
    by_closure = tpuport.compile(lambda ids: ported(ids).logits)
    by_partial = tpuport.compile(functools.partial(_logits, ported))
    for got in (tpuport.compile(ported)(IDS).logits, by_closure(IDS), by_partial(IDS)):
        torch.testing.assert_close(_host(got), expected, atol=1e-5, rtol=1e-5)
    embedded = tpuport.compile(ported.get_input_embeddings().forward)(IDS)
    torch.testing.assert_close(_host(embedded), model.get_input_embeddings()(IDS))


def _logits(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return model(ids).logits


@pytest.mark.parametrize("kind", ["module", "closure", "partial", "method"])
def test_no_weight_is_a_constant_of_the_program(pair: tuple, kind: str) -> None:
    ported = pair[1]
    target = {
        "module": ported, "closure": lambda ids: ported(ids).logits, "partial": functools.partial(_logits, ported),
        "method": ported.forward,
    }[kind]  # fmt: skip
    text = tpuport.compile(target).lower(IDS).as_text()
    sizes = [
        np.prod([int(n) for n in re.findall(r"(\d+)x", m)])
        for m in re.findall(r"stablehlo.constant dense<\"?.*?> : tensor<([^>]*)>", text)
    ]
    splats = [line for line in text.splitlines() if "stablehlo.constant" in line and 'dense<"' in line]
    assert sizes, "no constant at all: the expression finds nothing"
    assert not splats, "constants with contents of their own"


def test_a_captured_array_would_be_found() -> None:
    """The check above sees a weight that is captured after all."""
    weight = jax.random.normal(jax.random.key(0), (32, 32))
    text = jax.jit(lambda x: x @ weight).lower(weight).as_text()
    assert 'dense<"' in text


def test_flags_are_static_and_tensors_are_not(pair: tuple) -> None:
    ported = pair[1]
    compiled = tpuport.compile(ported)
    compiled(IDS, use_cache=False)
    compiled(IDS + 1, use_cache=False)
    assert compiled.program.compilations == 1
    out = compiled(IDS, use_cache=True)
    assert compiled.program.compilations == 2
    assert out[CACHE] is not None
    assert CACHE not in compiled(IDS, use_cache=False)


def test_changed_weights_are_seen(pair: tuple) -> None:
    model, ported = pair
    compiled = tpuport.compile(ported)
    compiled(IDS)
    head = ported.lm_head.weight
    old = head._elem
    head._elem = old * 2
    torch.testing.assert_close(_host(compiled(IDS).logits), 2 * model(IDS).logits, atol=1e-4, rtol=1e-4)
    head._elem = old
    assert compiled.program.compilations == 1


def test_the_cache_is_donated_and_comes_back_written(pair: tuple) -> None:
    model, ported = pair
    cache = StaticCache(config=CONFIG, max_cache_len=16)
    cache.early_initialization(2, 2, 8, torch.float32, torch.device("cpu"))
    compiled = tpuport.compile(ported)
    first = compiled(IDS, **{CACHE: cache}, use_cache=True)
    keys = first[CACHE].layers[0].keys
    array = compat.as_jax(keys)
    second = compiled(IDS[:, -1:] + 1, **{CACHE: first[CACHE]}, use_cache=True)
    assert array.is_deleted()
    expected = model(torch.cat([IDS, IDS[:, -1:] + 1], dim=1)).logits[:, -1]
    torch.testing.assert_close(_host(second.logits)[:, -1], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_cache_that_was_donated_is_refused_before_it_is_used(devices: int) -> None:
    """jax itself ends the process here on several devices, so the error has to come first."""
    ported = tpuport.port(
        LlamaForCausalLM(CONFIG).eval(), mesh=tpuport.create_mesh(dp=devices, devices=jax.devices()[:devices])
    )

    @tpuport.compile
    def step(tokens: torch.Tensor, cache: StaticCache) -> tuple:
        out = ported(input_ids=tokens, **{CACHE: cache})
        return out.logits[:, -1:].argmax(-1), out[CACHE]

    token, used = step(IDS, StaticCache(config=CONFIG, max_cache_len=16))
    token, cache = step(token, used)
    with pytest.raises(
        PortError, match=r"given to an earlier call(.|\n)*where: cache(.|\n)*that call's output"
    ):
        step(token, used)
    assert step(token, cache)[0].shape == (2, 1)
    keys = used.layers[0].keys
    with pytest.raises(PortError, match="donated"):
        tpuport.compile(lambda x: x + 1)(keys)


@pytest.mark.parametrize("counter", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_cache_that_is_only_read_is_not_donated(pair: tuple, counter: bool) -> None:
    """Also beside a tensor that is overwritten."""
    model, ported = pair
    cache = tpuport.compile(ported)(IDS, use_cache=True)[CACHE]
    expected = model(IDS, use_cache=True)[CACHE].layers[0].keys
    calls = compat.as_torch(jax.numpy.zeros(3))

    @tpuport.compile
    def read(scale: torch.Tensor, cache: Cache) -> torch.Tensor:
        if counter:
            calls.add_(1)
        return scale * cache.layers[0].keys.sum()

    for number in (2.0, 3.0):
        total = _host(read(torch.tensor(number), cache))
        torch.testing.assert_close(total, number * expected.sum(), atol=1e-4, rtol=1e-5)
    assert read.program.compilations == 1
    assert _host(calls).tolist() == [2.0 * counter] * 3
    again = tpuport.compile(ported)(IDS[:, -1:] + 1, **{CACHE: cache}, use_cache=True)
    whole = model(torch.cat([IDS, IDS[:, -1:] + 1], dim=1)).logits[:, -1]
    torch.testing.assert_close(_host(again.logits)[:, -1], whole, atol=1e-5, rtol=1e-5)


class Embedding(torch.nn.Embedding):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids)


def test_a_shape_that_keeps_changing_is_named(caplog: pytest.LogCaptureFixture) -> None:
    compiled = tpuport.compile(tpuport.port(Embedding(4, 2)), name="the model")
    with caplog.at_level(logging.WARNING, "tpuport"):
        for columns in range(2, 11):
            compiled(torch.ones(2, columns, dtype=torch.int32))
    assert compiled.program.compilations == 9
    fourth, eighth = caplog.records
    assert "has been compiled 8 times" in eighth.getMessage()
    message = fourth.getMessage()
    assert "Pad it" in message
    assert "tensor" not in message
    assert "the model has been compiled 4 times" in message
    assert "input_ids keeps changing" in message
    assert "int32(2, 5)" in message


def test_a_flag_that_keeps_changing_is_named(caplog: pytest.LogCaptureFixture) -> None:
    compiled = tpuport.compile(lambda ids, scale: ids.repeat(1, scale), name="scaled")
    with caplog.at_level(logging.WARNING, "tpuport"):
        for scale in (1, 2, 3, 4):
            compiled(IDS, scale=scale)
    assert "scale keeps changing (1, 2, 3, 4). Pass it as a tensor." in caplog.text


def test_a_value_that_is_no_number_cannot_be_traced_as_one(caplog: pytest.LogCaptureFixture) -> None:
    compiled = tpuport.compile(lambda x, time: x * time.day, name="dated")
    with caplog.at_level(logging.WARNING, "tpuport"):
        for day in (1, 2, 3, 4):
            compiled(IDS, dt.date(2026, 1, day))
    assert "time keeps changing" in caplog.text
    assert "pass what the code computes from it, as a tensor" in caplog.text
    assert "traced=" not in caplog.text


def test_a_dtype_that_keeps_changing_is_named(caplog: pytest.LogCaptureFixture) -> None:
    compiled = tpuport.compile(lambda x: x + x, name="twice")
    with caplog.at_level(logging.WARNING, "tpuport"):
        for dtype in (torch.float32, torch.int32, torch.bfloat16, torch.int8):
            compiled(torch.ones((), dtype=dtype))
    assert "x keeps changing (bfloat16(), float32(), int32(), int8()). Give it one dtype." in caplog.text


def test_porting_again_is_no_argument_that_changes(caplog: pytest.LogCaptureFixture) -> None:
    model = tpuport.port(torch.nn.Linear(2, 2))
    compiled = tpuport.compile(model)
    with caplog.at_level(logging.WARNING, "tpuport"):
        for _ in range(5):
            compiled(torch.ones(1, 2))
            tpuport.port(model)
        assert compiled.program.compilations == 5
        assert not caplog.text
        for rows in range(1, 5):
            compiled(torch.ones(rows, 2))
    assert len(caplog.records) == 1
    assert "compiled 4 times: input keeps changing" in caplog.text


def test_a_setting_that_keeps_changing_is_named(caplog: pytest.LogCaptureFixture) -> None:
    model: Any = torch.nn.Linear(2, 2)
    model.config = {"mode": ""}
    compiled = tpuport.compile(tpuport.port(model), name="the model")
    with caplog.at_level(logging.WARNING, "tpuport"):
        for mode in "abcd":
            model.config["mode"] = mode
            compiled(torch.ones(1, 2))
    named = (
        "the model has been compiled 4 times: config['mode'] keeps changing ('a', 'b', 'c', 'd'). Let it be"
    )
    assert named in caplog.text


def test_positional_arguments_keep_their_order() -> None:
    compiled = tpuport.compile(lambda z, a, *more: z - a + 10 * more[0] + 100 * more[1])
    numbers = [torch.tensor(float(n)) for n in (5, 3, 2, 1)]
    assert _host(compiled(*numbers)).item() == 122.0
    assert _host(compiled(*numbers[:2], 2, 1)).item() == 122.0


def test_weights_on_the_host_and_odd_arguments_are_errors(pair: tuple) -> None:
    with pytest.raises(PortError, match=r"tpuport\.port"):
        tpuport.compile(pair[0])(IDS)
    with pytest.raises(PortError, match="neither a tensor nor hashable"):
        tpuport.compile(pair[1])(IDS, labels=array.array("b", [0, 0]))
    with pytest.raises(PortError, match="CompiledFunction, which cannot be compiled"):
        tpuport.compile(tpuport.compile(pair[1]))


class Moving(torch.nn.Module):
    """Written for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x + torch.ones(4).cuda())


def test_a_move_to_a_gpu_is_one_to_the_device() -> None:
    host = Moving()
    with torch.no_grad():
        expected = host.out(torch.full((2, 4), 2.0))
    model = tpuport.compile(tpuport.port(host))
    torch.testing.assert_close(model(torch.ones(2, 4)).cpu(), expected)


# jax's own warning about the positions, which here would be an error that ends the trace.
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
def test_named_results_of_operators_are_returned() -> None:
    x = torch.tensor([[3.0, 1.0, 2.0]])

    def function(x: torch.Tensor) -> Any:
        return x.topk(2), [x.max(1), {"sorted": x.sort(descending=True)}]

    top, [largest, others] = tpuport.compile(function)(x)
    assert type(top) is torch.return_types.topk
    assert top.indices.tolist() == [[0, 2]]
    assert largest.values.tolist() == [3.0]
    assert others["sorted"].values.tolist() == [[3.0, 2.0, 1.0]]
    assert tpuport.compile(lambda found: found.values + found[0])(x.max(1)).tolist() == [6.0]


class Positioned(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, start_pos: int = 0, scale: float = 0.0, *, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        return x + start_pos if mask is None else x * mask + start_pos + 1 / (scale or 1)


def test_calls_that_mean_the_same_share_a_program() -> None:
    model = Positioned()
    compiled = tpuport.compile(tpuport.port(copy.deepcopy(model)))
    x = torch.ones(2)
    calls: list[tuple[tuple, dict]] = [
        ((x,), {}), ((x, 0), {}), ((x,), {"start_pos": 0}), ((), {"x": x, "start_pos": 0}),
        ((x, 0, 0.0), {"mask": None}),
    ]  # fmt: skip
    for args, kwargs in calls:
        assert torch.equal(tpuport.to_cpu(compiled(*args, **kwargs)), model(*args, **kwargs))
    assert compiled.program.compilations == 1
    # Neither are these equal to the defaults, nor to one another.
    for args, kwargs in [((x, False), {}), ((x, 1), {}), ((x, 0, -0.0), {}), ((x, True), {"mask": x})]:
        assert torch.equal(tpuport.to_cpu(compiled(*args, **kwargs)), model(*args, **kwargs))
    assert compiled.program.compilations == 5


def test_a_default_that_is_traced_or_seen_by_a_hook_stays() -> None:
    compiled = tpuport.compile(tpuport.port(Positioned()), traced=["start_pos"])
    assert tpuport.to_cpu(compiled(torch.ones(2), start_pos=0)).tolist() == [1.0, 1.0]
    model = tpuport.port(Positioned())
    seen = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(sorted(kwargs)), with_kwargs=True
    )
    model(torch.ones(2), start_pos=0)
    assert seen == [["start_pos"]]


def test_a_number_of_a_cache_that_decides_a_length_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def step(x: torch.Tensor, cache: Any) -> Any:
        cache.layers[0].rounds += 1
        for _ in range(cache.layers[0].rounds):
            x = x + 1
        return x, cache

    config = MistralConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, sliding_window=None)
    cache: Any = StaticCache(config=config, max_cache_len=16)
    cache.layers[0].rounds = 0
    compiled = tpuport.compile(step)
    with caplog.at_level(logging.WARNING, "tpuport"):
        for number in range(1, 5):
            x, cache = compiled(torch.zeros(2), cache)
            assert (x.tolist(), cache.layers[0].rounds) == ([number] * 2, number)
    assert "cache.layers[0].rounds keeps changing (0, 1, 2, 3). The cache counts in Python" in caplog.text
