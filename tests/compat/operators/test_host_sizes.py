"""Sizes and masks that are known on the host while a program is traced."""

from typing import Any

import jax
import pytest
import torch

from tpuport import compat
from tpuport.compat.convert import to_jax

SIZES = torch.tensor([[2, 2], [1, 2]])


def traced(function: Any, *arrays: torch.Tensor) -> Any:
    """What a function of torch gives in a program."""

    def run(*values: jax.Array) -> Any:
        with compat.environment():
            return compat.as_jax(function(*map(compat.wrap, values)))

    return compat.to_torch(jax.jit(run)(*map(to_jax, arrays)))


def cut(x: torch.Tensor) -> torch.Tensor:
    """As transformers cuts the features of images: by numbers that are tensors."""
    sizes = [(height // 1, width // 1) for height, width in SIZES]
    parts = x.split([height * width for height, width in sizes])
    grids = [part.view(h, w, 2).sum(0) for part, (h, w) in zip(parts, sizes, strict=True)]
    return torch.cat([grid.reshape(w, 2) for grid, (_, w) in zip(grids, sizes, strict=True)])


def test_sizes_may_be_tensors_of_the_host() -> None:
    x = torch.arange(12.0).view(6, 2)
    torch.testing.assert_close(traced(cut, x), cut(x), rtol=0, atol=0)


def select(x: torch.Tensor) -> torch.Tensor:
    """As speech encoders take the valid frames of each recording."""
    lengths = SIZES.prod(-1).to(x.device)
    valid = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return torch.cat(x[valid].split(torch.as_tensor(lengths, device=x.device).tolist()))


def test_integers_keep_their_values_where_inputs_decide_shapes() -> None:
    x = torch.randn(2, 5, 3)
    with compat.host_tensors_as_constants():
        torch.testing.assert_close(traced(select, x), select(x), rtol=0, atol=0)
    with pytest.raises(jax.errors.NonConcreteBooleanIndexError):
        traced(select, x)


def pool(x: torch.Tensor) -> torch.Tensor:
    """As Gemma 4 drops the empty cells of an image, and Qwen2.5-Omni divides recordings into chunks."""
    places = torch.nn.functional.one_hot(SIZES.cumsum(-1), x.shape[1])
    chunks = torch.full((SIZES[0].sum() // 2 + 1,), 2, dtype=torch.long, device=SIZES.device)
    chunks[-1] = 0
    parts = x[torch.logical_not((places == 0).all(dim=1))].split(chunks.tolist())
    return torch.cat(parts)


def test_what_follows_from_the_host_has_values() -> None:
    x = torch.randn(2, 5, 3)
    with compat.host_tensors_as_constants():
        torch.testing.assert_close(traced(pool, x), pool(x), rtol=0, atol=0)


def count_tokens(x: torch.Tensor) -> torch.Tensor:
    """As Qwen2.5-VL gives a video's tokens positions: frames by the seconds between them, rows by the grid."""
    frames = (torch.arange(2, device=x.device) * x[0, 0]).long()
    rows = torch.arange(3, device=x.device) + SIZES.max()
    return torch.stack(torch.meshgrid(frames, rows, indexing="ij")).reshape(2, -1) + x[1, 1].long()


def test_grids_of_coordinates_from_the_host_and_the_device() -> None:
    x = torch.full((2, 3), 2.5)
    with compat.host_tensors_as_constants():
        assert traced(count_tokens, x).tolist() == count_tokens(x).tolist()


def test_grids_of_several_dtypes_are_refused_as_in_torch() -> None:
    x = torch.arange(3.0)
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.meshgrid(x.to("jax"), x.double(), indexing="ij")


def test_a_selection_by_a_traced_mask_is_counted() -> None:
    x = torch.randn(4, 3)
    with compat.lazy_masked_selections():
        count = traced(lambda x: x[x[:, 0] > 0].numel(), x)
        assert int(count) == x[x[:, 0] > 0].numel()
        with pytest.raises(jax.errors.NonConcreteBooleanIndexError):
            traced(lambda x: torch.cat([x[x[:, 0] > 0]]), x)
        with pytest.raises(jax.errors.NonConcreteBooleanIndexError):
            traced(lambda x: x[x[:, 0] > 0].sum(), x)
        with pytest.raises(jax.errors.NonConcreteBooleanIndexError):
            traced(lambda x: (x[x[:, 0] > 0] + 1).sum(), x)
        with pytest.raises(jax.errors.NonConcreteBooleanIndexError):
            traced(lambda x: (x[x[:, 0] > 0] == 1).any(), x)
