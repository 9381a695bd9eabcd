import pytest
import torch

SINGULAR = torch.tensor(
    [[[1.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 0.0]], [[2.0, 0, 0], [0, 1, 0], [0, 0, 3]]]
)
INDEFINITE = torch.tensor(
    [[[2.0, 1.0, 0.0], [1.0, 2.0, 5.0], [0.0, 5.0, 1.0]], [[2.0, 1, 0], [1, 3, 1], [0, 1, 3]]]
)
CALLS = {
    "inverse": (torch.linalg.inv, SINGULAR),
    "inverse, asked": (lambda x: torch.linalg.inv_ex(x, check_errors=True), SINGULAR[0]),
    "solution": (lambda x: torch.linalg.solve(x, x), SINGULAR),
    "solution, asked": (lambda x: torch.linalg.solve_ex(x, x, check_errors=True), SINGULAR[0]),
    "factors": (torch.linalg.lu_factor, SINGULAR[0]),
    "Cholesky factor": (torch.linalg.cholesky, INDEFINITE),
    "Cholesky factor, asked": (lambda x: torch.linalg.cholesky_ex(x, check_errors=True), INDEFINITE[0]),
}


def test_what_failed_is_told(agree):
    agree(lambda x: torch.linalg.inv_ex(x).info, SINGULAR)
    agree(lambda x: torch.linalg.lu_factor_ex(x).info, SINGULAR)
    agree(lambda x: torch.linalg.cholesky_ex(x).info, INDEFINITE)
    agree(lambda x: torch.linalg.cholesky_ex(x, upper=True).info, INDEFINITE.to(torch.complex64))


@pytest.mark.parametrize("name", CALLS)
def test_failures_are_torchs_errors(name):
    function, matrix = CALLS[name]
    with pytest.raises(RuntimeError) as on_host:
        function(matrix)
    with pytest.raises(RuntimeError) as on_device:
        function(matrix.to("jax"))
    assert str(on_device.value).splitlines()[0] == str(on_host.value).splitlines()[0]


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_factors_and_inverses(agree, upper, dtype):
    matrix = torch.randn(2, 3, 3, dtype=dtype)
    matrix = matrix @ matrix.mH + torch.eye(3)
    agree(lambda x: [torch.linalg.cholesky(x, upper=upper), torch.linalg.inv(x)], matrix, tolerance=1e-4)
    for empty in (matrix[:0], matrix[:, :0, :0]):
        agree(lambda x: [torch.linalg.cholesky(x), torch.linalg.inv(x)], empty, eager=False)
