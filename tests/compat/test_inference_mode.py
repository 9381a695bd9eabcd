"""`torch.inference_mode` around what runs on the device: torch's own values and views, in it and after it."""

import copy

import pytest
import torch

import tpuport

# Views of [4, 4], written to through all names.
VIEWS = {
    "chunk": lambda x: x.chunk(2)[0],
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim(0, 1),
    "hsplit": lambda x: x.hsplit(2)[1],
    "positive": lambda x: +x,
    "select": lambda x: x.select(0, 1),
    "narrow": lambda x: x.narrow(0, 1, 2),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "reshape": lambda x: x.t().reshape(2, 8),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("is_made_before", [True, False])
def test_views_in_inference_mode(view, is_made_before):
    outputs = []
    for device in ("cpu", "jax"):
        with torch.inference_mode(not is_made_before):
            x = torch.arange(16.0, device=device).reshape(4, 4) * 1
        with torch.inference_mode():
            y = VIEWS[view](x)
            y[0].add_(100)
            y.mul_(2)
            x.sub_(1)
            outputs.append([x.tolist(), y.tolist()])
    assert outputs[0] == outputs[1]


def test_inference_mode_around_a_model():
    class Gated(torch.nn.Module):
        def forward(self, x):
            first, second = x.chunk(2, -1)
            return first * second

    model, x = tpuport.port(Gated()), torch.randn(5, 4)
    with torch.inference_mode():
        result = model(x)
        first, _ = result.chunk(2, -1)
        target = torch.zeros(5, 2)
        target.copy_(result)
    for value in (tpuport.to_cpu(result), result.cpu(), target):
        torch.testing.assert_close(value, Gated()(x))
    assert first.shape == (5, 1)


def test_views_of_arguments_in_compiled_code() -> None:
    """What an argument is was made before; a method of a library has the decorator on itself, as SAM 2's have."""
    model = tpuport.port(torch.nn.Linear(4, 4))

    @torch.inference_mode()
    def predict(layer, x, frames):
        rows = layer(x.unsqueeze(0))
        return rows, x.t(), x.detach().view(-1)[3], layer(frames[0].to(x.device).permute(1, 0))

    x, frames = torch.randn(5, 4), {0: torch.randn(4, 3)}
    expected = predict(tpuport.to_cpu(copy.deepcopy(model)), x, frames)
    torch.testing.assert_close(tpuport.to_cpu(tpuport.compile(predict)(model, x, frames)), expected)
