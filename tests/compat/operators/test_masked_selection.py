"""What a traced mask selects, in models of libraries, beside torch on the CPU."""

from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch

from tpuport import compat
from tpuport.compat.asked_values import AskedValues
from tpuport.compat.operators.masked_selection import without_selections

WIDTH = 6
torch.manual_seed(0)
LAYER = torch.nn.Linear(WIDTH, WIDTH)
WEIGHT, BIAS = LAYER.weight.detach(), LAYER.bias.detach()


def adapt(x: torch.Tensor) -> torch.Tensor:
    """As X-MOD's adapters of each language."""
    weight, bias = WEIGHT.to(x.device), BIAS.to(x.device)
    result = torch.zeros_like(x)
    for mask in (x[:, 0, 0] > 0, x[:, 0, 0] <= 0):
        rows = torch.nn.functional.linear(x[mask], weight, bias)
        rows = torch.nn.functional.gelu(torch.nn.functional.layer_norm(rows, (WIDTH,)))
        result[mask] = 1 - torch.nn.functional.dropout(rows, 0.5, training=False) * weight[0]
    return result


def drop(x: torch.Tensor) -> torch.Tensor:
    """As GLM-Image drops tokens of a prior."""
    x = x.clone()
    x[x[..., 0] > 0] *= 0.0
    return x


def of_elements(x: torch.Tensor) -> torch.Tensor:
    mask = x > 0
    half = x.half()
    half[mask] = (x[mask] + x[mask].clone()).sigmoid().to(half.dtype)
    x = x + 1
    x[mask] = (x[mask] > 1.5).float() - x[mask]
    return x + half.float()


def nothing_selected(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    mask = x > 100
    x[mask] = x[mask] * 2
    return x


def by_coordinates(x: torch.Tensor) -> torch.Tensor:
    """As OneFormer lets queries see all pixels that see none."""
    x = x.clone()
    x[torch.where(x.sum(-1) > 1)] = 7.0
    mask = x[..., 0] < 0
    x[mask.nonzero(as_tuple=True)] = x[torch.where(mask)] - 1
    return x


def asked_what_it_is(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    mask = x > 0
    rows = x[mask]
    if isinstance(rows, torch.Tensor) and not rows == None:  # noqa: E711, SIM201
        x[mask] = rows + 1
    return x


def coordinates_in_another_tensor(x: torch.Tensor) -> torch.Tensor:
    return x[torch.where(x[:3, :2] > 0)]


def a_part_of_coordinates(x: torch.Tensor) -> torch.Tensor:
    rows, columns, _ = torch.where(x > 0)
    result = x.clone()
    result[rows, columns] = 0.0
    return result


def counts_coordinates(x: torch.Tensor) -> torch.Tensor:
    return x[: len(torch.where(x[:, 0, 0] > 0)[0])].sum()


def mask_changed(x: torch.Tensor) -> torch.Tensor:
    mask = x[:, 0, 0] > 0
    rows = x[mask] + 1
    mask[0] = ~mask[0]
    result = x.clone()
    result[mask] = rows
    return result


def other_mask(x: torch.Tensor) -> torch.Tensor:
    result = x.clone()
    result[x > 1] = x[x < -1] + 1
    return result


def along_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x[x > 0], (int(x.numel()),))


def over_rows(x: torch.Tensor) -> torch.Tensor:
    return x[x[:, 0, 0] > 0].softmax(0).sum()


def by_columns(x: torch.Tensor) -> torch.Tensor:
    return (x[x > 0] * x.flatten()[: x.numel()]).sum()


def in_place(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    mask = x > 0
    rows = x[mask]
    rows.mul_(2)
    x[mask] = rows
    return x


def products_of_rows(x: torch.Tensor) -> torch.Tensor:
    mask = x[:, 0, 0] > 0
    rows = x[:, 0][mask]
    return torch.nn.functional.linear(rows, rows)


def rows_as_weights(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x[:3, 0], weight=x[:, 1][x[:, 0, 0] > 0])


def cast_to_rows(x: torch.Tensor) -> torch.Tensor:
    return x[:, 0, 0].half().to(x[:, 0, 0][x[:, 0, 0] > 0])


def written_to_by_another_name(x: torch.Tensor) -> torch.Tensor:
    mask = x > 0
    rows = x[mask]
    rows.float().mul_(2)
    result = torch.zeros_like(x)
    result[mask] = rows
    return result


def written_to_detached(x: torch.Tensor) -> torch.Tensor:
    mask = x > 0
    rows = x[mask]
    rows.detach().mul_(2)
    result = torch.zeros_like(x)
    result[mask] = rows
    return result


def result_of(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    def call(array: jax.Array) -> Any:
        return compat.as_jax(function(compat.wrap(array)))

    with compat.environment(), compat.lazy_masked_selections():
        return compat.to_torch(jax.jit(call)(compat.to_jax(x)))


@pytest.mark.parametrize(
    "function", [adapt, drop, of_elements, nothing_selected, by_coordinates, asked_what_it_is]
)
def test_rows_are_computed_and_written_back(function: Any) -> None:
    x = torch.randn(5, 3, WIDTH)
    torch.testing.assert_close(result_of(function, x), function(x))


@pytest.mark.parametrize(
    "function",
    [
        mask_changed,
        other_mask,
        along_rows,
        over_rows,
        by_columns,
        in_place,
        a_part_of_coordinates,
        counts_coordinates,
        coordinates_in_another_tensor,
    ],
)
def test_what_depends_on_the_number_of_rows_asks_for_values(function: Any) -> None:
    with pytest.raises(jax.errors.NonConcreteBooleanIndexError):
        result_of(function, torch.randn(5, 3, WIDTH))


@pytest.mark.parametrize(
    "function",
    [products_of_rows, rows_as_weights, cast_to_rows, written_to_by_another_name, written_to_detached],
)
def test_what_is_not_of_each_row_alone_is_computed_of_the_selected(function: Any) -> None:
    x = torch.randn(5, 3, WIDTH)
    masks = [x > 0 if function.__name__.startswith("written") else x[:, 0, 0] > 0]

    def call(array: jax.Array) -> Any:
        with AskedValues(masks):
            return compat.as_jax(without_selections(function(compat.wrap(array))))

    with compat.environment(), compat.lazy_masked_selections():
        ours = compat.to_torch(jax.jit(call)(compat.to_jax(x)))
    torch.testing.assert_close(ours, function(x))


def test_a_dtype_is_refused_as_in_torch() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        mask = x > 0
        half = x.half()
        half[mask] = x[mask] * 2
        return half

    x = torch.randn(5, 3)
    for run in (write, lambda x: result_of(write, x)):
        with pytest.raises(RuntimeError, match="source and destination dtypes match"):
            run(x)


def test_gradients_are_those_of_the_selected_rows() -> None:
    x = torch.randn(4, WIDTH)

    def loss(array: jax.Array) -> jax.Array:
        return compat.as_jax((adapt(compat.wrap(array)[:, None]) ** 2).sum())

    with compat.environment(), compat.lazy_masked_selections():
        ours = compat.to_torch(jax.jit(jax.grad(loss))(compat.to_jax(x)))
    x.requires_grad_()
    (adapt(x[:, None]) ** 2).sum().backward()
    torch.testing.assert_close(ours, x.grad, rtol=1e-4, atol=1e-5)
