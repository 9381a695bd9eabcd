"""A concatenation of masked reads as a stable sort of the masks and a gather:
`torch.cat([x[mask], x[~mask]])`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

import libcst as cst

from tpuport.lint.fixes.boolean_masks import negated
from tpuport.lint.fixes.edits import Edit, introduce_name, replace_node
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import (
    CannotRewriteError,
    expect,
    is_simple,
    names_assigned_in,
    nodes_of_kind,
    require,
    simple_assignment,
    single_index,
    target_names,
)

_CONCATENATIONS: Final = ("cat", "concat", "concatenate")
_FILLS: Final = ("zeros_like", "ones_like")
# A longer order is written on three lines.
_MAX_LENGTH: Final = 70


@dataclasses.dataclass(frozen=True)
class _Read:
    """`base[mask]` or `base[~mask]` in the list.

    Attributes:
        node: the read.
        base: what it reads.
        mask: its index, without the negation.
        is_negated: whether the index is a negation.
    """

    node: cst.Subscript
    base: cst.BaseExpression
    mask: cst.BaseExpression
    is_negated: bool


def reorder_masked_reads(site: Site, node: cst.Subscript) -> Edit | None:
    """Rewrite `torch.cat([x[mask], y[other], x[~mask], ...])` in which every mask
    occurs once, and once negated.

    As many rows come out as go in, so the length is static. Each element keeps all its
    rows; a stable sort puts the rows that their mask selects first, in the order of the
    list, and the rows behind them are cut off.
    """
    call = site.enclosing(node, cst.Call)
    while site.is_torch_call(call, *_FILLS):
        call = site.enclosing(call, cst.Call)
    if not site.is_torch_call(call, *_CONCATENATIONS):
        return None
    reads = _masked_reads(site, call)
    expect(node in [read.node for read in reads])
    expect(_are_complementary(site, reads))
    torch = site.torch_name(call)
    is_one_dimensional = all(_is_loop_sample(site, read) for read in reads)
    match [site.parent(read.node) for read in reads]:
        # Two complementary reads have the same base; without `zeros_like` around them
        # one sort of it will do.
        case [cst.Element(), cst.Element()]:
            rows = _all_rows(site, reads[0], is_one_dimensional)
            dropped = _dropped_rows(site, reads[0], is_one_dimensional)
            text = f"{rows}[{torch.name}.argsort({dropped}, stable=True)]"
            return replace_node(
                call, site.expression(text), unsafe=True, imports=torch.imports
            )
    order = _order(site, reads, torch.name, is_one_dimensional)
    unmasked = call.visit(_Unmasked(site, reads, is_one_dimensional))
    assert isinstance(unmasked, cst.Call)
    edit = _gather(site, call, unmasked, order)
    return dataclasses.replace(edit, unsafe=True, imports=torch.imports)


# --- the reads of the list ---


def _masked_reads(site: Site, call: cst.Call) -> list[_Read]:
    """The masked reads in the list, some of them perhaps in `zeros_like`."""
    match call.args:
        # The only other argument may be the dimension.
        case [cst.Arg(value=cst.List() | cst.Tuple() as sequence, keyword=None)] | [
            cst.Arg(value=cst.List() | cst.Tuple() as sequence, keyword=None),
            cst.Arg(value=cst.Integer(value="0")),
        ]:
            return [_masked_read(site, element.value) for element in sequence.elements]
    raise CannotRewriteError


def _masked_read(site: Site, value: cst.BaseExpression) -> _Read:
    match value:
        case cst.Call(args=[argument]) if site.is_torch_call(value, *_FILLS):
            value = argument.value
    index = require(single_index(value))
    assert isinstance(value, cst.Subscript)
    expect(is_simple(value.value))
    positive = negated(index)
    return _Read(value, value.value, positive or index, is_negated=positive is not None)


def _are_complementary(site: Site, reads: Sequence[_Read]) -> bool:
    """Whether each mask selects rows once and its negation once, from the same
    tensor.
    """
    keys: dict[bool, list[tuple[str, str]]] = {False: [], True: []}
    for read in reads:
        expect(is_simple(read.mask))
        keys[read.is_negated].append((site.code(read.base), site.code(read.mask)))
    # A mask that occurs twice would select its rows twice.
    return sorted(keys[False]) == sorted(keys[True]) == sorted(set(keys[True]))


def _is_loop_sample(site: Site, read: _Read) -> bool:
    """Whether mask and tensor are variables of a loop over samples, so that the mask
    has one dimension.
    """
    loop = site.enclosing(read.node, cst.For)
    if loop is None:
        return False
    return {site.code(read.base), site.code(read.mask)} <= set(
        target_names(loop.target)
    )


# --- the new text ---


def _all_rows(site: Site, read: _Read, is_one_dimensional: bool) -> str:
    """Text of the tensor with the dimensions that the mask indexes merged into one."""
    base = site.code(read.base)
    return (
        base
        if is_one_dimensional
        else f"{base}.flatten(0, {site.code(read.mask)}.ndim - 1)"
    )


def _dropped_rows(site: Site, read: _Read, is_one_dimensional: bool) -> str:
    """Text of a vector that is true for the rows that are not selected: false sorts
    first.
    """
    dropped = site.code(read.mask)
    if not read.is_negated:
        dropped = f"~{dropped}"
    if not is_one_dimensional:
        dropped += ".flatten()"
    return dropped


def _order(
    site: Site, reads: Sequence[_Read], torch: str, is_one_dimensional: bool
) -> str:
    dropped = ", ".join(_dropped_rows(site, read, is_one_dimensional) for read in reads)
    # Each mask selects as many rows as its negation drops, so the lengths are those of
    # the masks themselves.
    masks = dict.fromkeys(site.code(read.mask) for read in reads if not read.is_negated)
    lengths = [
        f"len({mask})" if is_one_dimensional else f"{mask}.numel()" for mask in masks
    ]
    return f"{torch}.argsort({torch}.cat([{dropped}]), stable=True)[: {' + '.join(lengths)}]"


def _wrap_order(order: str) -> str:
    """The order's text, on three lines if it is too long for one."""
    if len(order) <= _MAX_LENGTH:
        return order
    function, _, rest = order.partition("(")
    arguments, _, end = rest.rpartition(")[: ")
    return f"{function}(\n    {arguments}\n)[: {end}"


def _gather(site: Site, call: cst.Call, unmasked: cst.Call, order: str) -> Edit:
    """`unmasked[order]`, with a name for the order if a line before can bind one."""

    def build(index: str) -> cst.BaseExpression:
        return site.expression(f"x[{index}]").with_changes(value=unmasked)

    name = _existing_order(site, call, order)
    if name is not None:
        return replace_node(call, build(name))
    edit = introduce_name(site, call, "order", _wrap_order(order), build)
    return edit or replace_node(call, build(order))


def _existing_order(site: Site, call: cst.Call, order: str) -> str | None:
    """The name that the same order has already in this block, if none of its masks has
    changed since.
    """
    # Only statements before this one in the same block have surely run.
    line = site.statement_line(call)
    block = site.parent(line)
    if not isinstance(block, cst.IndentedBlock):
        return None
    order_text = site.code(site.expression(_wrap_order(order)))
    used_names = {
        node.value for node in nodes_of_kind(site.expression(order), cst.Name)
    }
    name: str | None = None
    for statement in block.body:
        if statement is line:
            break
        assigned = names_assigned_in(statement)
        if not assigned.isdisjoint({name, *used_names}):
            name = None
        match simple_assignment(statement):
            case cst.Assign(value=value) if site.code(value) == order_text:
                (name,) = assigned
    return name


class _Unmasked(cst.CSTTransformer):
    """The concatenation with all rows of each element; its formatting and comments
    stay.
    """

    def __init__(
        self, site: Site, reads: Sequence[_Read], is_one_dimensional: bool
    ) -> None:
        super().__init__()
        self._replacements = {
            read.node: site.expression(_all_rows(site, read, is_one_dimensional))
            for read in reads
        }

    def leave_Subscript(  # noqa: N802 - libcst's name
        self, original_node: cst.Subscript, updated_node: cst.Subscript
    ) -> cst.BaseExpression:
        return self._replacements.get(original_node, updated_node)
