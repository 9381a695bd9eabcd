import functools

import pytest
import torch

import tpuport
from tpuport import compat

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


@pytest.mark.filterwarnings("ignore:torch.lu is deprecated")
def test_older_lu(agree):
    x = torch.randn(2, 4, 3)
    agree(lambda x: [*torch.lu(x), *x.lu(get_infos=True)], x)


def test_matrix_exp_of_halves():
    x = torch.randn(2, 3, 3).mul(0.3).bfloat16()
    with compat.environment():
        mine = torch.matrix_exp(compat.wrap(compat.to_jax(x)))
    # torch's own result for bfloat16 has other orders of magnitude.
    expected = torch.matrix_exp(x.float()).bfloat16()
    torch.testing.assert_close(compat.to_torch(mine.jax()), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("has_bias", [True, False])
def test_linear_by_the_names_of_its_arguments(agree, has_bias):
    def linear(x, weight, *bias):
        return torch.nn.functional.linear(input=x, weight=weight, bias=bias[0] if bias else None)

    bias = [torch.randn(4)] if has_bias else []
    agree(linear, torch.randn(2, 3), torch.randn(4, 3), *bias)
    agree(linear, torch.randn(5, 2, 3), torch.randn(3), *[item[0] for item in bias])


@pytest.mark.parametrize("width", [1, 2])
def test_linear_of_another_width_is_torchs_error(width):
    """A single number is not taken for all."""
    model = tpuport.port(torch.nn.Sequential(torch.nn.Linear(3, 4)))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.ones(2, width))


@pytest.mark.parametrize("some", [True, False])
def test_the_older_singular_value_decomposition(agree, some):
    def product(x):
        left, values, right = torch.svd(x, some=some)
        rebuilt = (left[..., :3] * values[..., None, :].to(x.dtype)) @ right[..., :3].mH
        return [rebuilt, x.svd(some).S, *torch.svd(x, compute_uv=False)]

    agree(product, torch.randn(2, 3, 4, dtype=torch.complex64), tolerance=1e-4)


RESULTS_WITH_NAMES = {
    "linalg.svd": torch.linalg.svd,
    "svd": torch.svd,
    "linalg.slogdet": torch.linalg.slogdet,
    "slogdet": torch.slogdet,
    "qr": torch.linalg.qr,
    "eigh": torch.linalg.eigh,
    "lu_factor": torch.linalg.lu_factor,
    "lu": functools.partial(torch.lu, get_infos=True),
    "max": lambda x: x.max(0),
    "median": lambda x: x.median(0),
    "mode": torch.mode,
    "cummax": lambda x: x.cummax(0),
    "kthvalue": lambda x: x.kthvalue(1),
    "frexp": torch.frexp,
    "aminmax": torch.aminmax,
}


@pytest.mark.parametrize("name", RESULTS_WITH_NAMES)
def test_results_are_named_as_in_torch(name):
    function, x = RESULTS_WITH_NAMES[name], X[0]
    assert type(function(x.to("jax"))) is type(function(x))


def test_a_result_whose_name_is_private_is_returned_from_compiled_code():
    result = tpuport.compile(functools.partial(torch.lu, get_infos=True))(X)
    assert type(result) is torch.return_types._lu_with_info


def test_qr_without_q(agree):
    agree(lambda x: torch.linalg.qr(x, mode="r")[0], X)
    agree(lambda x: torch.linalg.qr(x, mode="r").R.abs(), X)


def test_svd_into_given_tensors():
    """Also with a driver, which is an option for CUDA."""
    out = tuple(torch.empty(0, device="jax") for _ in range(3))
    result = torch.linalg.svd(X.to("jax"), driver="gesvd", out=out)
    torch.testing.assert_close(out[1].cpu(), torch.linalg.svdvals(X), rtol=1e-4, atol=1e-4)
    assert result.S is out[1]
