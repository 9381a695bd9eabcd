"""Every form of torch that takes a device, with every name of one: where the tensor is, or the error and its remedy."""

import numpy as np
import pytest
import torch
import torch.signal.windows

import tpuport
from tpuport import PortError, compat

# Functions of a device. They give three numbers if nothing else matters.
CONSTRUCTORS = {
    "zeros": lambda device: torch.zeros(3, device=device),
    "ones": lambda device: torch.ones(3, device=device),
    "empty": lambda device: torch.empty(3, device=device),
    "full": lambda device: torch.full((3,), 1.5, device=device),
    "arange": lambda device: torch.arange(3, device=device),
    "linspace": lambda device: torch.linspace(0, 1, 3, device=device),
    "logspace": lambda device: torch.logspace(0, 1, 3, device=device),
    "eye": lambda device: torch.eye(3, device=device),
    "empty_strided": lambda device: torch.empty_strided((2, 3), (3, 1), device=device),
    "empty_permuted": lambda device: torch.empty_permuted((2, 3), (0, 1), device=device),
    "scalar_tensor": lambda device: torch.scalar_tensor(3.0, device=device),
    "tril_indices": lambda device: torch.tril_indices(3, 3, device=device),
    "triu_indices": lambda device: torch.triu_indices(3, 3, device=device),
    "hann_window": lambda device: torch.hann_window(4, device=device),
    "hamming_window": lambda device: torch.hamming_window(4, device=device),
    "bartlett_window": lambda device: torch.bartlett_window(4, device=device),
    "blackman_window": lambda device: torch.blackman_window(4, device=device),
    "kaiser_window": lambda device: torch.kaiser_window(4, device=device),
    "signal.windows": lambda device: torch.signal.windows.cosine(4, device=device),
    "fftfreq": lambda device: torch.fft.fftfreq(4, device=device),
    "rfftfreq": lambda device: torch.fft.rfftfreq(4, device=device),
    "tensor": lambda device: torch.tensor([1.0, 2.0], device=device),
    "as_tensor": lambda device: torch.as_tensor([1.0, 2.0], device=device),
    "as_tensor of NumPy": lambda device: torch.as_tensor(np.ones(3, np.float32), device=device),
    "asarray": lambda device: torch.asarray([1.0, 2.0], device=device),
    "Parameter": lambda device: torch.nn.Parameter(torch.zeros(3, device=device), requires_grad=False),
}
DRAWS = {
    "rand": lambda device: torch.rand(3, device=device),
    "randn": lambda device: torch.randn(3, device=device),
    "randint": lambda device: torch.randint(5, (3,), device=device),
    "randperm": lambda device: torch.randperm(3, device=device),
    "normal": lambda device: torch.normal(0.0, 1.0, (3,), device=device),
}
# Functions of a tensor on the device and of a device.
LIKE_A_TENSOR = {
    "zeros_like": lambda y, device: torch.zeros_like(y, device=device),
    "ones_like": lambda y, device: torch.ones_like(y, device=device),
    "ones_like input=": lambda y, device: torch.ones_like(input=y, device=device),
    "empty_like": lambda y, device: torch.empty_like(y, device=device),
    "full_like": lambda y, device: torch.full_like(y, 2.0, device=device),
    "zeros_like of a dtype": lambda y, device: torch.zeros_like(y, dtype=torch.float16, device=device),
    "new_zeros": lambda y, device: y.new_zeros(3, device=device),
    "new_zeros of a size": lambda y, device: y.new_zeros((2, 3), device=device),
    "new_ones": lambda y, device: y.new_ones(3, device=device),
    "new_full": lambda y, device: y.new_full((3,), 2.0, device=device),
    "new_empty": lambda y, device: y.new_empty(3, device=device),
    "new_empty_strided": lambda y, device: y.new_empty_strided((2, 3), (3, 1), device=device),
    "new_tensor": lambda y, device: y.new_tensor([1.0, 2.0], device=device),
}
DRAWS_LIKE = {
    "rand_like": lambda y, device: torch.rand_like(y, device=device),
    "randn_like": lambda y, device: torch.randn_like(y, device=device),
    "randint_like": lambda y, device: torch.randint_like(y, 5, device=device),
}
# What copies values.
CONVERSIONS = {
    "to": lambda y, device: y.to(device),
    "to device=": lambda y, device: y.to(device=device),
    "to a dtype": lambda y, device: y.to(device, torch.float16),
    "to dtype=": lambda y, device: y.to(device=device, dtype=torch.float16),
    "to copy=": lambda y, device: y.to(device, copy=True),
    "to non_blocking=": lambda y, device: y.to(device, non_blocking=True),
    "cuda": lambda y, device: y.cuda() if str(device).startswith("cuda") else y.to(device),
}
# torch itself reads a device of these before it sees the tensor.
COPIES = {
    "as_tensor": lambda y, device: torch.as_tensor(y, device=device),
    "asarray": lambda y, device: torch.asarray(y, device=device),
    "tensor": lambda y, device: torch.tensor(y, device=device),
    "to a tensor": lambda y, device: y.to(torch.zeros(2, device=device)),
    "type_as": lambda y, device: y.type_as(torch.zeros(2, device=device)),
}
OF_A_TENSOR = LIKE_A_TENSOR | DRAWS_LIKE | CONVERSIONS

ON_DEVICE = ["jax", "jax:0", torch.device("privateuseone"), 0]
HOST = ["cpu", torch.device("cpu")]
CUDA = ["cuda", "cuda:0", torch.device("cuda")]

X = torch.arange(15.0).reshape(5, 3)


@pytest.fixture(scope="module")
def y():
    return X.to("jax")


def place(tensor):
    return "jax" if compat.is_ported(tensor) else tensor.device.type


def assert_as_torch(result, expected):
    """Same shape and dtype; float64 counts as float32."""
    assert result.shape == expected.shape
    narrow = {torch.float64: torch.float32}
    assert narrow.get(result.dtype, result.dtype) == narrow.get(expected.dtype, expected.dtype)


def compiled(construct, devices):
    """Where a form makes its tensors in compiled code, and the tensors without values."""
    places, tensors = [], []

    def call(y):
        for device in devices:
            result = construct(y, device)
            places.append(place(result))
            tensors.append(torch.empty(result.shape, dtype=result.dtype, device="meta"))
        return y

    tpuport.compile(call)(X)
    return places[-len(devices) :], tensors[-len(devices) :]


# torch advises against torch.tensor of a tensor.
pytestmark = pytest.mark.filterwarnings("ignore:To copy construct from a tensor")


class TestConstructors:
    @pytest.mark.parametrize("form", CONSTRUCTORS | DRAWS)
    def test_operation_by_operation(self, form):
        construct = (CONSTRUCTORS | DRAWS)[form]
        expected = construct(None)
        for device in (*ON_DEVICE, *HOST, None, "meta"):
            result = construct(device)
            kind = "jax" if device in ON_DEVICE else str(device or "cpu")
            assert place(result) == kind, device
            assert_as_torch(result, expected)
            if form not in DRAWS and "empty" not in form and kind != "meta":
                torch.testing.assert_close(result.cpu(), expected, check_dtype=False)
        for device in CUDA:
            with pytest.raises(PortError, match=r'no GPU here(?s:.)*x\.to\("jax"\)'):
                construct(device)

    def test_in_compiled_code(self):
        """The GPU that code names is the device there; the host draws nothing."""
        devices = [*ON_DEVICE, *CUDA, *HOST, None, "meta"]
        forms = [(form, device) for form in CONSTRUCTORS | DRAWS for device in devices]
        places, _ = compiled(lambda y, pair: (CONSTRUCTORS | DRAWS)[pair[0]](pair[1]), forms)
        for (form, device), where in zip(forms, places, strict=True):
            host = "jax" if form in DRAWS else "cpu"
            elsewhere = {"meta": "meta", None: host, "cpu": host, HOST[1]: host}
            assert where == elsewhere.get(device, "jax"), (form, device)

    @pytest.mark.parametrize("form", CONSTRUCTORS | DRAWS)
    def test_under_the_shim(self, form):
        construct = (CONSTRUCTORS | DRAWS)[form]
        with tpuport.gpu_shim(device="jax"):
            assert [place(construct(device)) for device in (*CUDA, 0)] == ["jax"] * 4
            assert place(construct("cpu")) == "cpu"


class TestOut:
    def test_constructors_write(self, y):
        out = torch.zeros(4, device="jax")
        torch.arange(-2, 0, out=out[2:])
        assert out.tolist() == [0, 0, -2, -1]
        assert torch.linspace(0, 1, 4, out=out) is out
        torch.testing.assert_close(out.cpu(), torch.linspace(0, 1, 4))

    def test_another_shape_is_refused(self, y):
        with pytest.raises(PortError, match=r"arange\(\) is to write \[3\] numbers"):
            torch.arange(3, out=torch.zeros(4, device="jax"))


class TestLikeATensor:
    @pytest.mark.parametrize("form", OF_A_TENSOR)
    def test_operation_by_operation(self, form, y):
        construct = OF_A_TENSOR[form]
        for device in (None, *ON_DEVICE, *CUDA, *HOST, "meta"):
            if device is None and form in CONVERSIONS:
                continue
            result, expected = (
                construct(y, device),
                construct(X, "cpu" if device is None or "cuda" in str(device) else device),
            )
            kind = str(device) if device in (*HOST, "meta") else "jax"
            assert place(result) == kind, device
            assert_as_torch(result, expected)
            if form not in DRAWS_LIKE and "empty" not in form and kind != "meta":
                torch.testing.assert_close(result.cpu(), expected.cpu())

    def test_in_compiled_code(self):
        forms = [(form, device) for form in OF_A_TENSOR for device in ("cuda", 0, "jax", "meta", "cpu")]
        forms = [(form, device) for form, device in forms if form not in CONVERSIONS or device != "cpu"]
        places, tensors = compiled(lambda y, pair: OF_A_TENSOR[pair[0]](y, pair[1]), forms)
        for (form, device), where, tensor in zip(forms, places, tensors, strict=True):
            host = "jax" if form in DRAWS_LIKE else "cpu"
            assert where == {"meta": "meta", "cpu": host}.get(str(device), "jax"), (form, device)
            assert_as_torch(tensor, OF_A_TENSOR[form](X, "cpu"))

    @pytest.mark.parametrize("form", CONVERSIONS)
    def test_compiled_code_has_no_values_for_the_host(self, form):
        with pytest.raises(PortError, match=r"(?s)needs values.*fix"):
            compiled(CONVERSIONS[form], ["cpu"])

    @pytest.mark.parametrize("form", OF_A_TENSOR | COPIES)
    def test_of_the_host(self, form):
        construct = (OF_A_TENSOR | COPIES)[form]
        assert [place(construct(X, device)) for device in (*ON_DEVICE, *HOST, "meta")] == [
            *["jax"] * 4, "cpu", "cpu", "meta",
        ]  # fmt: skip
        with pytest.raises(PortError, match="no GPU here"):
            construct(X, "cuda")

    def test_new_tensors_keep_the_device_of_another(self, y):
        """The form that portable code has."""
        assert place(torch.zeros(3, device=y.device)) == "jax"
        forms = [
            lambda x: torch.zeros(len(x), device=x.device),
            lambda x: x.new_zeros(3) + torch.ones_like(x)[0],
        ]
        assert compiled(lambda x, form: form(x), forms)[0] == ["jax"] * 2

    def test_a_view_keeps_its_strides(self, y):
        assert torch.zeros_like(y.t(), device="cpu").stride() == torch.zeros_like(X.t()).stride()


class TestCopies:
    @pytest.mark.parametrize("form", COPIES)
    def test_operation_by_operation(self, form, y):
        for device in (*ON_DEVICE, *HOST):
            result = COPIES[form](y, device)
            assert place(result) == ("cpu" if device in HOST else "jax"), device
            assert torch.equal(result.cpu(), X)
        with pytest.raises(PortError, match="no GPU here"):
            COPIES[form](y, "cuda")

    @pytest.mark.parametrize("form", COPIES)
    def test_in_compiled_code(self, form):
        devices = ("cuda", 0, "jax", "meta")
        assert compiled(COPIES[form], devices)[0] == ["jax", "jax", "jax", "meta"]
        with pytest.raises(PortError, match=r"needs values|numbers"):
            compiled(COPIES[form], ["cpu"])

    def test_of_a_tensor_without_a_device(self, y):
        assert place(torch.tensor(y)) == place(torch.as_tensor(y)) == "jax"
        assert compiled(lambda x, copy: copy(x), [torch.tensor, torch.as_tensor])[0] == ["jax"] * 2
