"""Gradients of operators in a program, recorded by torch's autograd, beside torch on the CPU."""

from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch.nn import functional

from tpuport import compat
from tpuport.compat import recording

Shape = tuple[int, ...]


def _set_items(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x * 1
    z[:, 0] = y
    z[1] *= 3
    z.select(0, 0).add_(1)
    return z


def _indices(x: torch.Tensor, *values: Any) -> torch.Tensor:
    return torch.tensor(values, device=x.device)


CASES: dict[str, tuple[Any, ...]] = {
    "linear": (functional.linear, (2, 3, 8), (5, 8), (5,)),
    "addmm": (torch.addmm, (2, 5), (2, 3), (3, 5)),
    "bmm": (torch.bmm, (2, 3, 4), (2, 4, 5)),
    "einsum": (lambda x, y: torch.einsum("bij,bjk->bik", x, y), (2, 3, 4), (2, 4, 5)),
    "conv1d": (lambda x, w: functional.conv1d(x, w, groups=2, dilation=2), (2, 4, 9), (6, 2, 3)),
    "conv2d": (lambda x, w, b: functional.conv2d(x, w, b, padding=1, stride=2), (2, 4, 8, 8), (6, 4, 3, 3), (6,)),
    "conv_transpose2d": (
        lambda x, w: functional.conv_transpose2d(x, w, stride=2, padding=1), (2, 4, 5, 5), (4, 3, 3, 3),
    ),
    "conv3d": (functional.conv3d, (1, 2, 4, 4, 4), (3, 2, 3, 3, 3)),
    "layer_norm": (lambda x, w, b: functional.layer_norm(x, (8,), w, b), (2, 3, 8), (8,), (8,)),
    "rms_norm": (lambda x, w: functional.rms_norm(x, (8,), w), (2, 3, 8), (8,)),
    "group_norm": (lambda x, w, b: functional.group_norm(x, 2, w, b), (2, 8, 4, 4), (8,), (8,)),
    "batch_norm": (
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True), (4, 3, 5), (3,), (3,),
    ),
    "instance_norm": (functional.instance_norm, (2, 3, 5)),
    "scaled_dot_product_attention": (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        (1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8),
    ),
    "softmax": (lambda x: x.softmax(-1), (3, 4)),
    "cross_entropy": (lambda x: functional.cross_entropy(x, _indices(x, 1, 2, -100), reduction="none"), (3, 4)),
    "kl_div": (
        lambda x, y: functional.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="none"), (2, 3), (2, 3),
    ),
    "bce": (
        lambda x, y: functional.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="none"), (2, 3), (2, 3),
    ),
    "smooth_l1_loss": (lambda x, y: functional.smooth_l1_loss(x, y, reduction="none"), (2, 3), (2, 3)),
    "embedding": (lambda w: functional.embedding(_indices(w, 1, 2, 1), w, padding_idx=2), (3, 4)),
    "max_pool2d": (lambda x: functional.max_pool2d(x, 2), (1, 2, 6, 6)),
    "avg_pool2d": (lambda x: functional.avg_pool2d(x, 2, padding=1), (1, 2, 6, 6)),
    "adaptive_avg_pool2d": (lambda x: functional.adaptive_avg_pool2d(x, 3), (1, 2, 7, 7)),
    "bilinear": (lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), (1, 2, 4, 4)),
    "bicubic": (lambda x: functional.interpolate(x, size=(7, 7), mode="bicubic"), (1, 2, 4, 4)),
    "nearest": (lambda x: functional.interpolate(x, scale_factor=2.0), (1, 2, 4, 4)),
    "grid_sample": (lambda x, g: functional.grid_sample(x, g.tanh(), align_corners=False), (1, 2, 5, 5), (1, 3, 3, 2)),
    "relu": (functional.relu, (3, 4)), "gelu": (functional.gelu, (3, 4)), "silu": (functional.silu, (3, 4)),
    "prelu": (functional.prelu, (2, 3), (3,)), "glu": (functional.glu, (2, 4)), "mish": (functional.mish, (2, 3)),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), (4, 3)), "power": (lambda x: x.abs() ** 1.5, (2, 3)),
    "norm": (lambda x: x.norm(dim=1), (2, 3)), "std": (lambda x: x.std(1), (2, 3)),
    "cumsum": (lambda x: x.cumsum(1), (2, 3)), "prod": (lambda x: x.prod(1), (2, 5)),
    "logsumexp": (lambda x: x.logsumexp(1), (2, 3)), "cdist": (torch.cdist, (3, 4), (5, 4)),
    "sort": (lambda x: x.sort(1)[0], (2, 5)), "topk": (lambda x: x.topk(2, 1)[0], (2, 5)),
    "max": (lambda x: x.max(1)[0], (2, 5)), "where": (lambda x, y: torch.where(x > 0, x, y), (2, 3), (2, 3)),
    "gather": (lambda x: x.gather(1, _indices(x, [0, 2], [1, 1])), (2, 3)),
    "scatter_add": (lambda x, y: x.scatter_add(1, _indices(x, [0, 0], [1, 2]), y), (2, 3), (2, 2)),
    "index_add": (lambda x, y: x.index_add(0, _indices(x, 0, 0), y), (2, 3), (2, 3)),
    "masked_scatter": (
        lambda x, y: x.masked_scatter(_indices(x, [True, False, True], [False, True, True]), y), (2, 3), (4,),
    ),
    "masked_fill": (lambda x: x.masked_fill(_indices(x, True, False, True), 0.0), (2, 3)),
    "a list as an index": (lambda x: x[:, [0, 2]], (2, 3)), "slices": (lambda x: x[:, 1:], (2, 3)),
    "items": (_set_items, (2, 3), (2,)), "in place": (lambda x: (x * 2).add_(1).mul_(x), (2, 3)),
    "cat": (lambda x, y: torch.cat([x, y], 1), (2, 3), (2, 4)),
    "chunk": (lambda x: x.chunk(2, 1)[0] * x.chunk(2, 1)[1], (2, 4)),
    "pad": (lambda x: functional.pad(x, (1, 2), mode="reflect"), (1, 2, 5)),
    "unfold": (lambda x: functional.unfold(x, 2), (1, 2, 4, 4)), "windows": (lambda x: x.unfold(1, 2, 1), (2, 5)),
    "as_strided": (lambda x: x.as_strided((2, 2), (1, 1)), (2, 3)),
    "expand": (lambda x: x.expand(4, 3), (1, 3)), "repeat": (lambda x: x.repeat(2, 2), (1, 3)),
    "dtypes": (lambda x: x.to(torch.bfloat16).float().type_as(x) * 2, (2, 3)),
    "rfft": (lambda x: torch.fft.rfft(x).abs(), (2, 8)),
    "complex": (
        lambda x: torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(x)), (3, 2),
    ),
    "solve": (lambda x, y: torch.linalg.solve(x + 4 * torch.eye(3, device=x.device), y), (3, 3), (3, 2)),
    "detach": (lambda x: x * x.detach(), (2, 3)),
}  # fmt: skip


def gradients(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Of a sum of the results with weights, for each input."""
    output = function(*inputs)
    weights = torch.linspace(0.5, 1.5, output.numel()).reshape(output.shape)
    return list(torch.autograd.grad((output * weights.to(output.device)).sum(), inputs, allow_unused=True))


@pytest.mark.parametrize("name", CASES)
def test_gradients_in_a_program(name: str) -> None:
    function, *shapes = CASES[name]
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(shape, generator=generator) for shape in shapes]
    expected = gradients(function, [tensor.clone().requires_grad_() for tensor in given])

    def program(arrays: list[jax.Array]) -> list[Any]:
        with compat.environment(), torch.enable_grad(), recording.gradients_recorded():
            tensors = [compat.wrap(array).requires_grad_() for array in arrays]
            return compat.as_jax(gradients(function, tensors))

    results = jax.jit(program)(list(map(compat.to_jax, given)))
    for result, gradient in zip(results, expected, strict=True):
        assert (result is None) == (gradient is None)
        if gradient is not None:
            torch.testing.assert_close(compat.to_torch(result), gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["linear", "layer_norm", "conv2d", "items", "dtypes", "scaled_dot_product_attention"]
)
def test_gradients_operation_by_operation(name: str) -> None:
    function, *shapes = CASES[name]
    given = [torch.randn(shape) for shape in shapes]
    expected = gradients(function, [tensor.clone().requires_grad_() for tensor in given])
    results = gradients(function, [tensor.to("jax").requires_grad_() for tensor in given])
    for result, gradient in zip(results, expected, strict=True):
        torch.testing.assert_close(result.cpu(), gradient, rtol=1e-4, atol=1e-5)


def test_a_function_of_arrays_as_one_node() -> None:
    @recording.as_one_node
    def attend(x: torch.Tensor, *, others: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, str]:
        array, scale = compat.as_jax((x, others["scale"]))
        return compat.wrap(array * scale**2), compat.wrap(array > 0), others["name"]

    x, scale = torch.randn(3).to("jax").requires_grad_(), torch.randn(3).to("jax").requires_grad_()
    output, mask, name = attend(x, others={"scale": scale, "name": "of a call"})
    assert (name, mask.dtype, mask.requires_grad) == ("of a call", torch.bool, False)
    output.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), scale.detach().cpu() ** 2)
    torch.testing.assert_close(scale.grad.cpu(), 2 * (x * scale).detach().cpu())
    with torch.no_grad():
        assert not attend(x, others={"scale": scale, "name": ""})[0].requires_grad
