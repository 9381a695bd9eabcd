"""transformers' rotary embeddings whose frequencies depend on the length: decided outside the traced code.

`longrope` has two tables, and makes the second one inside forward and keeps it on the module, where a traced value
must never be: `prepare` makes it beforehand. `dynamic` asks in Python how long the sequence is, recomputes its table
beyond the length that the model knows, and keeps that until a short sequence comes: `by_length` computes it from the
positions in each call, and keeps nothing.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import torch

from tpuport import compat


def _tables(model: torch.nn.Module) -> Iterator[tuple[Any, str, str, str | None]]:
    """(module, prefix of its attributes, rope type, layer type) of every rotary table in the model."""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, str):
            yield module, "", kinds, None
        elif isinstance(kinds, dict):
            for layer_type, kind in kinds.items():
                yield module, f"{layer_type}_", kind, layer_type


def _original_length(module: Any, layer_type: str | None) -> int:
    parameters = module.config.rope_parameters
    return (parameters if layer_type is None else parameters[layer_type])["original_max_position_embeddings"]


def prepare(model: torch.nn.Module) -> None:
    """Give every longrope module of a ported model its table for long sequences, and every dynamic one its first table.

    Does nothing the second time.
    """
    for module, prefix, kind, layer_type in _tables(model):
        if "dynamic" in kind:
            _forget(module, prefix)
        name = f"{prefix}long_inv_freq"
        if kind != "longrope" or compat.is_ported(getattr(module, name, None)):
            continue
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        options = {} if layer_type is None else {"layer_type": layer_type}
        length = _original_length(module, layer_type) + 1
        table, _ = ROPE_INIT_FUNCTIONS[kind](module.config, torch.device("cpu"), seq_len=length, **options)
        setattr(module, name, compat.wrap(compat.to_jax(table)))


def switch_length(model: torch.nn.Module) -> int | None:
    """Positions at which a longrope model goes over to its other table; None for models that have one table."""
    lengths = [
        _original_length(module, layer_type)
        for module, _, kind, layer_type in _tables(model)
        if kind == "longrope"
    ]
    return min(lengths, default=None)


def _forget(module: Any, prefix: str) -> None:
    """Undo what a long sequence has left in a dynamic module, as transformers does before the next short one."""
    last, known = f"{prefix}max_seq_len_cached", module.original_max_seq_len
    length = getattr(module, last, module.max_seq_len_cached)
    if isinstance(length, int) and length <= known:
        return
    first, own = getattr(module, f"{prefix}original_inv_freq"), getattr(module, f"{prefix}inv_freq")
    array = compat.as_jax(first) if compat.is_ported(first) else compat.to_jax(first)
    module._buffers[f"{prefix}inv_freq"] = compat.wrap(jax.device_put(array, compat.as_jax(own).sharding))
    setattr(module, last, known)


@contextlib.contextmanager
def by_length(model: torch.nn.Module) -> Iterator[None]:
    """Traced. Let `dynamic` modules take the table that serves the positions of a call, whatever came before."""
    dynamic: dict[Any, list[tuple[str, str, str | None]]] = {}
    for module, prefix, kind, layer_type in _tables(model):
        if "dynamic" in kind:
            dynamic.setdefault(module, []).append((prefix, kind, layer_type))
    with contextlib.ExitStack() as stack:
        for module, tables in dynamic.items():
            stack.enter_context(_computed(module, tables))
        yield


@contextlib.contextmanager
def _computed(module: Any, tables: list[tuple[str, str, str | None]]) -> Iterator[None]:
    kinds, own, former = module.rope_type, vars(module).get("forward"), module.forward
    # Under another name its own forward looks up the table and asks nothing.
    if isinstance(kinds, dict):
        module.rope_type = {name: "default" if "dynamic" in kind else kind for name, kind in kinds.items()}
    else:
        module.rope_type = "default"
    module.forward = _forward(module, former, tables)
    try:
        yield
    finally:
        module.rope_type = kinds
        del module.forward
        if own is not None:
            module.forward = own


def _forward(
    module: Any, former: Callable[..., Any], tables: list[tuple[str, str, str | None]]
) -> Callable[..., Any]:
    """The module's forward with its tables computed from the positions of the call."""

    def forward(x: torch.Tensor, position_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        kept = dict(module._buffers)
        for prefix, kind, layer_type in tables:
            name = f"{prefix}inv_freq"
            module._buffers[name] = _table(module, kept[name], kind, layer_type, position_ids)
        try:
            return former(x, position_ids, *args, **kwargs)
        finally:
            module._buffers.update(kept)

    return forward


def _table(
    module: Any, first: torch.Tensor, kind: str, layer_type: str | None, position_ids: torch.Tensor
) -> torch.Tensor:
    """Traced. The first table up to the length that the model knows, the library's own formula beyond."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    length = torch.max(position_ids) + 1
    options = {} if layer_type is None else {"layer_type": layer_type}
    grown, _ = ROPE_INIT_FUNCTIONS[kind](module.config, first.device, seq_len=length, **options)
    return torch.where(length > module.original_max_seq_len, grown.to(first.dtype), first)
