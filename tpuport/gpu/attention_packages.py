"""Attention functions of GPU packages, computed by `F.scaled_dot_product_attention`.

Options that it cannot express are refused. On the device that function is tpuport's
fused kernel. Shapes: B batch, Q query length, T key length, H query heads, K key heads,
D head dimension.
"""

from types import NoneType
from typing import Any

import torch
from torch.nn import functional

from tpuport.errors import PortError
from tpuport.gpu.packed_sequences import packed_attention, sequences_of, window_mask

INSTEAD = "call F.scaled_dot_product_attention, with a mask where there is padding"


def refuse(name: str, **options: Any) -> None:
    """Raise a PortError for an option that is set: not None, False or zero."""
    for option, value in options.items():
        # Not `value in (None, 0)`, which would compare a tensor's elements.
        if isinstance(value, (int, float, NoneType)) and not value:
            continue
        raise PortError(
            f"{name} with {option} has no equivalent in plain torch",
            where=option,
            fix=INSTEAD,
        )


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    **others: Any,
) -> torch.Tensor:
    """flash_attn's function: q [B, Q, H, D], k and v [B, T, K, D] -> [B, Q, H, D].

    The last query is aligned with the last key, both with `causal` and with a window; a
    query without keys gets zeros.

    Raises:
        PortError: soft cap, ALiBi or returned probabilities are requested.
    """
    del deterministic  # the result always is
    options = {
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
        "return_attn_probs": return_attn_probs,
    }
    refuse("flash_attn_func", **options, **others)
    left, right = window_size
    if causal:
        right = 0
    # torch aligns the first query with the first key: the same only for equal lengths.
    is_causal = left < 0 and right == 0 and q.shape[1] == k.shape[1]
    mask = None
    if not is_causal and max(left, right) >= 0:
        # The last query is aligned with the last key.
        shape = q.shape[1], k.shape[1]
        mask = window_mask(shape, shape[1] - shape[0], (left, right), q.device)
    query, key, value = (tensor.transpose(1, 2) for tensor in (q, k, v))
    out = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=is_causal, dropout_p=dropout_p, scale=softmax_scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )  # fmt: skip
    # torch's kernels for CPUs may give NaN where a query sees no key.
    if mask is not None:
        out = torch.where(mask.any(dim=-1, keepdim=True), out, torch.zeros_like(out))
    return out.transpose(1, 2)


def flash_attn_qkvpacked_func(
    qkv: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """flash_attn's function of qkv [B, T, 3, H, D]; options as `flash_attn_func` has
    them.
    """
    q, k, v = qkv.unbind(dim=2)
    return flash_attn_func(q, k, v, *args, **kwargs)


def flash_attn_kvpacked_func(
    q: torch.Tensor, kv: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """flash_attn's function of q [B, Q, H, D] and kv [B, T, 2, K, D]; options as
    `flash_attn_func` has them.
    """
    k, v = kv.unbind(dim=2)
    return flash_attn_func(q, k, v, *args, **kwargs)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: Any = None,
    max_seqlen_k: Any = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
    **others: Any,
) -> torch.Tensor:
    """flash_attn's function of sequences laid end to end: q [N, H, D], k and v
    [T, K, D] -> [N, H, D].

    In each sequence the last query is aligned with the last key. Queries without keys,
    and rows after the last sequence, get zeros. The greatest lengths are not needed.

    Raises:
        PortError: soft cap, ALiBi, a block table or returned probabilities are
            requested.
    """
    del max_seqlen_q, max_seqlen_k, deterministic
    options = {
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
        "return_attn_probs": return_attn_probs,
        "block_table": block_table,
    }
    refuse("flash_attn_varlen_func", **options, **others)
    left, right = window_size
    if causal:
        right = 0
    queries, keys = sequences_of(cu_seqlens_q, cu_seqlens_k)
    return packed_attention(
        q, k, v, queries, keys, (left, right), dropout_p=dropout_p, scale=softmax_scale
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: Any = None,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """flash_attn's function of qkv [N, 3, H, D]; options as `flash_attn_varlen_func`
    has them.
    """
    q, k, v = qkv.unbind(dim=1)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **kwargs
    )  # fmt: skip


def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor, kv: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """flash_attn's function of q [N, H, D] and kv [T, 2, K, D]; options as
    `flash_attn_varlen_func` has them.
    """
    k, v = kv.unbind(dim=1)
    return flash_attn_varlen_func(q, k, v, *args, **kwargs)


def sageattn(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensor_layout: str = "HND",
    is_causal: bool = False,
    sm_scale: float | None = None,
    return_lse: bool = False,
    **others: Any,
) -> torch.Tensor:
    """SageAttention's function without its rounding: "HND" is [B, H, T, D], "NHD"
    [B, T, H, D].

    Raises:
        PortError: another layout or option, or causal attention of lengths that differ.
    """
    # Smoothing only reduces the error of quantization, and nothing is quantized here.
    options = {
        name: value for name, value in others.items() if not name.startswith("smooth")
    }
    refuse("sageattn", return_lse=return_lse, **options)
    if tensor_layout not in ("HND", "NHD"):
        raise PortError(
            f"unknown layout {tensor_layout!r}",
            where="tensor_layout",
            fix='"HND" or "NHD"',
        )
    query, key, value = q, k, v
    if tensor_layout == "NHD":
        query, key, value = (tensor.transpose(1, 2) for tensor in (q, k, v))
    if is_causal and query.shape[2] != key.shape[2]:
        raise PortError(
            "causal attention is ambiguous if query and key lengths differ",
            where="is_causal",
            fix=INSTEAD,
        )
    grouped = query.shape[1] != key.shape[1]
    out = functional.scaled_dot_product_attention(
        query, key, value, is_causal=is_causal, scale=sm_scale, enable_gqa=grouped
    )
    if tensor_layout == "NHD":
        out = out.transpose(1, 2)
    return out


class FusedRMSNorm(torch.nn.RMSNorm):
    """apex's norm, whose default epsilon is 1e-5."""

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine)


class FusedLayerNorm(torch.nn.LayerNorm):
    """apex's norm: torch's."""
