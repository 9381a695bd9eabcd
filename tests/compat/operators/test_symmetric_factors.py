import pytest
import torch

X = torch.randn(4, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
IS_LATE = torch.arange(4) > 1
MATRICES = torch.stack([
    X @ X.mH + torch.eye(4),  # definite
    X,
    X - X.diagonal().diag(),  # no pivot without an exchange
    X * IS_LATE * IS_LATE[:, None],  # zeros in the first columns
])  # fmt: skip
KINDS = pytest.mark.parametrize(
    ("dtype", "hermitian"),
    [(torch.float32, False), (torch.complex64, False), (torch.complex64, True)],
    ids=str,
)


def _of(dtype):
    return MATRICES if dtype.is_complex else MATRICES.real


@KINDS
def test_factors(agree, dtype, hermitian):
    def factors(x):
        factors, pivots, info = torch.linalg.ldl_factor_ex(x, hermitian=hermitian)
        return torch.view_as_real(factors + 0j), pivots, info

    agree(factors, _of(dtype), tolerance=1e-4, eager=False)


@KINDS
def test_solutions(agree, dtype, hermitian):
    def solution(factors, pivots, right):
        return torch.view_as_real(torch.linalg.ldl_solve(factors, pivots, right, hermitian=hermitian) + 0j)

    factors = torch.linalg.ldl_factor(_of(dtype)[:3], hermitian=hermitian)
    agree(solution, *factors, torch.randn(4, 3, dtype=dtype), tolerance=1e-3, eager=False)


def test_eager_solution_of_what_the_device_factored(agree):
    def solution(x, right):
        return torch.linalg.ldl_solve(*torch.linalg.ldl_factor(x), right)

    agree(solution, MATRICES.real[:3], torch.randn(3, 4, 1), tolerance=1e-3, jit=False)


def test_no_matrix(agree):
    agree(lambda x: list(torch.linalg.ldl_factor_ex(x)), MATRICES.real[:0])
