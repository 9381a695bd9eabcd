"""What an object's attributes are after code has changed them: the object's value in
the frame is replaced.

Only objects that are not modules are followed so: a buffer of transitions, a beam, the
state of a line search. What a module's methods store in it outlives the call, and the
facts about its class tell what that may be.
"""

import ast
from typing import Any

from tpuport.lint.abstract_values import (
    UNKNOWN,
    Function,
    Instance,
    Value,
    class_of,
)
from tpuport.lint.interpreter.class_facts import Classes
from tpuport.lint.interpreter.frame import Frame, forget_attributes, path_of
from tpuport.lint.joins import join_all


def is_plain_object(classes: Classes, value: Value | None) -> bool:
    """Whether it is an instance of a class of the linted code that is not a module."""
    return isinstance(value, Instance) and not classes.is_module(value.info)


def store(frame: Frame, target: ast.expr, value: Value) -> None:
    """Bind a name or an attribute, `a.b.c`, in the frame, and replace the objects that
    have the attribute.
    """
    path = path_of(target)
    if path is None:
        return
    # What a nested function changes belongs to the function that has the name.
    frame = owner_of(frame, path.partition(".")[0])
    frame.env[path] = value
    match target:
        case ast.Attribute(value=holder, attr=name):
            owner = _plain_object(frame, holder)
            if owner is not None:
                store(frame, holder, with_field(owner, name, value))


def owner_of(frame: Frame, name: str) -> Frame:
    """The frame that binds a name: this one or one around it."""
    owner: Frame | None = frame
    while owner is not None:
        if name in owner.env:
            return owner
        owner = owner.parent
    return frame


def _plain_object(frame: Frame, holder: ast.expr) -> Instance | None:
    """The object that a name or an attribute holds, if what the frame stores in it can
    be followed.
    """
    # The attributes of an object under construction are collected apart.
    is_under_construction = frame.building is not None and frame.is_self(holder)
    path = path_of(holder)
    value = frame.env.get(path) if path else None
    if value is None or is_under_construction:
        return None
    is_plain = is_plain_object(frame.interpreter.classes, value)
    return value if isinstance(value, Instance) and is_plain else None


def with_field(owner: Instance, name: str, value: Value) -> Instance:
    """The object after `owner.name = value`."""
    return with_fields(owner, {**dict(owner.fields), name: value})


def with_fields(owner: Instance, fields: dict[str, Any]) -> Instance:
    """An object of the same class with these attributes."""
    # Sorted, since objects with equal attributes are equal in whatever order they were
    # set.
    return Instance(
        owner.info,
        tuple(
            sorted((key, part) for key, part in fields.items() if part is not UNKNOWN)
        ),
    )


def store_after_call(frame: Frame, function: ast.expr, callee: Value) -> None:
    """Replace the object that a method was called on by what the method has left of
    it.
    """
    changed = frame.interpreter.changed_receiver
    if changed is None:
        return
    match callee, function:
        case Function(bound=Instance()), ast.Attribute(value=holder):
            pass
        # `converged(x)` of an object with `__call__`
        case Instance(), holder:
            pass
        case _:
            return
    path = path_of(holder)
    if path is None or (
        frame.building is not None and path.split(".")[0] == frame.self_name
    ):
        return
    # `env.reset` of a wrapper may be the method of what it wraps.
    held = class_of(frame.env.get(path, UNKNOWN))
    if held not in (None, class_of(changed)):
        return
    forget_attributes(frame.env, path)
    store(frame, holder, changed)


def changed_object(before: Value | None, ends: list[Value]) -> Value | None:
    """What a method leaves of its object, by what `self` is at each end of the method;
    None if that is the same.
    """
    after = join_all(ends)
    return after if isinstance(after, Instance) and after != before else None
