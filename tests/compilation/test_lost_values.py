"""What a model assigns inside of the loop of `generate`: using it afterwards names the attribute."""

import copy
import pickle
import re
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import tpuport
from tpuport import PortError
from tpuport.compilation.lost_values import LostValue, LostValueError

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


def _make_model(kind: type[nn.Module]) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config).eval()
    for layer in model.model.layers:
        layer.mlp = kind(layer.mlp)
    return model


def test_generate_leaves_an_error_that_names_the_attribute() -> None:
    model = _make_model(Recording)
    reference = copy.deepcopy(model)
    expected = reference.generate(IDS, max_new_tokens=4, do_sample=False)
    tpuport.port(model)
    for _ in range(2):
        ids = tpuport.generate(model, IDS, max_new_tokens=4, do_sample=False)
        torch.testing.assert_close(ids, expected)
        lost = model.model.layers[1].mlp.seen
        uses: list[Any] = [
            lambda lost: lost.shape, lambda lost: lost + 1, lambda lost: torch.ones(1) * lost, float,
            tpuport.to_cpu, torch.sum, lambda lost: torch.cat([lost, lost]), lambda lost: lost[0],
        ]  # fmt: skip
        for use in uses:
            with pytest.raises(LostValueError, match=rf"model\.layers\.1\.{MESSAGE}") as error:
                use(lost)
        assert re.search(r"test_lost_values\.py, line \d+, in Recording\.forward", str(error.value))
        with pytest.raises(PortError, match=r"mlp\.history"):
            float(model.model.layers[0].mlp.history[0])
    assert repr(copy.deepcopy(lost)) == repr(lost) == repr(pickle.loads(pickle.dumps(lost)))
    # The program of a call carries them out, also where blocks run in a loop.
    reference(input_ids=IDS)
    for scan_layers in (None, True):
        tpuport.compile(model, scan_layers=scan_layers)(input_ids=IDS)
        for layer, expected_layer in zip(model.model.layers, reference.model.layers, strict=True):
            torch.testing.assert_close(layer.mlp.seen.cpu(), expected_layer.mlp.seen)
            torch.testing.assert_close(layer.mlp.history[0].cpu(), expected_layer.mlp.history[0])


def test_the_loop_reads_what_it_lost() -> None:
    class Summing(Recording):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            former = getattr(self, "seen", 0)
            self.seen = x.sum()
            return self.mlp(x) + former

    model = tpuport.port(_make_model(Summing))
    with pytest.raises(PortError, match=MESSAGE):
        tpuport.generate(model, IDS, max_new_tokens=3, do_sample=False)


def test_writes_in_place_are_refused() -> None:
    model = tpuport.port(_make_model(InPlace))
    with pytest.raises(PortError, match=r"mlp\.calls is written to in place inside of the loop"):
        tpuport.generate(model, IDS, max_new_tokens=3, do_sample=False)
    assert float(model.model.layers[0].mlp.calls) == 0


def test_a_lost_value_stays_the_same_object() -> None:
    model = tpuport.port(_make_model(Recording))
    lost = []
    for _ in range(2):
        tpuport.generate(model, IDS, max_new_tokens=3, do_sample=False)
        lost.append(model.model.layers[0].mlp.seen)
    assert isinstance(lost[0], LostValue)
    # Another object would make another program in each call.
    assert lost[0] is lost[1]
