import pytest
import torch

from tpuport import compat
from tpuport.errors import PortError

X = torch.arange(12.0).reshape(3, 4)


def test_view_of_a_view_reads_the_memory_of_both(agree):
    def read(x):
        y = x.clone()
        row = y[1]
        return [row.as_strided((2, 2), (4, 1)), row.as_strided((3,), (1,), 0), y.T[1:].as_strided((2,), (5,))]

    agree(read, X)


def test_write_through_a_view_of_a_view(agree):
    def write(x):
        y = x.clone()
        column = y[:, 1]
        column.as_strided((2,), (5,), 2).mul_(10)
        return [y, column]

    agree(write, X)


def test_a_tensor_becomes_a_view_of_itself_and_what_it_was_again(agree):
    def become(x):
        y = x.clone()
        other = y[0]
        y.as_strided_((2, 2), (1, 4), 1)
        y.add_(100)
        shown = y.clone()
        return [shown, other, y.as_strided((12,), (1,), 0), y.as_strided_((2,), (3,))]

    agree(become, X)


def test_elements_that_share_memory_are_read_and_not_written(agree):
    agree(lambda x: x.clone().as_strided((3, 3), (1, 1)), X)
    y = compat.wrap(compat.to_jax(X))
    with compat.environment(), pytest.raises((RuntimeError, PortError)):
        y.as_strided((3, 3), (1, 1)).add_(1)


def test_memory_that_nothing_shows_is_refused():
    row = compat.wrap(compat.to_jax(X))[1].clone()
    with compat.environment(), pytest.raises((RuntimeError, PortError)):
        row.as_strided((5,), (1,))


def test_numbers_that_a_view_reads_otherwise_are_refused():
    z = compat.wrap(compat.to_jax(torch.randn(3, 2)))
    with compat.environment(), pytest.raises(PortError, match="of other numbers"):
        torch.view_as_complex(z).as_strided((2,), (1,))
