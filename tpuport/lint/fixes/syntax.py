"""Questions about libcst nodes that need nothing but the nodes: names in scopes, parts
of calls and subscripts.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Final, TypeVar

import libcst as cst
from libcst.helpers import get_absolute_module_for_import

FunctionNode = cst.FunctionDef | cst.Lambda
FUNCTION_NODES: Final = (cst.FunctionDef, cst.Lambda)
_SCOPES: Final = (cst.FunctionDef, cst.ClassDef, cst.Lambda)


_T = TypeVar("_T")
_NodeT = TypeVar("_NodeT", bound=cst.CSTNode)


class CannotRewriteError(Exception):
    """The code is not of the shape that a rewrite expects. Ends the rewrite of this
    finding, and nothing else.
    """


def expect(condition: object) -> None:
    """Leave the code alone unless the condition holds."""
    if not condition:
        raise CannotRewriteError


def require(value: _T | None) -> _T:
    """The value; leave the code alone if there is none."""
    if value is None:
        raise CannotRewriteError
    return value


def require_kind(node: object, kind: type[_T]) -> _T:
    """The node; leave the code alone if it is of another kind."""
    if not isinstance(node, kind):
        raise CannotRewriteError
    return node


# --- walks ---


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and all nodes below it, in the order of the text."""
    yield node
    for child in node.children:
        yield from walk(child)


@functools.cache
def _field_names(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def parents_below(root: cst.CSTNode) -> dict[cst.CSTNode, cst.CSTNode]:
    """The parent of each node below one. libcst's own `ParentNodeProvider` takes many
    times as long.
    """
    parents: dict[cst.CSTNode, cst.CSTNode] = {}
    pending = [root]
    while pending:
        node = pending.pop()
        for name in _field_names(type(node)):
            value = getattr(node, name)
            for part in value if isinstance(value, list | tuple) else (value,):
                if isinstance(part, cst.CSTNode):
                    parents[part] = node
                    pending.append(part)
    return parents


def nodes_of_kind(node: cst.CSTNode, kind: type[_NodeT]) -> list[_NodeT]:
    """The node and the nodes below it that are of one kind, in the order of the
    text.
    """
    return [part for part in walk(node) if isinstance(part, kind)]


def contains(node: cst.CSTNode, *kinds: type[cst.CSTNode]) -> bool:
    """Whether the node, or one below it, is of one of these kinds."""
    return any(isinstance(part, kinds) for part in walk(node))


def scope_nodes(scope: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """All nodes of a function or file that belong to its own scope; nested definitions,
    but not their insides.
    """
    for child in scope.children:
        yield child
        # Python looks names up in the scope that contains them: what a nested one binds
        # is not bound here.
        if not isinstance(child, _SCOPES):
            yield from scope_nodes(child)


def name_uses(scope: cst.CSTNode, name: str) -> list[cst.Name]:
    """Every use of a name in a function and in functions nested in it; attributes and
    keywords are not uses.
    """
    match scope:
        case cst.Name(value=value) if value == name:
            return [scope]
    uses: list[cst.Name] = []
    for child in scope.children:
        # libcst represents the `b` in `a.b` and in `f(b=1)` by names too.
        if not _is_label(child, scope):
            uses += name_uses(child, name)
    return uses


def _is_label(node: cst.CSTNode, parent: cst.CSTNode) -> bool:
    """Whether a node names an attribute or a keyword."""
    match parent:
        case cst.Attribute(attr=label) | cst.Arg(keyword=label):
            return label is node
    return False


# --- names that a scope binds ---


def imported_names(scope: cst.CSTNode) -> dict[str, str]:
    """The dotted library name of every name that is imported anywhere below."""
    names: dict[str, str] = {}
    for node in walk(scope):
        match node:
            case cst.Import(names=aliases):
                for alias in aliases:
                    names.update(_imported_module(alias))
            # Not `from x import *`, whose names are unknown.
            case cst.ImportFrom(names=[*aliases]):
                # None for a relative import, which never names a library.
                module = get_absolute_module_for_import(None, node) or ""
                for alias in aliases:
                    member = alias.evaluated_name
                    names[alias.evaluated_alias or member] = f"{module}.{member}"
    return names


def _imported_module(alias: cst.ImportAlias) -> dict[str, str]:
    """The binding of `import a.b`, which is `a`, or of `import a.b as c`."""
    if alias.evaluated_alias:
        return {alias.evaluated_alias: alias.evaluated_name}
    top = alias.evaluated_name.partition(".")[0]
    return {top: top}


def parameters(scope: cst.CSTNode) -> list[cst.Param]:
    """All parameters of a function or lambda, in order; none of any other node."""
    if not isinstance(scope, FUNCTION_NODES):
        return []
    params = scope.params
    # A bare `*` is a star without a parameter.
    variadic = [
        param
        for param in (params.star_arg, params.star_kwarg)
        if isinstance(param, cst.Param)
    ]
    return [*params.posonly_params, *params.params, *params.kwonly_params, *variadic]


def parameter_names(scope: cst.CSTNode) -> set[str]:
    """The names of all parameters."""
    return {parameter.name.value for parameter in parameters(scope)}


def bound_names(scope: cst.CSTNode) -> set[str]:
    """Names that are local to a scope: parameters, and what assignments, loops, imports
    and definitions bind.
    """
    return names_bound_by_statements(scope) | (
        parameter_names(scope) - names_declared_outside(scope)
    )


def names_bound_by_statements(scope: cst.CSTNode) -> set[str]:
    """Like `bound_names`, without the parameters."""
    names: set[str] = set()
    for node in scope_nodes(scope):
        names |= _names_bound_by(node)
    return names - names_declared_outside(scope)


def names_declared_outside(scope: cst.CSTNode) -> set[str]:
    """Names that the scope declares as global or nonlocal."""
    names: set[str] = set()
    for node in scope_nodes(scope):
        match node:
            case cst.Global(names=items) | cst.Nonlocal(names=items):
                names.update(item.name.value for item in items)
    return names


def _names_bound_by(node: cst.CSTNode) -> set[str]:
    """Names that this very node binds."""
    match node:
        case cst.FunctionDef(name=name) | cst.ClassDef(name=name):
            return {name.value}
        case cst.Import() | cst.ImportFrom():
            return set(imported_names(node))
        case (
            cst.AsName(name=name) | cst.MatchAs(name=name) | cst.MatchStar(name=name)
        ) if name is not None:
            return set(target_names(name))
    return _names_assigned_by(node)


def _names_assigned_by(node: cst.CSTNode) -> set[str]:
    match node:
        case (
            cst.AssignTarget(target=target)
            | cst.AnnAssign(target=target)
            | cst.AugAssign(target=target)
            | cst.For(target=target)
            | cst.NamedExpr(target=target)
        ):
            return set(target_names(target))
    return set()


def names_assigned_in(statement: cst.CSTNode) -> set[str]:
    """Names that assignments and loops anywhere in a statement assign to."""
    return set().union(*map(_names_assigned_by, walk(statement)))


def target_names(target: cst.CSTNode) -> Iterator[str]:
    """Names that an assignment to this target binds."""
    match target:
        case cst.Name(value=name):
            yield name
        case cst.Tuple(elements=elements) | cst.List(elements=elements):
            for element in elements:
                yield from target_names(element.value)
        case cst.StarredElement(value=value):
            yield from target_names(value)


def simple_assignment(statement: cst.CSTNode) -> cst.Assign | None:
    """The assignment of a line `name = value`; None for any other statement."""
    match statement:
        case cst.SimpleStatementLine(
            body=[
                cst.Assign(targets=[cst.AssignTarget(target=cst.Name())]) as assignment
            ]
        ):
            return assignment
    return None


# --- parts of expressions ---


def method_name(node: cst.CSTNode) -> str:
    """The name in a call `something.name(...)`; "" for any other node."""
    match node:
        case cst.Call(func=cst.Attribute(attr=cst.Name(value=name))):
            return name
    return ""


def receiver(call: cst.Call) -> cst.BaseExpression:
    """`something` in `something.name(...)`."""
    assert isinstance(call.func, cst.Attribute)
    return call.func.value


def called_name(node: cst.CSTNode | None) -> str:
    """The name in a call `name(...)`; "" for any other node."""
    match node:
        case cst.Call(func=cst.Name(value=name)):
            return name
    return ""


def keyword_argument(call: cst.Call, name: str) -> cst.Arg | None:
    """The argument passed by this name."""
    return next(
        (argument for argument in call.args if is_name(argument.keyword, name)), None
    )


def keyword_value(call: cst.Call, name: str) -> cst.BaseExpression | None:
    """The value of the argument passed by this name."""
    argument = keyword_argument(call, name)
    return argument and argument.value


def is_name(node: cst.CSTNode | None, *names: str) -> bool:
    """Whether the node is one of these names."""
    return isinstance(node, cst.Name) and node.value in names


def is_simple(node: cst.CSTNode) -> bool:
    """Whether the node is a name or attributes of a name, so that the new text may
    repeat it.
    """
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def single_index(node: cst.CSTNode) -> cst.BaseExpression | None:
    """`index` in `base[index]`; None for slices, for several indices and for any other
    node.
    """
    match node:
        # `x[index,]` is an index by a tuple, `x[*index]` by several.
        case cst.Subscript(
            slice=[
                cst.SubscriptElement(
                    slice=cst.Index(value=index, star=None), comma=cst.MaybeSentinel()
                )
            ]
        ):
            return index
    return None


def is_number(node: cst.BaseExpression) -> bool:
    """Whether the node is a number, `float("...")`, True or False, or arithmetic with
    them.
    """
    match node:
        case cst.Integer() | cst.Float() | cst.Name(value="True" | "False"):
            return True
        case cst.Call(
            func=cst.Name(value="float"), args=[cst.Arg(value=cst.SimpleString())]
        ):
            return True
        case cst.UnaryOperation(operator=cst.Minus() | cst.Plus(), expression=operand):
            return is_number(operand)
        case cst.BinaryOperation(left=left, right=right):
            return is_number(left) and is_number(right)
    return False
