"""Fourier transforms, and signals from short-time ones."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat.argument_checks import require, require_values
from tpuport.compat.declarations import Lowering, on_arrays
from tpuport.compat.operators.convolution import undivided

# What torch takes for no window at all.
_LEAST_WEIGHT = 1e-11


def complex_fft(
    x: jax.Array, axes: Sequence[int], normalization: int, forward: bool
) -> jax.Array:
    """Traced or not. `aten::_fft_c2c` over these axes, divided by 1, the root of their
    size, or it (0 to 2).
    """
    # XLA's partitioner (jaxlib 0.9) ends the process where an axis has one element on
    # each device.
    x = undivided(x, [axis for axis in axes if x.shape[axis] <= jax.device_count()])
    names = ("backward", "ortho", "forward")
    if forward:
        return jnp.fft.fftn(x, axes=axes, norm=names[normalization])
    return jnp.fft.ifftn(x, axes=axes, norm=names[::-1][normalization])


def istft(
    spectrum: jax.Array,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: jax.Array | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> jax.Array:
    """Traced. `torch.istft` of [F, T] or [B, F, T]: frames added where they overlap,
    divided by their windows.

    Torch refuses windows that leave a part of the signal without weight. In a traced
    program, whose windows have no values, that part is NaN or infinite.
    """
    hop_length = n_fft // 4 if hop_length is None else hop_length
    win_length = n_fft if win_length is None else win_length
    _check(spectrum, n_fft, hop_length, win_length, window, onesided)
    is_onesided = spectrum.shape[-2] != n_fft if onesided is None else onesided
    window = _padded_window(spectrum, n_fft, win_length, window)
    frames = (
        _frames(spectrum, n_fft, normalized, is_onesided, return_complex, window)
        * window
    )
    count = frames.shape[-2]
    places = np.arange(count)[:, None] * hop_length + np.arange(n_fft)
    size = n_fft + hop_length * (count - 1)
    signal = (
        jnp.zeros((*frames.shape[:-2], size), frames.dtype).at[..., places].add(frames)
    )
    weight = (
        jnp.zeros(size, window.dtype)
        .at[places]
        .add(jnp.broadcast_to(window**2, places.shape))
    )
    start = n_fft // 2 if center else 0
    end = size - start if length is None else start + length
    signal, weight = signal[..., start:end], weight[start:end]
    require_values(
        lambda values: jnp.abs(values).min(initial=jnp.inf) >= _LEAST_WEIGHT,
        weight,
        message="istft: window overlap add min: a part of the signal has no weight in any window",
    )
    signal = signal / weight
    missing = 0 if length is None else max(0, end - size)
    return jnp.pad(signal, [(0, 0)] * (signal.ndim - 1) + [(0, missing)])


def _check(
    spectrum: jax.Array,
    n_fft: int,
    hop_length: int,
    win_length: int,
    window: jax.Array | None,
    onesided: bool | None,
) -> None:
    """Raise torch's errors."""
    require(
        jnp.iscomplexobj(spectrum),
        "istft requires a complex-valued input tensor matching the output from stft with return_complex=True.",
    )
    require(spectrum.size > 0, "istft: input tensor cannot be empty")
    require(
        spectrum.ndim in (2, 3),
        f"istft: expected a tensor with 2 or 3 dimensions, not {spectrum.ndim}",
    )
    sizes = spectrum.shape[-2]
    expected = (
        n_fft // 2 + 1
        if onesided is True or (onesided is None and sizes != n_fft)
        else n_fft
    )
    require(
        sizes == expected,
        f"istft: expected {expected} frequencies of n_fft={n_fft}, but got {sizes}",
    )
    require(
        0 < hop_length <= win_length, "istft: expected 0 < hop_length <= win_length"
    )
    require(0 < win_length <= n_fft, "istft: expected 0 < win_length <= n_fft")
    fits = window is None or window.shape == (win_length,)
    require(fits, "istft: the window has to be 1D and of length win_length")


def _padded_window(
    spectrum: jax.Array, n_fft: int, win_length: int, window: jax.Array | None
) -> jax.Array:
    if window is None:
        window = jnp.ones(win_length, spectrum.real.dtype)
    left = (n_fft - win_length) // 2
    return jnp.pad(window, (left, n_fft - win_length - left))


def _frames(
    spectrum: jax.Array,
    n_fft: int,
    normalized: bool,
    is_onesided: bool,
    return_complex: bool,
    window: jax.Array,
) -> jax.Array:
    """[..., T, N]: the inverse transforms."""
    rows = jnp.swapaxes(spectrum, -1, -2)
    norm = "ortho" if normalized else "backward"
    if return_complex:
        require(
            not is_onesided,
            "istft: cannot have onesided output if window or input is complex",
        )
        return jnp.fft.ifft(rows, norm=norm)
    require(
        not jnp.iscomplexobj(window),
        "istft: complex windows are incompatible with return_complex=False",
    )
    return jnp.fft.irfft(rows[..., : n_fft // 2 + 1], n=n_fft, norm=norm)


LOWERINGS = (
    Lowering(
        torch.ops.aten._fft_c2c,
        on_arrays(complex_fft),
        "ends the process on axes of one element a device",
    ),
    Lowering(torch.istft, on_arrays(istft), "asks for the window's values"),
    Lowering(torch.Tensor.istft, on_arrays(istft), "asks for the window's values"),
)
METHODS = ()
