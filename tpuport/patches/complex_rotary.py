"""Rotary embeddings that diffusers writes with complex numbers, in real arithmetic with
equal results.

On the device a table of complex numbers is a pair of real arrays, and a program that
multiplies by it contains no complex numbers.
"""

from collections.abc import Callable
from typing import Any

import jax
import torch

from tpuport import compat
from tpuport.patches.switch import with_original

_PARTS = "tpuport_parts"


def pair_as_complex(real: jax.Array, imaginary: jax.Array) -> torch.Tensor:
    """Traced. The complex tensor of two real arrays of one shape, which remembers them
    for `parts`.
    """
    # The compiler drops it if only the parts are used.
    tensor = compat.wrap(jax.lax.complex(real, imaginary))
    setattr(tensor, _PARTS, (compat.wrap(real), compat.wrap(imaginary)))
    return tensor


def parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(real, imaginary) of a complex tensor; one made by `pair_as_complex` adds no
    complex number to the program.
    """
    if hasattr(tensor, _PARTS):
        return getattr(tensor, _PARTS)
    return torch.real(tensor), torch.imag(tensor)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate adjacent pairs in the last dimension of x [..., D] by the angles of these
    cosines and sines [..., D/2].

    Computed in float32, as a product of complex64 numbers is, and returned in x's
    dtype.
    """
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    first, second = pairs[..., 0], pairs[..., 1]
    turned = torch.stack(
        [first * cos - second * sin, first * sin + second * cos], dim=-1
    )
    return turned.reshape(x.shape).to(x.dtype)


def _rotate_by_complex(
    x: torch.Tensor, freqs_cis: torch.Tensor, heads: int
) -> torch.Tensor:
    """`rotate` by complex freqs_cis, which lacks the dimension `heads` of x."""
    cos, sin = parts(freqs_cis)
    return rotate(x, cos.unsqueeze(heads), sin.unsqueeze(heads))


@with_original
def apply_with_sequence_first(
    original: Callable[..., torch.Tensor],
    x: torch.Tensor,
    freqs_cis: Any,
    use_real: bool = True,
    **options: Any,
) -> torch.Tensor:
    """Traced. x [B, S, H, D] rotated by freqs_cis, complex [S, D/2] or [B, S, D/2]; by
    cosines and sines with `use_real`.
    """
    if use_real:
        return original(x, freqs_cis, use_real=True, **options)
    return _rotate_by_complex(x, freqs_cis, heads=1)


@with_original
def apply_with_heads_first(
    original: Callable[..., torch.Tensor],
    x: torch.Tensor,
    freqs_cis: Any,
    use_real: bool = True,
    **options: Any,
) -> torch.Tensor:
    """Traced. The same for x [B, H, S, D]."""
    if use_real:
        return original(x, freqs_cis, use_real=True, **options)
    return _rotate_by_complex(x, freqs_cis, heads=2)


def apply_anyflow(hidden_states: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    """Traced. hidden_states [B, H, S, D] rotated by complex freqs, of a shape that
    broadcasts to [B, H, S, D/2].
    """
    return rotate(hidden_states, *parts(freqs))
