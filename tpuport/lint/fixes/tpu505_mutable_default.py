"""TPU505: a mutable default becomes None, and is made in each call."""

import libcst as cst

from tpuport.lint.fixes.names import bound_by_statements, declared_outside, parameters, uses, walk
from tpuport.lint.fixes.place import Place
from tpuport.lint.fixes.rewrite import Edit, Rewrite, Statements

_MAKERS = frozenset({"list", "dict", "set"})
_TAKERS = frozenset({"len", "list", "tuple", "set", "dict", "sorted", "enumerate", "any", "all"})
_READING = frozenset(
    "get keys values items index count copy union intersection difference issubset issuperset".split()
)


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """`def f(x=[])` as `def f(x=None)` with `if x is None: x = []` first.

    Safe where the function only reads it: then no call can see what another left in it.
    """
    found = _parameter(node, place)
    if found is None:
        return None
    parameter, function = found
    name = parameter.name.value
    default = parameter.default
    body = function.body
    if default is None or not _is_mutable(default) or not isinstance(body, cst.IndentedBlock):
        return None
    start = 1 if _is_docstring(body.body[0]) else 0
    if start == len(body.body) or name in declared_outside(function):
        return None
    first = body.body[start]
    indent = body.indent or place.file.module.default_indent
    check = place.statement(f"if {name} is None:\n{indent}{name} = {place.code(default)}\n")
    head = check.with_changes(leading_lines=first.leading_lines)  # type: ignore[union-attr]
    rest = first.with_changes(leading_lines=())
    changes = ((default, cst.Name("None")), (first, Statements((head, rest))))
    return Edit(changes, unsafe=not _only_read(place, function, name))


def _parameter(node: cst.CSTNode, place: Place) -> tuple[cst.Param, cst.FunctionDef] | None:
    """The parameter whose default the finding is about."""
    if isinstance(node, cst.FunctionDef):
        found = [p for p in parameters(node) if p.default is not None and _is_mutable(p.default)]
        return (found[0], node) if found else None
    parameter = node if isinstance(node, cst.Param) else place.parent(node)
    function = place.enclosing(node, cst.FunctionDef, cst.Lambda)
    if not isinstance(parameter, cst.Param) or not isinstance(function, cst.FunctionDef):
        return None
    return (parameter, function) if parameter in parameters(function) else None


def _is_mutable(default: cst.BaseExpression) -> bool:
    """A list, dict or set, made of constants and names, or by a call without arguments."""
    if isinstance(default, cst.Call):
        return isinstance(default.func, cst.Name) and default.func.value in _MAKERS and not default.args
    return isinstance(default, cst.List | cst.Dict | cst.Set) and not any(
        isinstance(part, cst.Call | cst.Name | cst.NamedExpr)
        for part in walk(default)
        if not _is_constant(part)
    )


def _is_constant(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Name) and node.value in {"None", "True", "False"}


def _is_docstring(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(statement.body[0], cst.Expr):
        return False
    return isinstance(statement.body[0].value, cst.SimpleString | cst.ConcatenatedString)


def _only_read(place: Place, function: cst.FunctionDef, name: str) -> bool:
    """Whether no use of the parameter can change it or keep it."""
    if name in bound_by_statements(function):
        return False
    return all(_reads(place, use) for use in uses(function.body, name))


def _reads(place: Place, use: cst.Name) -> bool:
    above = place.parent(use)
    if isinstance(above, cst.For | cst.CompFor):
        return above.iter is use
    if isinstance(above, cst.ComparisonTarget):
        return isinstance(above.operator, cst.In | cst.NotIn)
    if isinstance(above, cst.Attribute):
        return above.attr.value in _READING
    if isinstance(above, cst.Subscript):
        return above.value is use and not isinstance(
            place.parent(above), cst.AssignTarget | cst.AugAssign | cst.Del
        )
    if isinstance(above, cst.Arg):
        call = place.parent(above)
        return isinstance(call, cst.Call) and isinstance(call.func, cst.Name) and call.func.value in _TAKERS
    return isinstance(above, cst.StarredElement)


REWRITE = Rewrite("TPU505", (cst.FunctionDef, cst.Param, cst.List, cst.Dict, cst.Set, cst.Call), rewrite)
