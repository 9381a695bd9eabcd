"""tpuport's attention under the names that transformers looks up: the attention
function and its mask function.

Shapes: B batch, H query heads, Q query length, T key/value length, S positions, D head
dimension.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import torch

from tpuport import compat
from tpuport.attention.attend import attend
from tpuport.attention.mask import Mask, intersect
from tpuport.attention.provenance import structure_of
from tpuport.attention.register.attention_configs import attention_configs
from tpuport.attention.register.eager_attention import (
    asked_for_weights,
    find_eager_attention,
    is_eager,
    record_eager_call,
    replaced_names,
)
from tpuport.attention.register.lazy_mask import LazyMask
from tpuport.attention.register.mask_interface import mask_of_any_release, with_reason
from tpuport.base.mappings import without_nones
from tpuport.compat.recording import as_one_node
from tpuport.errors import PortError
from tpuport.internals import transformers_internals
from tpuport.internals.transformers_internals import CHOICE_OF_ATTENTION

NAME: Final = "tpuport"
# What a mask says of single queries.
_PARTS_OF_QUERIES: Final = ("left", "right", "queries_BQ", "query_segments_BQ", "dense")
_PACKED_LENGTHS: Final = (
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "cu_seqlens",
    "cu_seqlens_q",
    "cu_seqlens_k",
)


def transformers_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Traced. transformers' attention interface: query [B, H, Q, D], key, value
    [B, K, T, D] -> [B, Q, H, D].

    The second result is the weights [B, H, Q, T] if the model runs its own attention,
    which it does where it was built with "eager" and is asked for weights or given a
    mask of heads; else None. Tensors on the host stay with torch.

    Args:
        attention_mask: from `transformers_mask`, or a tensor of the user's or the
            model's own that broadcasts to [B, H, Q, T], boolean or to be added; None is
            causal attention in a module that is causal.
        softcap, s_aux: as in Gemma 2, and the sinks [H] of GPT-OSS.
        position_bias: added to the scores, broadcasts to [B, H, Q, T].
        is_causal: None means as the module says; without effect beside a mask, as in
            transformers.
        kwargs: `sinks` [B, H, Q, 1], one of each query, as in Inkling 2; `indices`
            [B, Q, N] and `block_indices` [B, heads, Q, N], the keys, and the blocks of
            them, that an indexer selected, -1 for none; `sliding_window` is in the mask
            already; anything else that would change the result is refused.

    Raises:
        PortError: weights, or a kind of attention that is not computed here.
    """
    is_on_host = not any(map(compat.is_ported, (query, key, value)))
    # torch takes neither a soft cap nor sinks, so these fall through to the error about
    # tensors on the host.
    if is_on_host and softcap is None and s_aux is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout,
            scaling,
            is_causal,
            position_bias,
            **kwargs,
        )
    options = without_nones(kwargs)
    _reject_unsupported(module, (query, key, value), options)
    reason = _reason_for_eager(module, options)
    if reason:
        record_eager_call(module, query, key, value, reason)
        # As the model itself passed them: what it left out may have another default
        # there.
        named = {
            "softcap": softcap,
            "s_aux": s_aux,
            "position_bias": position_bias,
            "is_causal": is_causal,
        }
        options |= without_nones(named)
        return _eager_attention(module, reason)(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            **options,
        )
    return _fused(
        module, query, key, value, attention_mask, dropout, scaling, softcap, s_aux, is_causal, position_bias, options
    ), None  # fmt: skip


@as_one_node
def _fused(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    dropout: float,
    scaling: float | None,
    softcap: float | None,
    s_aux: Any,
    is_causal: bool | None,
    position_bias: Any,
    options: dict[str, Any],
) -> torch.Tensor:
    """Traced. What `attention_forward` returns of a call that `attend` computes."""
    if query.shape[0] == 1:
        # A Q-Former has the same queries for every row.
        query = query.expand(key.shape[0], -1, -1, -1)
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    mask, note = _mask_of_call(
        module, attention_mask, (*query.shape[:3], key.shape[2]), is_causal, options
    )
    sinks = options["sinks"].squeeze(-1) if "sinks" in options else s_aux
    # With a bias torch adds the lowest number to the scores of hidden keys, as a
    # model's own attention always does. Beside it the scores of a query that sees no
    # key are nothing, so that its weights are equal, unless a sink takes all of the
    # weight. Without a bias torch's fused attention gives zeros.
    blind_BHQ1 = None
    if sinks is None and (position_bias is not None or is_eager(module)):
        blind_BHQ1 = mask.blind_queries(query.shape[2], key.shape[2])
    if position_bias is not None:
        mask = _add_bias(
            mask, compat.as_jax(position_bias), (query.shape[2], key.shape[2])
        )
    q, k, v, sinks = compat.as_jax((query, key, value, sinks))
    if k.shape[1] != v.shape[1]:
        # Their heads serve groups of other sizes, as in Nemotron 3's diarization; torch
        # repeats both, too.
        k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    out = attend(
        q, k, v, mask, scale=scaling, softcap=softcap, sinks=sinks, dropout_p=dropout, source="transformers",
        note=note,
    )  # fmt: skip
    if blind_BHQ1 is not None:
        mean = jnp.repeat(v.mean(2, keepdims=True), q.shape[1] // v.shape[1], axis=1)
        out = jnp.where(blind_BHQ1, mean, out)
    return compat.wrap(out.swapaxes(1, 2))


def _reject_unsupported(
    module: torch.nn.Module, tensors: tuple, options: dict[str, Any]
) -> None:
    """PortError for what would be ignored, or fail later."""
    where = type(module).__name__
    if not all(map(compat.is_ported, tensors)):
        raise PortError(
            "attention over tensors that are not on the device",
            where=where,
            fix="model = tpuport.port(model), and inputs on its device; or attn_implementation='sdpa' on the host",
        )
    if "cache" in options:
        raise PortError(
            "paged attention is not computed by tpuport",
            where=f"{where}: cache",
            fix="tpuport.generate(model, ...) instead of transformers' continuous batching",
        )


def _reason_for_eager(module: torch.nn.Module, options: dict[str, Any]) -> str:
    """What a call asks for that only a model's own attention has; empty if there is
    nothing.

    Raises:
        PortError: it asks for that, and the model was not built with its own attention.
            torch's fused attention would return no weights then, and ignore a mask of
            heads.
    """
    has_own_attention = is_eager(module)
    reason = ""
    if "head_mask" in options:
        reason = "head_mask, a mask of whole heads"
    # Without "eager" no config asks for weights, and what a recorder does not get is
    # missing in torch, too.
    if options.get("output_attentions") or (
        has_own_attention and asked_for_weights(module, options)
    ):
        reason = "output_attentions, the weights themselves"
    if reason and not has_own_attention:
        raise PortError(
            f"fused attention does not compute {reason}",
            where=type(module).__name__,
            fix="model.set_attn_implementation('eager'), which keeps the scores in memory; or leave it out",
        )
    return reason


def _eager_attention(module: torch.nn.Module, reason: str) -> Callable:
    function = find_eager_attention(module)
    if function is None:
        raise PortError(
            f"fused attention does not compute {reason}, and this module has no eager_attention_forward",
            where=type(module).__name__,
            fix="leave it out, or pass an eager_attention_forward to get_interface, as transformers' models do",
        )
    return function


def _mask_of_call(
    module: torch.nn.Module,
    attention_mask: torch.Tensor | None,
    scores: tuple[int, ...],
    is_causal: bool,
    options: dict[str, Any],
) -> tuple[Mask, str]:
    """Traced. Who sees whom in a call with scores [B, H, Q, T], and why that has no
    structure, if it has none.
    """
    queries, keys = scores[2:]
    mask, note = Mask(), ""
    if attention_mask is not None:
        mask, note = _mask_structure(attention_mask, scores)
        left_out_if = getattr(attention_mask, "left_out_if", None)
        # Without padding, a mask that has the module's own order says the same.
        has_own_order = mask.dense is None and mask.right == (0 if is_causal else None)
        if left_out_if is not None and not has_own_order:
            given = compat.as_jax(attention_mask)
            left_out = jnp.ones_like(given)
            if is_causal:
                left_out = jnp.tril(left_out)
            mask = Mask(dense=jnp.where(left_out_if(), left_out, given))
            note = "a mask that transformers leaves out where no row has padding"
    # One query is the newest token, which sees every key; aligned with the first key it
    # would see only that.
    elif is_causal and queries > 1:
        mask = Mask(right=0)
    if "indices" in options:
        mask = _restrict_to_selected(mask, compat.as_jax(options["indices"]), keys)
    if "block_indices" in options:
        mask = _restrict_to_blocks(
            module, mask, compat.as_jax(options["block_indices"]), scores
        )
    packed_lengths = [name for name in _PACKED_LENGTHS if name in options]
    # They say nothing beyond what the mask says already, if it tells the sequences
    # apart.
    if packed_lengths and mask.query_segments_BQ is None:
        raise PortError(
            "lengths of packed sequences, and a mask that does not tell the sequences apart",
            where=f"{type(module).__name__}: {', '.join(packed_lengths)}",
            fix="give position_ids that restart with each sequence, and neither attention_mask nor a cache",
        )
    return mask, note


def _mask_structure(
    attention_mask: torch.Tensor, scores: tuple[int, ...]
) -> tuple[Mask, str]:
    """Traced. A mask's structure, and why it has none; Q and T must be those of the
    scores.
    """
    batch, heads, queries, keys = scores
    if isinstance(attention_mask, LazyMask) and attention_mask.structure is not None:
        size = tuple(attention_mask.shape[2:])
        if size not in ((queries, keys), (1, keys)):
            raise PortError(
                f"a mask {tuple(attention_mask.shape)} for scores {scores}",
                where="attention_mask",
            )
        structure = attention_mask.structure
        # BridgeTower makes the mask of one query for all of them; of this one query
        # only padding is that of all.
        if size[0] == queries or not structure.present(_PARTS_OF_QUERIES):
            return structure, attention_mask.reason
    mask = structure_of(
        compat.to_jax(attention_mask),
        batch=batch,
        heads=heads,
        queries=queries,
        keys=keys,
    )
    return with_reason(mask, "a mask tensor")


def _restrict_to_selected(mask: Mask, indices_BQN: jax.Array, keys: int) -> Mask:
    """Traced. The mask, and for each query only the keys that an indexer selected; an
    index of -1 is none.
    """
    return _intersect_dense(mask, _selected(indices_BQN, keys)[:, None])


def _restrict_to_blocks(
    module: torch.nn.Module,
    mask: Mask,
    indices_BGQN: jax.Array,
    scores: tuple[int, ...],
) -> Mask:
    """Traced. The mask, and for each query of a group of heads only the keys of the
    blocks that an indexer selected.

    MiniMax M3 makes a mask of them itself for "eager" and "sdpa"
    (`MiniMaxM3VLIndexer.build_block_mask`), and leaves it to any other attention.
    """
    heads, _, keys = scores[1:]
    indexer: Any = module.indexer
    block_size: int = indexer.block_size
    blocks = _selected(indices_BGQN, -(-keys // block_size))
    selected = jnp.repeat(blocks, block_size, axis=-1)[..., :keys]
    return _intersect_dense(
        mask, jnp.repeat(selected, heads // selected.shape[1], axis=1)
    )


def _selected(indices: jax.Array, count: int) -> jax.Array:
    """Traced. [..., N] -> [..., count]: whether an index is among the N; -1 is none."""
    # An index beyond the end is dropped by the write.
    columns = jnp.where(indices < 0, count, indices)
    rows = jnp.indices(indices.shape, sparse=True)[:-1]
    nothing = jnp.zeros((*indices.shape[:-1], count), jnp.bool_)
    return nothing.at[(*rows, columns)].set(True, mode="drop")


def _intersect_dense(mask: Mask, selected: jax.Array) -> Mask:
    if mask.dense is not None and mask.dense.dtype != jnp.bool_:
        return replace(
            mask, dense=jnp.where(selected, mask.dense, jnp.finfo(mask.dense.dtype).min)
        )
    return replace(mask, dense=intersect(mask.dense, selected))


def _add_bias(mask: Mask, bias: jax.Array, scores: tuple[int, int]) -> Mask:
    """Traced. The mask, and numbers that are added to the scores."""
    bias = jnp.broadcast_to(bias, (*bias.shape[:2], *scores))
    if mask.dense is None:
        return replace(mask, dense=bias)
    if mask.dense.dtype == jnp.bool_:
        return replace(
            mask, dense=jnp.where(mask.dense, bias, jnp.finfo(bias.dtype).min)
        )
    # The lowest number hides a key; with the bias added it would not be the lowest any
    # more.
    lowest = jnp.finfo(mask.dense.dtype).min
    return replace(
        mask, dense=jnp.where(mask.dense <= lowest, lowest, mask.dense + bias)
    )


def register_transformers() -> None:
    """Make `attn_implementation="tpuport"` known to transformers; only models that
    choose it change. Idempotent.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, transformers_attention)
    AttentionMaskInterface.register(NAME, mask_of_any_release)


def unregister_transformers() -> None:
    """Remove both names from transformers. A model that has chosen them has to choose
    others. Idempotent.
    """
    transformers_internals.remove_attention(NAME)


@contextlib.contextmanager
def use_in_model(model: torch.nn.Module) -> Iterator[None]:
    """Let a transformers model compute its attention through tpuport inside the block.

    A model whose attention cannot be chosen keeps its own, and the models inside of it
    are asked.
    """
    # A model of transformers has imported this.
    is_possible = (
        "transformers.modeling_utils" in sys.modules and CHOICE_OF_ATTENTION.works()
    )
    configs = attention_configs(model) if is_possible else []
    if not configs:
        yield
        return
    register_transformers()
    previous = list(map(transformers_internals.chosen_attention, configs))
    # Inside of another such block the names are ours already, and that one knows the
    # model's.
    replaced = {
        id(config): name
        for config, name in zip(configs, previous, strict=True)
        if name != NAME
    }
    token = replaced_names.set(replaced_names.get({}) | replaced)
    for config in configs:
        transformers_internals.choose_attention(config, NAME)
    try:
        yield
    finally:
        replaced_names.reset(token)
        for config, name in zip(configs, previous, strict=True):
            transformers_internals.choose_attention(config, name)
