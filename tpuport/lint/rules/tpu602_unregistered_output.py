"""TPU602: classes that are no pytrees."""

import ast
from collections.abc import Iterator
from typing import Any

from tpuport.lint.abstract_values import Instance, Mapping, Sequence, Value
from tpuport.lint.events import FunctionEntry, Return
from tpuport.lint.findings import Severity
from tpuport.lint.rules import pytrees
from tpuport.lint.rules.rule import Context, Example, Hit, Rule


def check(event: FunctionEntry | Return, context: Context) -> list[Hit] | None:
    """A module's `forward` gives an object of a class that jax does not know, or takes one that holds tensors."""
    if not event.entry:
        return None
    if isinstance(event, Return):
        names = {value.info.node.name for value in _instances(event.value) if pytrees.is_unknown(value.info)}
        return [Hit(f"{name} is no pytree: `jax.jit` cannot return it") for name in sorted(names)][:1]
    found = []
    for name, value in event.parameters.items():
        if (
            isinstance(value, Instance)
            and pytrees.is_unknown(value.info)
            and pytrees.holds_tensors(value.info)
        ):
            reason = f"{value.info.node.name} is no pytree: its tensors are constants of the program, or fail"
            found.append(Hit(reason, node=_argument(event.info.node, name)))
    return found


def _instances(value: Value) -> Iterator[Instance]:
    if isinstance(value, Instance):
        yield value
    elif isinstance(value, Sequence):
        for item in value.items if value.items is not None else (value.element,):
            yield from _instances(item)
    elif isinstance(value, Mapping):
        for _, item in value.entries:
            yield from _instances(item)


def _argument(node: Any, name: str) -> ast.AST:
    arguments = node.args
    return next((arg for arg in [*arguments.args, *arguments.kwonlyargs] if arg.arg == name), node)


RULE = Rule(
    id="TPU602",
    name="unregistered-output",
    severity=Severity.WARNING,
    summary="`forward` gives or takes an object of a class that is no pytree",
    why="`jax.jit` takes arguments apart and puts results together again, and can do so with classes it "
    "knows: tuples, lists, dicts, named tuples, `None`, and the outputs and caches of transformers and "
    "diffusers, which tpuport registers. An object of any other class as a result ends the trace; as an "
    "argument it counts as a constant, tensors and all. Inside the model such objects do no harm: what "
    "counts is the module that is compiled.",
    reason="`jax.jit` cannot return or take apart an object of this class",
    remedy="return a tuple, a dict or a named tuple, derive the class from `ModelOutput`, or register it: "
    "`jax.tree_util.register_dataclass`",
    bad=Example("""
import dataclasses


@dataclasses.dataclass
class Output:
    sample: torch.Tensor


class Model(nn.Module):
    def forward(self, x):
        return Output(sample=x * 2)
"""),
    good=Example("""
from typing import NamedTuple


class Output(NamedTuple):
    sample: torch.Tensor


class Model(nn.Module):
    def forward(self, x):
        return Output(sample=x * 2)
"""),
    quiet=(
        Example("""
import dataclasses

from transformers.utils import ModelOutput


@dataclasses.dataclass
class Output(ModelOutput):
    sample: torch.Tensor = None


@dataclasses.dataclass
class Plan:
    factor: float


class Model(nn.Module):
    def forward(self, x):
        plan = Plan(2.0)
        return Output(sample=x * plan.factor)
"""),
    ),
    events=(
        FunctionEntry,
        Return,
    ),
    check=check,
)
