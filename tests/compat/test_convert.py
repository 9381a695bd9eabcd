import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tpuport
from tpuport import compat

NARROWED = {torch.int64: torch.int32, torch.float64: torch.float32, torch.complex128: torch.complex64}
DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.complex64, torch.complex128, torch.float8_e4m3fn,
    torch.float8_e5m2,
]  # fmt: skip


@pytest.fixture(autouse=True)
def enabled():
    """Nothing is, instead of what the other tests of this directory have: so no warning is filtered."""
    tpuport.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip(dtype, shape):
    tensor = torch.arange(6)[: int(np.prod(shape))].reshape(shape).to(dtype)
    array = compat.to_jax(tensor)
    assert array.shape == shape
    assert array.dtype == compat.jax_dtype(dtype)
    back = compat.to_torch(array)
    assert back.dtype == NARROWED.get(dtype, dtype) == compat.torch_dtype(array.dtype)
    assert torch.equal(back.to(torch.complex64), tensor.to(torch.complex64))


@settings(deadline=None)
@given(
    st.lists(st.floats(width=32), max_size=8), st.sampled_from([torch.bfloat16, torch.float16, torch.float32])
)
def test_every_float_keeps_its_bits(values, dtype):
    tensor = torch.tensor(values, dtype=torch.float32).to(dtype)
    torch.testing.assert_close(compat.to_torch(compat.to_jax(tensor)), tensor, rtol=0, atol=0, equal_nan=True)


def test_copies_share_no_memory():
    tensor = torch.zeros(1024, 64)
    array = compat.to_jax(tensor)
    tensor.fill_(1)
    assert not array.any()
    back = compat.to_torch(array)
    back.fill_(2)
    assert not array.any()


def test_any_layout():
    tensor = torch.arange(24).reshape(2, 3, 4).float()
    for laid_out in (
        tensor.transpose(0, 2),
        tensor[:, ::2],
        tensor.expand(5, 2, 3, 4),
        tensor.requires_grad_(),
    ):
        assert np.array_equal(compat.to_jax(laid_out), laid_out.detach().numpy())


@pytest.mark.parametrize("value", [2**31 - 1, -(2**31)])
def test_integers_that_fit(value):
    assert int(compat.to_jax(torch.tensor([value]))[0]) == value


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, torch.iinfo(torch.int64).max])
def test_integers_that_do_not_fit_are_refused(value):
    with pytest.raises(tpuport.PortError, match="do not fit into int32"):
        compat.to_jax(torch.tensor([0, value]))


def test_everything_keeps_its_width_under_x64():
    with jax.enable_x64(True):
        for dtype in (torch.int64, torch.float64):
            array = compat.to_jax(torch.tensor([2**40 if dtype == torch.int64 else 0.1], dtype=dtype))
            assert compat.torch_dtype(array.dtype) == dtype


def test_what_has_no_values_or_no_dtype_is_refused():
    with pytest.raises(tpuport.PortError, match="meta"):
        compat.to_jax(torch.zeros(2, device="meta"))
    with pytest.raises(tpuport.PortError, match="jax has no dtype"):
        compat.jax_dtype(torch.qint8)
    with pytest.raises(tpuport.PortError, match="torch has no dtype"):
        compat.torch_dtype(jnp.float8_e4m3b11fnuz)


def test_sharded_arrays_are_gathered():
    mesh = jax.make_mesh((8,), ("tp",), axis_types=(jax.sharding.AxisType.Auto,))
    array = jax.device_put(jnp.arange(16.0), jax.NamedSharding(mesh, jax.P("tp")))
    assert compat.to_torch(array).tolist() == list(range(16))


def test_views_copy_nothing():
    array = jnp.ones((2, 3))
    tree = {"a": array, "b": [array, 1, None], "c": "text", "d": np.ones(2)}
    tensors = compat.as_torch(tree)
    assert compat.is_ported(tensors["a"])
    assert tensors["a"].shape == (2, 3)
    assert (tensors["b"][1:], tensors["c"]) == ([1, None], "text")
    assert tensors["d"] is tree["d"]
    assert compat.as_jax(tensors)["b"][0] is array


def test_a_torchax_view_becomes_the_array_it_shows():
    with compat.environment():
        view = compat.wrap(jnp.arange(6))[2:4]
    assert compat.is_ported(view)
    assert compat.as_jax(view).tolist() == [2, 3]


def test_host_tensors_are_not_ported():
    host = torch.ones(2)
    assert not compat.is_ported(host)
    assert compat.as_jax([host])[0] is host
    assert not compat.is_ported(3)


def test_tracers_are_wrapped():
    @jax.jit
    def double(x):
        with compat.environment():
            return compat.as_jax(compat.wrap(x) * 2)

    assert double(jnp.ones(3)).tolist() == [2.0] * 3


def test_to_jax_of_a_ported_tensor_is_its_array():
    array = jnp.ones(3)
    assert compat.to_jax(compat.wrap(array)) is array


def test_whether_a_tensor_of_the_device_is_an_array_asks_nothing_of_torch():
    asked = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            asked.append(function)
            return function(*args, **(kwargs or {}))

    tensor = compat.wrap(jnp.ones(2))
    with Mode():
        assert compat.has_array_form(tensor)
    assert not asked
