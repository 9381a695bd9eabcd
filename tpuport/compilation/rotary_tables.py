"""`precompute_rotary`: make a model's rotary tables before its first call, and say what
was made.
"""

import dataclasses
import logging
from typing import Any

import jax
import torch

from tpuport import compat
from tpuport.checkpoint import model_mesh
from tpuport.compat.tracing import trace_lock
from tpuport.compilation.compiled_function import CompiledFunction
from tpuport.compilation.rotary.rotary_modules import (
    find_rotary_modules,
    takes_positions,
)
from tpuport.compilation.rotary.table_needs import TableNeed, find_table_needs
from tpuport.compilation.rotary.table_store import table_for
from tpuport.errors import PortError

logger = logging.getLogger("tpuport")


@dataclasses.dataclass(frozen=True)
class RotaryModule:
    """What `precompute_rotary` did for one rotary module.

    Attributes:
        name: the module's, in the model.
        module: its class.
        kind: "table" (for the shapes of one call), or "program" (it is computed inside
            of the program).
        shapes: of the arrays in the table.
        nbytes: of them together, on each device.
        why: it is computed inside of the program.
    """

    name: str
    module: str
    kind: str
    shapes: tuple[tuple[int, ...], ...] = ()
    nbytes: int = 0
    why: str = ""


def precompute_rotary(model: Any, *args: Any, **kwargs: Any) -> list[RotaryModule]:
    """Make the rotary tables for calls of a ported model with inputs of these shapes,
    and log what was made.

    Compiled functions make these tables themselves when they meet a new shape; this
    makes them sooner. Modules that are given positions as values (transformers'
    `position_ids`, the ids of Flux) are computed inside of the program.

    Args:
        model: a ported module.
        args, kwargs: example inputs of the model: tensors, or anything with shape and
            dtype (`jax.ShapeDtypeStruct`) for tensors whose values are not known yet.

    Returns:
        One entry for each call of a rotary module that a table serves, and one for each
        other rotary module.

    Raises:
        PortError: the model is not on the device, or there are no example inputs.
    """
    _check_arguments(model, args, kwargs)
    args, kwargs = jax.tree.map(_as_example, (args, kwargs))
    function, arrays = CompiledFunction(model).traced_parts(args, kwargs)
    with trace_lock:
        needs = find_table_needs([model], function, arrays)
    entries = [_make_table(model, need) for need in needs]
    served = {entry.name for entry in entries}
    entries += [
        RotaryModule(name, type(module).__name__, "program", why=_reason(module))
        for name, module in find_rotary_modules(model).items()
        if name not in served
    ]
    for entry in entries:
        logger.info("precomputed rotary: %s", entry)
    return entries


def _check_arguments(model: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    if not isinstance(model, torch.nn.Module) or model_mesh(model) is None:
        raise PortError(
            f"this {type(model).__name__} is not a ported model, and has no devices to keep tables on",
            where="model",
            fix="model = tpuport.port(model, mesh=mesh) first",
        )
    if "max_length" in kwargs:
        raise PortError(
            "tables over positions are gone: they saved nothing in the compiled program",
            where="max_length",
            fix="leave max_length out; the module is computed inside of the program",
        )
    if not args and not kwargs:
        raise PortError(
            "there are no example inputs, and rotary tables depend on shapes",
            where="precompute_rotary",
            fix="give the inputs that the model will be called with: precompute_rotary(model, hidden_states=...)",
        )


def _as_example(leaf: Any) -> Any:
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    return torch.zeros(leaf.shape, dtype=compat.torch_dtype(leaf.dtype))


def _make_table(model: torch.nn.Module, need: TableNeed) -> RotaryModule:
    table = table_for(model, need)
    name = need.module.name
    shapes = tuple(tuple(array.shape) for array in table.arrays)
    return RotaryModule(
        name, type(model.get_submodule(name)).__name__, "table", shapes, table.nbytes
    )


def _reason(module: torch.nn.Module) -> str:
    if takes_positions(module):
        return "it is given positions as values"
    return (
        "the example does not call it, or gives it values that only the program knows"
    )
