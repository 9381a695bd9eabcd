"""Batch normalization as in training, whose running statistics are updated in place;
groups of channels.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport.compat.convert import as_jax, as_torch
from tpuport.compat.declarations import Lowering, on_arrays

# A torchax tensor or view, which is written to.
Running = Any


def batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: Running | None,
    running_var: Running | None,
    training: bool,
    momentum: int | float,
    eps: int | float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalize each channel (dimension 1) by the batch's statistics, or by the running
    ones.

    Returns:
        the result in x's dtype; the batch's mean and reciprocal deviation, one a
        channel, empty if not training.
    """
    array, scale, shift = as_jax((x, weight, bias))
    wide = array.astype(jnp.promote_types(array.dtype, jnp.float32))
    if training or running_mean is None or running_var is None:
        axes = (0, *range(2, wide.ndim))
        mean, variance = jnp.mean(wide, axes), jnp.var(wide, axes)
        count = wide.size // max(1, mean.size)
        if count:
            unbiased = count / (count - 1) if count > 1 else math.nan
            _update(running_mean, mean, momentum)
            _update(running_var, variance * unbiased, momentum)
    else:
        mean, variance = (
            stat.astype(wide.dtype) for stat in as_jax((running_mean, running_var))
        )
    deviation = jax.lax.rsqrt(variance + eps)
    out = (wide - _by_channel(mean, wide)) * _by_channel(deviation, wide)
    if scale is not None:
        out = out * _by_channel(scale.astype(wide.dtype), wide)
    if shift is not None:
        out = out + _by_channel(shift.astype(wide.dtype), wide)
    selection = slice(None) if training else slice(0, 0)
    statistics = [
        stat[selection].astype(_parameter_dtype(array, scale, shift))
        for stat in (mean, deviation)
    ]
    return as_torch((out.astype(array.dtype), *statistics))


def _parameter_dtype(*arrays: jax.Array | None) -> np.dtype:
    """torch's dtype of statistics: float32 if one of the parameters is, whatever the
    input has.
    """
    return functools.reduce(
        jnp.promote_types, [array.dtype for array in arrays if array is not None]
    )


def _update(running: Running | None, value: jax.Array, momentum: int | float) -> None:
    if running is not None:
        # Statistics have no gradient, also where the batch has one.
        old, new = as_jax(running), jax.lax.stop_gradient(value)
        running.copy_(as_torch((1 - momentum) * old + momentum * new))


def _by_channel(values: jax.Array, x: jax.Array) -> jax.Array:
    return values.reshape(1, -1, *(1,) * (x.ndim - 2))


def batch_norm_without_running(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    training: bool,
    momentum: int | float,
    eps: int | float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`batch_norm` without running statistics."""
    return batch_norm(x, weight, bias, None, None, training, momentum, eps)


def batch_norm_with_update(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: Running,
    running_var: Running,
    momentum: int | float,
    eps: int | float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`batch_norm` in training, and what torch reserves for the backward pass, which is
    nothing here.
    """
    outputs = batch_norm(
        x, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return (*outputs, as_torch(jnp.zeros(0, jnp.uint8)))


def instance_norm(
    x: torch.Tensor,
    running_mean: Running | None = None,
    running_var: Running | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_input_stats: bool = True,
    momentum: int | float = 0.1,
    eps: int | float = 1e-5,
) -> torch.Tensor:
    """`functional.instance_norm`: each sample's channels by their own statistics,
    running ones over all samples.
    """
    _check_instances(x, use_input_stats)
    batch, channels = x.shape[:2]

    def each_sample(values: torch.Tensor | None) -> torch.Tensor | None:
        return None if values is None else values.repeat(batch)

    running = list(map(each_sample, (running_mean, running_var)))
    # Every channel of every sample is a channel of a batch of one.
    out, _, _ = torch.ops.aten.native_batch_norm.default(
        x.reshape(1, batch * channels, *x.shape[2:]), each_sample(weight), each_sample(bias), *running,
        use_input_stats, momentum, eps,
    )  # fmt: skip
    for stat, each in zip((running_mean, running_var), running, strict=True):
        if stat is not None and each is not None:
            stat.copy_(each.reshape(batch, channels).mean(0))
    return out.reshape(x.shape)


def _check_instances(x: torch.Tensor, use_input_stats: bool) -> None:
    if use_input_stats and math.prod(x.shape[2:]) == 1:
        raise ValueError(
            f"Expected more than 1 spatial element when training, got input size {x.shape}"
        )


def group_norm(
    x: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    batch: int,
    channels: int,
    size: int,
    groups: int,
    eps: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Traced. Each sample's channels (dimension 1) normalized in groups; mean and
    reciprocal deviation of each group.

    Images are reduced channel by channel, and only what is left is divided into groups.
    An image that is divided itself is copied into another layout where channels are its
    lanes, as they are between convolutions.
    """
    del size  # the product of the other dimensions
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    axes = tuple(range(2, x.ndim))

    def of_groups(values: jax.Array) -> jax.Array:
        """The means [N, G] of values [N, C, ...]."""
        means = jnp.mean(values, axes) if axes else values
        return jnp.mean(means.reshape(batch, groups, channels // groups), 2)

    def by_channel(values: jax.Array) -> jax.Array:
        """Values [N, G] as [N, C, 1, ...]."""
        return jnp.repeat(values, channels // groups, axis=1).reshape(
            batch, channels, *(1,) * len(axes)
        )

    mean = of_groups(wide)
    centered = wide - by_channel(mean)
    deviation = jax.lax.rsqrt(of_groups(jnp.square(centered)) + eps)
    out = centered * by_channel(deviation)
    if weight is not None:
        out = out * _by_channel(weight.astype(wide.dtype), wide)
    if bias is not None:
        out = out + _by_channel(bias.astype(wide.dtype), wide)
    dtype = _parameter_dtype(x, weight, bias)
    return out.astype(x.dtype), mean.astype(dtype), deviation.astype(dtype)


_REASON = "leaves the running statistics as they are"
_aten = torch.ops.aten
LOWERINGS = (
    Lowering(
        _aten.native_group_norm.default,
        on_arrays(group_norm),
        "computes groups one after another, in a loop over copies of them",
    ),
    Lowering(_aten.native_batch_norm.default, batch_norm, _REASON),
    Lowering(_aten._native_batch_norm_legit.default, batch_norm, _REASON),
    Lowering(_aten._batch_norm_with_update.default, batch_norm_with_update, _REASON),
    Lowering(torch.nn.functional.instance_norm, instance_norm, _REASON),
    Lowering(
        _aten._native_batch_norm_legit.no_stats,
        batch_norm_without_running,
        "rounds halves on the way",
    ),
)
METHODS = ()
