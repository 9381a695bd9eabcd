"""Which names a function or a file binds, and where they are used."""

from collections.abc import Iterator
from typing import Any

import libcst as cst
from libcst.helpers import get_absolute_module_for_import, get_full_name_for_node

_SCOPES = cst.FunctionDef | cst.ClassDef | cst.Lambda


def walk(node: cst.CSTNode, into_scopes: bool = True) -> Iterator[cst.CSTNode]:
    """The node and all below it, in the order of the text; without `into_scopes`, not into functions and classes."""
    yield node
    for child in node.children:
        if into_scopes or not isinstance(child, _SCOPES):
            yield from walk(child, into_scopes)
        else:
            yield child


def own_nodes(function: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """All nodes of a function or file that belong to its own scope; nested definitions themselves, not their inside."""
    for child in function.children:
        yield from walk(child, False)


def uses(scope: cst.CSTNode, name: str) -> list[cst.Name]:
    """Every place in a function, nested functions too, that says this name as a name (not an attribute or keyword)."""
    found: list[cst.Name] = []
    _uses(scope, name, found)
    return found


def _uses(node: cst.CSTNode, name: str, found: list[cst.Name]) -> None:
    if isinstance(node, cst.Name):
        if node.value == name:
            found.append(node)
        return
    for child in node.children:
        if isinstance(node, cst.Attribute) and child is node.attr:
            continue
        if isinstance(node, cst.Arg) and child is node.keyword:
            continue
        _uses(child, name, found)


def imported_names(scope: cst.CSTNode) -> dict[str, str]:
    """Dotted name of what each name that is imported anywhere below stands for."""
    found: dict[str, str] = {}
    for node in walk(scope):
        if isinstance(node, cst.Import):
            for alias in node.names:
                dotted = get_full_name_for_node(alias.name) or ""
                local = alias.evaluated_alias
                found[local or dotted.split(".")[0]] = dotted if local else dotted.split(".")[0]
        elif isinstance(node, cst.ImportFrom) and not isinstance(node.names, cst.ImportStar):
            source = "" if node.relative else get_absolute_module_for_import(None, node) or ""
            for alias in node.names:
                name = get_full_name_for_node(alias.name) or ""
                found[alias.evaluated_alias or name] = f"{source}.{name}"
    return found


def bound_names(scope: cst.CSTNode) -> set[str]:
    """Names that assignments, parameters, loops, imports and definitions bind in this scope itself."""
    return bound_by_statements(scope) | ({p.name.value for p in parameters(scope)} - declared_outside(scope))


def declared_outside(scope: cst.CSTNode) -> set[str]:
    """Names that the scope says are global or nonlocal."""
    return {
        item.name.value
        for node in own_nodes(scope)
        if isinstance(node, cst.Global | cst.Nonlocal)
        for item in node.names
    }


def bound_by_statements(scope: cst.CSTNode) -> set[str]:
    """Like `bound_names`, without the parameters."""
    found: set[str] = set()
    for node in own_nodes(scope):
        found.update(_bound_by(node))
    return found - declared_outside(scope)


def parameters(scope: cst.CSTNode) -> list[cst.Param]:
    """All parameters of a function or lambda, in order; none of anything else."""
    if not isinstance(scope, cst.FunctionDef | cst.Lambda):
        return []
    given = scope.params
    stars = [star for star in (given.star_arg, given.star_kwarg) if isinstance(star, cst.Param)]
    return [*given.posonly_params, *given.params, *given.kwonly_params, *stars]


def _bound_by(node: cst.CSTNode) -> set[str]:
    if isinstance(node, cst.FunctionDef | cst.ClassDef):
        return {node.name.value}
    if isinstance(node, cst.Import | cst.ImportFrom):
        return set(imported_names(node))
    targets: list[Any] = []
    if isinstance(node, cst.AssignTarget | cst.AnnAssign | cst.AugAssign | cst.For | cst.NamedExpr):
        targets = [node.target]
    elif isinstance(node, cst.AsName) or (
        isinstance(node, cst.MatchAs | cst.MatchStar) and node.name is not None
    ):
        targets = [node.name]
    return {name for target in targets for name in target_names(target)}


def target_names(target: cst.CSTNode) -> Iterator[str]:
    """Names that an assignment to this target binds."""
    if isinstance(target, cst.Name):
        yield target.value
    elif isinstance(target, cst.Tuple | cst.List):
        for element in target.elements:
            yield from target_names(element.value)
    elif isinstance(target, cst.StarredElement):
        yield from target_names(target.value)
