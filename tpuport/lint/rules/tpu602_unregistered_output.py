"""TPU602: classes that are not pytrees."""

import ast
from collections.abc import Iterator
from typing import Any

from tpuport.lint.abstract_values import Instance, Mapping, Sequence, Value
from tpuport.lint.events import (
    FunctionEntry,
    Return,
)
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import (
    has_tensor_fields,
    is_pytree,
)
from tpuport.lint.rules.rule import Context, Example, Hit, Rule


def check(event: FunctionEntry | Return, context: Context) -> list[Hit]:
    """A module's `forward` returns an object of a class that jax does not know, or takes one that holds tensors."""
    # Between functions of the model any object may be passed.
    if not event.entry:
        return []
    if isinstance(event, Return):
        infos = [instance.info for instance in _instances(event.value)]
        # One finding for each `return`: a second class would have the same remedy.
        names = sorted({info.node.name for info in infos if not is_pytree(info)})
        return [Hit(f"{name} is not a pytree: `jax.jit` cannot return it") for name in names[:1]]
    return [
        Hit(
            f"{value.info.node.name} is not a pytree: its tensors are constants of the program, or fail",
            node=_parameter(event.info.node, name),
        )
        for name, value in event.parameters.items()
        if isinstance(value, Instance) and not is_pytree(value.info) and has_tensor_fields(value.info)
    ]


def _instances(value: Value) -> Iterator[Instance]:
    """The objects in a result, in lists and dicts too."""
    match value:
        case Instance():
            yield value
        case Sequence():
            for item in value.items if value.items is not None else (value.element,):
                yield from _instances(item)
        case Mapping():
            for _, item in value.entries:
                yield from _instances(item)


def _parameter(node: Any, name: str) -> ast.AST:
    for parameter in [*node.args.args, *node.args.kwonlyargs]:
        if parameter.arg == name:
            return parameter
    return node


RULE = Rule(
    id="TPU602",
    name="unregistered-output",
    severity=Severity.WARNING,
    summary="`forward` returns or takes an object of a class that is not a pytree",
    why="`jax.jit` flattens arguments and rebuilds results, and can do so for classes that it knows: tuples, "
    "lists, dicts, named tuples, `None`, and the outputs and caches of transformers and diffusers, which "
    "tpuport registers. An object of any other class ends the trace if it is a result; as an argument it "
    "counts as a constant, tensors included. Inside the model such objects do no harm: what counts is the "
    "module that is compiled.",
    reason="`jax.jit` cannot return or flatten an object of this class",
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
        # A registered output; and a plain class that stays inside the model.
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
