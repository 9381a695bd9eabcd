"""What a rule reports, as a finding at a line of a file."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tpuport.lint.events import Call, Event
from tpuport.lint.findings import Finding
from tpuport.lint.interpreter.frame import Frame
from tpuport.lint.interpreter.trusted_code import answer_in_trusted_code
from tpuport.lint.modules import ModuleInfo
from tpuport.lint.rules.rule import Context, Hit, Rule, hits_of, listeners_of
from tpuport.lint.source import node_span


class Listeners:
    """The rules, by the events that they want."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        # By the class of the event, of calls by the name too.
        self._known: dict[type[Event] | str, list[Rule]] = {}

    def of(self, event: Event) -> list[Rule]:
        """The rules that want an event."""
        key = event.name if isinstance(event, Call) else type(event)
        listeners = self._known.get(key)
        if listeners is None:
            listeners = self._known[key] = listeners_of(event, self._rules)
        return listeners


def findings_of(
    event: Event,
    rules: Iterable[Rule],
    context: Context,
    module: ModuleInfo,
    route: Sequence[str],
    trusted: Frame | None,
) -> Iterator[Finding]:
    """What rules find in an event.

    Args:
        event: the event.
        rules: the rules.
        context: what they are told of the function around it.
        module: the file.
        route: how tracing gets there.
        trusted: the frame that runs, if its code is trusted as that of libraries.
    """
    for rule in rules:
        answer = rule.check(event, context)
        # Nearly all answers are no.
        if answer and trusted:
            answer = answer_in_trusted_code(rule, event, context, trusted)
        if answer:
            for hit in hits_of(answer):
                node = hit.node or event.node
                yield _finding_at(node, rule, hit, module, context.function, route)


def _finding_at(
    node: ast.AST,
    rule: Rule,
    hit: Hit,
    module: ModuleInfo,
    function: str,
    route: Sequence[str],
) -> Finding:
    """The finding of a rule; what its hit leaves open is as the rule says."""
    line, column, end_line, end_column = node_span(node, module.lines)
    return Finding(
        path=str(module.path),
        line=line,
        column=column,
        end_line=end_line,
        end_column=end_column,
        rule=rule.id,
        severity=hit.severity or rule.severity,
        reason=hit.reason or rule.reason,
        remedy=hit.remedy or rule.remedy,
        function=function,
        route=tuple(route),
        fix=rule.fix if hit.fix is None else hit.fix,
        stops=hit.stops,
    )


def context_of(module: ModuleInfo, function: str, options: Any) -> Context:
    """What the rules are told of a function, by its qualified name.

    Args:
        module: the file.
        function: the name.
        options: `analysis.Options`.
    """
    if function not in module.contexts:
        module.contexts[function] = Context(
            function,
            options.torchax,
            module.lines,
            str(module.path),
            options.training,
        )
    return module.contexts[function]
