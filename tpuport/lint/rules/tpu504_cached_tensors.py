"""TPU504: `lru_cache` over tensors."""

import ast

from tpuport.lint.events import FunctionEntry, Return
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.matching import holds_tensor
from tpuport.lint.rules.rule import Context, Example, Hit, Rule

_CACHES = ("lru_cache", "cache", "cached_property")


def check(event: FunctionEntry | Return, context: Context) -> Hit | None:
    """A function that remembers its results takes a tensor, or gives one."""
    info = event.info
    if info is None or not info.is_a(*_CACHES):
        return None
    kept = event.parameters.values() if isinstance(event, FunctionEntry) else (event.value,)
    if not any(holds_tensor(value) for value in kept):
        return None
    # A property is often one of host code, made from host tensors.
    severity = Severity.WARNING if info.is_a("cached_property") else None
    # The first tracing gets through; it is the second that fails.
    return Hit(node=_decorator(info.node), severity=severity, stops=False)


def _decorator(node: ast.AST) -> ast.AST:
    for decorator in getattr(node, "decorator_list", ()):
        named = decorator.func if isinstance(decorator, ast.Call) else decorator
        if (named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")) in _CACHES:
            return decorator
    return node


RULE = Rule(
    id="TPU504",
    name="cached-tensors",
    severity=Severity.ERROR,
    summary="`lru_cache` on a function that takes or gives tensors in traced code",
    why="A function that remembers gives the tensor of its first call to every later one. While a program is "
    "traced that tensor is a tracer: the next tracing, for another batch size say, is handed a tracer of "
    "one that is over, and ends with `UnexpectedTracerError`. A tensor as a key is found by identity: it "
    "never hits, and is never let go.",
    reason="the cache keeps a tracer and hands it to the next tracing",
    remedy="cache sizes and lists of numbers; make the tensor from them outside of the cache, or once in "
    "`__init__`",
    bad=Example("""
import functools


@functools.lru_cache
def table(length, device):
    return torch.ones(length, device=device)


class Model(nn.Module):
    def forward(self, x):
        return x + table(x.shape[1], x.device)
"""),
    good=Example("""
import functools


@functools.lru_cache
def sizes(length):
    return [1.0] * length


class Model(nn.Module):
    def forward(self, x):
        return x + torch.tensor(sizes(x.shape[1]), device=x.device)
"""),
    quiet=(
        Example("""
import functools


@functools.cache
def half(length):
    return length // 2


class Model(nn.Module):
    def forward(self, x):
        return x[:, : half(x.shape[1])]
"""),
    ),
    harm="leaks",
    events=(
        FunctionEntry,
        Return,
    ),
    check=check,
    fix=Applicability.UNSAFE,
)
