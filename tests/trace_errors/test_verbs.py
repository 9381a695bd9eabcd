"""Every verb explains what it cannot trace: the line, what happened, the remedy; and with torch's kind of error."""

import functools
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tpuport
from tests.cache_names import CACHE
from tpuport.trace_errors import CannotTrace

X = torch.ones(2, 3)
HOST = torch.arange(6.0).reshape(2, 3)


def of_shapes(x):
    return torch.matmul(x, x)  # of_shapes


def of_dtypes(x):
    return x @ x.T.bfloat16()  # of_dtypes


def of_devices(x):
    return x + HOST  # of_devices


def of_concatenation(x):
    return torch.cat([x, x.T])  # of_concatenation


def of_values(x):
    return x * 2 if x.sum() > 0 else x  # of_values


def of_places(x):
    return x[:, 7]  # of_places


def of_cuda(x):
    return x + torch.cuda.current_device()  # of_cuda


REASONS = {
    of_shapes: "compare the shapes",
    of_dtypes: "dtype",
    of_devices: "on the host",
    of_concatenation: "compare the shapes",
    of_values: "TPU205",
    of_places: "out of bounds",
    of_cuda: "there is no GPU here",
}


def line_of(name):
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {name}"))


@pytest.mark.parametrize("function", REASONS, ids=lambda function: function.__name__)
def test_compile_names_the_line(function):
    with pytest.raises(CannotTrace) as raised:
        tpuport.compile(function)(X)
    line = line_of(function.__name__)
    assert f"{__file__}, line {line}, in {function.__name__}" in str(raised.value)
    assert REASONS[function] in str(raised.value)


def test_the_error_is_of_torchs_kind():
    for function in (of_shapes, of_dtypes):
        with pytest.raises(RuntimeError):
            function(X)
        with pytest.raises(RuntimeError):
            tpuport.compile(function)(X)


def test_what_the_code_raises_itself_goes_through():
    def refusing(x):
        raise KeyError("no such table")

    with pytest.raises(KeyError, match="no such table"):
        tpuport.compile(refusing)(X)


class ReadsInTheLoop(LlamaForCausalLM):
    @functools.wraps(LlamaForCausalLM.forward)
    def forward(self, input_ids=None, **kwargs):
        output = super().forward(input_ids=input_ids, **kwargs)
        # In each token's call with a cache, and in every call without one.
        if kwargs.get(CACHE) is None or input_ids.shape[1] == 1:
            output.logits.sum().item()  # ReadsInTheLoop
        return output


class Mismatched(LlamaForCausalLM):
    @functools.wraps(LlamaForCausalLM.forward)
    def forward(self, input_ids=None, **kwargs):
        output = super().forward(input_ids=input_ids, **kwargs)
        output.logits = output.logits @ output.logits  # Mismatched
        return output


@pytest.mark.parametrize("kind", [ReadsInTheLoop, pytest.param(Mismatched, marks=pytest.mark.slow)])
def test_generate_names_the_line(kind):
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = tpuport.port(kind(config).eval())
    with pytest.raises(CannotTrace, match=rf"line {line_of(kind.__name__)}, in {kind.__name__}\.forward"):
        tpuport.generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=2)
