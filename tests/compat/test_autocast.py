"""torch.autocast of the device, against torch's own kernels for a GPU, which take fake tensors for a GPU's."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.autocast_test_lists import AutocastTestLists
from torch.utils import _pytree as pytree

import tpuport
from tpuport import compat
from tpuport.compat import autocast


def on_device(tensor):
    return compat.wrap(compat.to_jax(tensor))


X = torch.rand(4, 4) + 0.5
ROW, BATCH, IMAGE, FILTER = torch.rand(4), torch.rand(1, 4, 4), torch.rand(1, 2, 4, 4), torch.rand(3, 2, 1, 1)
INPUTS = (X, ROW, BATCH, IMAGE, FILTER)
# Each list by the ways in which people call it, of tensors of these shapes.
USES = {
    "linear": lambda x, row, batch, image, taps: [F.linear(x, x, row), F.linear(batch, x)],
    "matmul": lambda x, row, batch, image, taps: [
        x @ x,
        torch.matmul(x, row),
        x.mm(x),
        torch.bmm(batch, batch),
    ],
    "mixed": lambda x, row, batch, image, taps: [
        x @ x.float(),
        F.linear(x.float(), x.half()),
        x + x.float(),
    ],
    "einsum": lambda x, row, batch, image, taps: torch.einsum("ij,kj->ik", x, x),
    "addmm": lambda x, row, batch, image, taps: torch.addmm(x, x, x),
    "attention": lambda x, row, batch, image, taps: F.scaled_dot_product_attention(batch, batch, batch),
    "convolution": lambda x, row, batch, image, taps: F.conv2d(image, taps),
    "softmax": lambda x, row, batch, image, taps: [
        F.softmax(x, -1),
        x.log_softmax(-1),
        x.softmax(-1, torch.float16),
    ],
    "norms": lambda x, row, batch, image, taps: [F.layer_norm(x, (4,)), F.group_norm(image, 1), x.norm()],
    "more norms": lambda x, row, batch, image, taps: [
        F.normalize(x),
        F.rms_norm(x, (4,)),
        torch.linalg.norm(x),
    ],
    "sums": lambda x, row, batch, image, taps: [
        x.sum(),
        x.cumsum(0),
        x.prod(),
        x.mean(),
        x.sum(0, dtype=x.dtype),
    ],
    "powers": lambda x, row, batch, image, taps: [
        x**2,
        2**x,
        x.pow(3),
        x.exp(),
        x.log(),
        x.rsqrt(),
        x.sqrt(),
    ],
    "losses": lambda x, row, batch, image, taps: [
        F.mse_loss(x, x),
        F.l1_loss(x, x),
        F.smooth_l1_loss(x, x),
    ],
    "cross entropy": lambda x, row, batch, image, taps: F.cross_entropy(x, x),
    "logits": lambda x, row, batch, image, taps: F.binary_cross_entropy_with_logits(x, x),
    "kl": lambda x, row, batch, image, taps: F.kl_div(x, x, reduction="sum"),
    "cosine": lambda x, row, batch, image, taps: F.cosine_similarity(x, x),
    "distances": lambda x, row, batch, image, taps: [torch.cdist(x, x), torch.dist(x, x)],
    "interpolate": lambda x, row, batch, image, taps: F.interpolate(image, scale_factor=2, mode="bilinear"),
    "nearest": lambda x, row, batch, image, taps: F.interpolate(image, scale_factor=2),
    "widest": lambda x, row, batch, image, taps: [
        torch.addcmul(x, x, x.float()),
        torch.atan2(x, x),
        row.dot(row),
    ],
    "joined": lambda x, row, batch, image, taps: [torch.cat([x, x.float()]), torch.stack([x, x])],
    "others": lambda x, row, batch, image, taps: [
        F.gelu(x),
        x + x,
        x * 2,
        F.relu(x),
        x.sigmoid(),
        F.silu(x),
    ],
    "in place": lambda x, row, batch, image, taps: x.clone().exp_().add_(1),
}


def _dtypes(result):
    results = result if isinstance(result, list) else [result]
    return [one.dtype for one in results]


def _as_on_a_gpu(use, dtype, tensors, *, of_results=True):
    """The dtypes that torch's kernels for a GPU give, without values; or what `use` itself returns."""
    mode = FakeTensorMode()
    meta = [torch.empty_like(tensor, device="meta") for tensor in tensors]
    fakes = [FakeTensor(mode, tensor, torch.device("cuda:0")) for tensor in meta]
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        with mode:
            return _dtypes(use(*fakes)) if of_results else use(*fakes)
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torch.float16)


# Lists of operators decide for each dtype alike, but for those that take the widest.
BOTH_DTYPES = ("widest", "joined", "others", "in place")


@pytest.mark.parametrize(
    ("use", "input_dtype"),
    [
        pytest.param(
            use, dtype, marks=[pytest.mark.slow] if dtype == torch.bfloat16 and use not in BOTH_DTYPES else []
        )
        for use in USES
        for dtype in (torch.float32, torch.bfloat16)
    ],
    ids=str,
)
def test_dtypes_are_those_of_a_gpu(use, input_dtype):
    tensors = [tensor.to(input_dtype) for tensor in INPUTS]
    expected = _as_on_a_gpu(USES[use], torch.bfloat16, tensors)
    found = []

    def run(*arrays):
        with compat.environment(), torch.autocast("cuda", dtype=torch.bfloat16):
            found.extend(_dtypes(USES[use](*compat.as_torch(arrays))))

    # Traced: each operator would be compiled for its values, which nobody reads.
    jax.eval_shape(run, *map(compat.to_jax, tensors))
    assert found == expected


_REFUSED, _LACKING, _NO_ANSWER = "Unexpected floating ScalarType", "has no lowering", "no answer"


class Listed(NamedTuple):
    """A call of an operator from torch's own lists for its tests of autocast on a GPU."""

    function: Callable
    args: tuple
    kwargs: dict

    def result_dtypes(self, *tensors):
        """The dtypes of the results with these tensors in place of the call's, or why there are none."""
        remaining = iter(tensors)
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda _: next(remaining), (self.args, self.kwargs))
        try:
            results = pytree.tree_leaves(self.function(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - some kernels need a GPU, or a value, before they come to a dtype
            return next((text for text in (_REFUSED, _LACKING) if text in str(error)), _NO_ANSWER)
        return [one.dtype for one in results if isinstance(one, torch.Tensor)]

    def tensors(self, change):
        """The call's tensors, those of floating dtypes changed."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return [change(one) if one.is_floating_point() else one for one in tensors]


def _listed():
    lists = AutocastTestLists("cpu")
    places = [(torch, "torch"), (torch._C._nn, "nn"), (torch._C._linalg, "linalg"), (torch.Tensor, "methods")]
    for kind in ("fp16", "fp32", "need_autocast_promote", "expect_builtin_promote"):
        for module, prefix in places:
            for name, args, *rest in getattr(lists, f"{prefix}_{kind}", ()):
                # Not what nobody calls by name, nor the one call whose arguments torch has misspelled as a string.
                # A dtype stands in place of keywords in some lists.
                if not name.startswith(("cudnn", "_")) and isinstance(args, tuple):
                    kwargs = rest[0] if rest and isinstance(rest[0], dict) else {}
                    function = getattr(module, name)
                    yield Listed(function, tuple(args), kwargs)


_AS_LISTED, _NARROW, _WIDE = torch.Tensor.clone, torch.Tensor.bfloat16, torch.Tensor.float


@pytest.mark.filterwarnings("ignore:torch.chain_matmul", "ignore:Using torch.cross")
@pytest.mark.parametrize(
    ("region", "change"),
    [
        (torch.float32, _NARROW),
        *(
            # The same lists, which the first and the uses above go through.
            pytest.param(region, change, marks=pytest.mark.slow)
            for region in (torch.float32, torch.bfloat16, torch.float16)
            for change in (_AS_LISTED, _NARROW, _WIDE)
        ),
    ],
)
def test_torchs_own_lists(region, change):
    calls, found = [], []
    for call in _listed():
        tensors = call.tensors(change)
        expected = _as_on_a_gpu(call.result_dtypes, region, tensors, of_results=False)
        if expected != _NO_ANSWER:
            calls.append((call, tensors, expected))

    def run(*arrays):
        remaining = iter(compat.as_torch(arrays))
        with compat.environment(), torch.autocast("cuda", dtype=region):
            for call, tensors, _ in calls:
                found.append(call.result_dtypes(*(next(remaining) for _ in tensors)))

    jax.eval_shape(run, *(compat.to_jax(tensor) for _, tensors, _ in calls for tensor in tensors))
    differing = [
        (call.function.__name__, mine, torchs)
        for (call, _, torchs), mine in zip(calls, found, strict=True)
        if mine not in (torchs, _LACKING)
    ]
    assert not differing
    assert len(calls) > 80


def test_every_operator_that_torch_casts_is_in_a_list():
    lists = autocast._LOWER | autocast._FLOAT32 | autocast._FLOAT32_BY_DEFAULT | autocast._WIDEST
    listed = {name.removeprefix("aten::").split(".")[0] for name in autocast._operators()}
    assert listed - {"binary_cross_entropy"} <= lists
    # The first is no operator, and the others are not cast by every release of torch.
    assert lists - listed <= {"interpolate", "linalg_matrix_sqrth", "rms_norm"}


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.up, self.down = torch.nn.LayerNorm(4), torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

    def forward(self, x):
        return x + self.down(F.relu(self.up(self.norm(x))))


def test_values_are_those_of_autocast_on_the_cpu():
    """The lists of a CPU agree with those of a GPU about products."""
    model = Block()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = F.relu(model.up(X)), model.down(F.relu(model.up(X)))
    ported = tpuport.port(Block())
    with torch.autocast("cuda", dtype=torch.bfloat16):
        up = F.relu(ported.up(on_device(X)))
        result = up, ported.down(up)
    for one, other in zip(result, expected, strict=True):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(tpuport.to_cpu(one), other, rtol=0.01, atol=0.01)


def test_a_compiled_call_follows_the_region_around_it_and_inside():
    model = tpuport.port(Block())
    compiled = tpuport.compile(model.up)
    assert compiled(X).dtype == torch.float32
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert compiled(X).dtype == torch.bfloat16
        with torch.autocast("jax", enabled=False):
            assert compiled(X).dtype == torch.float32
    with torch.autocast("cuda", dtype=torch.float16):
        assert compiled(X).dtype == torch.float16
    assert compiled(X).dtype == torch.float32
    assert compiled.program.compilations == 3

    def region(x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model.up(x)

    assert tpuport.compile(region)(X).dtype == torch.bfloat16


def test_tensors_on_the_host_take_no_part():
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (X @ X).dtype == torch.float32
        assert not torch.is_autocast_enabled("cuda")
        with torch.autocast("cuda", enabled=False):
            assert (on_device(X) @ on_device(X)).dtype == torch.float32
        assert torch.equal(F.softmax(X, -1), X.softmax(-1))


def test_a_region_of_float32_widens_halves():
    """Video models compute rotary embeddings and norms of bfloat16 weights so."""
    model = tpuport.port(Block().bfloat16())
    narrow = X.bfloat16()
    compiled = tpuport.compile(model.up)
    with torch.autocast("cuda", dtype=torch.float32):
        eager, traced = model.up(on_device(narrow)), compiled(narrow)
    expected = Block().bfloat16().float().up(narrow.float())
    for result in (eager, traced):
        torch.testing.assert_close(tpuport.to_cpu(result), expected)


def test_a_dtype_that_the_device_lacks_is_refused():
    with pytest.raises(tpuport.PortError, match=r"torch\.float64, which the device does not have"):
        torch.autocast("cuda", dtype=torch.float64)
    assert not torch.autocast("cuda", dtype=torch.float64, enabled=False)._enabled


def test_what_torch_refuses_is_refused():
    with (
        torch.autocast("cuda", dtype=torch.bfloat16),
        pytest.raises(RuntimeError, match="unsafe to autocast"),
    ):
        F.binary_cross_entropy(on_device(X / 2), on_device(X / 2))


def test_it_is_torchs_own_when_disabled():
    tpuport.disable()
    try:
        with pytest.warns(UserWarning, match="Disabling"):
            assert torch.autocast("cuda").device == "cuda"
    finally:
        tpuport.enable()
