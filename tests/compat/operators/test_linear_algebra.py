import pytest
import torch

from tpuport import compat
from tpuport.errors import PortError

X = torch.randn(2, 4, 4)


@pytest.mark.parametrize("triangle", ["L", "U"])
def test_eigenvalues_are_of_one_triangle(agree, triangle):
    agree(lambda x: torch.linalg.eigvalsh(x, UPLO=triangle), X)


@pytest.mark.parametrize(
    "options", [{}, {"hermitian": True}, {"atol": 1.0}, {"rtol": 0.5}, {"atol": 0.1, "rtol": 0.2}]
)
def test_pseudo_inverse(agree, options):
    agree(lambda x: torch.linalg.pinv(x, **options), X, tolerance=1e-3)
    if "hermitian" not in options:
        agree(lambda x: torch.linalg.pinv(x[:, :, :3], **options), X, tolerance=1e-3)


@pytest.mark.parametrize("triangle", ["L", "U"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_eigenvectors(agree, triangle, dtype):
    def product(x):
        values, vectors = torch.linalg.eigh(x, UPLO=triangle)
        return values, torch.view_as_real((vectors * values[..., None, :] @ vectors.mH) + 0j)

    agree(product, X.to(dtype) + (0.5j * X.mT if dtype.is_complex else 0), tolerance=1e-4, jit=False)


def test_logarithm_of_the_determinant(agree):
    agree(lambda x: [*torch.linalg.slogdet(x), x.logdet().nan_to_num(), x.det()], X, tolerance=1e-4)


def test_symmetric_factors_of_complex_numbers_are_refused():
    x = compat.wrap(compat.to_jax(X.to(torch.complex64)))
    with compat.environment(), pytest.raises(PortError, match="ldl_factor"):
        torch.linalg.ldl_factor(x)
