"""TPU505: mutable default arguments."""

import ast

from tpuport.lint.events import Definition
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.rule import Context, Example, Hit, Rule

_CHANGES = frozenset("append extend insert update setdefault add appendleft pop clear".split())


def check(event: Definition, context: Context) -> list[Hit] | None:
    """A default that is a list, dict or set, in a traced function that changes it."""
    arguments = getattr(event.info.node, "args", None)
    if not event.traced or arguments is None or not (arguments.defaults or arguments.kw_defaults):
        return None
    named = [*arguments.posonlyargs, *arguments.args]
    pairs = list(zip(reversed(named), reversed(arguments.defaults), strict=False))
    pairs += [
        pair for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if pair[1] is not None
    ]
    mutable = {name.arg: default for name, default in pairs if _is_mutable(default)}
    changed = {name for part in ast.walk(event.info.node) for name in _changed(part)} if mutable else set()
    return [Hit(node=default) for name, default in mutable.items() if name in changed]


def _is_mutable(node: ast.expr) -> bool:
    if isinstance(node, ast.List | ast.Dict | ast.Set):
        return True
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"list", "dict", "set"}


def _changed(node: ast.AST) -> list[str]:
    """Names whose contents this changes."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
        return [getattr(node.func.value, "id", "")]
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return [getattr(node.value, "id", "")]
    return []


RULE = Rule(
    id="TPU505",
    name="mutable-default",
    severity=Severity.WARNING,
    summary="a mutable default argument that a traced function changes",
    why="A default is made once and shared by all calls. What is put into it while the program is traced is a"
    " tracer, which stays there for the next tracing; compiled calls put nothing in.",
    reason="the default outlives the call, and keeps tracers from one tracing to the next",
    remedy="default to None and make the list or dict inside",
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
        Example("""
def scaled(x, factors=[2.0, 3.0]):
    return x * factors[0]


class Model(nn.Module):
    def forward(self, x):
        return scaled(x)
"""),
    ),
    harm="leaks",
    events=(Definition,),
    check=check,
    fix=Applicability.UNSAFE,
)
