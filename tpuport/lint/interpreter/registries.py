"""Tables of a module that decorators fill: `@TABLE.register("name")`, or
`@register("name")` whose wrapper writes `TABLE[name] = function`.
"""

import ast
from collections.abc import Iterator
from typing import Any

from tpuport.lint.abstract_values import Instance, Mapping, Value
from tpuport.lint.interpreter.frame import Interpreter
from tpuport.lint.modules import FunctionInfo, ModuleInfo
from tpuport.lint.scope_statements import all_nodes


def filled(
    interpreter: Interpreter, module: ModuleInfo, name: str, value: Value
) -> Value:
    """The value of a module-level name, with what the module's decorators add to an
    empty table: the value itself, or an attribute of it.
    """
    match value:
        case Mapping(entries=()):
            entries = dict(_registered(interpreter, module, name))
            return Mapping(tuple(entries.items()), value.element)
        case Instance(info=info, fields=fields):
            return Instance(
                info,
                tuple(
                    (attribute, filled(interpreter, module, name, part))
                    for attribute, part in fields
                ),
            )
        case _:
            return value


def _registered(
    interpreter: Interpreter, module: ModuleInfo, table: str
) -> Iterator[tuple[Any, Value]]:
    """The functions and classes that decorators put into a table, by their keys."""
    registrars = {info.name for info in module.functions if _writes_to(info, table)}
    for name, binding in module.names.items():
        definition = getattr(binding, "node", None)
        for decorator in getattr(definition, "decorator_list", []):
            if _registers(decorator, table, registrars):
                yield _key(decorator, name), interpreter.global_name(module, name)


def _writes_to(info: FunctionInfo, table: str) -> bool:
    """Whether a function, or one inside it, sets an item of the table."""
    targets = (
        node.value
        for node in all_nodes(info.node)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    )
    return table in (getattr(target, "id", "") for target in targets)


def _registers(decorator: ast.expr, table: str, registrars: set[str]) -> bool:
    """Whether a decorator puts what it gets into the table."""
    match getattr(decorator, "func", decorator):
        case ast.Attribute(value=ast.Name(id=owner), attr=method):
            return owner == table and method.startswith("register")
        case ast.Name(id=function):
            return function in registrars
        case _:
            return False


def _key(decorator: ast.expr, name: str) -> str:
    """The key that a decorator is given; if it is given none, the definition's name."""
    match decorator:
        case (
            ast.Call(args=[ast.Constant(value=str(key)), *_])
            | ast.Call(
                keywords=[ast.keyword(arg="name", value=ast.Constant(value=str(key)))]
            )
        ):
            return key
        case _:
            return name
