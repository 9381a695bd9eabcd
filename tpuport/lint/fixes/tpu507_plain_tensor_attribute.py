"""TPU507: a plain tensor attribute becomes a buffer."""

import libcst as cst

from tpuport.lint.fixes.edits import Edit, Rewrite, replace_node
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import bound_names, is_name, method_name, walk


def rewrite(node: cst.CSTNode, site: Site) -> Edit | None:
    """`self.x = value` in `__init__` as `self.register_buffer("x", value, persistent=False)`.

    Unsafe: `.to()` and `.half()` now change it too. Left alone if the class assigns it elsewhere.
    """
    assignment = node if isinstance(node, cst.Assign) else site.enclosing(node, cst.Assign)
    owner = site.enclosing(node, cst.ClassDef)
    if assignment is None or owner is None:
        return None
    line = site.statement_line(assignment)
    target = assignment.targets[0].target
    if line is None or len(assignment.targets) > 1 or not _is_self_attribute(target):
        return None
    function = site.enclosing_function(assignment)
    if not isinstance(function, cst.FunctionDef) or not _runs_after_super_init(function, line):
        return None
    if not _can_be_buffer(site, owner, target.attr.value):
        return None
    instance = site.code(target.value)
    value = site.code(assignment.value)
    text = f'{instance}.register_buffer("{target.attr.value}", {value}, persistent=False)'
    return replace_node(line, site.statement(text, line), unsafe=True)


def _is_self_attribute(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Attribute) and is_name(node.value, "self")


def _runs_after_super_init(function: cst.FunctionDef, line: cst.CSTNode) -> bool:
    """Whether the line is in `__init__`, behind `super().__init__()`: before it there are no buffers."""
    if function.name.value != "__init__":
        return False
    for node in walk(function.body):
        if node is line:
            return False
        if method_name(node) == "__init__":
            return True
    return False


def _can_be_buffer(site: Site, owner: cst.ClassDef, name: str) -> bool:
    """Whether nothing in the class is in the way of a buffer of this name."""
    # The name of a property or a class attribute is taken.
    if name in bound_names(owner) or _count_stores(owner, name) != 1:
        return False
    # `.to(torch.bfloat16)` drops the imaginary part of a buffer.
    text = site.code(owner)
    return "complex" not in text and "polar(" not in text


def _count_stores(owner: cst.ClassDef, name: str) -> int:
    """The number of assignments to `self.name` in the class."""
    count = 0
    for node in walk(owner):
        if isinstance(node, cst.AssignTarget | cst.AugAssign | cst.AnnAssign):
            count += sum(_is_self_attribute(part) and part.attr.value == name for part in walk(node.target))
    return count


REWRITE = Rewrite("TPU507", (cst.Assign, cst.Attribute), rewrite)
