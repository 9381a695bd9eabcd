"""Valid tokens to the front: a concatenation of boolean reads as a stable sort of the masks and a gather."""

import dataclasses
from collections.abc import Sequence

import libcst as cst

from tpuport.lint.fixes.masks import negated
from tpuport.lint.fixes.names import target_names, walk
from tpuport.lint.fixes.place import Place, is_simple, keyword, subscript_index
from tpuport.lint.fixes.rewrite import Edit
from tpuport.lint.fixes.statements import with_name

Read = tuple[cst.Subscript, cst.BaseExpression, cst.BaseExpression]
_CAT = ("cat", "concat", "concatenate")
_LONG = 70
_ALIKE = ("zeros_like", "ones_like")


def reordered(place: Place, node: cst.Subscript) -> Edit | None:
    """`torch.cat([x[mask], y[other], x[~mask], ...])` where every mask stands there once, and once negated.

    As many rows come out as go in, so the length is static. Each element keeps all its rows; a stable sort puts the
    rows that their mask picks first, in the order of the list, and what is behind them is cut off.
    """
    call = place.enclosing(node, cst.Call)
    while isinstance(call, cst.Call) and place.is_torch(call, *_ALIKE):
        call = place.enclosing(call, cst.Call)
    if not isinstance(call, cst.Call) or not place.is_torch(call, *_CAT) or not call.args:
        return None
    reads = _reads(place, call)
    torch = place.torch(call)
    if (
        torch is None
        or not reads
        or not _in_pairs(place, reads)
        or not any(read[0] is node for read in reads)
    ):
        return None
    per_sample = all(_per_sample(place, read) for read in reads)
    if len(reads) == 2 and _same_base(place, reads):
        new = place.expression(_one_tensor(place, reads, torch[0], per_sample))
        return Edit(((call, new),), True, torch[1])
    order = _order(place, reads, torch[0], per_sample)
    kept = call.visit(_Unmasked(place, reads, per_sample))
    assert isinstance(kept, cst.Call)
    return _gathered(place, call, kept, order, torch[1])


def _gathered(place: Place, call: cst.Call, kept: cst.Call, order: str, imports: tuple[str, ...]) -> Edit:
    """`kept[order]`, with a name for the order where there is a line before to give it."""
    line = place.line(call)
    block = place.parent(line) if line is not None else None
    known = _known_order(place, block, line, order) if isinstance(block, cst.IndentedBlock) else None
    edit = None
    if known is None:
        edit = with_name(place, call, "order", _on_lines(order), lambda name: _subscript(place, kept, name))
    edit = edit or Edit(((call, _subscript(place, kept, known or order)),))
    return dataclasses.replace(edit, unsafe=True, imports=imports)


def _on_lines(order: str) -> str:
    """The order's text, over three lines where one would be long."""
    if len(order) <= _LONG:
        return order
    head, _, rest = order.partition("(")
    inside, _, tail = rest.rpartition(")[: ")
    return f"{head}(\n    {inside}\n)[: {tail}"


def _subscript(place: Place, value: cst.Call, index: str) -> cst.Subscript:
    new = place.expression(f"x[{index}]")
    assert isinstance(new, cst.Subscript)
    return new.with_changes(value=value)


def _known_order(place: Place, block: cst.IndentedBlock, line: cst.CSTNode | None, order: str) -> str | None:
    """The name that the same order has already got in this block, if none of its masks has changed since."""
    wanted = place.code(place.expression(_on_lines(order)))
    names = {node.value for node in walk(place.expression(order)) if isinstance(node, cst.Name)}
    found = None
    for statement in block.body:
        if statement is line:
            break
        bound = {n for node in walk(statement) for n in _assigned(node)}
        if bound & names or found in bound:
            found = None
        only = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if isinstance(only, cst.Assign) and place.code(only.value) == wanted and len(bound) == 1:
            found = next(iter(bound))
    return found


def _assigned(node: cst.CSTNode) -> list[str]:
    if isinstance(node, cst.AssignTarget | cst.AugAssign | cst.AnnAssign | cst.For | cst.NamedExpr):
        return list(target_names(node.target))
    return []


def _reads(place: Place, call: cst.Call) -> list[Read]:
    """The boolean reads that the list consists of, each perhaps inside `zeros_like`; none if there is anything else."""
    dim = keyword(call, "dim") or (call.args[1] if len(call.args) == 2 else None)
    elements = call.args[0].value
    if not isinstance(elements, cst.List | cst.Tuple) or len(call.args) > 2 or call.args[0].keyword:
        return []
    if dim is not None and place.code(dim.value) != "0":
        return []
    found: list[Read] = []
    for element in elements.elements:
        value = element.value
        if place.is_torch(value, *_ALIKE) and len(value.args) == 1:  # type: ignore[attr-defined]
            value = value.args[0].value  # type: ignore[attr-defined]
        index = subscript_index(value) if isinstance(value, cst.Subscript) else None
        if index is None or not is_simple(value.value):  # type: ignore[union-attr]
            return []
        found.append((value, value.value, index))  # type: ignore[arg-type,union-attr]
    return found


def _in_pairs(place: Place, reads: Sequence[Read]) -> bool:
    """Whether each mask picks rows once and its negation once, out of the same tensor."""
    picked: list[tuple[str, str]] = []
    dropped: list[tuple[str, str]] = []
    for _, base, mask in reads:
        inside = negated(mask)
        if not is_simple(inside or mask):
            return False
        (picked if inside is None else dropped).append((place.code(base), place.code(inside or mask)))
    return sorted(picked) == sorted(dropped) and len(set(picked)) == len(picked)


def _same_base(place: Place, reads: Sequence[Read]) -> bool:
    """Whether both reads stand there as they are (no `zeros_like`) and are of the same tensor."""
    return all(isinstance(place.parent(read[0]), cst.Element) for read in reads)


def _order(place: Place, reads: Sequence[Read], torch: str, per_sample: bool) -> str:
    masks = [_drops(place, mask, per_sample) for _, _, mask in reads]
    names = list(dict.fromkeys(place.code(mask) for _, _, mask in reads if negated(mask) is None))
    lengths = " + ".join(f"len({name})" if per_sample else f"{name}.numel()" for name in names)
    return f"{torch}.argsort({torch}.cat([{', '.join(masks)}]), stable=True)[: {lengths}]"


def _drops(place: Place, mask: cst.BaseExpression, per_sample: bool) -> str:
    """Text of a vector that is true for the rows that are not picked: false sorts first."""
    inside = negated(mask)
    flat = "" if per_sample else ".flatten()"
    return f"{place.code(inside)}{flat}" if inside is not None else f"~{place.code(mask)}{flat}"


def _one_tensor(place: Place, reads: Sequence[Read], torch: str, per_sample: bool) -> str:
    """`torch.cat([x[mask], x[~mask]])`: one sort and one gather of x itself."""
    _, base, mask = reads[0]
    rows = _rows(place, base, mask, per_sample)
    return f"{rows}[{torch}.argsort({_drops(place, mask, per_sample)}, stable=True)]"


def _rows(place: Place, base: cst.BaseExpression, mask: cst.BaseExpression, per_sample: bool) -> str:
    """Text of the tensor with the dimensions that the mask indexes in one."""
    if per_sample:
        return place.code(base)
    return f"{place.code(base)}.flatten(0, {place.code(negated(mask) or mask)}.ndim - 1)"


def _per_sample(place: Place, read: Read) -> bool:
    """Whether mask and tensor are the variables of a loop over samples, so that the mask has one dimension."""
    node, base, mask = read
    names = {place.code(base), place.code(negated(mask) or mask)}
    for above in place.ancestors(node):
        if isinstance(above, cst.For):
            return names <= set(_loop_names(above.target))
    return False


def _loop_names(target: cst.CSTNode) -> list[str]:
    return [name for part in walk(target) for name in target_names(part)]


class _Unmasked(cst.CSTTransformer):
    """The concatenation with all rows of each element; its formatting and comments stay."""

    def __init__(self, place: Place, reads: Sequence[Read], per_sample: bool) -> None:
        super().__init__()
        self._new = {
            id(read[0]): place.expression(_rows(place, read[1], read[2], per_sample)) for read in reads
        }

    def leave_Subscript(  # noqa: N802
        self, original_node: cst.Subscript, updated_node: cst.Subscript
    ) -> cst.BaseExpression:
        return self._new.get(id(original_node), updated_node)
