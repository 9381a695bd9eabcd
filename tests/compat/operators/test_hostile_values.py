"""NaN, infinities, zeros of both signs, denormals and empty sizes: operators of each family of torch's database.

Variations of its samples, as `benchmarks.operators --hostile` runs them for all operators; and what was wrong once.
"""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo

import tpuport
from benchmarks.operator_samples import database, record
from benchmarks.operator_table import verdict

NAN, INF = float("nan"), float("inf")
ROWS = torch.tensor(
    [
        [1.0, NAN, 3.0, NAN, 5.0],
        [2.0, 2.5, 1.0, 7.0, 7.5],
        [INF, -INF, 0.0, NAN, 2.0],
        [NAN] * 5,
        [-0.0, 1.0, -INF, 4.0, 3.0],
    ]
)
_ORDERED = {
    "sort",
    "argsort",
    "topk",
    "kthvalue",
    "median",
    "nanmedian",
    "msort",
    "cummax",
    "cummin",
    "searchsorted",
}


def _families():
    """The names of operators that compute element by element, of those that reduce, and of those that order."""
    of_kind = {kind: [] for kind in (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo)}
    for name, info in database().items():
        for kind, names in of_kind.items():
            if isinstance(info, kind) and not name.startswith("special."):
                names.append(name)
    return [*of_kind.values(), sorted(_ORDERED)]


# Of each family a few, spread over all: the benchmark has the others.
_SAMPLED = [name for names in _families() for name in names[3 :: max(1, len(names) // 4)][:4]]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in _SAMPLED else [pytest.mark.slow])
        for name in sorted({name for names in _families() for name in names})
    ],
)
def test_a_family(name):
    entry = record(name, "float32", compiled=False, limit=1, hostile=True)
    assert verdict(entry) in {"equal", "explained", "dtype"}, entry


@pytest.mark.parametrize("function", [torch.median, torch.nanmedian])
def test_medians_and_their_places(function, agree):
    """The places too, which torch leaves open among equals alone: none of these rows has two middle elements."""
    agree(lambda x: (*function(x[:3], 1), *function(x[4:], 1, True), function(x)), ROWS)
    agree(lambda x: (*torch.median(x, 1), *torch.median(x, 0)), ROWS)
    agree(lambda x: (function(x), *function(x, 1)), ROWS.new_zeros(0, 5))


@pytest.mark.parametrize("function", [torch.sign, torch.sgn])
def test_signs(function, agree):
    agree(lambda x: (function(x), 1 / function(x)), ROWS)


def test_places_of_pooled_elements(agree):
    """Of several NaN the last, of several others the first."""
    image = torch.stack([ROWS, ROWS.flip(0), ROWS.T])
    agree(
        lambda x: (
            *F.max_pool2d(x, 2, 1, return_indices=True),
            *F.adaptive_max_pool2d(x, 2, return_indices=True),
            *F.max_pool1d(x, 3, 2, padding=1, return_indices=True),
        ),
        image,
    )


def test_limits_of_the_incomplete_gamma_function(agree):
    values = torch.tensor([NAN, INF, -INF, 0.0, 1.0, 2.5, -1.0])
    agree(lambda a: (torch.special.gammainc(a[:, None], a), torch.special.gammaincc(a[:, None], a)), values)


def test_margins_beside_nan(agree):
    target = torch.tensor([[1, 0, -1, 2, 3]] * 5)
    agree(lambda x, target: F.multilabel_margin_loss(x, target, reduction="none"), ROWS, target)


def test_angles_of_denormals():
    """XLA divides one by the other; torch with denormals as 0 is the reference."""
    tiny = torch.tensor([1e-40, -1e-40, 0.0])
    zero = torch.tensor([0.0, -0.0, 0.0])
    angles = torch.atan2(tiny.to("jax")[:, None], tiny.to("jax"))
    assert torch.equal(tpuport.to_cpu(angles), torch.atan2(zero[:, None], zero))


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.svdvals,
        torch.linalg.svd,
        torch.linalg.eigh,
        torch.linalg.eig,
        torch.linalg.pinv,
        torch.cholesky,
    ],
)
def test_what_torch_refuses_is_refused(function):
    matrix = torch.rand(5, 5) + 5 * torch.eye(5)
    matrix[1], matrix[:, 1] = NAN, NAN
    with pytest.raises(RuntimeError) as torchs:
        function(matrix)
    with pytest.raises(RuntimeError) as ours:
        function(matrix.to("jax"))
    assert str(ours.value) == str(torchs.value)


@pytest.mark.parametrize("product", [lambda x, mask: x * mask, lambda x, mask: x * mask.to(x.dtype)])
def test_a_product_with_bools_is_a_selection_in_a_program(product):
    """XLA's, which `docs/habits.md` names; operation by operation it is torch's."""
    x, mask = torch.tensor([NAN, INF, 2.0, NAN]), torch.tensor([False, False, True, True])
    expected = product(x, mask)
    torch.testing.assert_close(tpuport.to_cpu(product(x.to("jax"), mask.to("jax"))), expected, equal_nan=True)
    compiled = tpuport.to_cpu(tpuport.compile(product)(x, mask))
    torch.testing.assert_close(compiled, torch.tensor([0.0, 0.0, 2.0, NAN]), equal_nan=True)
