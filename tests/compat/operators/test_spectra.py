import jax
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec

import tpuport
from tpuport import compat

SIGNAL = torch.randn(2, 40)
OPTIONS = {
    "plain": {},
    "not centred": {"center": False},
    "normalized": {"normalized": True},
    "a longer signal": {"length": 44},
    "a shorter signal": {"length": 30},
    "hops": {"hop_length": 3},
}


def _window(size, device):
    return torch.hann_window(size, device=device) + 0.1


@pytest.mark.parametrize("name", OPTIONS)
def test_signal_of_a_spectrum(agree, name):
    def signal(spectrum):
        window = _window(8, spectrum.device)
        return torch.istft(torch.view_as_complex(spectrum), 8, window=window, **OPTIONS[name])

    stft = {key: value for key, value in OPTIONS[name].items() if key != "length"}
    spectrum = torch.stft(SIGNAL, 8, window=_window(8, "cpu"), return_complex=True, **stft)
    agree(signal, torch.view_as_real(spectrum), eager=name == "plain")


def test_complex_signal_and_short_window(agree):
    def signal(spectrum):
        window = _window(6, spectrum.device) + 0j
        result = torch.view_as_complex(spectrum).istft(
            8, win_length=6, window=window, onesided=False, return_complex=True
        )
        return torch.view_as_real(result)

    spectrum = torch.stft(SIGNAL + 0j, 8, win_length=6, window=_window(6, "cpu"), return_complex=True)
    agree(signal, torch.view_as_real(spectrum), jit=False)


def test_a_window_that_leaves_a_part_out_is_refused():
    spectrum = torch.stft(SIGNAL, 8, window=_window(8, "cpu"), return_complex=True)
    tensors = [compat.wrap(compat.to_jax(tensor)) for tensor in (spectrum, torch.zeros(8))]
    with compat.environment(), pytest.raises(RuntimeError, match="window overlap add"):
        torch.istft(tensors[0], 8, window=tensors[1])


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("transform", [torch.fft.fft, torch.fft.ifft, torch.fft.fft2])
def test_axes_of_one_element_on_each_device(transform, traced):
    mesh = tpuport.create_mesh(dp=2, tp=4)
    signal = torch.randn(3, 2, 4, dtype=torch.complex64)

    def run(x):
        with compat.environment(), compat.operators_on_mesh(mesh):
            return compat.as_jax(transform(compat.as_torch(x)))

    divided = jax.device_put(compat.to_jax(signal), NamedSharding(mesh, PartitionSpec(None, "dp", "tp")))
    result = jax.jit(run)(divided) if traced else run(divided)
    torch.testing.assert_close(compat.to_torch(result), transform(signal))
