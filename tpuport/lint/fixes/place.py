"""The surroundings of a finding's node: what a rewrite asks before it decides."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final

import libcst as cst
from libcst.helpers import get_full_name_for_node

from tpuport.lint.findings import Finding, Severity
from tpuport.lint.fixes.names import bound_names, imported_names

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
FunctionNode = cst.FunctionDef | cst.Lambda


@dataclasses.dataclass(frozen=True)
class File:
    """A parsed file that has findings.

    Attributes:
        module: the tree whose nodes the edits name.
        parents: parent of each node.
    """

    module: cst.Module
    parents: Mapping[cst.CSTNode, cst.CSTNode]

    @functools.cached_property
    def imports(self) -> dict[str, str]:
        """Dotted name of what each imported name stands for, wherever in the file the import is."""
        return imported_names(self.module)

    @functools.cached_property
    def top_level(self) -> set[str]:
        """Names that the file itself binds outside functions and classes, imports not counted."""
        return bound_names(self.module) - set(self.imports)

    @functools.cached_property
    def _bound(self) -> dict[int, set[str]]:
        return {}

    def bound_in(self, function: FunctionNode) -> set[str]:
        """Names that are local to a function, its parameters among them."""
        if id(function) not in self._bound:
            self._bound[id(function)] = bound_names(function)
        return self._bound[id(function)]


@dataclasses.dataclass(frozen=True)
class Place:
    """One finding in its file."""

    finding: Finding
    file: File

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """What holds the node."""
        return self.file.parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """What holds the node, what holds that, up to the module."""
        above = self.file.parents.get(node)
        while above is not None:
            yield above
            above = self.file.parents.get(above)

    def enclosing(self, node: cst.CSTNode, *kinds: type[cst.CSTNode]) -> Any:
        """The nearest node of one of these kinds that holds this one, or None."""
        return next((above for above in self.ancestors(node) if isinstance(above, kinds)), None)

    def function(self, node: cst.CSTNode) -> FunctionNode | None:
        """The function or lambda whose body (not whose defaults or decorators) the node stands in."""
        below = node
        for above in self.ancestors(node):
            if isinstance(above, cst.FunctionDef | cst.Lambda) and below is above.body:
                return above
            below = above
        return None

    def line(self, node: cst.CSTNode) -> cst.SimpleStatementLine | None:
        """The line whose one statement the node is or stands in; None if several statements share it."""
        line = self.enclosing(node, cst.SimpleStatementLine)
        return line if line is not None and len(line.body) == 1 else None

    def is_statement(self, node: cst.CSTNode) -> bool:
        """Whether the expression is a statement of its own, alone on its line."""
        above = self.parent(node)
        return isinstance(above, cst.Expr) and self.line(node) is not None

    @property
    def traced(self) -> bool:
        """Whether the place is in code that is traced, as far as the finding says."""
        function = self.finding.function.rpartition(".")[2]
        is_error = self.finding.severity is Severity.ERROR
        if self.finding.route or function == "forward":
            return True
        return is_error and function not in {"", "__init__"}

    @property
    def on_host(self) -> bool:
        """Whether the place is in code that neither is traced, nor builds a module, nor runs on import."""
        return not self.traced and self.finding.severity is not Severity.ERROR

    # --- text ---

    def code(self, node: cst.CSTNode) -> str:
        """The node's source text."""
        return self.file.module.code_for_node(node)

    def operand(self, node: cst.CSTNode) -> str:
        """The expression's source text, in parentheses where an operator or a dot after it needs them."""
        text = self.code(node)
        return text if isinstance(node, _ATOMS) or getattr(node, "lpar", ()) else f"({text})"

    def expression(self, text: str) -> cst.BaseExpression:
        """Source text as an expression."""
        return cst.parse_expression(text, self.file.module.config_for_parsing)

    def statement(self, text: str, comments: cst.SimpleStatementLine | None = None) -> Any:
        """Source text as a statement; with the comments of the line that it replaces."""
        new = cst.parse_statement(text, self.file.module.config_for_parsing)
        if comments is None:
            return new
        return new.with_changes(
            leading_lines=comments.leading_lines, trailing_whitespace=comments.trailing_whitespace
        )

    # --- names ---

    def dotted(self, node: cst.CSTNode) -> str:
        """The library name that an expression stands for, through the file's imports: "torch.nn.functional.pad".

        "" where it is none: its first name is not imported, or is bound to something else here.
        """
        text = get_full_name_for_node(node) if is_simple(node) else None
        if not text:
            return ""
        head, _, rest = text.partition(".")
        target = self.file.imports.get(head)
        if target is None or self.shadowed(node, head):
            return ""
        return f"{target}.{rest}" if rest else target

    def shadowed(self, node: cst.CSTNode, name: str) -> bool:
        """Whether a name means something else at this node than the file's import of it."""
        if name in self.file.top_level:
            return True
        functions = [
            above for above in self.ancestors(node) if isinstance(above, cst.FunctionDef | cst.Lambda)
        ]
        return any(
            name in self.file.bound_in(function) and not _imports(function, name) for function in functions
        )

    def shadowed_locally(self, node: cst.CSTNode, name: str) -> bool:
        """Whether a name of the file means something of an enclosing function's own at this node."""
        functions = [
            above for above in self.ancestors(node) if isinstance(above, cst.FunctionDef | cst.Lambda)
        ]
        return any(name in self.file.bound_in(function) for function in functions)

    def torch(self, node: cst.CSTNode) -> tuple[str, tuple[str, ...]] | None:
        """How new text at this node names torch, and what must be imported for it; None if it cannot."""
        for name, target in self.file.imports.items():
            if target == "torch" and not self.shadowed(node, name):
                return name, ()
        if "torch" in self.file.imports or self.shadowed(node, "torch"):
            return None
        return "torch", ("torch",)

    def is_torch(self, node: cst.CSTNode, *names: str) -> bool:
        """Whether it is a call of one of these functions of torch (or of torch.nn.functional)."""
        if not isinstance(node, cst.Call):
            return False
        head, _, last = self.dotted(node.func).rpartition(".")
        return last in names and head in {"torch", "torch.nn.functional"}


def _imports(function: FunctionNode, name: str) -> bool:
    """Whether the function binds the name by an import."""
    return name in imported_names(function)


def method(node: cst.CSTNode) -> str:
    """Name of the method that a call `something.name(...)` calls, else ""."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return node.func.attr.value
    return ""


def receiver(node: cst.Call) -> cst.BaseExpression:
    """`something` of `something.name(...)`."""
    assert isinstance(node.func, cst.Attribute)
    return node.func.value


def keyword(call: cst.Call, name: str) -> cst.Arg | None:
    """The argument that is given by this name."""
    return next((arg for arg in call.args if arg.keyword and arg.keyword.value == name), None)


def positional(call: cst.Call) -> list[cst.BaseExpression] | None:
    """Arguments given by position; None where some come out of a `*` or `**`."""
    if any(arg.star for arg in call.args):
        return None
    return [arg.value for arg in call.args if arg.keyword is None]


def is_simple(node: cst.CSTNode) -> bool:
    """A name, or attributes of a name: reading it twice is reading it once."""
    return isinstance(node, cst.Name) or (isinstance(node, cst.Attribute) and is_simple(node.value))


def subscript_index(node: cst.Subscript) -> cst.BaseExpression | None:
    """`index` of `base[index]`; None for slices and several indices."""
    if len(node.slice) != 1 or not isinstance(node.slice[0].slice, cst.Index):
        return None
    part = node.slice[0]
    inside = part.slice
    assert isinstance(inside, cst.Index)
    one = isinstance(part.comma, cst.MaybeSentinel) and not inside.star
    return inside.value if one else None
