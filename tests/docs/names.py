"""What code of the documentation takes from tpuport: is it there, and has it the arguments that are passed by name?"""

import ast
import functools
import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

from transformers import GenerationConfig

import tpuport
from tpuport.checkpoint import moving
from tpuport.diffusion import port_pipeline


def check_names(tree: ast.AST) -> None:
    """Look up every name of tpuport in a piece of code.

    Raises:
        ImportError: a name does not exist.
        AssertionError: a call passes an argument by a name that its function does not have.
    """
    aliases = {"tpuport": "tpuport"} | dict(_imported(tree))
    found = {alias: _resolve(name) for alias, name in aliases.items()}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)):
            head, _, rest = ast.unparse(node).partition(".")
            if head in aliases and re.fullmatch(r"[\w.]*", rest):
                found[ast.unparse(node)] = _resolve(".".join(filter(None, [aliases[head], rest])))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in found:
            _check_keywords(node, found[ast.unparse(node.func)])


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Names that imports from tpuport bind, each with what it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "tpuport":
            yield from ((name.asname or name.name, f"{node.module}.{name.name}") for name in node.names)
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.partition(".")[0] == "tpuport":
                    importlib.import_module(name.name)
                    yield name.asname or "tpuport", name.name if name.asname else "tpuport"


def _resolve(name: str) -> Any:
    """The object of a dotted name, some of which may be modules."""
    *modules, last = name.split(".")
    if modules:
        try:
            parent = importlib.import_module(".".join(modules))
        except ModuleNotFoundError:
            parent = functools.reduce(getattr, modules[1:], tpuport)
        if hasattr(parent, last):
            return getattr(parent, last)
    return importlib.import_module(name)


def _check_keywords(call: ast.Call, function: Any) -> None:
    functions = (moving.port, port_pipeline) if function is tpuport.port else (function,)
    known = {name for one in functions for name in _arguments_of(one)}
    if function is tpuport.generate:
        known |= vars(GenerationConfig()).keys() | {"pixel_values", "language"}
    passed = {keyword.arg for keyword in call.keywords if keyword.arg}
    assert passed <= known, f"{ast.unparse(call)}: {sorted(passed - known)}"


def _arguments_of(function: Any) -> Iterator[str]:
    """The names of a function's arguments, those that it takes as `**options: Unpack[...]` too."""
    for name, parameter in inspect.signature(function).parameters.items():
        yield name
        for options in typing.get_args(parameter.annotation):
            if parameter.kind is parameter.VAR_KEYWORD:
                yield from options.__annotations__
