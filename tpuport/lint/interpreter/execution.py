"""What simple statements bind, and whether control goes on after them; everything else
that binds names too.
"""

import ast
from collections.abc import Callable
from typing import Any, Final

from tpuport.lint.abstract_values import (
    BOOL_TENSOR,
    UNKNOWN,
    Class,
    External,
    Function,
    Instance,
    Mapping,
    Namespace,
    Sequence,
    Static,
    Tensor,
    Unknown,
    Value,
    class_of,
)
from tpuport.lint.events import (
    Arithmetic,
    AttributeStore,
    Iteration,
    Refusal,
    Return,
    Subscript,
)
from tpuport.lint.gpu_packages import asks_for_gpu_package
from tpuport.lint.interpreter import overloading
from tpuport.lint.interpreter.arithmetic_values import arithmetic
from tpuport.lint.interpreter.containers import replace, told_apart, with_item
from tpuport.lint.interpreter.frame import (
    Frame,
    copy_environment,
    forget_attributes,
    path_of,
)
from tpuport.lint.interpreter.members import named_tuple_items
from tpuport.lint.interpreter.object_state import (
    is_plain_object,
    owner_of,
    store,
    store_after_call,
)
from tpuport.lint.interpreter.parameters import as_named
from tpuport.lint.interpreter.placement import on_device
from tpuport.lint.interpreter.subscripts import evaluate_indices
from tpuport.lint.interpreter.truth import decide, narrow, remember_condition
from tpuport.lint.joins import (
    carried,
    join_all,
    join_optional,
    with_entry,
)
from tpuport.lint.passed_arguments import Arguments
from tpuport.lint.project import Binding

# --- targets ---


def bind(frame: Frame, target: ast.expr, value: Value, source: ast.expr) -> None:
    """Assign a value to a target; `source` is the expression that it came from."""
    match target:
        case ast.Name(id=name):
            frame.env[name] = as_named(value, name)
            forget_attributes(frame.env, name)
            if frame.parent is not None and name in frame.outside:
                _bind_outside(frame.parent, name, value)
        case ast.Tuple() | ast.List():
            _unpack(frame, target.elts, value, source)
        case ast.Attribute():
            _store_attribute(frame, target, value)
        case ast.Subscript():
            _store_item(frame, target, value)


def _bind_outside(frame: Frame, name: str, value: Value) -> None:
    """Assign to a name of a function around this one, which may run any number of
    times.
    """
    owner = owner_of(frame, name)
    before = owner.env.get(name)
    owner.env[name] = value if before is None else carried(before, value)


def _unpack(
    frame: Frame, targets: list[ast.expr], value: Value, source: ast.expr
) -> None:
    items = _distribute(frame, targets, value)
    for target, item in zip(targets, items, strict=True):
        if isinstance(target, ast.Starred):
            target = target.value
        bind(frame, target, item, source)


def _distribute(frame: Frame, targets: list[ast.expr], value: Value) -> list[Value]:
    """What each target gets of a value that is unpacked."""
    is_starred = [isinstance(target, ast.Starred) for target in targets]
    plain_count = is_starred.count(False)
    match _items(frame, value):
        case tuple(items) if True not in is_starred and len(items) == plain_count:
            return list(items)
        case tuple(items) if True in is_starred and len(items) >= plain_count:
            start = is_starred.index(True)
            # The starred target gets what the others leave.
            stop = start + len(items) - plain_count
            middle = items[start:stop]
            return [
                *items[:start],
                Sequence("list", middle, join_all(middle)),
                *items[stop:],
            ]
    # Of unknown or of another length: any target may get any element.
    element = frame.element_of(value)
    shares: dict[bool, Value] = {False: element, True: Sequence("list", None, element)}
    return [shares[starred] for starred in is_starred]


def _items(frame: Frame, value: Value) -> tuple[Value, ...] | None:
    """The elements of a value, if it is known how many there are."""
    match value:
        case Instance():
            return named_tuple_items(frame, value)
        # A packed sequence is a named tuple.
        case Namespace(attributes=attributes):
            return tuple(part for _, part in attributes)
        case _:
            return value.items


def _store_attribute(frame: Frame, target: ast.Attribute, value: Value) -> None:
    base = frame.evaluate(target.value)
    frame.report(AttributeStore(target, base, target.attr, value))
    if frame.building is not None and frame.is_self(target.value):
        # `self.x = None` comes first, the real value in a branch. What a module's
        # constructor stores may be moved with the module before it is traced.
        owner = class_of(frame.receiver)
        stored = (
            on_device(value)
            if owner is None or frame.interpreter.classes.is_module(owner)
            else value
        )
        frame.building[target.attr] = join_optional(
            frame.building.get(target.attr), stored
        )
    is_plain = is_plain_object(frame.interpreter.classes, base)
    if is_plain and frame.building is None:
        key = Static("str", target.attr)
        if _call_setter(frame, target.value, base, "__setattr__", [key, value]):
            return
    path = path_of(target)
    if path is not None:
        forget_attributes(frame.env, path)
        store(frame, target, value)


def _call_setter(
    frame: Frame, holder: ast.expr, base: Value, name: str, arguments: list[Value]
) -> bool:
    """Call the method by which an object sets an attribute or an item; False if it has
    none.
    """
    interpreter = frame.interpreter
    owner = class_of(base)
    method = owner and interpreter.classes.method(owner, name)
    if not method:
        return False
    function = Function(method, base)
    interpreter.changed_receiver = None
    interpreter.call_function(frame, function, Arguments(arguments, {}))
    store_after_call(frame, ast.Attribute(holder, name, ast.Load()), function)
    return True


def _store_item(frame: Frame, target: ast.Subscript, value: Value) -> None:
    base = frame.evaluate(target.value)
    indices = evaluate_indices(frame, target, base)
    frame.report(Subscript(target, base, indices, True, None, frame.statement, value))
    _report_store_in_container(frame, target, value)
    _put(frame, target, base, indices, value)


def _put(
    frame: Frame, target: ast.Subscript, base: Value, indices: list[Value], value: Value
) -> None:
    """`base[index] = value`, where the target holds the base."""
    changed = with_item(frame, target.value, base, indices, value)
    if changed is not None:
        replace(frame, target.value, changed)
        return
    _call_setter(frame, target.value, base, "__setitem__", [*indices, value])


def _report_store_in_container(
    frame: Frame, target: ast.Subscript, value: Value
) -> None:
    """Let the rules hear of `self.x[key] = value`."""
    match target.value:
        case ast.Attribute(value=owner, attr=name) as container if frame.emitting:
            # Writing into a tensor keeps the tensor, and other rules hear of it.
            if not isinstance(frame.evaluate(container), Tensor):
                owner_value = frame.evaluate(owner)
                frame.report(
                    AttributeStore(target, owner_value, name, value, in_container=True)
                )


# --- expressions that bind names ---


def _named_expression(frame: Frame, node: ast.NamedExpr) -> Value:
    value = frame.evaluate(node.value)
    bind(frame, node.target, value, node.value)
    return value


_COMPREHENSION_KINDS: Final = {
    ast.ListComp: "list",
    ast.SetComp: "set",
    ast.GeneratorExp: "iterator",
}


def _comprehension(
    frame: Frame, node: ast.ListComp | ast.SetComp | ast.GeneratorExp
) -> Value:
    kind = _COMPREHENSION_KINDS[type(node)]
    runs = [values[-1] for values in _runs(frame, node.generators, node.elt)]
    element = join_all(runs)
    # How many elements a condition leaves is not known, nor how many of a set differ.
    is_counted = len(runs) > 1 and kind != "set" and not node.generators[0].ifs
    return Sequence(kind, tuple(runs) if is_counted else None, element)


def _dict_comprehension(frame: Frame, node: ast.DictComp) -> Value:
    result = Mapping((), UNKNOWN)
    for key, value in _runs(frame, node.generators, node.key, node.value):
        result = with_entry(result, key.constant, value)
    return result


def _runs(
    frame: Frame, generators: list[ast.comprehension], *elements: ast.expr
) -> list[list[Value]]:
    """What a comprehension's element expressions are, in each run that is told apart
    from the others.
    """
    first, *others = generators
    source = _iterated(frame, first)
    env = frame.env
    items = None if others else told_apart(source)
    runs: list[list[Value]] = []
    for item in items or (frame.element_of(source),):
        frame.env = copy_environment(env)
        is_entered = _enter(frame, first, item)
        if items and not is_entered:
            continue
        for generator in others:
            _enter(frame, generator, frame.element_of(_iterated(frame, generator)))
        runs.append(list(map(frame.evaluate, elements)))
    frame.env = env
    return runs


def _iterated(frame: Frame, generator: ast.comprehension) -> Value:
    source = frame.evaluate(generator.iter)
    frame.report(Iteration(generator.iter, source))
    return source


def _enter(frame: Frame, generator: ast.comprehension, element: Value) -> bool:
    """Bind an element in a comprehension; False if a condition leaves it out."""
    bind(frame, generator.target, element, generator.iter)
    is_left = True
    for condition in generator.ifs:
        is_left &= decide(frame, condition, "comprehension") is not False
        narrow(frame, condition, True)
    return is_left


EXPRESSION_HANDLERS: Final[dict[type[ast.AST], Callable[[Frame, Any], Value]]] = {
    ast.NamedExpr: _named_expression,
    **dict.fromkeys(_COMPREHENSION_KINDS, _comprehension),
    ast.DictComp: _dict_comprehension,
}

# --- simple statements ---


def _expression(frame: Frame, node: ast.Expr) -> None:
    frame.evaluate(node.value)


def _assign(frame: Frame, node: ast.Assign) -> None:
    value = frame.evaluate(node.value)
    if value is UNKNOWN and _makes_mask(node):
        value = BOOL_TENSOR
    for target in node.targets:
        bind(frame, target, value, node.value)
        if isinstance(target, ast.Name):
            remember_condition(frame, target.id, node.value)


def _makes_mask(node: ast.Assign) -> bool:
    """`edge_mask = edge_order == step`: code calls the answer so if there are many."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Compare()):
            return name.endswith("mask")
        case _:
            return False


def _assign_annotated(frame: Frame, node: ast.AnnAssign) -> None:
    if node.value is None:
        return
    value = frame.evaluate(node.value)
    # What the expression is known to be is more exact than the annotation, unless it is
    # a dict or an attribute's list that is still empty.
    match value, node.target:
        case (Unknown() | Mapping(entries=(), element=Unknown()), _) | (
            Sequence(kind="list", items=()),
            ast.Attribute(),
        ):
            annotated = frame.interpreter.annotation(node.annotation, frame.module)
            if value is UNKNOWN or type(annotated) is type(value):
                value = annotated
    bind(frame, node.target, value, node.value)


def _assign_augmented(frame: Frame, node: ast.AugAssign) -> None:
    target = node.target
    right = frame.evaluate(node.value)
    if isinstance(target, ast.Subscript):
        base = frame.evaluate(target.value)
        indices = evaluate_indices(frame, target, base)
        frame.report(Subscript(target, base, indices, True, node.op, node, right))
        _report_store_in_container(frame, target, right)
        left = frame.evaluate_silently(target)
        _put(frame, target, base, indices, arithmetic(left, node.op, right))
        return
    left = frame.evaluate(target)
    overloaded = overloading.augmented_assignment(frame, left, node.op, right)
    if overloaded is not None:
        bind(frame, target, overloaded, node.value)
        return
    result = arithmetic(left, node.op, right)
    frame.report(Arithmetic(node, left, node.op, right, result))
    bind(frame, target, result, node.value)


def _return(frame: Frame, node: ast.Return) -> bool:
    value = frame.evaluate_optional(node.value)
    frame.report(Return(node, value, frame.entry, frame.info))
    frame.add_returned(value)
    frame.add_end()
    return False


def _raise(frame: Frame, node: ast.Raise) -> bool:
    frame.raising = True
    frame.evaluate_optional(node.exc)
    frame.raising = False
    return False


def _assert(frame: Frame, node: ast.Assert) -> None:
    if decide(frame, node.test, "assert") is False:
        frame.report_package(refusal_of(frame, node, node.test))
    # What follows is looked at nevertheless: the assertion is the first thing to go.
    narrow(frame, node.test, True)


def refusal_of(frame: Frame, node: ast.stmt, test: ast.expr) -> Refusal:
    """The event of an assertion, or of a `raise` under a condition, and whether that is
    about a missing package.
    """
    names = [part.id for part in ast.walk(test) if isinstance(part, ast.Name)]
    return Refusal(
        node, test, any(_tells_of_missing_package(frame, name) for name in names)
    )


def _tells_of_missing_package(frame: Frame, name: str) -> bool:
    """Whether a name, of this file or imported from another, tells that a package that
    needs a GPU is missing.
    """
    if name in frame.module.unavailable or asks_for_gpu_package(name):
        return True
    match frame.interpreter.project.lookup(frame.module, name):
        case Binding(module=module, name=flag) if flag in module.unavailable:
            return True
    match frame.lookup(name):
        case External(missing=True):
            return True
    return False


def _delete(frame: Frame, node: ast.Delete) -> None:
    for target in node.targets:
        if isinstance(target, ast.Name):
            frame.env.pop(target.id, None)


def _define_function(
    frame: Frame, node: ast.FunctionDef | ast.AsyncFunctionDef
) -> None:
    frame.env[node.name] = frame.define_function(node)


def _define_class(frame: Frame, node: ast.ClassDef) -> None:
    frame.env[node.name] = Class(frame.module.klass(node, frame.qualname))


def _nonlocal(frame: Frame, node: ast.Nonlocal) -> None:
    frame.outside += node.names


def _import(frame: Frame, node: ast.Import) -> None:
    for alias in node.names:
        # `import a.b` binds `a`, `import a.b as c` binds the module itself to `c`.
        name = alias.name if alias.asname else alias.name.partition(".")[0]
        frame.env[alias.asname or name] = frame.interpreter.project.imported(
            name, frame.module
        )


def _import_from(frame: Frame, node: ast.ImportFrom) -> None:
    interpreter = frame.interpreter
    for alias in node.names:
        value = interpreter.project.member(
            frame.module.absolute(node), alias.name, frame.module
        )
        frame.env[alias.asname or alias.name] = interpreter.resolve_binding(value)


STATEMENT_HANDLERS: Final[dict[type[ast.AST], Callable[[Frame, Any], bool | None]]] = {
    ast.Expr: _expression,
    ast.Assign: _assign,
    ast.AnnAssign: _assign_annotated,
    ast.AugAssign: _assign_augmented,
    ast.Return: _return,
    ast.Raise: _raise,
    ast.Assert: _assert,
    ast.FunctionDef: _define_function,
    ast.AsyncFunctionDef: _define_function,
    ast.ClassDef: _define_class,
    ast.Delete: _delete,
    ast.Nonlocal: _nonlocal,
    ast.Import: _import,
    ast.ImportFrom: _import_from,
}
