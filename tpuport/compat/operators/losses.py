"""Losses that torch computes by kernels of its own.

Shapes: T time steps, N samples, C classes, S longest target, K = 2 S + 1 labels with a
blank around each.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.argument_checks import is_known, require
from tpuport.compat.convert import to_jax
from tpuport.compat.declarations import Lowering, on_arrays
from tpuport.internals.torch_internals import decompositions

Lengths = jax.Array | Sequence[int]


def ctc_loss(
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> jax.Array:
    """Traced. `functional.ctc_loss` of [T, N, C] or [T, C]: the mean is over labels,
    then over samples.
    """
    has_samples = log_probs.ndim == 3
    sizes_N = jnp.atleast_1d(jnp.asarray(target_lengths))
    if not has_samples:
        log_probs, targets = log_probs[:, None], targets.reshape(1, -1)
    losses_N, _ = ctc_losses(
        log_probs, targets, jnp.atleast_1d(jnp.asarray(input_lengths)), sizes_N, blank
    )
    if zero_infinity:
        losses_N = jnp.where(jnp.isinf(losses_N), 0.0, losses_N)
    match reduction:
        case "mean":
            return (losses_N / jnp.maximum(sizes_N, 1)).mean().astype(log_probs.dtype)
        case "sum":
            return losses_N.sum()
    return losses_N if has_samples else losses_N[0]


def ctc_losses(
    log_probs_TNC: jax.Array,
    targets: jax.Array,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Traced. Connectionist temporal classification: the sum over all alignments of a
    target with the time steps.

    Args:
        log_probs_TNC: logarithms of probabilities.
        targets: [N, S], or those of all samples one after the other.
        input_lengths: [N], time steps that count.
        target_lengths: [N], labels that count.
        blank: the class between labels.
        zero_infinity: of the gradient in torch; its caller applies it to the loss.

    Returns:
        the negative logarithm [N] of the probability, and the forward variables
        [N, T, K] of torch's backward pass.
    """
    del zero_infinity
    require(log_probs_TNC.size > 0, "log_probs tensor must not be empty")
    steps_N, sizes_N = jnp.asarray(input_lengths), jnp.asarray(target_lengths)
    labels_NK = _with_blanks(targets, sizes_N, blank)
    # A step goes on to the next label, or past a blank between two labels that differ.
    differs_NK = jnp.pad(labels_NK[:, 2:] != labels_NK[:, :-2], ((0, 0), (2, 0)))
    skips_NK = differs_NK & (labels_NK != blank)
    scores_TNK = jnp.take_along_axis(
        log_probs_TNC,
        jnp.broadcast_to(labels_NK, (log_probs_TNC.shape[0], *labels_NK.shape)),
        axis=2,
    )
    position_K = jnp.arange(labels_NK.shape[1])
    # The first step is at the first blank or the first label.
    first_NK = jnp.where(
        (position_K < 2) & (position_K <= 2 * sizes_N[:, None]), scores_TNK[0], -jnp.inf
    )

    def step(before_NK: jax.Array, scores_NK: jax.Array) -> tuple[jax.Array, jax.Array]:
        from_previous = _shifted(before_NK, 1)
        from_last_label = jnp.where(skips_NK, _shifted(before_NK, 2), -jnp.inf)
        total_NK = (
            jnp.logaddexp(jnp.logaddexp(before_NK, from_previous), from_last_label)
            + scores_NK
        )
        return total_NK, total_NK

    _, later_TNK = jax.lax.scan(step, first_NK, scores_TNK[1:])
    alpha_TNK = jnp.concatenate([first_NK[None], later_TNK])
    samples_N = jnp.arange(steps_N.shape[0])
    last_NK = alpha_TNK[jnp.maximum(steps_N - 1, 0), samples_N]
    # Without any step, only an empty target is certain.
    last_NK = jnp.where(
        (steps_N > 0)[:, None], last_NK, jnp.where(position_K == 0, 0.0, -jnp.inf)
    )
    at_blank = jnp.take_along_axis(last_NK, 2 * sizes_N[:, None], axis=1)[:, 0]
    at_label = jnp.take_along_axis(
        last_NK, jnp.maximum(2 * sizes_N - 1, 0)[:, None], axis=1
    )[:, 0]
    at_label = jnp.where(sizes_N > 0, at_label, -jnp.inf)
    return -jnp.logaddexp(at_blank, at_label), jnp.moveaxis(alpha_TNK, 0, 1)


def _with_blanks(targets: jax.Array, sizes_N: jax.Array, blank: int) -> jax.Array:
    """[N, K]: the labels of each sample with a blank before, between and after them."""
    if targets.ndim == 1:
        starts_N = jnp.cumsum(sizes_N) - sizes_N
        # No target is longer than all of them together.
        places_NS = jnp.minimum(
            starts_N[:, None] + jnp.arange(targets.size), max(0, targets.size - 1)
        )
        targets = (
            targets[places_NS]
            if targets.size
            else jnp.zeros(places_NS.shape, targets.dtype)
        )
    is_label = jnp.arange(targets.shape[1]) < sizes_N[:, None]
    labels_NS = jnp.where(is_label, targets, blank)
    blanks_NS = jnp.full_like(labels_NS, blank)
    pairs = jnp.stack([blanks_NS, labels_NS], axis=-1)
    pairs = jax.lax.collapse(pairs, 1)
    return jnp.pad(pairs, ((0, 0), (0, 1)), constant_values=blank)


def _shifted(before_NK: jax.Array, count: int) -> jax.Array:
    return jnp.pad(before_NK, ((0, 0), (count, 0)), constant_values=-jnp.inf)[
        :, : before_NK.shape[1]
    ]


def gaussian_nll_loss(
    input: torch.Tensor,  # noqa: A002 - torch's names, which may be keywords
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """Traced. `functional.gaussian_nll_loss`; the signs of variances are not checked in
    a traced program.
    """
    if isinstance(var, torch.Tensor):
        variance = var
        array = to_jax(var)
        is_negative = is_known(array) and bool((array < 0).any())
    else:
        variance = var * torch.ones_like(input)
        is_negative = var < 0
    if is_negative:
        raise ValueError("var has negative entry/entries")
    variance = _beside(variance, input)
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    variance = variance.clone()
    with torch.no_grad():
        variance.clamp_(min=eps)
    loss = 0.5 * (torch.log(variance) + (input - target) ** 2 / variance)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


def _beside(variance: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The variances with the dimensions of x: one for each of its elements, or for each
    row.
    """
    if variance.shape == x.shape:
        return variance
    if variance.shape == x.shape[:-1]:
        return variance.unsqueeze(-1)
    pairs = zip(x.shape, variance.shape, strict=False)
    # Torch's rule for a single dimension that differs.
    if (
        variance.ndim == x.ndim
        and sum(size for other, size in pairs if size != other) == 1
    ):
        return variance
    raise ValueError("var is of incorrect size")


def nll_loss(
    scores: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    *options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Traced. `aten::nll_loss_forward`. Of no classes, every target is to be ignored:
    the one that is added is read in their place.
    """
    if scores.shape[-1] == 0:
        scores = scores.new_zeros(*scores.shape[:-1], 1)
        weight = None if weight is None else weight.new_zeros(1)
    return decompositions()[_aten.nll_loss_forward.default](
        scores, target, weight, *options
    )


_aten = torch.ops.aten
LOWERINGS = (
    Lowering(
        _aten.nll_loss_forward.default,
        nll_loss,
        "torch's decomposition reads a class where there is none",
    ),
    Lowering(torch.nn.functional.ctc_loss, on_arrays(ctc_loss), "has no lowering"),
    Lowering(_aten._ctc_loss.default, on_arrays(ctc_losses), "has no lowering"),
    Lowering(_aten._ctc_loss.Tensor, on_arrays(ctc_losses), "has no lowering"),
    Lowering(
        torch.nn.functional.gaussian_nll_loss,
        gaussian_nll_loss,
        "asks whether any variance is negative",
    ),
)
METHODS = ()
