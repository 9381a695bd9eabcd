"""TPU507: a plain tensor attribute becomes a buffer."""

import libcst as cst

from tpuport.lint.fixes.names import bound_names, walk
from tpuport.lint.fixes.place import Place
from tpuport.lint.fixes.rewrite import Edit, Rewrite


def rewrite(node: cst.CSTNode, place: Place) -> Edit | None:
    """`self.x = value` in `__init__` as `self.register_buffer("x", value, persistent=False)`.

    Unsafe: `.to()` and `.half()` now change it too. Left alone where the class assigns it elsewhere.
    """
    assign = node if isinstance(node, cst.Assign) else place.enclosing(node, cst.Assign)
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None
    function, line = place.function(assign), place.line(assign)
    owner = place.enclosing(assign, cst.ClassDef)
    if not isinstance(function, cst.FunctionDef) or owner is None or line is None:
        return None
    target = assign.targets[0].target
    if function.name.value != "__init__" or not _is_of_self(target) or not isinstance(target, cst.Attribute):
        return None
    name = target.attr.value
    if "complex" in place.code(owner) or "polar(" in place.code(owner):
        return None  # `.to(torch.bfloat16)` drops the imaginary part of a buffer
    if not _after_super(function, line) or _stores(owner, name) != 1 or _in_class(owner, name):
        return None
    text = (
        f'{place.code(target.value)}.register_buffer("{name}", {place.code(assign.value)}, persistent=False)'
    )
    return Edit(((line, place.statement(text, line)),), unsafe=True)


def _is_of_self(target: cst.CSTNode) -> bool:
    return (
        isinstance(target, cst.Attribute)
        and isinstance(target.value, cst.Name)
        and target.value.value == "self"
    )


def _after_super(function: cst.FunctionDef, line: cst.CSTNode) -> bool:
    """Whether `super().__init__()` has run: buffers need it."""
    for node in walk(function.body):
        if node is line:
            return False
        if (
            isinstance(node, cst.Call)
            and isinstance(node.func, cst.Attribute)
            and node.func.attr.value == "__init__"
        ):
            return True
    return False


def _stores(owner: cst.ClassDef, name: str) -> int:
    targets = [
        node.target
        for node in walk(owner)
        if isinstance(node, cst.AssignTarget | cst.AugAssign | cst.AnnAssign)
    ]
    return sum(
        isinstance(part, cst.Attribute) and part.attr.value == name and _is_of_self(part)
        for target in targets
        for part in walk(target)
    )


def _in_class(owner: cst.ClassDef, name: str) -> bool:
    """Whether the class itself has the name: a property, a default. A buffer cannot take it."""
    return name in bound_names(owner)


REWRITE = Rewrite("TPU507", (cst.Assign, cst.Attribute), rewrite)
