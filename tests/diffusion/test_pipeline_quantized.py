"""Pipelines whose denoising model has quantised weights."""

import pytest
import torch

import tpuport
from tpuport import PortError
from tpuport.quantization import quantized_weights

PROMPT = torch.linspace(-1, 1, 24).reshape(2, 3, 4)


def run(pipe):
    return pipe(PROMPT, generator=torch.Generator().manual_seed(0)).images


def test_a_quantised_transformer_stays_so_in_its_pipeline(tiny):
    pipe = tiny()
    tpuport.port(pipe.transformer, quantize="int8")
    tpuport.port(pipe)
    assert [name for name, *_ in quantized_weights(pipe.transformer)] == ["inner.weight"]
    images = run(pipe)
    tpuport.to_cpu(pipe)
    dense = pipe.transformer.inner.weight
    assert isinstance(dense, torch.nn.Parameter)
    assert not torch.equal(dense, tiny().transformer.inner.weight)
    torch.testing.assert_close(images, run(pipe), rtol=1e-5, atol=1e-5)


def test_a_pipeline_is_not_quantised_as_a_whole(tiny):
    with pytest.raises(PortError, match="not quantised as a whole") as caught:
        tpuport.port(tiny(), quantize="int8")
    assert "pipe.transformer" in str(caught.value)
