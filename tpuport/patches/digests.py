"""The digest of a function's source, which does not depend on comments, docstrings,
annotations, layout or the function's own name.

It covers the functions of the same module, and methods of the same class, that the
function calls: a copy of the function beside other helpers is another function.
"""

import ast
import hashlib
import importlib
import inspect
import itertools
import textwrap
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, ModuleType
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
_HAS_VARARGS, _HAS_KEYWORDS = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS


def digest(target: Any, holder: Any = None) -> str:
    """Eight hexadecimal digits of a function's argument names (`argument_key`), a dash,
    and 32 of its source and the sources of its helpers.

    It is the same for every version of Python, and for a function that is patched or
    wrapped. Decorators count.

    Args:
        target: "module:qualified.name" (the module is imported), or the function,
            method, property itself.
        holder: the class that defines a function which is given itself; found by the
            function's qualified name if it is left out.

    Raises:
        PortError: there is no such function, or no source to read.
    """
    if isinstance(target, str):
        module, _, qualname = target.partition(":")
        definition = locate(importlib.import_module(module), qualname)
        return _digest(definition.function, qualname, definition.holder)
    function = underlying(target)
    qualname = getattr(function, "__qualname__", "")
    return _digest(function, qualname, holder or _holder(function, qualname))


def argument_key(code: CodeType) -> str:
    """The part of the digest that follows from argument names: cheap to compute, and
    enough to pass over nearly every other function.
    """
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & _HAS_VARARGS) + bool(code.co_flags & _HAS_KEYWORDS)
    return _hash_names(code.co_varnames[:count])


def _hash_names(names: Iterable[str]) -> str:
    return hashlib.sha256(" ".join(names).encode()).hexdigest()[:8]


def _holder(function: Any, qualname: str) -> Any:
    """The class whose namespace a qualified name ends in; None for a function of a
    module, or of another function.
    """
    holder: Any = inspect.getmodule(function)
    for part in qualname.split(".")[:-1]:
        holder = getattr(holder, "__dict__", {}).get(part)
    return holder if isinstance(holder, type) else None


_Known = weakref.WeakKeyDictionary[Callable[..., Any], tuple[CodeType, str, str]]

# By the class that defines them, whose methods the digest covers (`object` if none
# does): the code, qualified name and digest of each function. `enable` asks again every
# time.
_digests: weakref.WeakKeyDictionary[type, _Known] = weakref.WeakKeyDictionary()


def _digest(function: Callable[..., Any], qualname: str, holder: Any) -> str:
    inner = inspect.unwrap(function)
    # Other callables may have no weak references, or compare equal.
    if not inspect.isfunction(inner):
        return _compute_digest(function, qualname, holder)
    cls = holder if isinstance(holder, type) else object
    known = _digests.setdefault(cls, weakref.WeakKeyDictionary())
    code, name, result = known.get(inner, (None, "", ""))
    # `is`: codes of two files may be equal.
    if code is not inner.__code__ or name != qualname:
        result = _compute_digest(function, qualname, holder)
        known[inner] = (inner.__code__, qualname, result)
    return result


def _compute_digest(function: Callable[..., Any], qualname: str, holder: Any) -> str:
    node = _syntax_tree(function, qualname)
    if not isinstance(node, _FUNCTION):
        raise PortError(
            "its source cannot be read", where=f"{getattr(function, '__module__', '?')}:{qualname}",
            fix="install the library with its .py files",
        )  # fmt: skip
    text = _text(node)
    helpers = _reachable_helpers(node, inspect.unwrap(function), holder)
    for name in sorted(helpers):
        text += f"\n{name}\n{_text(helpers[name])}"
    content = hashlib.sha256(text.encode()).hexdigest()[:32]
    return f"{_hash_names(_argument_names(node.args))}-{content}"


def _text(function: "_Function") -> str:
    return "\n".join(_lines(function, is_root=True))


def _argument_names(arguments: ast.arguments) -> list[str]:
    """In the order of `co_varnames`."""
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    collecting = [arguments.vararg, arguments.kwarg]
    return [each.arg for each in (*named, *filter(None, collecting))]


def _reachable_helpers(
    node: "_Function", function: Any, holder: Any
) -> dict[str, "_Function"]:
    """The definitions of the functions of the same module, and methods of the same
    class, that a function refers to, and those that these refer to.
    """
    helpers: dict[str, _Function] = {}
    pending = [node]
    module = getattr(function, "__module__", None)
    while pending:
        for name, helper in _helpers(pending.pop(), function, holder):
            inner = inspect.unwrap(helper)
            if name in helpers or inner is function or inner.__module__ != module:
                continue
            definition = _syntax_tree(helper, helper.__qualname__)
            if isinstance(definition, _FUNCTION):
                helpers[name] = definition
                pending.append(definition)
    return helpers


def _helpers(
    node: "_Function", function: Any, holder: Any
) -> Iterator[tuple[str, Any]]:
    """The functions by name that a definition refers to, of whatever module."""
    namespace = getattr(function, "__globals__", {})
    arguments = _argument_names(node.args)
    for part in ast.walk(node):
        value: Any = None
        name = ""
        if isinstance(part, ast.Name):
            name = part.id
            value = namespace.get(name)
        elif (
            isinstance(part, ast.Attribute)
            and isinstance(part.value, ast.Name)
            and arguments[:1] == [part.value.id]
            and isinstance(holder, type)
        ):
            name = f"{part.value.id}.{part.attr}"
            value = underlying(inspect.getattr_static(holder, part.attr, None))
        if inspect.isfunction(value):
            yield name, value


_Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


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


def _lines(node: ast.AST, *, is_root: bool = False) -> Iterator[str]:
    """The tree as text, in a form of our own: that of `ast.dump` differs between
    versions of Python. The name of the root is left out.
    """
    yield f"({type(node).__name__}"
    for field, value in ast.iter_fields(node):
        # Versions of Python differ in whether a missing part is None, an empty list or
        # no field at all.
        if field in _IGNORED_FIELDS or value in (None, []):
            continue
        if is_root and field == "name":
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
