"""Torch code over tensors of host and device: the results are torch's own."""

import contextlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tpuport import compat, create_mesh
from tpuport.diffusion import mixed_devices
from tpuport.diffusion.mixed_devices import allow_mixed, suspend

SHAPE = (3, 4)


def device(tensor: torch.Tensor) -> torch.Tensor:
    return compat.wrap(compat.to_jax(tensor))


def floats(seed: int = 0, *shape: int) -> torch.Tensor:
    return torch.randn(shape or SHAPE, generator=torch.Generator().manual_seed(seed))


def equal(ours: Any, theirs: torch.Tensor) -> None:
    actual = mixed_devices.to_host(ours)
    assert actual.dtype == theirs.dtype
    torch.testing.assert_close(actual, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_an_operation_meets_a_host_tensor_on_the_device() -> None:
    host, other = floats(1), floats(2)
    with allow_mixed():
        actual = other * device(host) + 1
    assert compat.is_ported(actual)
    equal(actual, other * host + 1)


def test_outside_torch_refuses_what_inside_works() -> None:
    with pytest.raises(Exception, match="device"):
        torch.add(device(floats()), floats())


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[0, 0].item(),
        lambda x: float(x.sum()),
        lambda x: bool((x > 0).any()),
        lambda x: x.tolist(),
        lambda x: x.cpu().numpy(),
        lambda x: x.numpy(),
        lambda x: np.asarray(x),
        lambda x: f"{x[0, 1]:.3f}",
        lambda x: [row.sum().item() for row in x],
        lambda x: torch.equal(x, x.clone()),
        lambda x: x.size(),
        lambda x: x.argmax().item() in range(12),
        lambda x: list(range(int(x.shape[0]))),
    ],
)
def test_values_are_read_as_of_a_host_tensor(read: Callable[[torch.Tensor], Any]) -> None:
    host = floats(3)
    with allow_mixed():
        actual = read(device(host))
    expected = read(host)
    assert type(actual) is type(expected)
    np.testing.assert_allclose(actual, expected, rtol=1e-6) if not isinstance(actual, str) else None
    assert not isinstance(actual, str) or actual == expected


def test_moving_to_the_host_and_changing_the_type() -> None:
    host = floats(4)
    with allow_mixed():
        x = device(host)
        half, moved = x.to(torch.bfloat16), x.to("cpu", torch.bfloat16)
        like, same = x.to(host.double().half()), host.to(x)
        stored, by_name = x.to("jax"), x.to(device=torch.device("cpu"))
    assert compat.is_ported(half)
    assert compat.is_ported(like)
    assert compat.is_ported(stored)
    for actual in (moved, same, by_name):
        assert not compat.is_ported(actual)
    equal(half, host.to(torch.bfloat16))
    equal(moved, host.to(torch.bfloat16))
    equal(like, host.half())


def test_a_device_tensor_names_the_host_as_its_device_inside() -> None:
    x = device(floats())
    with allow_mixed():
        assert x.device == torch.device("cpu")
        assert x[0].device == torch.device("cpu")
        created = torch.zeros(2, device=x.device) + torch.full((2,), 3.0, device="jax")
        assert not compat.is_ported(created)
    assert x.device.type == "jax"


def test_random_numbers_are_torchs() -> None:
    x = device(floats())
    draws: list[Callable[[Any], torch.Tensor]] = [
        torch.randn_like,
        torch.rand_like,
        lambda like: torch.bernoulli(torch.full_like(like, 0.5)),
        lambda like: torch.randn(like.shape, device=like.device),
        lambda like: like.clone().normal_(),
    ]
    for draw in draws:
        torch.manual_seed(5)
        expected = draw(floats())
        torch.manual_seed(5)
        with allow_mixed():
            actual = draw(x)
        equal(actual, expected)


def write_into_device(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 0] = h[:, 1]
    y[h > 1] = 0.5
    y[1].mul_(h[0])
    y += h
    y[:2, 1:] = h[:2, 1:] - y[:2, 1:]
    return y


def write_into_host(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    y = h.clone()
    y[:, 1:] = x[:, 1:]
    y += x
    y.mul_(x[0])
    y[x > 0] = -1.0
    torch.add(y, x, out=y)
    return y


@pytest.mark.parametrize("program", [write_into_device, write_into_host])
def test_in_place_writes_go_where_the_written_tensor_is(program: Callable) -> None:
    x, h = floats(6), floats(7)
    with allow_mixed():
        actual = program(device(x), h)
    assert compat.is_ported(actual) is (program is write_into_device)
    equal(actual, program(x, h))
    torch.testing.assert_close(h, floats(7), rtol=0, atol=0)


def test_an_operation_without_a_lowering_runs_on_the_host(caplog: pytest.LogCaptureFixture) -> None:
    host = floats(8)
    mixed_devices._logged_functions.clear()
    with caplog.at_level("WARNING", "tpuport"), allow_mixed():
        for _ in range(2):
            actual = torch.fake_quantize_per_tensor_affine(device(host), 0.1, 0, 0, 255)
    equal(actual, torch.fake_quantize_per_tensor_affine(host, 0.1, 0, 0, 255))
    assert sum("fake_quantize" in record.getMessage() for record in caplog.records) == 1


def test_double_precision_is_on_the_host() -> None:
    host = floats(8)
    with allow_mixed():
        for actual in (
            device(host).double(),
            device(host).to(torch.float64),
            device(host).to(floats().double()),
        ):
            equal(actual, host.double())


def test_errors_are_torchs_own() -> None:
    with pytest.raises(RuntimeError, match="must match the size"), allow_mixed():
        device(floats()) + floats(0, 5)


def test_a_host_tensor_is_uploaded_once_and_again_after_a_write() -> None:
    host, x = floats(9), device(floats(10))
    with allow_mixed() as mode:
        first = mode.upload(host)
        assert mode.upload(host) is first
        host.mul_(2)
        assert mode.upload(host) is not first
        equal(x + host, floats(10) + 2 * floats(9))
        key = id(host)
        del host
        assert key not in mode._uploads


def test_integers_that_do_not_fit_stay_on_the_host() -> None:
    wide = torch.tensor([2**40, 1])
    with allow_mixed():
        actual = device(torch.tensor([1, 1])).to(torch.int64) + wide
    assert actual.tolist() == [2**40 + 1, 2]


def test_suspended_and_left_it_does_nothing() -> None:
    x = device(floats())
    with allow_mixed():
        assert mixed_devices.current_mode() is not None
        with suspend():
            assert mixed_devices.current_mode() is None
            assert x.device.type == "jax"
            with pytest.raises(Exception, match="device"):
                torch.add(x, floats())
    assert mixed_devices.current_mode() is None
    with contextlib.suppress(ValueError), allow_mixed():
        raise ValueError
    assert mixed_devices.current_mode() is None


def test_uploads_go_whole_to_every_device_of_a_mesh() -> None:
    mesh = create_mesh(dp=2, sp=2, tp=2)
    with allow_mixed(mesh) as mode:
        array = compat.as_jax(mode.upload(floats()))
    assert len(array.devices()) == 8
    assert array.is_fully_replicated


UNARY: list[Callable[[Any], Any]] = [
    lambda x: x.tanh(),
    lambda x: x.clamp(-1, 1),
    lambda x: x.transpose(0, 1).contiguous().t(),
    lambda x: x.reshape(4, 3).reshape(3, 4),
    lambda x: x.flip(0),
    lambda x: x.roll(1, 1),
    lambda x: x[torch.tensor([2, 0, 1])],
    lambda x: torch.cat(x.chunk(2, dim=1)[::-1], dim=1),
    lambda x: x - x.mean(1, keepdim=True),
    lambda x: x.to(torch.bfloat16).float(),
    lambda x: torch.nn.functional.interpolate(x[None, None], scale_factor=2.0)[0, 0, ::2, ::2],
    lambda x: torch.nn.functional.layer_norm(x, (4,)),
    lambda x: x.unsqueeze(0).expand(2, -1, -1).sum(0),
    lambda x: x.sort(dim=1).values,
    lambda x: x.masked_fill(x > 1, 0.25),
    lambda x: x.std(dim=0, keepdim=True) * x,
    lambda x: torch.stack(list(x)).clone(),
    lambda x: x / (x.norm() + 1e-3),
    lambda x: x.cumsum(1) * 0.1,
    lambda x: x * x[0, 0].item(),
]
BINARY: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y,
    lambda x, y: y - 0.5 * x,
    lambda x, y: torch.where(x > y, x, y),
    lambda x, y: x @ y.t() @ y * 0.1,
    lambda x, y: torch.lerp(x, y, 0.3),
    lambda x, y: x.addcmul(y, y, value=0.1),
    lambda x, y: torch.cat([x, y])[1:4],
    lambda x, y: x * y[0],
    lambda x, y: x.index_select(0, y.argsort(0)[:, 0]),
    lambda x, y: x + y[1, 2],
    lambda x, y: torch.minimum(x, y),
    lambda x, y: (x.double() + y.double()).float(),
]


def run_program(seed: int, to_device: Callable[[torch.Tensor, int], torch.Tensor]) -> torch.Tensor:
    """A few random operations on four tensors, each of them where `to_device` puts it."""
    draw = random.Random(seed)
    pool = [to_device(floats(seed + n), n) for n in range(4)]
    for _ in range(8):
        if draw.random() < 0.5:
            created = draw.choice(UNARY)(draw.choice(pool))
        else:
            created = draw.choice(BINARY)(draw.choice(pool), draw.choice(pool))
        pool[draw.randrange(4)] = created
    return sum(pool[1:], pool[0])


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 40))]
)
def test_random_programs_equal_torch(seed: int) -> None:
    expected = run_program(seed, lambda x, _: x)
    with allow_mixed():
        actual = run_program(seed, lambda x, n: device(x) if (seed >> n) % 2 or n == seed % 4 else x)
    torch.testing.assert_close(mixed_devices.to_host(actual), expected, rtol=2e-4, atol=2e-5, equal_nan=True)
