"""The digest of a function's source: of what it does, whatever its comments, docstrings, annotations and layout."""

import ast
import hashlib
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from tpuport.errors import PortError

# Fields that say nothing about what runs, or that only some versions of Python have.
_SILENT = {"annotation", "returns", "ctx", "kind", "type_comment", "type_params", "type_ignores"}
_WITH_DOCSTRING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)


def digest(target: Any) -> str:
    """SHA-256 over the syntax tree of a function as it was written, with its decorators.

    It is the same for every version of Python, and for a function that is patched or wrapped.

    Args:
        target: "module:qualified.name" (the module is imported), or the function, method, property itself.

    Raises:
        PortError: there is no such function, or no source to read.
    """
    if isinstance(target, str):
        from tpuport.patches.targets import locate

        module, _, qualname = target.partition(":")
        place = locate(importlib.import_module(module), qualname)
        return _digest(place.function, qualname)
    function = underlying(target)
    return _digest(function, getattr(function, "__qualname__", ""))


def underlying(raw: Any) -> Any:
    """The function in a static or class method, a bound method, or a property."""
    if isinstance(raw, property):
        return raw.fget
    return getattr(raw, "__func__", raw)


def _digest(function: Callable[..., Any], qualname: str) -> str:
    node = _written(function, qualname)
    if node is None:
        raise PortError(
            "its source cannot be read", where=f"{getattr(function, '__module__', '?')}:{qualname}",
            fix="install the library with its .py files",
        )  # fmt: skip
    return hashlib.sha256("\n".join(_lines(node)).encode()).hexdigest()


def _written(function: Callable[..., Any], qualname: str) -> ast.AST | None:
    """The syntax tree of the function under its decorators."""
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    if code is not None and code.co_qualname != qualname:
        # A decorator that does not say what it wraps: look for the name where it was written.
        module = inspect.getmodule(function)
        found = None if module is None else _named(module, qualname)
        if found is not None:
            return found
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(inner))).body[0]
    except (OSError, TypeError, SyntaxError):
        return None


def _named(module: ModuleType, qualname: str) -> ast.AST | None:
    try:
        scope: ast.AST = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return None
    for part in qualname.split("."):
        found = [node for node in _statements(scope) if getattr(node, "name", None) == part]
        if not found:
            return None
        scope = found[-1]
    return scope


def _statements(scope: ast.AST) -> Iterator[ast.AST]:
    """What a scope defines, also under `if` and `try`, in order."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            yield from _statements(node)


def _lines(node: ast.AST) -> Iterator[str]:
    """The tree in a form that is ours, as that of `ast.dump` differs between versions of Python."""
    yield f"({type(node).__name__}"
    for field, value in ast.iter_fields(node):
        if field in _SILENT or value is None or value == []:
            continue
        yield f".{field}"
        if field == "body" and isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False):
            value = value[1:]
        if isinstance(node, ast.JoinedStr):
            value = list(_joined(value))
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.AST):
                yield from _lines(item)
            else:
                yield f"{type(item).__name__} {item!r}"
    yield ")"


def _joined(parts: list[ast.expr]) -> Iterator[ast.expr]:
    """The parts of an f-string with neighbouring texts in one, which some versions of Python keep apart."""
    text = ""
    for part in parts:
        if isinstance(part, ast.Constant):
            text += str(part.value)
            continue
        if text:
            yield ast.Constant(text)
        text = ""
        yield part
    if text:
        yield ast.Constant(text)
