import jax
import jax.numpy as jnp
import pytest
import torch

import tpuport
from tpuport import compat


def offsets(*ends):
    return torch.tensor(ends, dtype=torch.int32)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("ends", [(3, 3, 10), (10, 10, 10), (0, 0, 10), (4, 8, 10)])
def test_rows_in_groups(agree, ends, dtype):
    left, right = torch.randn(10, 16).to(dtype), torch.randn(3, 16, 24).to(dtype)
    agree(
        lambda a, b, offs: torch.nn.functional.grouped_mm(a, b, offs=offs),
        left, right, offsets(*ends), tolerance=1e-5 if dtype == torch.float32 else 2e-2,
    )  # fmt: skip


@pytest.mark.parametrize("ends", [(0, 2, 2, 2, 3, 3), (1, 1, 1, 2, 2, 4), (4, 4, 4, 4, 4, 4)])
def test_fewer_rows_than_groups(agree, ends):
    left, right = torch.randn(ends[-1], 16), torch.randn(6, 16, 24)
    agree(lambda a, b, offs: torch._grouped_mm(a, b, offs=offs), left, right, offsets(*ends))


def test_few_rows_read_only_the_matrices_they_use(agree):
    left, right = torch.randn(2, 16), torch.randn(6, 16, 24)
    right[[0, 1, 3, 5]] = torch.nan
    agree(lambda a, b, offs: torch._grouped_mm(a, b, offs=offs), left, right, offsets(0, 0, 1, 1, 2, 2))


def test_transposed_weights(agree):
    left, right = torch.randn(10, 16), torch.randn(3, 24, 16)
    agree(
        lambda a, b, offs: torch._grouped_mm(a, b.transpose(-2, -1), offs=offs),
        left,
        right,
        offsets(2, 7, 10),
    )


def test_columns_in_groups(agree):
    left, right = torch.randn(3, 10, 16), torch.randn(16, 12)
    agree(lambda a, b, offs: torch._grouped_mm(a, b, offs=offs), left, right, offsets(4, 4, 12))


def test_contraction_in_groups(agree):
    left, right = torch.randn(10, 12), torch.randn(12, 16)
    agree(lambda a, b, offs: torch._grouped_mm(a, b, offs=offs), left, right, offsets(4, 4, 12))


def test_no_groups(agree):
    agree(torch._grouped_mm, torch.randn(3, 10, 16), torch.randn(3, 16, 8))


def test_rows_past_the_last_group_are_ignored(agree):
    agree(
        lambda a, b, offs: torch._grouped_mm(a, b, offs=offs)[:7],
        torch.randn(10, 16), torch.randn(3, 16, 8), offsets(2, 2, 7),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shapes", "ends", "options"),
    [
        (((10, 16), (3, 16, 8)), None, {}),
        (((3, 10, 16), (3, 16, 8)), (1, 2, 3), {}),
        (((10, 16), (3, 16, 8)), (1, 2, 10), {"out_dtype": torch.bfloat16}),
        (((10, 16), (3, 16, 8)), (1, 2, 10), {"bias": torch.zeros(8)}),
        (((16,), (3, 16, 8)), (1, 2, 10), {}),
    ],
)
def test_what_torch_refuses_is_refused(shapes, ends, options):
    left, right = (torch.randn(shape) for shape in shapes)
    offs = None if ends is None else offsets(*ends)
    with pytest.raises(RuntimeError):
        torch._grouped_mm(left, right, offs=offs, **options)
    offs = None if offs is None else compat.wrap(compat.to_jax(offs))
    left, right = (compat.wrap(compat.to_jax(tensor)) for tensor in (left, right))
    options = {name: compat.wrap(compat.to_jax(v)) if name == "bias" else v for name, v in options.items()}
    with compat.environment(), pytest.raises(tpuport.PortError, match="grouped_mm"):
        torch._grouped_mm(left, right, offs=offs, **options)


def test_other_platforms_keep_the_ragged_product():
    def product(left, right, offs):
        with compat.environment():
            return compat.as_jax(torch._grouped_mm(*compat.as_torch((left, right)), offs=compat.wrap(offs)))

    shapes = [jax.ShapeDtypeStruct((10, 16), jnp.float32), jax.ShapeDtypeStruct((3, 16, 8), jnp.float32)]
    traced = jax.jit(product).trace(*shapes, jax.ShapeDtypeStruct((3,), jnp.int32))
    assert "ragged_dot" in str(traced.jaxpr)
