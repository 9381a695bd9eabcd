"""Convolutions of every form, beside torch, on one device and with channels over several."""

from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from torch.nn import functional

import tpuport
from tpuport import compat

FORMS = {
    "groups": lambda x, w: functional.conv1d(x, w[..., 0], stride=2, padding=1, groups=4),
    "two dimensions": lambda x, w: functional.conv2d(x[..., None].expand(-1, -1, -1, 3), w, groups=4),
    "two outputs for a channel": lambda x, w: functional.conv1d(x, w[:, :1, :, 0].repeat(2, 1, 1), groups=16),
    "transposed": lambda x, w: functional.conv_transpose1d(x, w[..., 0], stride=2, groups=4),
    "transposed, dilated": lambda x, w: functional.conv_transpose1d(x, w[..., 0], stride=2, dilation=3),
    "strided": lambda x, w: functional.conv1d(
        x, w.repeat(1, 4, 1, 1)[..., 0], stride=3, padding=2, dilation=2
    ),
    "depthwise": lambda x, w: functional.conv1d(x, w[:, :1, :, 0], padding=1, groups=16),
}
X, WEIGHT = torch.randn(4, 16, 12), torch.randn(16, 4, 3, 1)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Callable, torch.Tensor, torch.Tensor, torch.Tensor | None, dict]:
    """A function of torch with its arguments."""
    torch.manual_seed(0)
    rank, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3]))
    channels, outputs = (groups * draw(st.integers(1, 3)) for _ in range(2))
    is_transposed = draw(st.booleans())
    kernel, stride, dilation = ([draw(st.integers(1, most)) for _ in range(rank)] for most in (3, 3, 2))
    padding = [draw(st.integers(0, size - 1)) for size in kernel]
    options: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    weight_shape = [outputs, channels // groups]
    if is_transposed:
        weight_shape = [channels, outputs // groups]
        options["output_padding"] = [
            draw(st.integers(0, max(sizes) - 1)) for sizes in zip(stride, dilation, strict=True)
        ]
    elif draw(st.booleans()):
        options |= {"stride": 1, "padding": draw(st.sampled_from(["same", "valid"]))}
    batch = draw(st.sampled_from([(), (2,)]))
    x = torch.randn(*batch, channels, *[draw(st.integers(5, 7)) for _ in range(rank)])
    bias = torch.randn(outputs) if draw(st.booleans()) else None
    name = f"conv_transpose{rank}d" if is_transposed else f"conv{rank}d"
    return getattr(functional, name), x, torch.randn(*weight_shape, *kernel), bias, options


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@settings(settings.get_profile("few"), deadline=None)
@given(convolutions())
def test_every_form_is_torchs(convolution: tuple) -> None:
    function, x, weight, bias, options = convolution
    expected = function(x, weight, bias, **options)
    with compat.environment():
        ours = function(*map(on_device, (x, weight, bias)), **options)
    torch.testing.assert_close(compat.to_torch(compat.as_jax(ours)), expected, rtol=1e-4, atol=1e-4)


REFUSED = {
    "padding": {"padding": -1},
    "stride": {"stride": 0},
    "dilation": {"dilation": 0},
    "groups": {"groups": 0},
    "output_padding": {"output_padding": -1},
    "output padding": {"output_padding": 2, "stride": 2},
    "channels": {"groups": 2},
    "bias": {"bias": torch.ones(1)},
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_what_torch_refuses(rank: int, name: str) -> None:
    x, weight = torch.ones(2, 3, *[4] * rank), torch.ones(3, 3, *[2] * rank)
    plain, transposed = getattr(functional, f"conv{rank}d"), getattr(functional, f"conv_transpose{rank}d")
    for function in [transposed] if "output" in name else [plain, transposed]:
        for place in (torch.Tensor.cpu, on_device):
            options = {key: place(value) if key == "bias" else value for key, value in REFUSED[name].items()}
            with compat.environment(), pytest.raises(RuntimeError):
                function(place(x), place(weight), **options)


def on_device(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else compat.as_torch(compat.to_jax(tensor))


@pytest.fixture(scope="module")
def mesh() -> jax.sharding.Mesh:
    return tpuport.create_mesh(dp=2, tp=4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("axes", "length"),
    [(("dp", "tp", None), 12), (("dp", None, "tp"), 12), (("dp", None, "tp"), 4)],
    ids=["channels", "positions", "one position each"],
)
@pytest.mark.parametrize("traced", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_divided_over_devices(
    mesh: jax.sharding.Mesh, form: str, axes: tuple, length: int, traced: bool
) -> None:
    def divided(tensor: torch.Tensor, *axes: str | None) -> jax.Array:
        return jax.device_put(compat.to_jax(tensor), NamedSharding(mesh, PartitionSpec(*axes)))

    def run(x: jax.Array, weight: jax.Array) -> jax.Array:
        with compat.environment(), compat.operators_on_mesh(mesh):
            return compat.as_jax(FORMS[form](compat.as_torch(x), compat.as_torch(weight)))

    x = X[..., :length]
    out = NamedSharding(mesh, PartitionSpec("dp", "tp"))
    call = jax.jit(run, out_shardings=out) if traced else run
    result = call(divided(x, *axes), divided(WEIGHT, "tp"))
    torch.testing.assert_close(compat.to_torch(result), FORMS[form](x, WEIGHT), rtol=1e-5, atol=1e-5)


class Grouped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv1d(8, 16, 3, padding=1, groups=4)
        self.second = torch.nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)).transpose(1, 2))


def test_a_model_whose_rules_divide_the_outputs(mesh: jax.sharding.Mesh) -> None:
    torch.manual_seed(0)
    model, x = Grouped(), torch.randn(4, 8, 12)
    expected = model(x)
    rules = {
        r"first\.weight": PartitionSpec("tp"),
        r"second\.weight": PartitionSpec(None, "tp"),
        ".*": PartitionSpec(),
    }
    ported = tpuport.port(model, mesh=mesh, rules=tpuport.ShardingRules(rules))
    torch.testing.assert_close(ported(x).cpu(), expected, rtol=1e-5, atol=1e-5)


def test_inferred_rules_leave_groups_whole() -> None:
    rules = tpuport.ShardingRules.infer(Grouped(), {"x": torch.randn(4, 8, 12)})
    assert not any("first" in pattern and axes and "tp" in axes for pattern, axes in rules.items())


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_no_input_channels(agree, batch, has_bias):
    """torch gives no output channels either, whatever the weight has."""
    image, weight = torch.ones(*batch, 0, 5, 5), torch.ones(4, 0, 2, 3)
    bias = torch.ones(4)
    agree(
        lambda image, weight, bias: functional.conv2d(image, weight, bias if has_bias else None, padding=1),
        image,
        weight,
        bias,
    )
