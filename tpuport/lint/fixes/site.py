"""A finding in its file: what a rewrite needs to know about the surroundings before it
changes anything.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import libcst as cst
from libcst.helpers import get_full_name_for_node

from tpuport.lint.findings import Finding, Severity
from tpuport.lint.fixes.syntax import (
    FUNCTION_NODES,
    FunctionNode,
    bound_names,
    expect,
    imported_names,
    is_simple,
    method_name,
    require,
)

_NodeT = TypeVar("_NodeT", bound=cst.CSTNode)

# Expressions that need no parentheses as an operand.
_ATOMS: Final = (
    cst.Name,
    cst.Attribute,
    cst.Call,
    cst.Subscript,
    cst.Integer,
    cst.Float,
    cst.SimpleString,
    cst.List,
    cst.Dict,
)


class TorchName(NamedTuple):
    """How new text names torch, and the modules that the file must import for it."""

    name: str
    imports: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ParsedFile:
    """A file with findings.

    Nodes of libcst are equal only to themselves, whatever their text, so sets and
    mappings of nodes go by position.

    Attributes:
        module: the tree whose nodes the edits refer to.
        parents: parent of each node.
        import_statements: all imports of the file, in the order of the text.
    """

    module: cst.Module
    parents: Mapping[Any, cst.CSTNode]
    import_statements: Sequence[cst.CSTNode]

    @functools.cached_property
    def imports(self) -> dict[str, str]:
        """The dotted library name of each imported name, wherever in the file the
        import is.
        """
        names: dict[str, str] = {}
        for statement in self.import_statements:
            names.update(imported_names(statement))
        return names

    @functools.cached_property
    def top_level_names(self) -> set[str]:
        """Names that the file itself binds outside functions and classes, other than by
        imports.
        """
        return bound_names(self.module) - set(self.imports)

    @functools.cached_property
    def _local_names(self) -> dict[FunctionNode, set[str]]:
        return {}

    def local_names(self, function: FunctionNode) -> set[str]:
        """Names that are local to a function, including its parameters."""
        # Every name that a rewrite looks up asks for all functions around it, and the
        # walk of a large one is slow.
        if function not in self._local_names:
            self._local_names[function] = bound_names(function)
        return self._local_names[function]

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes that contain this one, from its parent to the module."""
        while node in self.parents:
            node = self.parents[node]
            yield node


@dataclasses.dataclass(frozen=True)
class Site:
    """One finding in its file."""

    finding: Finding
    file: ParsedFile

    # --- the tree ---

    def parent(self, node: cst.CSTNode | None) -> cst.CSTNode | None:
        """The node that directly contains this one; None for the module, and for no
        node.
        """
        return self.file.parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes that contain this one, from its parent to the module."""
        return self.file.ancestors(node)

    def steps_up(self, node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
        """Each node on the path from this one to the module, with its parent."""
        return itertools.pairwise([node, *self.ancestors(node)])

    def enclosing(self, node: cst.CSTNode, *kinds: type[cst.CSTNode]) -> Any:
        """The innermost node of one of these kinds that contains this one, or None."""
        return next(
            (
                ancestor
                for ancestor in self.ancestors(node)
                if isinstance(ancestor, kinds)
            ),
            None,
        )

    def innermost(self, node: cst.CSTNode, kind: type[_NodeT]) -> _NodeT:
        """The node itself if it is of this kind, else the innermost such node around
        it.

        Raises:
            CannotRewriteError: there is none.
        """
        return node if isinstance(node, kind) else require(self.enclosing(node, kind))

    def enclosing_function(self, node: cst.CSTNode) -> FunctionNode | None:
        """The function or lambda whose body contains the node; defaults and decorators
        are outside.
        """
        for child, parent in self.steps_up(node):
            match parent:
                case cst.FunctionDef(body=body) | cst.Lambda(body=body) if (
                    body is child
                ):
                    return parent
        return None

    def statement_line(self, node: cst.CSTNode) -> cst.SimpleStatementLine | None:
        """The line whose only statement is or contains the node; None if several
        statements share the line.
        """
        match self.enclosing(node, cst.SimpleStatementLine):
            case cst.SimpleStatementLine(body=[_]) as line:
                return line
        return None

    def is_statement(self, node: cst.CSTNode) -> bool:
        """Whether the expression is a statement alone on its line."""
        return (
            isinstance(self.parent(node), cst.Expr)
            and self.statement_line(node) is not None
        )

    def argument_of(self, node: cst.CSTNode) -> cst.Call | None:
        """The call that the node is an argument of."""
        argument = self.parent(node)
        match argument, self.parent(argument):
            case cst.Arg(), cst.Call() as call:
                return call
        return None

    # --- what the finding says about the code ---

    @property
    def is_traced(self) -> bool:
        """Whether the code is traced, as far as the finding tells."""
        function = self.finding.function.rpartition(".")[2]
        if self.finding.route or function == "forward":
            return True
        # Errors outside traced code are about modules: they are found on import, or
        # where a module is built.
        return self.finding.severity is Severity.ERROR and function not in {
            "",
            "__init__",
        }

    @property
    def is_host_code(self) -> bool:
        """Whether the code is not traced and does not build a module: code outside of
        functions may be a script.
        """
        is_certain = (
            self.finding.severity is Severity.ERROR and self.finding.function != ""
        )
        return not self.is_traced and not is_certain

    # --- text ---

    def code(self, node: cst.CSTNode) -> str:
        """The node's source text."""
        return self.file.module.code_for_node(node)

    def operand(self, node: cst.CSTNode) -> str:
        """The expression's source text, in parentheses if an operator or a dot after it
        needs them.
        """
        text = self.code(node)
        if isinstance(node, _ATOMS) or getattr(node, "lpar", ()):
            return text
        return f"({text})"

    def expression(self, text: str) -> cst.BaseExpression:
        """Parse an expression."""
        return cst.parse_expression(text, self.file.module.config_for_parsing)

    def statement(
        self, text: str, replaced: cst.SimpleStatementLine | None = None
    ) -> Any:
        """Parse a statement; it gets the comments of the line that it replaces."""
        statement = cst.parse_statement(text, self.file.module.config_for_parsing)
        if replaced is None:
            return statement
        return statement.with_changes(
            leading_lines=replaced.leading_lines,
            trailing_whitespace=replaced.trailing_whitespace,
        )

    # --- names ---

    def dotted_name(self, node: cst.CSTNode) -> str:
        """The library name of an expression, through the file's imports:
        "torch.nn.functional.pad".

        "" if its first name is not imported, or is bound to something else at this
        node.
        """
        if not is_simple(node):
            return ""
        head, dot, rest = (get_full_name_for_node(node) or "").partition(".")
        if head not in self.file.imports or self.is_shadowed(node, head):
            return ""
        return f"{self.file.imports[head]}{dot}{rest}"

    def function_name(self, node: cst.CSTNode | None) -> str:
        """The library name of the function that a call calls; "" for any other node."""
        return self.dotted_name(node.func) if isinstance(node, cst.Call) else ""

    def called_or_named(self, node: cst.CSTNode) -> str:
        """The library name of `f` in `@f` and `@f(...)`."""
        return self.function_name(node) or self.dotted_name(node)

    def method_of_value(self, node: cst.CSTNode) -> str:
        """The name of the method that a call calls on a value; "" for functions of a
        library and other nodes.
        """
        # In `torch.clone(x)`, `clone` is written like a method too.
        return "" if self.function_name(node) else method_name(node)

    def torch_function(self, node: cst.CSTNode | None) -> str:
        """The name of the function of torch or torch.nn.functional that a call calls;
        "" for any other node.
        """
        module, _, name = self.function_name(node).rpartition(".")
        return name if module in {"torch", "torch.nn.functional"} else ""

    def is_torch_call(self, node: cst.CSTNode | None, *names: str) -> bool:
        """Whether the node calls one of these functions of torch or
        torch.nn.functional.
        """
        return self.torch_function(node) in names

    def is_shadowed(self, node: cst.CSTNode, name: str) -> bool:
        """Whether a name means something else at this node than the file's import of
        it.
        """
        if name in self.file.top_level_names:
            return True
        return any(
            name not in imported_names(function)
            for function in self._functions_binding(node, name)
        )

    def is_shadowed_locally(self, node: cst.CSTNode, name: str) -> bool:
        """Whether a function around this node binds a name of the file to something
        else.
        """
        return any(self._functions_binding(node, name))

    def _functions_binding(
        self, node: cst.CSTNode, name: str
    ) -> Iterator[FunctionNode]:
        for ancestor in self.ancestors(node):
            if isinstance(ancestor, FUNCTION_NODES) and name in self.file.local_names(
                ancestor
            ):
                yield ancestor

    def torch_name(self, node: cst.CSTNode) -> TorchName:
        """How new text at this node names torch.

        Raises:
            CannotRewriteError: every name is taken.
        """
        for name, module in self.file.imports.items():
            if module == "torch" and not self.is_shadowed(node, name):
                return TorchName(name, ())
        # `import torch` in some other function, or another meaning of the name, would
        # clash with a new import.
        expect("torch" not in self.file.imports and not self.is_shadowed(node, "torch"))
        return TorchName("torch", ("torch",))
