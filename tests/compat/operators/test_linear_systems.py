import pytest
import torch

X = torch.randn(2, 4, 4)
Z = torch.randn(2, 4, 4, dtype=torch.complex64)
RIGHT = torch.randn(4, 3, dtype=torch.complex64)


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("matrix", [X, Z], ids=["real", "complex"])
def test_solution_by_lu(agree, matrix, left, adjoint):
    def solution(factors, pivots, right):
        right = right if left else right.mT
        solution = torch.linalg.lu_solve(factors, pivots, right, left=left, adjoint=adjoint)
        return torch.view_as_real(solution + 0j)

    right = RIGHT if matrix.is_complex() else RIGHT.real
    agree(solution, *torch.linalg.lu_factor(matrix), right, tolerance=1e-3, eager=False)


@pytest.mark.filterwarnings("ignore:torch.lu_solve is deprecated")
def test_older_solution_by_lu(agree):
    def solution(right, factors, pivots):
        return torch.view_as_real(torch.lu_solve(right, factors, pivots))

    agree(solution, RIGHT, *torch.linalg.lu_factor(Z), tolerance=1e-3)


def test_logarithm_of_complex_determinants(agree):
    agree(lambda z: [torch.view_as_real(torch.logdet(z)), torch.view_as_real(z.logdet())], Z, tolerance=1e-4)


def test_logarithm_of_negative_determinants(agree):
    agree(torch.logdet, torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, 3.0]]]))


SHAPES = pytest.mark.parametrize("shape", [(3, 4), (4, 4), (5, 3)], ids=str)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)


def _least_squares(matrix, right, drivers):
    outputs = []
    for driver in drivers:
        solution, residuals, rank, values = torch.linalg.lstsq(matrix, right, driver=driver)
        outputs += [torch.view_as_real(solution + 0j), residuals, rank, values]
    return outputs


@SHAPES
@DTYPES
def test_least_squares(agree, shape, dtype):
    # Whether these have residuals depends on the rank, if there are more rows than columns.
    drivers = ["gels", "gelsy", None] if shape[0] > shape[1] else ["gels", "gelsy", "gelsd", "gelss"]
    tensors = torch.randn(2, *shape, dtype=dtype), torch.randn(2, shape[0], 2, dtype=dtype)
    agree(lambda x, y: _least_squares(x, y, drivers), *tensors, tolerance=1e-3, eager=False)


def test_least_squares_whose_residuals_depend_on_the_rank(agree):
    tensors = torch.randn(5, 3), torch.randn(5, 2)
    agree(lambda x, y: _least_squares(x, y, ["gelsd", "gelss"]), *tensors, tolerance=1e-3, jit=False)


def test_residuals_of_complex_numbers(agree):
    """Which torch computes by conjugates that it only marks."""
    tensors = torch.randn(4, 2, dtype=torch.complex64), torch.randn(4, 1, dtype=torch.complex64)
    agree(lambda x, y: torch.linalg.lstsq(x, y, driver="gels").residuals, *tensors, tolerance=1e-3)


def test_least_squares_of_less_than_full_rank(agree):
    def solution(matrix, right):
        return list(torch.linalg.lstsq(matrix, right, rcond=1e-3)[:3])

    low = torch.randn(5, 1) @ torch.randn(1, 3)
    agree(solution, low, torch.randn(5, 1), tolerance=1e-3, eager=False)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_systems_of_a_cholesky_factor(agree, upper, dtype):
    matrix = torch.randn(3, 3, 3, dtype=dtype)
    matrix = matrix @ matrix.mH + torch.eye(3)

    def solve(matrix, right):
        factor = torch.linalg.cholesky(matrix, upper=upper)
        return [
            torch.cholesky_solve(right, factor, upper),
            torch.cholesky_solve(right[0], factor, upper),
            torch.cholesky_inverse(factor, upper),
        ]

    agree(solve, matrix, torch.randn(3, 3, 2, dtype=dtype), tolerance=1e-3)


def test_no_systems_of_a_cholesky_factor(agree):
    agree(
        lambda right, factor: torch.cholesky_solve(right, factor, True),
        torch.ones(0, 3, 2),
        torch.ones(0, 3, 3),
    )


SYSTEMS = {
    "square": ((3, 3), (3, 3), True),
    "square on the right": ((3, 3), (3, 3), False),
    "wide on the right": ((3, 3), (2, 3), False),
    "vector": ((3, 3), (3,), True),
    "vectors": ((2, 3, 3), (2, 3), True),
    "stack of squares": ((3, 3, 3), (3, 3, 3), True),
    "one square for all": ((2, 1, 3, 3), (4, 3, 5), True),
    "none": ((0, 3, 3), (0, 3, 2), True),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_solutions(agree, name):
    of_matrix, of_right, left = SYSTEMS[name]

    def solve(matrix, right):
        return [
            torch.linalg.solve(matrix, right, left=left),
            *torch.linalg.solve_ex(matrix, right, left=left),
            torch.ops.aten._linalg_solve_ex(matrix, right, left=left)[0],
        ]

    agree(solve, torch.randn(of_matrix), torch.randn(of_right), tolerance=1e-3)


def test_singular_systems(agree):
    matrix, right = torch.tensor([[1.0, 2.0], [2.0, 4.0]]), torch.ones(2, 1)
    agree(lambda matrix, right: torch.linalg.solve_ex(matrix, right).info, matrix, right)
    with pytest.raises(RuntimeError, match="singular"):
        torch.linalg.solve(matrix.to("jax"), right.to("jax"))


def test_a_matrix_that_fits_no_vector_is_an_error():
    with pytest.raises(RuntimeError):
        torch.linalg.solve(torch.eye(3, device="jax"), torch.ones(1, 3, device="jax"))
