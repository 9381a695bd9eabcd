"""TPU505: mutable default arguments."""

import ast
from typing import Final

from tpuport.lint.events import (
    Definition,
)
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule

_CHANGING_METHODS: Final = frozenset(
    "append extend insert update setdefault add appendleft pop clear".split()
)


def check(event: Definition, context: Context) -> Answer:
    """A default that is a list, dict or set, in a traced function that changes it."""
    if not event.traced:
        return False
    defaults = _mutable_defaults(event.info.node.args)
    if not defaults:
        return False
    # A default that is only read is the same in every call.
    changed = set(map(_changed_name, ast.walk(event.info.node)))
    return [Hit(node=default) for name, default in defaults.items() if name in changed]


def _mutable_defaults(parameters: ast.arguments) -> dict[str, ast.expr]:
    positional = [*parameters.posonlyargs, *parameters.args]
    # The last parameters have the defaults.
    pairs = [
        *zip(reversed(positional), reversed(parameters.defaults), strict=False),
        *zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True),
    ]
    return {
        parameter.arg: default
        for parameter, default in pairs
        if default and _is_mutable(default)
    }


def _is_mutable(node: ast.expr) -> bool:
    match node:
        case (
            ast.List()
            | ast.Dict()
            | ast.Set()
            | ast.Call(func=ast.Name(id="list" | "dict" | "set"))
        ):
            return True
    return False


def _changed_name(node: ast.AST) -> str:
    """The name whose contents this changes, else ""."""
    match node:
        # Changes through another name, or in a function that is called, are not seen.
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)):
            if method in _CHANGING_METHODS:
                return name
        case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
            return name
    return ""


RULE = Rule(
    id="TPU505",
    name="mutable-default",
    severity=Severity.WARNING,
    summary="a mutable default argument that a traced function changes",
    why="A default is created once and shared by all calls, in torch as well, which is rarely meant. `tpuport.compile` "
    "puts what the program computes into it, and compiles again each time that it has grown. In the loops of "
    "`tpuport.generate` and `tpuport.denoise`, in scanned layers and in your own `jax.jit` it keeps tracers.",
    reason="the default outlives the call: it grows with each call, or keeps tracers",
    remedy="use None as the default and create the list or dict inside",
    bad=Example("""
def gathered(x, seen=[]):
    seen.append(x.sum())
    return sum(seen)


class Model(nn.Module):
    def forward(self, x):
        return gathered(x)
"""),
    good=Example("""
def gathered(x, seen=None):
    seen = [] if seen is None else seen
    seen.append(x.sum())
    return sum(seen)


class Model(nn.Module):
    def forward(self, x):
        return gathered(x)
"""),
    quiet=(
        # The default is only read.
        Example("""
def scaled(x, factors=[2.0, 3.0]):
    return x * factors[0]


class Model(nn.Module):
    def forward(self, x):
        return scaled(x)
"""),
    ),
    harm="leaks from loops",
    events=(Definition,),
    check=check,
    fix=Applicability.UNSAFE,
)
