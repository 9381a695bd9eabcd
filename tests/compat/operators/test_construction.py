import numpy as np
import pytest
import torch

import tpuport
from tpuport import compat

DATA = {
    "float after integer": [1, 2.5],
    "integer after float": [1.5, 2],
    "integers": [1, 2, 3],
    "bools": [True, False],
    "bool then integer": [True, 2],
    "nested": [[1, 2], [3, 4.5]],
    "number": 3,
    "empty": [],
    "numpy": np.arange(3, dtype=np.int16),
    "numpy scalars": [np.int64(1), np.int64(2)],
}


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.int32])
@pytest.mark.parametrize("name", DATA)
def test_dtype_is_that_of_all_the_values(agree, name, dtype):
    data = DATA[name]
    agree(lambda x: torch.tensor(data, dtype=dtype, device=x.device), torch.zeros(1))
    agree(lambda x: x.new_tensor(data, dtype=dtype), torch.zeros(1))
    agree(lambda x: torch.as_tensor(data, dtype=dtype, device=x.device), torch.zeros(1))


def test_complex_numbers(agree):
    agree(lambda x: torch.tensor([1, 2j], device=x.device), torch.zeros(1))


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, torch.asarray])
def test_tensors_of_one_element_stand_for_numbers(agree, make):
    agree(lambda x: make([[x[0], 2.5], [x[1], 3]], device=x.device), torch.tensor([1.5, 2.0]))
    agree(lambda x: make([x[:1], x[1:]], device=x.device), torch.tensor([1.5, 2.0]))


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, torch.asarray])
def test_a_list_of_longer_tensors_is_refused(make):
    x = torch.ones(2)
    with pytest.raises(ValueError, match="only one element tensors"):
        make([x, x])
    for y in (x, x.to("jax")):
        with pytest.raises(ValueError, match="only one element tensors"):
            tpuport.compile(lambda x: make([x, x], device=x.device))(y)


def test_numbers_on_the_device_make_a_tensor_of_the_host():
    host = torch.tensor([1.5, 2.0])
    device = host.to("jax")
    for make in (
        lambda x: torch.tensor([x[0], x[1]]),
        lambda x: torch.tensor([[x[0], 2], [3, x[1]]], dtype=torch.float64),
        lambda x: torch.as_tensor([x[1]]),
        lambda x: host.new_tensor([x[0], x[1]]),
        lambda x: torch.FloatTensor([x[0], x[1]]),
    ):
        result = make(device)
        assert not compat.is_ported(result)
        torch.testing.assert_close(result, make(host), rtol=0, atol=0)
    on_device = torch.tensor([device[0], device[1]], device="jax")
    assert torch.equal(on_device.cpu(), host)
    with pytest.raises(RuntimeError, match="meta"):
        torch.empty((), device="meta").item()


MADE_BY_CLASS = {
    "sizes": lambda x: x + torch.Tensor(2, 3).fill_(0.5),
    "a shape": lambda x: x * torch.Tensor(x.shape).fill_(2),
    "nothing": lambda x: torch.cat([torch.Tensor(), x.flatten()]),
    "a tensor": lambda x: torch.Tensor(x) * 2,
}


@pytest.mark.parametrize("name", MADE_BY_CLASS)
def test_a_program_makes_tensors_by_their_class(name):
    x, make = torch.arange(6.0).reshape(2, 3), MADE_BY_CLASS[name]
    torch.testing.assert_close(tpuport.compile(make)(x.to("jax")).cpu(), make(x), rtol=0, atol=0)


def test_new_tensor_takes_the_dtype_of_its_model(agree):
    agree(lambda x: x.new_tensor([1, 2]), torch.zeros(1).bfloat16())


def test_as_tensor_returns_what_already_is_one():
    with compat.environment():
        ported = torch.ones(3, device="jax")
        assert torch.as_tensor(ported) is ported
        assert torch.as_tensor(ported, dtype=torch.int32).dtype == torch.int32


def test_numbers_beyond_32_bits_are_refused():
    with compat.environment(), pytest.raises(tpuport.PortError, match="do not fit into int32"):
        torch.tensor([2**40], device="jax")


def test_tensors_of_the_host_stay_on_the_host():
    with compat.environment():
        assert not compat.is_ported(torch.tensor([1, 2.5]))
        assert not compat.is_ported(torch.zeros(2).new_tensor([1.0]))


def test_integers_between_numbers_that_are_cut_off(agree):
    def spaces(start, end):
        like = {"dtype": torch.int64, "device": start.device}
        return [
            torch.linspace(4.3, -3, 50, **like),
            torch.linspace(start, -3, 50, **like),
            torch.linspace(start, end, 50, **like),
            torch.linspace(0, end, 50, **like),
            torch.logspace(0, end, 5, **like),
        ]

    agree(spaces, torch.tensor(4.3), torch.tensor(1.7), tolerance=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.complex64], ids=str)
def test_powers_between_tensors(agree, dtype):
    def powers(start, end):
        like = {"dtype": dtype, "device": start.device}
        spaces = [
            torch.logspace(start, end, 5, **like),
            torch.logspace(start, 3, 4, base=2.0, **like),
            torch.logspace(0, end, 4, **like),
        ]
        return [torch.view_as_real(space) if space.is_complex() else space for space in spaces]

    agree(powers, torch.tensor(0.0), torch.tensor(3.0), tolerance=1e-3 if dtype == torch.float16 else 1e-5)


@pytest.mark.parametrize("number", [300, -300, 300.7, float("inf"), float("nan")])
def test_numbers_that_do_not_fit_are_torchs_error(number):
    x = torch.zeros(2, dtype=torch.uint8, device="jax")
    for fill in (x.fill_, lambda number: x.__setitem__(0, number), lambda number: torch.full_like(x, number)):
        with pytest.raises(RuntimeError, match="without overflow"):
            fill(number)
    assert x.fill_(-1).tolist() == [255, 255]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_ranges_of_halves(agree, dtype):
    bounds = [(10_000,), (0.0, -8.000001, -4.0), (2.1, -2.9, -1.0), (3, 3), (100, 3000, 7)]

    def ranges(x):
        options = {"dtype": dtype, "device": x.device}
        named = torch.arange(start=1, end=600, step=2, **options)
        return [named, torch.arange(end=300, **options), *(torch.arange(*some, **options) for some in bounds)]

    # Torch's kernel for CPUs counts in bfloat16 from the start of each vector, unlike the one for GPUs.
    agree(ranges, torch.ones(1), tolerance=1e-2)
    with pytest.raises(RuntimeError, match="step"):
        torch.arange(1, 5, -1, dtype=dtype, device="jax")
