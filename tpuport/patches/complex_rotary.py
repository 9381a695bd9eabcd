"""Rotary embeddings that diffusers writes with complex numbers, in real arithmetic with equal results.

A table of complex numbers is a pair of real arrays on the device; a program that multiplies by it has no complex
number in it.
"""

import jax
import torch

from tpuport import compat

_PARTS = "tpuport_parts"


def pair_as_complex(real: jax.Array, imaginary: jax.Array) -> torch.Tensor:
    """Traced. The complex tensor of two real arrays of one shape, which remembers them for `parts`."""
    tensor = compat.wrap(jax.lax.complex(real, imaginary))
    setattr(tensor, _PARTS, (compat.wrap(real), compat.wrap(imaginary)))
    return tensor


def parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(real, imaginary) of a complex tensor; without a complex number in the program where it came as a pair."""
    known = getattr(tensor, _PARTS, None)
    return known if known is not None else (torch.real(tensor), torch.imag(tensor))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Neighbours in the last dimension of x [..., D] turned by angles with these cosines and sines [..., D/2].

    Computed in float32, as a product of complex64 is, and given in x's dtype.
    """
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    first, second = pairs[..., 0], pairs[..., 1]
    turned = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return turned.reshape(x.shape).to(x.dtype)


def _turned(x: torch.Tensor, freqs_cis: torch.Tensor, heads: int) -> torch.Tensor:
    """`rotated` by complex freqs_cis, which lacks the dimension `heads` of x."""
    cos, sin = parts(freqs_cis)
    return rotated(x, cos.unsqueeze(heads), sin.unsqueeze(heads))
