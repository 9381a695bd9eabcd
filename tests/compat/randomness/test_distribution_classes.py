import jax
import numpy as np
import pytest
import scipy.stats
import torch

import tpuport
from tpuport import compat
from tpuport.compat.randomness.distribution_classes import angles


@pytest.mark.parametrize("concentration", [1e-4, 0.49, 0.51, 4.0, 1e6])
def test_distribution(concentration):
    drawn = angles(jax.random.key(1), (20_000,), np.float32(0.0), np.float32(concentration))
    reference = scipy.stats.vonmises(concentration)
    assert scipy.stats.kstest(np.asarray(drawn, np.float64), reference.cdf).pvalue > 1e-3


def test_sample_of_a_program():
    @tpuport.compile
    def draw(location, concentration):
        return torch.distributions.VonMises(location, concentration).sample((2000,))

    location, concentration = torch.tensor([3.0, 0.5]), torch.tensor([50.0, 5.0])
    first, second = draw(location, concentration).cpu(), draw(location, concentration).cpu()
    assert not torch.equal(first, second)
    assert first.dtype == torch.float32
    assert bool((first.abs() <= torch.pi + 1e-6).all())
    mean = torch.atan2(first.sin().mean(0), first.cos().mean(0))
    torch.testing.assert_close(mean, location, atol=0.05, rtol=0)


def test_sample_on_the_host_is_torchs():
    def draw():
        torch.manual_seed(3)
        return torch.distributions.VonMises(0.0, 1.0).sample((3,))

    mine = draw()
    tpuport.disable()
    torch.testing.assert_close(mine, draw())
    assert not compat.is_ported(mine)
