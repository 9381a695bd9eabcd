"""What a rule is."""

import ast
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Literal

from tpuport.lint.events import Call, Event
from tpuport.lint.findings import Applicability, Severity


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """Code that shows a rule, run by the tests under torchax and `jax.jit`.

    Attributes:
        code: a module's text after its imports, which are `import math, torch`,
            `from torch import nn` and `import torch.nn.functional as F`. It defines
            `class Model(nn.Module)`.
        inputs: an expression: the tuple of arguments of the model's forward.
    """

    code: str
    inputs: str = "(torch.randn(2, 4),)"


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """A rule's yes to an event.

    Attributes:
        reason, remedy: for this place, where the rule's own sentences can be made more
            exact; "" for these.
        node: the place, where it is not the event's node.
        severity: where it is not the rule's.
        fix: where it is not the rule's (`Applicability.NONE`: this place has no
            mechanical rewrite).
        stops: false where an error is one that tracing survives.
    """

    reason: str = ""
    remedy: str = ""
    node: ast.AST | None = None
    severity: Severity | None = None
    fix: Applicability | None = None
    stops: bool = True


# What a rule answers to an event: True for a hit with the rule's own sentences.
Answer = bool | Hit | Iterable[Hit] | None


def hits_of(answer: Literal[True] | Hit | Iterable[Hit]) -> Iterable[Hit]:
    """The hits that an answer other than no stands for."""
    match answer:
        case True:
            return (Hit(),)
        case Hit():
            return (answer,)
        case hits:
            return hits


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """What a rule may know beside the event.

    Attributes:
        function: qualified name of the enclosing function, "" at module level.
        torchax: the torchax version that the code is to run with, as a tuple:
            `(0, 0, 13)`.
        source: the file's lines.
        path: the file.
        training: gradients are wanted too (`training = true` in the settings).
        trusted: it is code of a model library, or runs in a model derived from one's.
    """

    function: str
    torchax: tuple[int, ...]
    source: tuple[str, ...]
    path: str
    training: bool = False
    trusted: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A rule: what the reports, the pages and the tests are made from.

    Attributes:
        id: `TPU101`; never given to another rule, even when this one goes.
        name: kebab-case, said beside the id.
        severity: default severity.
        summary: what it finds, as a phrase without a full stop.
        why: one or two paragraphs: what happens under `jax.jit` through torchax.
        reason: one sentence for a finding, on why this stops (or harms) the port.
        remedy: one sentence for a finding, on what to write instead.
        bad: code that has it; the tests run it and see it fail, or see the harm.
        good: what to write instead; traces, and equals eager torch.
        quiet: code that looks alike and is not a finding, each tested to be quiet.
        harm: how the tests see that `bad` is bad: "error" (it does not trace) or the
            name of another check of theirs: "cuda" (it cannot run without a GPU),
            "import" (it cannot be imported), "leaks" (a second tracing meets a tracer
            of the first), "leaks from loops" (it does in programs that carry nothing
            out), "constant" (a draw is frozen), "differs" (from torch), "nan",
            "precision", "memory", "complex", "slow" (the program does more), "unrolled"
            (it grows with the input), "recompiles", "dynamo".
        events: the event classes it wants.
        calls: which events of calls it wants, by the whole name; None for all. It is
            asked once for each name.
        check: returns True, a `Hit` or several for an event that breaks the rule; else
            False or None.
        fix: whether there is a mechanical rewrite, and how safe.
        until: torchax version (as text) from which the code traces, so that the rule is
            off; "" for never.
    """

    id: str
    name: str
    severity: Severity
    summary: str
    why: str
    reason: str
    remedy: str
    bad: Example
    good: Example
    events: tuple[type[Event], ...]
    check: Callable[[Any, Context], Answer]
    quiet: tuple[Example, ...] = ()
    calls: Callable[[str], bool] | None = None
    harm: str = "error"
    fix: Applicability = Applicability.NONE
    until: str = ""


def listeners_of(event: Event, rules: Iterable[Rule]) -> list[Rule]:
    """The rules that want an event."""
    listeners = [rule for rule in rules if type(event) in rule.events]
    if not isinstance(event, Call):
        return listeners
    return [rule for rule in listeners if rule.calls is None or rule.calls(event.name)]


def named(*names: str) -> Callable[[str], bool]:
    """Whether the last part of a dotted name is one of these."""
    return lambda name: name.rpartition(".")[2] in names
