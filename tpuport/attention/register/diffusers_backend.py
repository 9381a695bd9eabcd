"""tpuport's attention as a backend of diffusers:
`model.set_attention_backend("tpuport")`.

diffusers looks backends up in an Enum and in the tables of a registry, which
`diffusers_internals` extends.

Shapes: B batch, H query heads, K key/value heads, S query length, T key/value length, D
and C head dimensions.
"""

import logging
from typing import Any, Final

import torch

from tpuport import compat
from tpuport.attention.attend import attend
from tpuport.attention.mask import Mask
from tpuport.attention.register.broadcasting import arrange
from tpuport.compat.operators.attention import refuse_mask_beside_causal
from tpuport.errors import PortError
from tpuport.internals import diffusers_internals
from tpuport.internals.diffusers_internals import ATTENTION_BACKENDS

logger = logging.getLogger("tpuport")

NAME: Final = "tpuport"


def diffusers_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    _parallel_config: Any = None,
    **others: Any,
) -> torch.Tensor:
    """Traced. A backend of diffusers: query [B, S, H, D], key [B, T, K, D], value
    [B, T, K, C] -> [B, S, H, C].

    Tensors on the host go to diffusers' native backend.

    Args:
        attn_mask: [B, T], or anything that broadcasts to [B, H, S, T]; boolean, or
            added to the scores.
        is_causal: query i sees keys 0 to i; excludes a mask.
        scale: factor on the dot products; None is D ** -0.5.
        enable_gqa: each key/value head serves a group of query heads.
        others: what diffusers passes to other backends.

    Raises:
        PortError: the log of the softmax's sum, diffusers' own parallelism, an unknown
            argument, or tensors of which some are on the host.
    """
    _reject_unsupported(return_lse, _parallel_config, others)
    if not any(map(compat.is_ported, (query, key, value, attn_mask))):
        return diffusers_internals.native_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        )
    if not all(map(compat.is_ported, (query, key, value))):
        raise PortError(
            "attention over tensors of which some are not on the device",
            fix="tpuport.port(model)",
        )
    refuse_mask_beside_causal(attn_mask, is_causal)
    mask = None
    if attn_mask is not None:
        mask = compat.to_jax(attn_mask)
        # The native backend reads this shape as [B, T] too, even if B equals S.
        if mask.shape == (query.shape[0], key.shape[1]):
            mask = mask[:, None, None, :]
    q, k, v = (x.swapaxes(1, 2) for x in compat.as_jax((query, key, value)))
    operands = arrange(q, k, v, mask, enable_gqa)
    structure = operands.mask_structure()
    if is_causal:
        structure = Mask(right=0)
    out = attend(
        operands.query, operands.key, operands.value, structure, scale=scale, dropout_p=dropout_p, source="diffusers"
    )  # fmt: skip
    return compat.wrap(out.reshape(operands.output).swapaxes(1, 2))


def _reject_unsupported(
    return_lse: bool, parallel: Any, others: dict[str, Any]
) -> None:
    """PortError for arguments that would otherwise be ignored."""
    if return_lse:
        raise PortError(
            "the backend gives no log-sum-exp",
            where="return_lse=True",
            fix="use another attention backend",
        )
    if parallel is not None:
        raise PortError(
            "diffusers' context parallelism needs torch processes",
            where="enable_parallelism",
            fix="leave it out, and give tpuport.port(model, mesh=...) a mesh with an sp axis",
        )
    unknown = sorted(name for name, argument in others.items() if argument is not None)
    if unknown:
        raise PortError(
            "arguments that this attention backend does not know",
            where=", ".join(unknown),
        )


def register_diffusers() -> None:
    """Make the attention backend "tpuport" known to diffusers; only models that choose
    it change. Idempotent.

    `DIFFUSERS_ATTN_BACKEND=tpuport` in the environment chooses it for all models, if
    this runs before diffusers' models are imported: without the backend, that import
    fails.

    Raises:
        PortError: this version of diffusers keeps its backends in another way.
    """
    ATTENTION_BACKENDS.require()
    if diffusers_internals.has_backend(NAME):
        return
    diffusers_internals.add_backend(NAME, diffusers_attention)
    logger.info("attention backend %r registered with diffusers", NAME)


def unregister_diffusers() -> None:
    """Remove the backend; models that had chosen it return to diffusers' default.
    Idempotent.
    """
    if not diffusers_internals.has_backend(NAME):
        return
    diffusers_internals.remove_backend(NAME)
    logger.info("attention backend %r taken out of diffusers", NAME)
