"""What a rule reports, as a finding at a line of a file."""

import ast
from collections.abc import Sequence
from typing import Any

from tpuport.lint.findings import Finding
from tpuport.lint.modules import ModuleInfo
from tpuport.lint.rules.rule import Context, Hit, Rule
from tpuport.lint.source import node_span


def finding_at(
    node: ast.AST,
    rule: Rule,
    hit: Hit,
    module: ModuleInfo,
    function: str,
    route: Sequence[str],
) -> Finding:
    """The finding of a rule; what its hit leaves open is as the rule says.

    Args:
        node: what it is about.
        rule: the rule.
        hit: what the rule answered.
        module: the file.
        function: qualified name of the function around it.
        route: how tracing gets there.
    """
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
