import pytest
import torch

X = torch.randint(-5, 5, (3, 4))
INDEX = torch.tensor([[0, 2, 2, 1], [2, 2, 0, 0]])
SOURCE = torch.randint(-5, 5, (3, 5))
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool]


# What is in the tensor already is left out in the same way for each dtype.
@pytest.mark.parametrize(
    ("dtype", "include_self"),
    [
        pytest.param(
            dtype,
            include_self,
            # int8 as int64, and what is there already as in float32.
            marks=[pytest.mark.slow] if dtype == torch.int8 or (include_self and dtype in DTYPES[1:]) else [],
        )
        for dtype in DTYPES
        for include_self in (True, False)
    ],
)
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(agree, dtype, reduce, include_self):
    if dtype == torch.bool and reduce == "mean":
        pytest.skip("torch has no mean of bools")

    def call(x, index, source):
        return [
            x.scatter_reduce(0, index, source, reduce, include_self=include_self),
            x.clone().scatter_reduce_(-1, index.clamp(max=1), source, reduce, include_self=include_self),
            x[0, 0].scatter_reduce(0, index[0, :1], source[0, :1], reduce, include_self=include_self),
        ]

    agree(call, X.to(dtype), INDEX, SOURCE.to(dtype), tolerance=2e-2, eager=False)


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter(agree, dtype):
    agree(
        lambda x, index, source: [
            x.scatter_add(0, index, source),
            x.scatter(0, index, source, reduce="multiply"),
            x.scatter(1, index, 1, reduce="add"),
            x.scatter(0, index[:1], source),
        ],
        X.to(dtype),
        INDEX,
        SOURCE.to(dtype),
        eager=False,
    )


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.int64, marks=pytest.mark.slow)], ids=str)
def test_index_reduce(agree, dtype, reduce, include_self):
    def reduced(x, index, source):
        by_method = x.index_reduce(1, index, source, reduce, include_self=include_self)
        return by_method, x.clone().index_reduce_(1, index, source, reduce, include_self=include_self)

    x, source = (torch.randn(2, 4).mul(9).to(dtype) for _ in range(2))
    agree(reduced, x, torch.tensor([1, 3, 1, 1]), source)


def test_index_put_of_bools_that_add_up(agree):
    def put(x, index, values):
        return x.index_put((index,), values, accumulate=True)

    agree(
        put, torch.tensor([True, False, False]), torch.tensor([1, 2, 1]), torch.tensor([False, False, True])
    )


def test_index_put_of_bools_by_a_mask(agree):
    def put(x, mask, values):
        return x.index_put((mask,), values, accumulate=True)

    agree(put, torch.tensor([True, False, False]), torch.tensor([True, True, False]), torch.tensor(True))


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64], ids=str)
def test_put(agree, dtype, accumulate):
    def put(x, index, source):
        results = x.put(index, source, accumulate), x.clone().put_(index, source, accumulate)
        return [torch.view_as_real(result) if result.is_complex() else result for result in results]

    # Twice the same place, of which torch leaves open which is written last.
    index = torch.tensor([[5, -1], [0, 5 if accumulate else 4]])
    agree(put, torch.zeros(2, 3).to(dtype), index, torch.tensor([[1, 2], [1, 4]]).to(dtype))


def test_indices_that_a_mask_lets_lie_outside(agree):
    get = torch.ops.aten._unsafe_masked_index
    put = torch.ops.aten._unsafe_masked_index_put_accumulate

    def index(x, mask, rows, columns, values):
        return [
            get(x, mask, [rows, columns], -5.0),
            get(x.long(), mask, [None, columns], 7),
            put(x, mask, [rows, columns], values),
            put(x, mask[:, None], [rows], values[:, None].expand(3, 5)),
        ]

    mask, rows, columns = (
        torch.tensor([True, False, True]),
        torch.tensor([-1, 9, 3]),
        torch.tensor([1, -7, -1]),
    )
    agree(index, torch.arange(20.0).reshape(4, 5), mask, rows, columns, torch.tensor([10.0, torch.nan, 30.0]))


def test_a_masked_index_of_an_empty_tensor(agree):
    index = [torch.tensor([[1], [0]]), torch.tensor([[4, 2, 0]])]

    def read(x, mask, rows, columns):
        return [
            torch.ops.aten._unsafe_masked_index(x, mask, [rows, columns], 7),
            torch.ops.aten._unsafe_masked_index(x, mask[0], [None, columns[0]], 7),
        ]

    agree(read, torch.ones(0, 0), torch.zeros(2, 3, dtype=torch.bool), *index)
