import pytest
import torch

import tpuport
from tpuport import compat

NUMBERS = torch.tensor([3, 0, 1, 3])
CASES = {
    "bincount": lambda n, w: torch.bincount(n),
    "bincount with weights": lambda n, w: torch.bincount(n, w),
    "bincount with integer weights": lambda n, w: n.bincount(n * 2, minlength=9),
    "bincount with half weights": lambda n, w: n.bincount(w.bfloat16()),
    "nonzero": lambda n, w: torch.nonzero(n),
    "nonzero of a matrix": lambda n, w: (n[:, None] * n).nonzero(),
    "nonzero of a number": lambda n, w: [torch.nonzero(n[0]), torch.nonzero(n[1])],
    "nonzero as a tuple": lambda n, w: n.nonzero(as_tuple=True),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees(agree, name):
    agree(CASES[name], NUMBERS, torch.rand(4), tolerance=1e-2, jit=False)


INDEX = torch.tensor([2, 0, 2])


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in (torch.bfloat16, torch.int64)),
        torch.bool,
    ],
)
def test_index_add(agree, dtype):
    def add(index, x, source):
        return [
            x.index_add(0, index, source),
            torch.index_add(x.T, -1, index, source.T, alpha=2 if x.dtype != torch.bool else 1),
            x.clone().index_add_(0, index, source),
            x[0, 0].index_add(0, index[1:2], source[0, 0]),
            x[0, 0].index_add(0, index[1], source[0, 0]),
        ]

    numbers = torch.randint(0, 9, (6, 4))
    agree(
        add,
        INDEX,
        numbers[:3].to(dtype) > 4 if dtype == torch.bool else numbers[:3].to(dtype),
        numbers[3:].to(dtype),
    )


def test_index_add_of_another_shape_is_refused():
    tensors = [compat.wrap(compat.to_jax(tensor)) for tensor in (torch.zeros(3, 2), INDEX, torch.ones(3, 1))]
    with compat.environment(), pytest.raises(RuntimeError, match="index_add"):
        tensors[0].index_add(0, *tensors[1:])


def test_masked_scatter(agree):
    agree(
        lambda n, w: [n.masked_scatter(w > 0.5, n * 10), torch.zeros_like(w).masked_scatter_(n > 0, w)],
        NUMBERS,
        torch.tensor([0.1, 0.9, 0.2, 0.7]),
    )


def test_masked_scatter_of_too_few_elements_is_torchs_error():
    """In compiled code, of a program that checks its indices."""
    x, mask = torch.zeros(4), torch.tensor([True, True, True, False])
    checked = tpuport.compile(torch.masked_scatter, check_indices=True)
    assert checked(x, mask, torch.ones(3)).tolist() == [1, 1, 1, 0]
    for source in (torch.ones(2), torch.ones(0)):
        for call in (torch.masked_scatter, checked):
            with pytest.raises(RuntimeError, match="Number of elements of source < number of ones in mask"):
                call(x.to("jax"), mask.to("jax"), source.to("jax"))


BAGS = torch.tensor([0, 2, 2]), torch.tensor([3, 0, 1, 3, 2]), torch.randn(4, 3)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("options", [{}, {"padding_idx": 3}, {"include_last_offset": True}])
def test_embedding_bag(agree, mode, options):
    offsets, *others = BAGS
    if "include_last_offset" in options:
        offsets = torch.tensor([0, 2, 5])  # the last is where the indices end
    agree(lambda o, n, w: torch.nn.functional.embedding_bag(n, w, o, mode=mode, **options), offsets, *others)


def test_embedding_bag_with_weights(agree):
    agree(
        lambda o, n, w, s: torch.nn.functional.embedding_bag(n, w, o, mode="sum", per_sample_weights=s),
        *BAGS,
        torch.rand(5),
    )


def test_nonzero_static(agree):
    agree(lambda x: torch.nonzero_static(x, size=4, fill_value=7), torch.tensor([[0, 1], [1, 0], [0, 3]]))
    agree(lambda x: torch.nonzero_static(x, size=2), torch.tensor([0, 1, 1, 1]))
    agree(
        lambda x: [torch.nonzero_static(x, size=2), torch.nonzero_static(x.sum(), size=2)], torch.ones(1, 0)
    )


@pytest.mark.parametrize("with_replacement", [True, False])
@pytest.mark.parametrize("r", [0, 1, 3])
def test_combinations(agree, r, with_replacement):
    agree(lambda x: torch.combinations(x, r, with_replacement), torch.arange(4.0))


@pytest.mark.parametrize("options", [{}, {"range": (-1.0, 0.5)}, {"density": True}], ids=str)
def test_histogram(agree, options):
    def counted(x, weight, edges):
        return [
            *torch.histogram(x, 7, weight=weight, **options),
            *torch.histogram(x, edges, density=options.get("density", False)),
        ]

    agree(counted, torch.randn(60), torch.rand(60), torch.tensor([-1.0, 0.0, 0.5, 2.0]))


@pytest.mark.parametrize("norm", [2.0, 1.0, 3.0, float("inf")])
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=str
)
def test_rows_are_scaled_to_a_norm(agree, dtype, norm):
    def look_up(ids, weight):
        weight = weight.clone()
        rows = torch.nn.functional.embedding(ids, weight, max_norm=1.0, norm_type=norm)
        return [rows, weight]

    agree(look_up, torch.tensor([[0, 2], [2, 3]]), torch.randn(5, 3).to(dtype), tolerance=1e-6)
