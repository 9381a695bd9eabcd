"""Pipelines that are not ported, made of the models of one that is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tpuport
from tpuport import PortError, compat
from tpuport.diffusion.pipeline_calls import original_class

EMBEDDINGS = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(3))


def run(pipe: Any) -> torch.Tensor:
    return pipe(EMBEDDINGS, generator=torch.Generator().manual_seed(0)).images


@pytest.fixture
def pipe(tiny: Callable[..., Any]) -> Any:
    return tpuport.port(tiny())


def test_another_pipeline_of_its_models_is_ported_before_it_is_called(
    pipe: Any, tiny: Callable[..., Any]
) -> None:
    expected = run(tiny())
    other = original_class(type(pipe))(**pipe.components)
    with pytest.raises(
        PortError, match=r"Denoiser is on the devices(.|\n)*where: TinyPipeline(.|\n)*tpuport\.port"
    ):
        run(other)
    with pytest.raises(PortError, match="not ported, and its Denoiser is on the devices"):
        other.encode_prompt(EMBEDDINGS)
    for ported in (tpuport.port(other), pipe):
        torch.testing.assert_close(run(ported), expected, rtol=1e-5, atol=1e-6)


def test_elsewhere_models_are_called_and_torch_makes_tensors_on_their_device(pipe: Any) -> None:
    assert compat.is_ported(pipe.transformer(EMBEDDINGS, torch.zeros(1), EMBEDDINGS)[0])
    assert compat.is_ported(torch.randn(2, device=pipe.transformer.device))
