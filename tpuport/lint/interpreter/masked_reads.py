"""Reads by a mask, `x[mask]`, and its coordinates, `torch.where(mask)`, in code of
libraries, as long as nothing asks for the number of elements.

What follows from each of them alone tpuport computes for all rows, and writes it where
the same mask is true. Rules hear of a read when anything else is done with it.
`tpuport.compat.operators.masked_selection` does this in compiled code.
"""

import ast
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, Final

from tpuport.lint.abstract_values import (
    SLICE,
    TRUE,
    Instance,
    Mapping,
    Sequence,
    Static,
    Tensor,
    Value,
)
from tpuport.lint.events import (
    Arithmetic,
    Call,
    Comparison,
    Event,
    Membership,
    Return,
    Subscript,
)
from tpuport.lint.findings import Finding
from tpuport.lint.rules.event_queries import is_mask, operands

# Functions and operators that compute each element from the elements in its place, and
# those of the last dimensions.
BY_ROW: Final = frozenset(
    "add sub mul neg abs square eq ne lt le gt ge logical_not relu relu6 gelu silu sigmoid tanh hardswish leaky_relu "
    "clamp to float half bfloat16 double bool int long type_as clone contiguous dropout and or xor invert "
    "linear layer_norm".split()
)
# What is known of it without the number of its elements.
KNOWN: Final = frozenset({"dtype", "device", "ndim", "dim", "is_floating_point"})
_ASKING_NOTHING: Final = KNOWN | {"numel", "builtins.isinstance"}
_OPERATORS: Final = {
    "mult": "mul", "bitand": "and", "bitor": "or", "bitxor": "xor", "usub": "neg",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class MaskedRead:
    """A read by a mask.

    Attributes:
        keys: of the findings; these count if something asks for the number of elements.
        mask: the name under which the code has the mask; "" if it has none.
        is_coordinates: it is where the mask is true.
    """

    keys: tuple[Any, ...]
    findings: tuple[Finding, ...] = dataclasses.field(compare=False)
    mask: str = ""
    is_coordinates: bool = False


def start_read(event: Event, findings: tuple[Finding, ...]) -> MaskedRead | None:
    """The read by a mask that an event is, of whose findings nothing says yet whether
    they count; None for any other event.
    """
    match event:
        case Subscript(store=False):
            is_read, is_coordinates = is_of_mask_alone(event), False
        case Call():
            is_read = is_coordinates = _gives_coordinates(event)
        case _:
            return None
    if not is_read:
        return None
    keys = tuple(finding.key for finding in findings)
    return MaskedRead(keys, findings, _name_of_mask(event.node), is_coordinates)


def is_of_mask_alone(event: Subscript) -> bool:
    """Whether an index is a traced mask and slices after it."""
    match event.indices:
        case [mask, *others]:
            return _is_mask(mask) and all(other == SLICE for other in others)
        case _:
            return False


def _gives_coordinates(event: Call) -> bool:
    """Whether it is `torch.where(mask)` or `mask.nonzero(as_tuple=True)` of a traced
    mask.
    """
    name = event.name.removeprefix("torch.")
    is_asked = (name == "where" and not event.keywords) or (
        name == "nonzero" and event.keywords == {"as_tuple": TRUE}
    )
    tensors = operands(event)
    return is_asked and len(tensors) == 1 and _is_mask(tensors[0])


def _is_mask(value: Value) -> bool:
    return is_mask(value) and not value.decided


def _name_of_mask(node: ast.AST) -> str:
    """The name of the mask in `x[mask]`, or of the attribute that it is."""
    match node:
        case ast.Subscript(slice=ast.Name() | ast.Attribute() as mask):
            return ast.unparse(mask)
        case _:
            return ""


def read_in_result(name: str, values: Iterable[Value]) -> MaskedRead | None:
    """The read whose rows the rows of a result follow from; None if there is none, or
    if the result does not have these rows.

    Args:
        name: of the function, method or operator.
        values: all that it gets.
    """
    if name not in BY_ROW:
        return None
    reads = {value.masked_read for value in values if isinstance(value, Tensor)}
    reads.discard(None)
    if len(reads) != 1:
        return None
    read = reads.pop()
    return dataclasses.replace(read, is_coordinates=False) if read else None


def operator_name(operator: ast.operator | ast.unaryop) -> str:
    """What an operator is called as a function of torch."""
    name = type(operator).__name__.lower()
    return _OPERATORS.get(name, name)


def keeps_rows(event: Subscript) -> bool:
    """Whether `x[mask] += value` needs no number of elements."""
    value = event.value
    is_single = isinstance(value, Static) or (
        isinstance(value, Tensor) and (value.ndim == 0 or value.masked_read is not None)
    )
    return (
        event.operator is not None
        and operator_name(event.operator) in BY_ROW
        and is_of_mask_alone(event)
        and is_single
    )


def asked_reads(event: Event) -> Iterator[MaskedRead]:
    """The reads whose number of elements an event asks for."""
    for part in _asking_parts(event):
        yield from reads_in(part)


def _asking_parts(event: Event) -> Iterable[Any]:
    match event:
        case Call(name=name) if name in _ASKING_NOTHING:
            return ()
        case Call() | Arithmetic() if any(reads_in(event.result)):
            return ()
        case Call():
            return (event.receiver, event.args, event.keywords)
        case Arithmetic() | Comparison():
            parts = (event.left, event.right)
            is_of_one = len({*reads_in(parts)}) == 1
            return () if is_of_one and isinstance(event, Comparison) else parts
        case Subscript(store=True):
            same = _name_of_mask(event.node)
            is_back = all(read.mask == same != "" for read in reads_in(event.value))
            indices = () if _are_coordinates(event.indices) else event.indices
            return (event.base, indices, () if is_back else event.value)
        case Subscript():
            return (event.base, event.indices)
        # What a function returns as it is, its caller has.
        case Return(entry=False, value=Tensor()):
            return ()
        case Membership():
            return (event.item, event.container)
        case _:
            return (getattr(event, "value", None),)


def _are_coordinates(indices: list[Value]) -> bool:
    """Whether an index consists of all coordinates of a mask, as far as their number is
    known.
    """
    reads = set(reads_in(indices))
    is_one = len(indices) == 1 and isinstance(indices[0], Tensor)
    return not is_one and len(reads) == 1 and reads.pop().is_coordinates


def reads_in(part: Any) -> Iterator[MaskedRead]:
    """The reads in a value, or in the parts of an event."""
    pending = [part]
    # A list may hold another one twice, which holds one twice.
    seen: set[int] = set()
    while pending:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        match part:
            case Tensor(masked_read=MaskedRead() as read):
                yield read
            case list() | tuple():
                pending += part
            case Sequence(items=items, element=element):
                pending.append(items or element)
            case dict():
                pending += part.values()
            case Mapping(values=values):
                pending += values
            case Instance(fields=fields):
                pending += [value for _, value in fields]
