import pytest
import torch
from torch.nn import functional

import tpuport

X = torch.randn(4, 3, 5)
MEAN, VARIANCE = torch.randn(3), torch.rand(3) + 0.5
WEIGHT, BIAS = torch.randn(3), torch.randn(3)


def _running(function):
    """The function's outputs, and what becomes of its running statistics."""

    def call(x, mean, variance, weight, bias):
        mean, variance = mean.clone(), variance.clone()
        return function(x, mean, variance, weight, bias), mean, variance

    return call


CASES = {
    "batch norm": lambda x, m, v, w, b: functional.batch_norm(x, m, v, w, b, training=True),
    "batch norm by running statistics": lambda x, m, v, w, b: functional.batch_norm(x, m, v, w, b),
    "batch norm without weights": lambda x, m, v, w, b: functional.batch_norm(
        x, m, v, training=True, momentum=0.3
    ),
    "batch norm of two dimensions": lambda x, m, v, w, b: functional.batch_norm(
        x[..., 0], m, v, w, b, training=True
    ),
    "batch norm without running": lambda x, m, v, w, b: functional.batch_norm(
        x, None, None, w, b, training=True
    ),
    "instance norm": lambda x, m, v, w, b: functional.instance_norm(x, m, v, w, b),
    "instance norm by running statistics": lambda x, m, v, w, b: functional.instance_norm(
        x, m, v, w, b, use_input_stats=False
    ),
    "instance norm without running": lambda x, m, v, w, b: functional.instance_norm(x, weight=w, bias=b),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees(agree, name):
    agree(_running(CASES[name]), X, MEAN, VARIANCE, WEIGHT, BIAS)


@pytest.mark.parametrize("name", ["batch norm", "instance norm"])
def test_half_precision_with_float32_statistics(agree, name):
    agree(_running(CASES[name]), X.bfloat16(), MEAN, VARIANCE, WEIGHT, BIAS, tolerance=2e-2)


def test_running_statistics_that_are_a_view(agree):
    def call(x, statistics):
        statistics = statistics.clone()
        functional.batch_norm(x, statistics[0], statistics[1], training=True)
        return statistics

    agree(call, X, torch.stack([MEAN, VARIANCE]), jit=False)


@pytest.mark.parametrize("weights", [None, torch.ones(5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics_of_layer_norm(agree, dtype, weights):
    operands = [X.to(dtype)] if weights is None else [X.to(dtype), weights, weights]
    agree(
        lambda x, *w: torch.native_layer_norm(x, [5], *(w or (None, None)), 1e-5), *operands, tolerance=1e-2
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("p", [1, 2, float("inf")])
def test_renorm(agree, dtype, p):
    agree(
        lambda x: (x.renorm(p, -1, 1.5), x.clone().renorm_(p, 0, 1.0)),
        torch.randn(3, 4).to(dtype),
        tolerance=1e-2,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_groups_of_channels(agree, dtype):
    """Offset by 100, which differences of squares would not survive."""
    x, weight, bias = torch.randn(2, 6, 5, 3) + 100, torch.randn(6), torch.randn(6)

    def normalize(x, weight, bias):
        return [
            functional.group_norm(x, 3, weight, bias),
            functional.group_norm(x, 6, None, bias, eps=1e-3),
            functional.group_norm(x[..., 0, 0], 2, weight),
            functional.group_norm(x[..., None], 1),
            torch.native_group_norm(x, weight, bias, 2, 6, 15, 3, 1e-5)[1],
        ]

    operands = [operand.to(dtype) for operand in (x, weight, bias)]
    agree(normalize, *operands, tolerance=1e-3 if dtype == torch.float32 else 5e-2)


def test_groups_are_computed_together():
    program = tpuport.compile(lambda x: functional.group_norm(x, 3))
    text = program.lower(torch.randn(2, 6, 4, 4)).as_text()
    assert "while" not in text


def test_a_batch_of_one_number_has_no_variance(agree):
    def running(x, mean, variance):
        torch.native_batch_norm(x, None, None, mean, variance, True, 0.5, 1e-5)
        return mean, variance

    agree(running, torch.randn(1, 2, 1), torch.zeros(2), torch.ones(2))
