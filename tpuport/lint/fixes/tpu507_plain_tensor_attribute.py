"""TPU507: a plain tensor attribute becomes a buffer."""

import itertools
import re

import libcst as cst

from tpuport.lint.fixes.edits import Edit, Rewrite, replace_node
from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import (
    FunctionNode,
    bound_names,
    expect,
    method_name,
    require,
    walk,
)


def rewrite(node: cst.CSTNode, site: Site) -> Edit:
    """`self.x = value` in `__init__` as
    `self.register_buffer("x", value, persistent=False)`.

    Unsafe: `.to()` and `.half()` now change it too. Left alone if the class assigns it
    elsewhere.
    """
    assignment = site.innermost(node, cst.Assign)
    owner = require(site.enclosing(assignment, cst.ClassDef))
    line = require(site.statement_line(assignment))
    # `self.x = y = value` binds another name too.
    expect(len(assignment.targets) == 1)
    name = _self_attribute(assignment.targets[0].target)
    expect(name)
    expect(_can_be_buffer(site, owner, name))
    expect(_runs_after_super_init(require(site.enclosing_function(assignment)), line))
    text = f'self.register_buffer("{name}", {site.code(assignment.value)}, persistent=False)'
    return replace_node(line, site.statement(text, line), unsafe=True)


def _self_attribute(node: cst.CSTNode) -> str:
    """`name` in `self.name`; "" for any other node."""
    match node:
        case cst.Attribute(value=cst.Name(value="self"), attr=cst.Name(value=name)):
            return name
    return ""


def _runs_after_super_init(function: FunctionNode, line: cst.CSTNode) -> bool:
    """Whether the line is in `__init__`, behind `super().__init__()`: before it there
    are not buffers.
    """
    match function:
        case cst.FunctionDef(name=cst.Name(value="__init__"), body=body):
            before = itertools.takewhile(lambda node: node is not line, walk(body))
            return "__init__" in map(method_name, before)
    return False


def _can_be_buffer(site: Site, owner: cst.ClassDef, name: str) -> bool:
    """Whether nothing in the class is in the way of a buffer of this name."""
    # The name of a property or a class attribute is taken.
    if name in bound_names(owner) or _count_stores(owner, name) != 1:
        return False
    # `.to(torch.bfloat16)` drops the imaginary part of a buffer.
    return not re.search(r"complex|polar\(", site.code(owner))


def _count_stores(owner: cst.ClassDef, name: str) -> int:
    """The number of assignments to `self.name` in the class."""
    count = 0
    for node in walk(owner):
        if isinstance(node, cst.AssignTarget | cst.AugAssign | cst.AnnAssign):
            count += sum(_self_attribute(part) == name for part in walk(node.target))
    return count


REWRITE = Rewrite("TPU507", (cst.Assign, cst.Attribute), rewrite)
