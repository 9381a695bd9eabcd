"""Whether someone else may see a write to a local tensor."""

import libcst as cst

from tpuport.lint.fixes.names import own_nodes, parameters, target_names, uses, walk
from tpuport.lint.fixes.place import FunctionNode, Place, method

# Functions and methods of torch whose result has memory of its own.
_MAKERS = frozenset(
    "zeros ones full empty rand randn randint arange linspace zeros_like ones_like full_like empty_like rand_like "
    "randn_like clone where cat stack softmax sigmoid tanh exp log sqrt matmul bmm einsum gather index_select "
    "masked_fill clamp abs sum mean cumsum add mul sub div new_zeros new_ones new_full new_empty".split()
)
_STATIC = frozenset({"shape", "dtype", "device", "ndim", "size", "dim", "numel"})
_LOOPS = cst.For | cst.While


def can_be_rebound(place: Place, target: cst.Name, function: FunctionNode) -> bool:
    """Whether `name = ...` in the place of `name[...] = ...` means the same name: a local of this very function."""
    name = target.value
    if (
        name not in place.file.bound_in(function)
        or place.enclosing(target, cst.ClassDef, *_FUNCTIONS) is not function
    ):
        return False
    nested = [
        node for node in own_nodes(function) if isinstance(node, cst.FunctionDef | cst.ClassDef | cst.Lambda)
    ]
    return not any(uses(node, name) for node in nested)


_FUNCTIONS = (cst.FunctionDef, cst.Lambda)


def is_private(place: Place, target: cst.Name, function: FunctionNode) -> bool:
    """Whether only this name holds the tensor: it was made here, and nothing before the write can have kept it."""
    making = _made_by(place, target, function)
    if making is None:
        return False
    order = {id(node): number for number, node in enumerate(walk(function.body))}
    again = {
        id(node)
        for loop in place.ancestors(target)
        if isinstance(loop, _LOOPS) and not any(above is loop for above in place.ancestors(making))
        for node in walk(loop)
    }
    for use in uses(function.body, target.value):
        between = order[id(making)] < order[id(use)] < order[id(target)]
        if (between or id(use) in again) and use is not target and not _harmless(place, use):
            return False
    return True


def _made_by(place: Place, target: cst.Name, function: FunctionNode) -> cst.SimpleStatementLine | None:
    """The last line that is sure to run before the write and gives the name a new tensor."""
    below: cst.CSTNode = target
    for above in place.ancestors(target):
        if isinstance(above, cst.IndentedBlock):
            earlier = above.body[: next(n for n, statement in enumerate(above.body) if statement is below)]
            for statement in reversed(earlier):
                if isinstance(statement, cst.SimpleStatementLine) and _makes_new(
                    place, statement, target.value
                ):
                    return statement
        if above is function:
            return None
        below = above
    return None


def _makes_new(place: Place, line: cst.SimpleStatementLine, name: str) -> bool:
    assign = line.body[0]
    if len(line.body) != 1 or not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return False
    made = assign.targets[0].target
    return isinstance(made, cst.Name) and made.value == name and _is_fresh(place, assign.value)


def _harmless(place: Place, use: cst.Name) -> bool:
    """A use that keeps no hold on the tensor: it is made here, asked for its shape, or an operand."""
    above = place.parent(use)
    if isinstance(above, cst.AssignTarget):
        assign = place.parent(above)
        return isinstance(assign, cst.Assign) and len(assign.targets) == 1 and _is_fresh(place, assign.value)
    if isinstance(above, cst.AugAssign):
        return above.target is use or not isinstance(above.operator, cst.AddAssign)
    if isinstance(above, cst.Attribute):
        call = place.parent(above)
        return above.attr.value in _STATIC or (isinstance(call, cst.Call) and _makes(place, call))
    if isinstance(above, cst.BinaryOperation | cst.UnaryOperation | cst.Comparison | cst.ComparisonTarget):
        return True
    if isinstance(above, cst.Arg):
        call = place.parent(above)
        return isinstance(call, cst.Call) and (_makes(place, call) or _asks_length(call))
    if isinstance(above, cst.Subscript) and above.value is use:
        return isinstance(place.parent(above), cst.AssignTarget | cst.AugAssign)
    return False


def _asks_length(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Name) and call.func.value == "len"


def _makes(place: Place, call: cst.Call) -> bool:
    name = place.dotted(call.func)
    last = name.rpartition(".")[2] if name.startswith("torch.") else ("" if name else method(call))
    return last in _MAKERS


def _is_fresh(place: Place, value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.BinaryOperation):
        return True
    return isinstance(value, cst.Call) and _makes(place, value)


def assigned_once(place: Place, function: FunctionNode, name: str) -> cst.Assign | None:
    """The only statement in the function that binds the name, if that is a plain `name = value`."""
    if name in {p.name.value for p in parameters(function)}:
        return None
    found: list[cst.Assign] = []
    for node in own_nodes(function):
        if isinstance(node, cst.Assign):
            names = [n for target in node.targets for n in target_names(target.target)]
            if name in names:
                if len(node.targets) > 1 or not isinstance(node.targets[0].target, cst.Name):
                    return None
                found.append(node)
    bindings = [use for use in uses(function, name) if _binds(place, use)]
    return found[0] if len(found) == len(bindings) == 1 else None


def _binds(place: Place, use: cst.Name) -> bool:
    """Whether the name is (part of) the target of some statement, not what is read there."""
    below: cst.CSTNode = use
    for above in place.ancestors(use):
        if isinstance(above, cst.AssignTarget | cst.AsName | cst.Del | cst.Global | cst.Nonlocal):
            return True
        if isinstance(above, cst.AugAssign | cst.AnnAssign | cst.NamedExpr | cst.For | cst.CompFor):
            return above.target is below
        if isinstance(above, cst.Subscript | cst.Attribute | cst.Call | cst.BaseSmallStatement):
            return False
        below = above
    return False
