"""transformers' rotary embeddings whose frequencies depend on the length: decided outside the traced code.

`longrope` has two tables, and makes the second one inside forward and keeps it on the module, where a traced value
must never be: `prepare` makes it beforehand. `dynamic` asks in Python how long the sequence is, and recomputes its
table beyond the length that the model knows: `fixed` holds the table that serves up to there.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

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
    """Give every longrope module of a ported model its table for long sequences; does nothing the second time."""
    for module, prefix, kind, layer_type in _tables(model):
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


@contextlib.contextmanager
def fixed(model: torch.nn.Module) -> Iterator[None]:
    """Let `dynamic` modules keep their table inside the block, for sequences no longer than the model knows."""
    previous = {}
    for module, _, kind, _ in _tables(model):
        if "dynamic" in kind:
            previous[module] = module.rope_type
    for module, kinds in previous.items():
        names = kinds.items() if isinstance(kinds, dict) else ()
        kept = {name: "default" if "dynamic" in kind else kind for name, kind in names}
        module.rope_type = kept or "default"
    try:
        yield
    finally:
        for module, kinds in previous.items():
            module.rope_type = kinds
