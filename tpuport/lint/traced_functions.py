"""Functions that are traced, and what became of those that stopped."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from tpuport.lint.abstract_values import (
    Instance,
    Value,
    class_of,
)
from tpuport.lint.entry_verdicts import Stop, TracedEntry, key_of
from tpuport.lint.findings import Finding
from tpuport.lint.interpreter.call_record import Record
from tpuport.lint.modules import FunctionInfo, FunctionNode, ModuleInfo
from tpuport.lint.scope_statements import definitions

# Functions that are passed to one of these, or decorated with one, are traced.
COMPILERS: Final = frozenset(
    "torch.compile tpuport.compile jax.jit torchax.interop.jax_jit torchax.compile torch.jit.trace"
    " torch_xla2.interop.jax_jit".split()
)


class EntryPoint(NamedTuple):
    """A function that tracing starts from, and what its `self` is."""

    function: FunctionInfo
    receiver: Value | None = None


def errors_of(
    module: ModuleInfo,
    entry: EntryPoint,
    reached: Record,
    scanned: Mapping[str, list[Finding]],
) -> Iterator[Finding]:
    """The errors that stop an entry point: in what it calls, in its constructor, and
    upon import of its file.

    Args:
        module: the file.
        entry: the entry point.
        reached: what it results in.
        scanned: the errors that the scanner has found, by `path:qualname` of their
            functions.
    """
    owner = class_of(entry.receiver)
    traced = {traced_name(function) for function, _ in reached.traced} | {
        f"{module.path}:"
    }
    if owner is not None:
        traced.add(f"{module.path}:{owner.qualname}.__init__")
    yield from (finding for finding in reached.findings.values() if finding.stops_trace)
    for name in sorted(scanned.keys() & traced):
        yield from scanned[name]


def stopped_entries(
    entry_points: Iterable[EntryPoint], finding: Finding
) -> tuple[TracedEntry, ...]:
    """The entry points of a file whose analysis was cut off: none of them is known to
    trace.
    """
    definitions = dict.fromkeys(
        class_of(entry.receiver) or entry.function for entry in entry_points
    )
    names = sorted(
        (definition.qualname, definition.node.lineno) for definition in definitions
    )
    return tuple(TracedEntry(*name, (Stop(key_of(finding)),)) for name in names)


def traced_name(function: FunctionInfo) -> str:
    """The function's file and qualified name."""
    return f"{function.module.path}:{function.qualname}"


def position(function: FunctionInfo) -> tuple[str, int, int]:
    """Where a function stands, to sort by."""
    return str(function.module.path), function.node.lineno, function.node.col_offset


def nested_functions(module: ModuleInfo) -> dict[ast.AST, FunctionInfo]:
    """The functions that are defined inside functions, by their definitions."""
    return {
        node: FunctionInfo(node, module, None, prefix)
        for node, prefix, parent in definitions(module.tree)
        if isinstance(node, FunctionNode) and isinstance(parent, FunctionNode)
    }


def decorated_functions(
    module: ModuleInfo, nested: dict[ast.AST, FunctionInfo]
) -> Iterator[EntryPoint]:
    """Functions and methods with a compiler as a decorator."""
    known = nested | {info.node: info for info in module.functions_and_methods}
    for node, prefix, _ in definitions(module.tree):
        is_compiled = any(
            _is_compiler(module, decorator) for decorator in node.decorator_list
        )
        if is_compiled and isinstance(node, FunctionNode):
            yield entry_point(
                known.get(node) or FunctionInfo(node, module, None, prefix)
            )


def _is_compiler(module: ModuleInfo, decorator: ast.expr) -> bool:
    """Whether a decorator is a compiler, with or without options, or a partial
    application of one.
    """
    if not isinstance(decorator, ast.Call):
        return module.dotted(decorator) in COMPILERS
    name = module.dotted(decorator.func)
    if name.rpartition(".")[2] == "partial" and decorator.args:
        name = module.dotted(decorator.args[0])
    return name in COMPILERS


def entry_point(function: FunctionInfo) -> EntryPoint:
    """A function as an entry point; a method's `self` is an instance of its class."""
    if function.owner is None or function.is_a("staticmethod"):
        return EntryPoint(function)
    return EntryPoint(function, Instance(function.owner))
