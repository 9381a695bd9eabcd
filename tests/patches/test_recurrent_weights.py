"""torch's recurrent layers: the same results as in torch, from one program for all calls."""

import pytest
import torch
from torch import nn

import tpuport


@pytest.mark.parametrize("kind", [nn.LSTM, pytest.param(nn.GRU, marks=pytest.mark.slow), nn.RNN])
def test_each_call_runs_the_first_program(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    layer = kind(4, 4, 2).eval()
    sequence = torch.randn(3, 2, 4)
    with torch.no_grad():
        expected = layer(sequence)[0]
        compiled = tpuport.compile(tpuport.port(layer))
        for _ in range(3):
            torch.testing.assert_close(compiled(sequence)[0].cpu(), expected, rtol=1e-5, atol=1e-6)
        assert compiled.program.compilations == 1
        # On the host again it is torch's own, which sees that its weights were replaced.
        torch.testing.assert_close(tpuport.to_cpu(layer)(sequence)[0], expected)
