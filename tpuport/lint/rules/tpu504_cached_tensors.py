"""TPU504: `lru_cache` over tensors."""

import ast
from typing import Any, Final

from tpuport.lint.events import (
    FunctionEntry,
    Return,
)
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.event_queries import (
    has_tensor,
)
from tpuport.lint.rules.rule import Answer, Context, Example, Hit, Rule

_CACHES: Final = ("lru_cache", "cache", "cached_property")


def check(event: FunctionEntry | Return, context: Context) -> Answer:
    """A function that remembers its results takes a tensor, or returns one."""
    info = event.info
    if info is None or not info.is_a(*_CACHES):
        return False
    match event:
        case FunctionEntry(parameters=parameters):
            values = [*parameters.values()]
        case Return(value=value):
            values = [value]
    if not any(map(has_tensor, values)):
        return False
    severity = None
    # A property is often one of host code, computed from host tensors.
    if info.is_a("cached_property"):
        severity = Severity.WARNING
    # The first tracing succeeds; the second one fails.
    return Hit(node=_cache_decorator(info.node), severity=severity, stops=False)


def _cache_decorator(node: Any) -> ast.AST:
    for decorator in node.decorator_list:
        match decorator:
            case (
                ast.Name(id=name)
                | ast.Attribute(attr=name)
                | ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))
            ) if name in _CACHES:
                return decorator
    return node


RULE = Rule(
    id="TPU504",
    name="cached-tensors",
    severity=Severity.ERROR,
    summary="`lru_cache` on a function that takes or returns tensors in traced code",
    why="A cached function returns the tensor of its first call to every later one. While a program is "
    "traced that tensor is a tracer: the next tracing, for another batch size for example, gets a tracer of "
    "the previous one, and ends with `UnexpectedTracerError`. A tensor as a key is compared by identity: it "
    "never hits, and is never freed.",
    reason="the cache keeps a tracer and returns it to the next tracing",
    remedy="cache sizes and lists of numbers, and create the tensor from them outside the cache, or once in "
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
        # Sizes in, a size out.
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
