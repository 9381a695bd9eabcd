"""A transformers model's own ("eager") attention, for calls that ask for what fused
attention does not keep.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length, D
head dimension of queries and keys, C of values.
"""

import contextvars
import inspect
import logging
from collections.abc import Callable
from typing import Any, Final

import torch

from tpuport.attention.call_report import Call, find_call_site, record_call
from tpuport.internals.transformers_internals import RECORDED_OUTPUTS, recorded_outputs
from tpuport.libraries.model_facts import RETURNING_ATTENTION

logger = logging.getLogger("tpuport")

_SUFFIX: Final = "eager_attention_forward"
# Bytes of scores of one call from which on their size is worth a warning: 32 heads over
# 1,024 tokens in float32.
WARNS_FROM: Final = 128 * 2**20
# Classes that have been warned about.
_warned: set[str] = set()
# The attention that each config named before it got tpuport's, by the id of the config.
replaced_names: contextvars.ContextVar[dict[int, str | None]] = contextvars.ContextVar(
    "replaced attention"
)


def is_eager(module: torch.nn.Module) -> bool:
    """Whether the module's model was built with its own attention."""
    return is_eager_config(getattr(module, "config", None))


def is_eager_config(config: Any) -> bool:
    """Whether a model with this config was built with its own attention."""
    return replaced_names.get({}).get(id(config)) == "eager"


def find_eager_attention(module: torch.nn.Module) -> Callable | None:
    """The function that a module of transformers calls as its attention if "eager" is
    chosen; None if it has none.

    The module's forward passes it to `ALL_ATTENTION_FUNCTIONS.get_interface` under a
    name that ends alike in all of transformers ("eager_attention_forward",
    "vision_eager_attention_forward").
    """
    forward = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    if code is None:
        return None
    for name in code.co_names:
        if name.endswith(_SUFFIX) and callable(forward.__globals__.get(name)):
            return forward.__globals__[name]
    return None


def asked_for_weights(module: torch.nn.Module, options: dict[str, Any]) -> bool:
    """Whether the weights of this call are part of the model's output: by an argument,
    the config, or a recorder.
    """
    if type(module).__name__ in RETURNING_ATTENTION:
        return True
    if "output_attentions" in options:
        return bool(options["output_attentions"])
    if getattr(getattr(module, "config", None), "output_attentions", False):
        return True
    if not RECORDED_OUTPUTS.works():
        return True
    return any("attentions" in name for name in recorded_outputs())


def record_eager_call(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    reason: str,
) -> None:
    """Record for `explain` that a model computes its own attention, and warn once a
    class if its scores are large.

    Args:
        query, key, value: [B, H, Q, D], [B, K, T, D], [B, K, T, C].
        reason: what was asked for.
    """
    name = type(module).__name__
    batch, heads, queries, _ = query.shape
    size = batch * heads * queries * key.shape[2] * query.dtype.itemsize
    record_call(
        Call(
            site=find_call_site()[0], module=name, source="transformers", query=tuple(query.shape),
            key=tuple(key.shape), value=tuple(value.shape), dtype=str(query.dtype).removeprefix("torch."),
            implementation="eager", reason=reason, mask="as the model adds it", mesh="as the compiler places it",
            padding="",
        )
    )  # fmt: skip
    if size < WARNS_FROM or name in _warned:
        return
    _warned.add(name)
    logger.warning(
        "%s computes attention as the model's own code has it, for %s: its scores have %.0f MiB a layer, four times "
        "as many for twice the length.",
        name,
        reason,
        size / 2**20,
    )
