"""TPU505: a mutable default becomes None, and each call creates its own object."""

from typing import Any, Final

import libcst as cst

from tpuport.lint.fixes.edits import Edit, Rewrite, Statements
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import (
    CannotRewriteError,
    called_name,
    contains,
    expect,
    name_uses,
    names_bound_by_statements,
    names_declared_outside,
    nodes_of_kind,
    parameters,
    require_kind,
)

_CONSTRUCTORS: Final = frozenset({"list", "dict", "set"})
# Functions that neither change their argument nor keep it.
_READING_FUNCTIONS: Final = frozenset(
    {"len", "list", "tuple", "set", "dict", "sorted", "enumerate", "any", "all"}
)
_READING_METHODS: Final = frozenset(
    "get keys values items index count copy union intersection difference issubset issuperset".split()
)


def rewrite(node: Any, site: Site) -> Edit:
    """`def f(x=[])` as `def f(x=None)` with `if x is None: x = []` first.

    Safe if the function only reads it: then no call can see what another left in it.
    """
    function = node
    if not isinstance(function, cst.FunctionDef):
        # A lambda has no body to create the object in.
        function = require_kind(
            site.enclosing(node, cst.FunctionDef, cst.Lambda), cst.FunctionDef
        )
    parameter, default = _mutable_parameter(site, function, node)
    name = parameter.name.value
    expect(name not in names_declared_outside(function))
    statement = _first_statement(function)
    body: Any = function.body
    indent = body.indent or site.file.module.default_indent
    check = site.statement(
        f"if {name} is None:\n{indent}{name} = {site.code(default)}\n"
    )
    first = check.with_changes(leading_lines=statement.leading_lines)
    second = statement.with_changes(leading_lines=())
    changes = ((default, cst.Name("None")), (statement, Statements((first, second))))
    return Edit(changes, unsafe=not _is_only_read(site, function, name))


def _mutable_parameter(
    site: Site, function: cst.FunctionDef, node: cst.CSTNode
) -> tuple[cst.Param, cst.BaseExpression]:
    """The parameter that the finding is about, and its default; for a finding on the
    function the first of them.
    """
    for parameter in parameters(function):
        default = parameter.default
        if (
            default is not None
            and node in (function, parameter, default)
            and _is_mutable(default)
        ):
            return parameter, default
    raise CannotRewriteError


def _first_statement(function: cst.FunctionDef) -> Any:
    """The first statement after the docstring."""
    # A body on the line of the `def` has no line for the check.
    expect(isinstance(function.body, cst.IndentedBlock))
    statements = list(function.body.body)
    match statements[0]:
        case cst.SimpleStatementLine(
            body=[cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString()), *_]
        ):
            statements = statements[1:]
    expect(statements)
    return statements[0]


def _is_mutable(default: cst.BaseExpression) -> bool:
    """Whether it is a list, dict or set of constants, or created by a call without
    arguments.
    """
    if isinstance(default, cst.Call):
        return called_name(default) in _CONSTRUCTORS and not default.args
    if not isinstance(default, cst.List | cst.Dict | cst.Set):
        return False
    # A name may mean something else by the time of the call.
    names = {name.value for name in nodes_of_kind(default, cst.Name)}
    return names <= {"None", "True", "False"} and not contains(
        default, cst.Call, cst.NamedExpr
    )


def _is_only_read(site: Site, function: cst.FunctionDef, name: str) -> bool:
    """Whether no use of the parameter can change it or keep it."""
    if name in names_bound_by_statements(function):
        return False
    return all(_is_read(site, use) for use in name_uses(function.body, name))


def _is_read(site: Site, use: cst.Name) -> bool:
    parent = site.parent(use)
    match parent:
        case cst.For(iter=iterable) | cst.CompFor(iter=iterable):
            return iterable is use
        case cst.ComparisonTarget(operator=operator):
            return isinstance(operator, cst.In | cst.NotIn)
        case cst.Attribute(attr=cst.Name(value=name)):
            return name in _READING_METHODS
        case cst.Subscript(value=base):
            is_changed = isinstance(
                site.parent(parent), cst.AssignTarget | cst.AugAssign | cst.Del
            )
            return base is use and not is_changed
        case cst.Arg():
            return called_name(site.argument_of(use)) in _READING_FUNCTIONS
    return isinstance(parent, cst.StarredElement)


REWRITE = Rewrite(
    "TPU505",
    (cst.FunctionDef, cst.Param, cst.List, cst.Dict, cst.Set, cst.Call),
    rewrite,
)
