"""`torch.nn.functional.scaled_dot_product_attention` under torchax: tpuport computes
every call that torch allows.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length, D
head dimension of queries and keys, C of values; N any leading dimensions.
"""

import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import torch
from torch.nn import functional

from tpuport import compat
from tpuport.attention.attend import attend
from tpuport.attention.attention_settings import current_settings
from tpuport.attention.mask import Mask, broadcasts_to
from tpuport.attention.provenance import joined_axes, joined_sequences
from tpuport.attention.register.broadcasting import arrange
from tpuport.attention.register.lazy_mask import LazyMask
from tpuport.compat import aliasing
from tpuport.compat.operators.attention import refuse_mask_beside_causal
from tpuport.compat.recording import as_one_node, is_recorded
from tpuport.errors import PortError
from tpuport.internals.torch_internals import no_dispatch, without_subclass_functions
from tpuport.internals.torchax_internals import operators


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Traced. torch's function of this name on torchax tensors [N, H, Q, D],
    [N, K, T, D] and [N, K, T, C].

    It takes every shape that torch takes, and means the same, with three exceptions. A
    query that sees no key gets zeros, which torch's kernels give on some devices only;
    if that is because all keys have the lowest finite number of the mask's dtype, torch
    gives the mean of their values, and this function does for masks without known
    structure; and keys and values of different lengths are refused, which torch's
    kernel for CPUs does not notice.

    Raises:
        PortError: a mask together with is_causal, or tensors that do not fit each other
            or that are not all on the device.
    """
    if _is_on_host(query, key, value, attn_mask):
        # torchax has already left its torch function mode at this point, but not its
        # dispatch mode.
        with no_dispatch():
            return functional.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask,
                dropout_p,
                is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
            )
    refuse_mask_beside_causal(attn_mask, is_causal)
    structure: Mask | None = None
    if is_causal:
        # torch aligns the first query with the first key, whatever the lengths are.
        structure = Mask(right=0)
    elif _is_causal_bias(attn_mask):
        structure, attn_mask = _causal_bias_structure(query, key, attn_mask), None
    elif isinstance(attn_mask, LazyMask) and _fits_as_it_stands(query, key, attn_mask):
        structure, attn_mask = attn_mask.structure, None
    q, k, v, mask = compat.as_jax((query, key, value, attn_mask))
    _check_dtypes(q, k, v, mask)
    operands = arrange(q, k, v, mask, enable_gqa)
    structure = structure or operands.mask_structure()
    q, factor = _apply_traced_scale(operands.query, scale)
    out = attend(
        q,
        operands.key,
        operands.value,
        structure,
        scale=factor,
        dropout_p=dropout_p,
        source="torch",
    )
    return compat.wrap(out.reshape(operands.output))


def _is_on_host(query: Any, key: Any, value: Any, mask: Any) -> bool:
    """Whether torch itself computes this call.

    Raises:
        PortError: some tensors are on the device and some are not.
    """
    tensors: dict[str, torch.Tensor] = {"query": query, "key": key, "value": value}
    # A CausalBias is a torch.Tensor without elements, on no device.
    if isinstance(mask, torch.Tensor) and not _is_causal_bias(mask):
        tensors["attn_mask"] = mask
    host = [name for name, tensor in tensors.items() if not compat.is_ported(tensor)]
    if host and len(host) < len(tensors):
        raise PortError(
            "an attention call has tensors on the device and tensors on the host",
            where=", ".join(
                f"{name} {list(tensors[name].shape)} is on the host" for name in host
            ),
            fix='move them, x.to("jax"), or create them on the device of the others, device=query.device',
        )
    return bool(host)


def _is_causal_bias(mask: Any) -> bool:
    # Whoever has made one has imported this module, which imports torch.compile's code:
    # two seconds.
    module = sys.modules.get("torch.nn.attention.bias")
    return module is not None and isinstance(mask, module.CausalBias)


def _causal_bias_structure(query: Any, key: Any, bias: Any) -> Mask:
    from torch.nn.attention.bias import CausalVariant

    expected, actual = (
        (bias.seq_len_q, bias.seq_len_kv),
        (query.shape[-2], key.shape[-2]),
    )
    if expected != actual:
        raise PortError(
            f"a causal bias for {expected[0]} queries and {expected[1]} keys",
            where=f"attn_mask, for {actual[0]} queries and {actual[1]} keys",
        )
    offset = 0
    # The lower right corner of the scores is where the last query meets the last key.
    if bias.variant == CausalVariant.LOWER_RIGHT:
        offset = actual[1] - actual[0]
    return Mask(right=0, offset=offset)


def _fits_as_it_stands(query: Any, key: Any, mask: LazyMask) -> bool:
    """Whether a transformers model's mask still has its structure, and is for exactly
    these queries and keys.
    """
    if mask.structure is None or query.ndim != 4 or key.ndim != 4:
        return False
    scores = (*query.shape[:3], key.shape[2])
    return tuple(mask.shape[2:]) == scores[2:] and broadcasts_to(
        tuple(mask.shape), scores
    )


def _check_dtypes(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None
) -> None:
    dtypes = [query.dtype, key.dtype, value.dtype]
    if len(set(dtypes)) > 1 or not jnp.issubdtype(query.dtype, jnp.floating):
        raise PortError(
            f"attention over {', '.join(map(str, dtypes))}",
            fix="give query, key and value the same floating dtype",
        )
    if mask is not None and mask.dtype not in (jnp.bool_, jnp.float32, query.dtype):
        raise PortError(
            f"an attention mask of {mask.dtype} for {query.dtype} queries",
            where="attn_mask",
            fix="give a boolean mask, True where a query sees a key, or numbers to add in float32 or the query's dtype",
        )


def _apply_traced_scale(query: jax.Array, scale: Any) -> tuple[jax.Array, Any]:
    """The query and a factor that is known at trace time: a scale that is a tensor goes
    into the query.
    """
    if not isinstance(scale, torch.Tensor):
        return query, scale
    factor = compat.to_jax(scale).astype(jnp.float32)
    return (query.astype(jnp.float32) * factor).astype(query.dtype), 1.0


def multi_head_attention_forward(*args: Any, **kwargs: Any) -> Any:
    """Traced. `torch.nn.functional.multi_head_attention_forward` with tpuport's
    attention in it.

    torchax runs it below the level at which it sees calls of attention; torch takes
    those apart there.
    """
    original: Any = functional.multi_head_attention_forward
    # With a `has_torch_function` that denies, the function runs its own code instead of
    # calling torchax again.
    names = original.__globals__ | {
        "has_torch_function": lambda _: False,
        "scaled_dot_product_attention": scaled_dot_product_attention,
    }
    body = types.FunctionType(
        original.__code__, names, None, original.__defaults__, original.__closure__
    )
    body.__kwdefaults__ = original.__kwdefaults__
    return body(*args, **kwargs)


def view(tensor: Any, shape: Sequence[int]) -> torch.Tensor:
    """Traced. `tensor.view(shape)`; heads that attention by hand has joined with the
    batch are split off undivided.
    """
    return compat.wrap(joined_axes.reshape(tensor.jax(), shape))


def _cut(target: Any) -> Callable[..., Any]:
    """Traced. An operator that cuts a tensor; of what was joined from parts, such as
    video and text, it gives those.
    """

    def cut(*args: Any, **kwargs: Any) -> Any:
        result = _call_replaced(target, args, kwargs)
        # What a mask selects is neither, and would be cut into its rows.
        tensors: Any = result if isinstance(result, list | tuple) else [result]
        for tensor in filter(compat.is_ported, tensors):
            aliasing.substitute_array(tensor, joined_sequences.as_part(tensor.jax()))
        return result

    return cut


_CUTTING: Final = (
    torch.Tensor.__getitem__,
    torch.ops.aten.slice,
    torch.ops.aten.split,
    torch.ops.aten.split_with_sizes,
)
_OPERATORS: Final = {
    functional.scaled_dot_product_attention: as_one_node(scaled_dot_product_attention),
    torch.ops.aten.scaled_dot_product_attention: scaled_dot_product_attention,
    functional.multi_head_attention_forward: multi_head_attention_forward,
    torch.ops.aten.view: view,
    torch.ops.aten._unsafe_view: view,
    **{target: _cut(target) for target in _CUTTING},
}
_lock = threading.RLock()
# torchax's operators, None if it had none, by the function that they answered for.
_replaced: dict[Any, Any] = {}


def _make_operator(target: Any, replacement: Any) -> Any:
    def operator(*args: Any, **kwargs: Any) -> Any:
        if current_settings() is not None:
            return replacement(*args, **kwargs)
        if is_recorded(args, kwargs):
            with without_subclass_functions():
                return target(*args, **kwargs)
        # Another thread uses tpuport's attention, this one does not.
        return _call_replaced(target, args, kwargs)

    operator.is_one_node = getattr(replacement, "is_one_node", False)  # type: ignore[attr-defined]
    operator.tpuport_attention = True  # type: ignore[attr-defined]
    return operator


def _call_replaced(target: Any, args: tuple, kwargs: dict) -> Any:
    """What torchax would compute without `install`, called as torchax calls its
    operators.
    """
    operator = _replaced.get(target)
    if operator is None:
        return target(*args, **kwargs)
    environment = compat.environment()
    if operator.needs_env:
        kwargs["env"] = environment
    if not operator.is_jax_function:
        return operator.func(*args, **kwargs)
    args, kwargs = environment.t2j_iso((args, kwargs))
    return environment.j2t_iso(operator.func(*args, **kwargs))


def _is_installed(operator: Any) -> bool:
    return getattr(getattr(operator, "func", None), "tpuport_attention", False)


def install() -> None:
    """Answer for torch's attention in torchax's environment. Idempotent."""
    environment = compat.environment()
    with _lock:
        for target, replacement in _OPERATORS.items():
            # Remembered only the first time: later it would be tpuport's own operator.
            present = operators(environment).get(target)
            if not _is_installed(present):
                _replaced[target] = present
                environment.override_op_definition(
                    target, _make_operator(target, replacement)
                )


def uninstall() -> None:
    """Put back what `install` replaced, unless something else has been put there
    since.
    """
    environment = compat.environment()
    with _lock:
        for target in _OPERATORS:
            if not _is_installed(operators(environment).get(target)):
                continue
            # torchax may have had no entry of its own.
            replaced = _replaced.pop(target, None)
            if replaced is None:
                del operators(environment)[target]
            else:
                operators(environment)[target] = replaced
