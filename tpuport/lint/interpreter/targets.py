"""Assignment targets: names, tuples, attributes, subscripts."""

import ast

from tpuport.lint.abstract_values import UNKNOWN, Mapping, Sequence, Static, Tensor, Value, join
from tpuport.lint.events import AttributeStore, Iterate, Subscript
from tpuport.lint.interpreter import expressions, iteration, subscripts
from tpuport.lint.interpreter.frame import Frame, forget, path_of


def bind(frame: Frame, target: ast.expr, value: Value, source: ast.expr) -> None:
    """Assign a value to a target; `source` is the expression it came from."""
    if isinstance(target, ast.Name):
        frame.env[target.id] = value
        if any("." in key for key in frame.env):
            forget(frame.env, target.id)
    elif isinstance(target, ast.Tuple | ast.List):
        _unpack(frame, target, value, source)
    elif isinstance(target, ast.Starred):
        bind(frame, target.value, Sequence("list", None, iteration.element(frame, value)), source)
    elif isinstance(target, ast.Attribute):
        _attribute(frame, target, value)
    elif isinstance(target, ast.Subscript):
        _subscript(frame, target, value)


def _unpack(frame: Frame, target: ast.Tuple | ast.List, value: Value, source: ast.expr) -> None:
    if isinstance(value, Tensor) and frame.emitting:
        frame.tell(Iterate(source, value, "unpacking"))
    count = len(target.elts)
    starred = next((i for i, item in enumerate(target.elts) if isinstance(item, ast.Starred)), None)
    if isinstance(value, Sequence) and value.items is not None:
        items = list(value.items)
        if starred is None and len(items) == count:
            for item, part in zip(target.elts, items, strict=True):
                bind(frame, item, part, source)
            return
        if starred is not None and len(items) >= count - 1:
            _unpack_starred(frame, target, items, starred, source)
            return
    element = iteration.element(frame, value)
    for item in target.elts:
        bind(frame, item, value if isinstance(item, ast.Starred) else element, source)


def _unpack_starred(
    frame: Frame, target: ast.Tuple | ast.List, items: list[Value], starred: int, source: ast.expr
) -> None:
    behind = len(target.elts) - starred - 1
    middle = items[starred : len(items) - behind]
    for item, part in zip(target.elts[:starred], items, strict=False):
        bind(frame, item, part, source)
    star = target.elts[starred]
    assert isinstance(star, ast.Starred)
    bind(frame, star.value, Sequence("list", tuple(middle), expressions.joined(middle)), source)
    for item, part in zip(target.elts[starred + 1 :], items[len(items) - behind :], strict=True):
        bind(frame, item, part, source)


def _attribute(frame: Frame, target: ast.Attribute, value: Value) -> None:
    base = expressions.evaluate(frame, target.value)
    on_self = isinstance(target.value, ast.Name) and target.value.id == frame.self_name
    if frame.emitting:
        frame.tell(AttributeStore(target, base, on_self, target.attr, value))
    if on_self and frame.building is not None:
        old = frame.building.get(target.attr)
        # `self.x = None` first, the real thing in a branch.
        frame.building[target.attr] = value if old is None else join(old, value)
    path = path_of(target)
    if path is not None:
        forget(frame.env, path)
        frame.env[path] = value


def _subscript(frame: Frame, target: ast.Subscript, value: Value) -> None:
    base = expressions.evaluate(frame, target.value)
    indices, nodes = subscripts.indices(frame, target, base)
    if frame.emitting:
        frame.tell(Subscript(target, base, indices, nodes, True, None, value, frame.statement))
    stored_in_container(frame, target, value)
    path = path_of(target.value)
    if path is None:
        return
    if isinstance(base, Mapping):
        key = indices[0].constant if isinstance(indices[0], Static) else ...
        if key is ...:
            frame.env[path] = Mapping(base.entries, join(base.element, value) if base.entries else value)
        else:
            kept = tuple(entry for entry in base.entries if entry[0] != key)
            frame.env[path] = Mapping((*kept, (key, value)), base.element)
    elif isinstance(base, Sequence) and base.kind == "list":
        element = value if base.element is UNKNOWN and not base.tensors else join(base.element, value)
        frame.env[path] = Sequence("list", None, element, base.tensors or isinstance(value, Tensor))


def stored_in_container(frame: Frame, target: ast.Subscript, value: Value) -> None:
    """Tell the rules of `self.x[key] = value`."""
    holder = target.value
    if not frame.emitting or not isinstance(holder, ast.Attribute):
        return
    base = expressions.evaluate(frame, holder)
    if isinstance(base, Tensor):
        return
    on_self = isinstance(holder.value, ast.Name) and holder.value.id == frame.self_name
    owner = expressions.evaluate(frame, holder.value)
    frame.tell(AttributeStore(target, owner, on_self, holder.attr, value, in_container=True))
