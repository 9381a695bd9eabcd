"""The digest of a function's source, which does not depend on comments, docstrings,
annotations or layout.
"""

import ast
import hashlib
import importlib
import inspect
import itertools
import textwrap
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from tpuport.errors import PortError
from tpuport.patches.targets import locate, underlying

# Fields that do not change what runs, or that only some versions of Python have.
_IGNORED_FIELDS = {
    "annotation",
    "returns",
    "ctx",
    "kind",
    "type_comment",
    "type_params",
    "type_ignores",
}
_WITH_DOCSTRING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)


def digest(target: Any) -> str:
    """SHA-256 over the syntax tree of a function as it was written, with its
    decorators.

    It is the same for every version of Python, and for a function that is patched or
    wrapped.

    Args:
        target: "module:qualified.name" (the module is imported), or the function,
            method, property itself.

    Raises:
        PortError: there is no such function, or no source to read.
    """
    if isinstance(target, str):
        module, _, qualname = target.partition(":")
        definition = locate(importlib.import_module(module), qualname)
        return _digest(definition.function, qualname)
    function = underlying(target)
    return _digest(function, getattr(function, "__qualname__", ""))


# The code, qualified name and digest of each function: `enable` asks again every time.
_digests: "weakref.WeakKeyDictionary[Callable[..., Any], tuple[Any, str, str]]" = (
    weakref.WeakKeyDictionary()
)


def _digest(function: Callable[..., Any], qualname: str) -> str:
    inner = inspect.unwrap(function)
    # Other callables may have no weak references, or compare equal.
    if not inspect.isfunction(inner):
        return _compute_digest(function, qualname)
    code, name, result = _digests.get(inner, (None, "", ""))
    # `is`: codes of two files may be equal.
    if code is not inner.__code__ or name != qualname:
        result = _compute_digest(function, qualname)
        _digests[inner] = (inner.__code__, qualname, result)
    return result


def _compute_digest(function: Callable[..., Any], qualname: str) -> str:
    node = _syntax_tree(function, qualname)
    if node is None:
        raise PortError(
            "its source cannot be read", where=f"{getattr(function, '__module__', '?')}:{qualname}",
            fix="install the library with its .py files",
        )  # fmt: skip
    return hashlib.sha256("\n".join(_lines(node)).encode()).hexdigest()


def _syntax_tree(function: Callable[..., Any], qualname: str) -> ast.AST | None:
    """The syntax tree of the function under its decorators."""
    # The digest is of the function that `functools.wraps` wrapped, whatever wraps it.
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    if code is not None and code.co_qualname != qualname:
        # A decorator without functools.wraps hides the function: look for the name in
        # the module's source.
        definition = _find_definition(inspect.getmodule(function), qualname)
        if definition is not None:
            return definition
    source = _parse_source(inner)
    return source and source.body[0]


def _parse_source(of: Any) -> ast.Module | None:
    """The syntax tree of the source of a function or module; None if it cannot be
    read.
    """
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(of)))
    except (OSError, TypeError, SyntaxError):
        return None


def _find_definition(module: ModuleType | None, qualname: str) -> ast.AST | None:
    scope: ast.AST | None = _parse_source(module)
    for part in qualname.split("."):
        if scope is None:
            break
        # The last definition of a name counts, as it does when the module runs.
        scope = {node.name: node for node in _definitions(scope)}.get(part)
    return scope


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _definitions(scope: ast.AST) -> Iterator[_Definition]:
    """The functions and classes that a scope defines, also under `if` and `try`, in
    order.
    """
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, _Definition):
            yield node
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            yield from _definitions(node)


def _lines(node: ast.AST) -> Iterator[str]:
    """The tree as text, in a form of our own: that of `ast.dump` differs between
    versions of Python.
    """
    yield f"({type(node).__name__}"
    for field, value in ast.iter_fields(node):
        # Versions of Python differ in whether a missing part is None, an empty list or
        # no field at all.
        if field in _IGNORED_FIELDS or value in (None, []):
            continue
        yield f".{field}"
        # The docstring is the first statement of the body.
        if (
            field == "body"
            and isinstance(node, _WITH_DOCSTRING)
            and ast.get_docstring(node, clean=False)
        ):
            value = value[1:]
        if isinstance(node, ast.JoinedStr):
            value = list(_merge_texts(value))
        items = value if isinstance(value, list) else [value]
        for item in items:
            if isinstance(item, ast.AST):
                yield from _lines(item)
            else:
                yield f"{type(item).__name__} {item!r}"
    yield ")"


def _merge_texts(parts: list[ast.expr]) -> Iterator[ast.expr]:
    """The parts of an f-string with adjacent texts merged, which some versions of
    Python keep apart.
    """
    for is_text, group in itertools.groupby(
        parts, lambda part: isinstance(part, ast.Constant)
    ):
        if is_text:
            yield ast.Constant("".join(str(part.value) for part in group))  # type: ignore[attr-defined]
        else:
            yield from group
