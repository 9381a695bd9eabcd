"""transformers' rotary embeddings whose frequencies depend on the length: decided
outside the traced code.

`longrope` has two tables. It computes the second inside forward and stores it on the
module, where a traced value must never be: `prepare` computes it beforehand. `dynamic`
reads the sequence length in Python, recomputes its table beyond the length that the
model was trained for, and keeps it until a short sequence comes: `by_length` computes
the table from the positions in each call, and stores nothing.
"""

import contextlib
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import jax
import torch

from tpuport import compat
from tpuport.base.mappings import group_by


class _Table(NamedTuple):
    """A rotary table of a module; modules with layers of several types have a table for
    each type.

    Args:
        prefix: of the module's attributes that belong to the table.
        kind: transformers' rope type.
        layer_type: None if the module has a single table.
    """

    module: Any
    prefix: str
    kind: str
    layer_type: str | None

    @property
    def is_dynamic(self) -> bool:
        return "dynamic" in self.kind

    @property
    def parameters(self) -> dict[str, Any]:
        """What the config says of the table."""
        parameters = self.module.config.rope_parameters
        if self.layer_type is not None:
            parameters = parameters[self.layer_type]
        return parameters

    @property
    def original_length(self) -> int:
        """Positions that the model was trained for before its context was extended."""
        return self.parameters["original_max_position_embeddings"]

    @property
    def scaled_length(self) -> int:
        """Positions that the model knows with its scaling: as many times the original
        ones as `factor` says.
        """
        positions = self.module.config.max_position_embeddings
        if self.kind == "default":
            return positions
        original = self.parameters.get("original_max_position_embeddings") or positions
        factor = self.parameters.get("factor") or 1.0
        return max(positions, int(original * factor))

    @property
    def change_length(self) -> int | None:
        """Positions beyond which the table depends on the length; None if it does
        nowhere.
        """
        if self.is_dynamic:
            return self.module.original_max_seq_len
        return self.original_length if self.kind == "longrope" else None

    def frequencies(self, device: Any, length: Any) -> torch.Tensor:
        """The table for sequences of a length, by transformers' own formula."""
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        options = {"seq_len": length}
        if self.layer_type is not None:
            options["layer_type"] = self.layer_type
        frequencies, _ = ROPE_INIT_FUNCTIONS[self.kind](
            self.module.config, device, **options
        )
        return frequencies


def _tables(model: torch.nn.Module) -> Iterator[_Table]:
    """Every rotary table of the model."""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, str):
            yield _Table(module, "", kinds, None)
        elif isinstance(kinds, dict):
            for layer_type, kind in kinds.items():
                yield _Table(module, f"{layer_type}_", kind, layer_type)


def prepare(model: torch.nn.Module) -> None:
    """Give each longrope module of a ported model its table for long sequences, and
    each dynamic one its first table.

    Calling it again does nothing.
    """
    for table in _tables(model):
        if table.is_dynamic:
            _reset(table)
        elif table.kind == "longrope":
            name = f"{table.prefix}long_inv_freq"
            # An earlier call may have stored it already.
            if not compat.is_ported(getattr(table.module, name, None)):
                # One position beyond the original length selects the formula's table
                # for long sequences.
                frequencies = table.frequencies(
                    torch.device("cpu"), table.original_length + 1
                )
                setattr(table.module, name, compat.to_device(frequencies))


def change_length(model: torch.nn.Module) -> int | None:
    """Positions beyond which a rotary table of the model depends on the length; None if
    none does.
    """
    lengths = [table.change_length for table in _tables(model)]
    return min(filter(None, lengths), default=None)


def scaled_length(
    model: torch.nn.Module, config: Any, windowed: Collection[str]
) -> int | None:
    """Positions that a text model knows with the scaling of its rotary tables; None if
    it has none.

    Args:
        config: of the text.
        windowed: types of layers that see a window, and so no distance beyond it.
    """
    lengths = [
        table.scaled_length
        for table in _tables(model)
        if type(table.module.config) is type(config)
        and table.layer_type not in windowed
    ]
    return min(lengths, default=None)


def _reset(table: _Table) -> None:
    """Restore a dynamic module's first table after a long sequence, as transformers
    does before the next short one.
    """
    module = table.module
    name = f"{table.prefix}max_seq_len_cached"
    longest = getattr(module, name, module.max_seq_len_cached)
    if isinstance(longest, int) and longest <= module.original_max_seq_len:
        return
    # to_jax passes on an array that is on the device already.
    original = compat.to_jax(getattr(module, f"{table.prefix}original_inv_freq"))
    sharding = compat.as_jax(getattr(module, f"{table.prefix}inv_freq")).sharding
    module._buffers[f"{table.prefix}inv_freq"] = compat.wrap(
        jax.device_put(original, sharding)
    )
    setattr(module, name, module.original_max_seq_len)


@contextlib.contextmanager
def by_length(model: torch.nn.Module) -> Iterator[None]:
    """Traced. Let `dynamic` modules use the table for the positions of each call,
    whatever came before.
    """
    dynamic = [table for table in _tables(model) if table.is_dynamic]
    tables_by_module = group_by(dynamic, lambda table: table.module)
    with contextlib.ExitStack() as stack:
        for module, tables in tables_by_module.items():
            stack.enter_context(_tables_from_positions(module, tables))
        yield


@contextlib.contextmanager
def _tables_from_positions(module: Any, tables: list[_Table]) -> Iterator[None]:
    rope_type = module.rope_type
    # An instance may have a forward of its own, which shadows the class's and must come
    # back.
    instance_forward = vars(module).get("forward")
    former = module.forward

    def forward(
        x: torch.Tensor, position_ids: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        # Traced values must not stay in the module, also if the forward raises.
        buffers = dict(module._buffers)
        for table in tables:
            name = f"{table.prefix}inv_freq"
            module._buffers[name] = _table_for_positions(
                table, buffers[name], position_ids
            )
        try:
            return former(x, position_ids, *args, **kwargs)
        finally:
            module._buffers.update(buffers)

    # Under any other type the original forward uses the table as it is, without reading
    # the sequence length.
    if isinstance(rope_type, dict):
        dynamic_types = {table.layer_type: "default" for table in tables}
        module.rope_type = rope_type | dynamic_types
    else:
        module.rope_type = "default"
    module.forward = forward
    try:
        yield
    finally:
        module.rope_type = rope_type
        del module.forward
        if instance_forward is not None:
            module.forward = instance_forward


def _table_for_positions(
    table: _Table, first: torch.Tensor, position_ids: torch.Tensor
) -> torch.Tensor:
    """Traced. The first table up to the length that the model was trained for, the
    library's own formula beyond.
    """
    length = torch.max(position_ids) + 1
    extended = table.frequencies(first.device, length).to(first.dtype)
    return torch.where(length > table.module.original_max_seq_len, extended, first)
