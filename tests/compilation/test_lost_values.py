"""What a model assigns inside of the loop of `generate`: using it afterwards names the attribute."""

import copy
import operator
import pickle
import re
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import tpuport
from tpuport import PortError
from tpuport.compilation import collect_weights
from tpuport.compilation.lost_values import LostValueError, use_weights_in_loop

IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 1]])
MESSAGE = r"mlp\.seen was assigned inside of the loop of tpuport\.generate"


class Recording(nn.Module):
    """An MLP that remembers what it gets."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.mlp = mlp
        self.history: list = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = x * 1
        self.history[:] = [x.sum()]
        return self.mlp(x)


class InPlace(Recording):
    def __init__(self, mlp: Any) -> None:
        super().__init__(mlp)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.mlp(x)


class InitializedByData(Recording):
    """An MLP that scales by what its first call sees."""

    def __init__(self, mlp: Any) -> None:
        super().__init__(mlp)
        self.register_buffer("scale", torch.ones(()))
        self.is_initialized = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_initialized:
            self.scale.copy_(x.std())
            self.is_initialized = True
        return self.mlp(x) * self.scale


class Outer(Recording):
    """Records, as the module in it does."""

    def __init__(self, mlp: Any) -> None:
        super().__init__(Recording(mlp))


class Counting(Recording):
    """An MLP that counts its calls in every way."""

    def __init__(self, mlp: Any) -> None:
        super().__init__(mlp)
        self.calls = 0
        self.lengths: dict[int, int] = {}
        self.is_called = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.tokens = getattr(self, "tokens", 0) + x.shape[1]
        self.lengths[x.shape[1]] = self.lengths.get(x.shape[1], 0) + 1
        self.history.append("called")
        self.is_called = True
        return self.mlp(x)


def _make_model(kind: type[nn.Module], layers: int = 2) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config).eval()
    for layer in model.model.layers:
        layer.mlp = kind(layer.mlp)
    return model


def test_generate_leaves_an_error_that_names_the_attribute() -> None:
    model = _make_model(Recording, layers=1)
    reference = copy.deepcopy(model)
    expected = reference.generate(IDS, max_new_tokens=4, do_sample=False)
    tpuport.port(model)
    former = None
    for _ in range(2):
        ids = tpuport.generate(model, IDS, max_new_tokens=4, do_sample=False)
        torch.testing.assert_close(ids, expected)
        lost = model.model.layers[0].mlp.seen
        # Another object would make another program in each call.
        assert former is None or former is lost
        former = lost
        uses: list[Any] = [
            lambda lost: lost.shape, lambda lost: lost + 1, lambda lost: torch.ones(1) * lost, float,
            tpuport.to_cpu, torch.sum, lambda lost: torch.cat([lost, lost]), lambda lost: lost[0],
        ]  # fmt: skip
        for use in uses:
            with pytest.raises(LostValueError, match=rf"model\.layers\.0\.{MESSAGE}") as error:
                use(lost)
        assert re.search(r"test_lost_values\.py, line \d+, in Recording\.forward", str(error.value))
        with pytest.raises(PortError, match=r"mlp\.history"):
            float(model.model.layers[0].mlp.history[0])
    assert repr(copy.deepcopy(lost)) == repr(lost) == repr(pickle.loads(pickle.dumps(lost)))


@pytest.mark.slow  # test_assignments.py has what a call assigns
def test_a_call_carries_out_what_generate_loses() -> None:
    """Also where blocks run in a loop."""
    model = _make_model(Recording)
    reference = copy.deepcopy(model)
    tpuport.port(model)
    tpuport.generate(model, IDS, max_new_tokens=4, do_sample=False)
    reference(input_ids=IDS)
    tpuport.compile(model, scan_layers=True)(input_ids=IDS)
    for layer, expected_layer in zip(model.model.layers, reference.model.layers, strict=True):
        torch.testing.assert_close(layer.mlp.seen.cpu(), expected_layer.mlp.seen)
        torch.testing.assert_close(layer.mlp.history[0].cpu(), expected_layer.mlp.history[0])


@pytest.mark.slow  # what reads a lost value above, after the loop
def test_the_loop_reads_what_it_lost() -> None:
    class Summing(Recording):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            former = getattr(self, "seen", 0)
            self.seen = x.sum()
            return self.mlp(x) + former

    model = tpuport.port(_make_model(Summing, layers=1))
    with pytest.raises(PortError, match=MESSAGE):
        tpuport.generate(model, IDS, max_new_tokens=3, do_sample=False)


@pytest.mark.slow  # the next test writes in place too
def test_writes_in_place_are_refused() -> None:
    model = tpuport.port(_make_model(InPlace))
    with pytest.raises(PortError, match=r"mlp\.calls is written to in place inside of the loop"):
        tpuport.generate(model, IDS, max_new_tokens=3, do_sample=False)
    assert float(model.model.layers[0].mlp.calls) == 0, "the refusal leaves the model as it was"


def test_writes_that_depend_on_the_tokens_are_refused() -> None:
    """A first call with other tokens would leave another model than in torch."""
    model = tpuport.port(_make_model(InitializedByData, layers=1))
    with pytest.raises(PortError, match=r"mlp\.scale is written to in place inside of the loop"):
        tpuport.generate(model, IDS, max_new_tokens=3, do_sample=False)
    mlp = model.model.layers[0].mlp
    assert float(mlp.scale) == 1
    assert not mlp.is_initialized


@pytest.mark.slow  # the other lost values of this file
def test_a_module_keeps_its_parts_when_both_assign() -> None:
    model = _make_model(Outer)
    expected = copy.deepcopy(model).generate(IDS, max_new_tokens=3, do_sample=False)
    ported = tpuport.port(model)
    assert torch.equal(tpuport.generate(ported, IDS, max_new_tokens=3, do_sample=False), expected)
    outer = ported.model.layers[0].mlp
    assert isinstance(outer.mlp, Recording)
    for module in (outer, outer.mlp):
        with pytest.raises(PortError, match=MESSAGE):
            module.seen + 1


@pytest.mark.slow  # the other lost values of this file
def test_counters_are_lost_too() -> None:
    model = _make_model(Counting)
    reference = copy.deepcopy(model)
    expected = reference.generate(IDS, max_new_tokens=4, do_sample=False)
    tpuport.port(model)
    mlp, reference_mlp = model.model.layers[1].mlp, reference.model.layers[1].mlp
    lost = []
    for _ in range(3):
        torch.testing.assert_close(tpuport.generate(model, IDS, max_new_tokens=4, do_sample=False), expected)
        assert mlp.is_called == reference_mlp.is_called
        uses: list[Any] = [
            lambda: mlp.calls + 1, lambda: mlp.calls == 4, lambda: int(mlp.tokens), lambda: mlp.lengths[1] > 2,
            lambda: mlp.history[0] != "called", lambda: f"{mlp.calls:3d}",
        ]  # fmt: skip
        for use in uses:
            with pytest.raises(
                LostValueError, match=r"model\.layers\.1\.mlp\.\w+(\[\d+\])? was assigned inside"
            ):
                use()
        lost.append((mlp.calls, mlp.tokens, *mlp.history, *mlp.lengths.values()))
    # The state is the same, and with it the programs.
    assert len(lost[1]) == len(lost[2])
    assert all(map(operator.is_, lost[1], lost[2]))
    with pytest.raises(
        PortError, match=r"calls was assigned.*\n.*in Counting\.forward\n.*a value of your own"
    ):
        model(input_ids=IDS)
    # With values of the user's own, calls go on counting as in torch.
    for part in (model, reference):
        for layer in part.model.layers:
            layer.mlp.calls = layer.mlp.tokens = 3
            layer.mlp.lengths, layer.mlp.history = {}, []
        part(input_ids=IDS)
    assert (mlp.calls, mlp.tokens) == (reference_mlp.calls, reference_mlp.tokens) == (4, 8)
    assert (mlp.lengths, mlp.history) == (reference_mlp.lengths, reference_mlp.history)


def test_a_list_goes_on_after_what_was_lost_in_it() -> None:
    mlp: Any = tpuport.port(Counting(nn.Linear(4, 4)))
    mlp.history.append("before")

    def trace_twice() -> None:
        for length in (3, 1):
            with use_weights_in_loop(mlp, collect_weights(mlp), "the loop of a test"):
                mlp(torch.ones(1, length, 4).to("jax"))

    trace_twice()
    assert len(mlp.history) == 2
    mlp.history.append("after")
    trace_twice()
    assert [item for item in mlp.history if type(item) is str] == ["before", "after"]
    copied = copy.deepcopy(mlp)
    assert copied.calls.start == 0
    assert pickle.loads(pickle.dumps(mlp.tokens)).start is mlp.tokens.start
