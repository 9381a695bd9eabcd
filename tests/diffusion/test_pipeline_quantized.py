"""Pipelines whose denoising models have quantised weights."""

import copy

import pytest
import torch
from jax.sharding import PartitionSpec

import tpuport
from tpuport import PortError
from tpuport.quantization import quantized_weights

PROMPT = torch.linspace(-1, 1, 24).reshape(2, 3, 4)


def run(pipe):
    return pipe(PROMPT, generator=torch.Generator().manual_seed(0)).images


def names_of_quantized(model):
    return [name for name, *_ in quantized_weights(model)]


def round_weight(weight):
    """Int8 with a scale for each output, by its formula."""
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    return torch.round(weight / scale) * scale


@pytest.fixture
def rounded(tiny):
    """The pipeline in torch, with a transformer whose weights are those numbers."""
    pipe = tiny()
    with torch.no_grad():
        pipe.transformer.inner.weight.copy_(round_weight(pipe.transformer.inner.weight))
    return pipe


def test_a_quantised_transformer_stays_so_in_its_pipeline(tiny):
    pipe = tiny()
    tpuport.port(pipe.transformer, quantize="int8")
    tpuport.port(pipe)
    assert names_of_quantized(pipe.transformer) == ["inner.weight"]
    images = run(pipe)
    tpuport.to_cpu(pipe)
    dense = pipe.transformer.inner.weight
    assert isinstance(dense, torch.nn.Parameter)
    assert not torch.equal(dense, tiny().transformer.inner.weight)
    torch.testing.assert_close(images, run(pipe), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "quantize",
    ["int8", tpuport.QuantizationRules({r"inner\.weight": "int8"}), {"transformer": "int8"}],
    ids=["scheme", "rules", "by component"],
)
def test_a_pipeline_quantises_what_denoises(tiny, rounded, quantize):
    pipe = tpuport.port(tiny(extra=torch.nn.Linear(4, 4)), quantize=quantize)
    assert names_of_quantized(pipe.transformer) == ["inner.weight"]
    assert not names_of_quantized(pipe.extra)
    torch.testing.assert_close(run(pipe), run(rounded), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(run(rounded), run(tiny()), rtol=1e-3, atol=1e-4)


def test_several_models_denoise(tiny, rounded):
    single = tiny()

    class TwoModels(type(single)):
        def __init__(self, transformer, transformer_2, scheduler, extra=None):
            super().__init__(transformer, scheduler, extra)
            self.register_modules(transformer_2=transformer_2)

    second = copy.deepcopy(single.transformer)
    pipe = tpuport.port(TwoModels(single.transformer, second, single.scheduler), quantize="int8")
    assert names_of_quantized(second) == ["inner.weight"]
    torch.testing.assert_close(run(pipe), run(rounded), rtol=1e-5, atol=1e-6)


def test_the_mesh_divides_quantised_weights(tiny, rounded):
    rules = tpuport.ShardingRules({r"inner\.weight": PartitionSpec("tp", None)})
    pipe = tpuport.port(tiny(), mesh=tpuport.create_mesh(tp=2, dp=4), rules=rules, quantize="int8")
    torch.testing.assert_close(run(pipe), run(rounded), rtol=1e-5, atol=1e-6)
    tpuport.port(pipe, mesh=tpuport.create_mesh(dp=8))
    assert names_of_quantized(pipe.transformer) == ["inner.weight"]
    torch.testing.assert_close(run(pipe), run(rounded), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("quantize", "message"),
    [
        ("int7", "not a quantisation scheme"),
        ({"unet": "int8"}, "unet: no such model"),
        ({"transformer": {"outer": "int8"}}, "no weight can follow"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_moves(tiny, quantize, message):
    pipe = tiny()
    with pytest.raises(PortError, match=message):
        tpuport.port(pipe, quantize=quantize)
    assert "_tpuport" not in vars(pipe)


def test_where_one_model_cannot_move_no_weight_is_rounded(tiny):
    pipe = tiny(extra=torch.nn.Linear(2, 2, device="meta"))
    with pytest.raises(PortError, match="meta"):
        tpuport.port(pipe, quantize="int8")
    assert torch.equal(pipe.transformer.inner.weight, tiny().transformer.inner.weight)
