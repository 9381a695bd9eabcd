import pytest
import torch

X = torch.rand(3, 4) + 0.1
# The factors are copies: of factors that share their memory with the result, torch makes what its BLAS makes of them.
IN_PLACE = {
    "acosh": lambda x: x.add_(1).acosh_(),
    "addbmm": lambda x: x.addbmm_(x[:, :2].clone()[None], x[:2].clone()[None]),
    "addmm": lambda x: x.addmm_(x[:, :2].clone(), x[:2].clone()),
    "atan2": lambda x: x.atan2_(x * 2),
    "clamp_max": lambda x: x.clamp_max_(x.mean()),
    "copysign": lambda x: x.copysign_(-x),
    "cumsum": lambda x: x.cumsum_(0),
    "digamma": lambda x: x.digamma_(),
    "fmod": lambda x: x.fmod_(0.3),
    "lgamma": lambda x: x.lgamma_(),
    "logit": lambda x: x.logit_(),
    "nan_to_num": lambda x: x.nan_to_num_(),
    "squeeze": lambda x: x.squeeze_(),
    "xlogy": lambda x: x.xlogy_(x),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(agree, name):
    agree(lambda x: IN_PLACE[name](x.clone()), X)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_do_not_overflow(agree, dtype):
    x = (torch.arange(12.0).reshape(3, 4) * 40).to(dtype)
    eps = torch.finfo(dtype).eps
    agree(
        lambda x: [x.norm(), torch.linalg.vector_norm(x, 3, dim=0), torch.dist(x, x.flip(0))],
        x,
        tolerance=2 * eps,
    )
    agree(torch.exp2, x / 100, tolerance=eps)


def test_a_view_is_written_through(agree):
    def call(x):
        x = x.clone()
        x[:, 1:].lgamma_()
        x[0].cumsum_(0)
        return x

    agree(call, X, jit=False)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.index_fill_(0, torch.tensor([0], device=x.device), 5.0),
        lambda x: x.index_add_(0, torch.tensor([0], device=x.device), x.clone()),
    ],
)
def test_a_number_is_indexed_in_place(agree, change):
    agree(lambda x: change(x.clone()), torch.tensor(2.5), jit=False)


def test_out_is_written(agree):
    def write(x, y):
        chosen, total, joined = (torch.zeros(size, device=x.device) for size in (6, 3, 6))
        results = [
            torch.add(x, y, out=total),
            torch.cat([x, y], out=joined),
            torch.mul(x, 2, out=joined[:3]),
            torch.maximum(x, y, out=x),
        ]
        return [chosen, total, joined, *results, x]

    agree(write, torch.randn(3), torch.randn(3))


OPERATORS_OF_TWO_RESULTS = {
    "max": lambda x, **out: torch.max(x, 0, **out),
    "sort": lambda x, **out: torch.sort(x, 0, **out),
    "topk": lambda x, **out: torch.topk(x, 2, 0, **out),
    "cummin": lambda x, **out: torch.cummin(x, 0, **out),
}


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
@pytest.mark.parametrize("name", OPERATORS_OF_TWO_RESULTS)
def test_two_results_are_written(agree, name):
    """The first into a part of a tensor."""
    operator = OPERATORS_OF_TWO_RESULTS[name]
    x = torch.tensor([3.0, 1.0, 2.0]).repeat(2, 1).T.contiguous()
    count = operator(x)[0].numel()

    def write(x):
        whole = torch.zeros(2 * count, device=x.device)
        values = whole[:count].view(operator(x)[0].shape)
        indices = torch.zeros(values.shape, dtype=torch.int64, device=x.device)
        return [*operator(x, out=(values, indices)), whole, indices]

    agree(write, x)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_out_of_another_size_is_resized(agree):
    def write(x, mask):
        out = torch.zeros(5, device=x.device)
        return torch.masked_select(x, mask, out=out), out

    agree(write, torch.randn(4), torch.tensor([True, False, True, True]), jit=False)


@pytest.mark.filterwarnings("ignore:float64 becomes float32")
def test_operators_without_a_default_overload(agree):
    agree(lambda x: torch.ops.aten.float_power(x, 3), torch.tensor([-1.0, 2.0]))


def test_an_operator_by_name_has_the_lowering_of_its_overload(agree):
    factor = torch.linalg.cholesky(torch.eye(3) + 1, upper=True)
    agree(lambda right, factor: torch.ops.aten.cholesky_solve(right, factor, True), torch.eye(3), factor)
    agree(torch.ops.aten._linalg_solve_ex, factor, torch.eye(3), eager=False)


@torch.library.custom_op("tpuport_tests::scaled_sine", mutates_args=())
def scaled_sine(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.sin(x) * scale


def test_functions_that_are_made_operators(agree):
    agree(lambda x: scaled_sine(x, 2.0), torch.tensor([-0.5, 2.5]))
