import pytest
import torch

from tpuport import compat

X = torch.randn(7, 3)
LENGTHS = torch.tensor([2, 0, 5])


@pytest.mark.parametrize("initial", [None, 2.0])
def test_rows_by_lengths(agree, initial):
    def reduced(x, n):
        names = ("sum", "mean", "prod", "max", "min")
        return [torch.segment_reduce(x, name, lengths=n, initial=initial) for name in names]

    agree(reduced, X, LENGTHS, eager=False)


def test_rows_by_offsets(agree):
    agree(lambda x, ends: torch.segment_reduce(x, "sum", offsets=ends), X, torch.tensor([1, 1, 4, 6]))


def test_another_axis(agree):
    lengths = torch.tensor([[1, 2], [3, 0], [2, 1]])
    agree(
        lambda x, n: torch.segment_reduce(x, "mean", lengths=n, axis=1),
        torch.randn(3, 3, 2),
        lengths,
        eager=False,
    )


def test_nan_wins(agree):
    x = torch.tensor([1.0, float("nan"), 3.0])
    agree(lambda x, n: torch.segment_reduce(x, "max", lengths=n), x, torch.tensor([2, 1]))


def test_lengths_of_another_sum_are_refused():
    tensors = [compat.wrap(compat.to_jax(tensor)) for tensor in (X, LENGTHS[:2])]
    with compat.environment(), pytest.raises(RuntimeError, match="sum to"):
        torch.segment_reduce(tensors[0], "sum", lengths=tensors[1])
