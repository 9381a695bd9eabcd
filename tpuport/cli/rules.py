"""What `tpuport lint --list-rules` and `--explain` say."""

import itertools

from tpuport.lint.findings import Applicability
from tpuport.lint.reports.terminal import Style
from tpuport.lint.rule_catalogue import all_entries, entry_for, entry_markdown

_FIXES = {Applicability.SAFE: "fix", Applicability.UNSAFE: "unsafe fix", Applicability.NONE: ""}


def listing() -> str:
    """Every rule in a line, by family."""
    lines: list[str] = []
    for family, group in itertools.groupby(all_entries(), key=lambda one: (one.id[:4], one.family)):
        lines += [f"{family[0]}xx {family[1]}"]
        lines += [
            f"  {one.id}  {one.name:<28} {one.severity:<8} {_FIXES[one.fix]:<11} {one.summary}".rstrip()
            for one in group
        ]
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def explanation(wanted: str, *, color: bool) -> str:
    """All that is known of a rule, as Markdown.

    Raises:
        PortError: there is no such rule.
    """
    known = entry_for(wanted)
    style = Style(color)
    text = [style(f"# {known.id} {known.name}", "bold"), "", entry_markdown(known)]
    return "\n".join(text) + "\n"
