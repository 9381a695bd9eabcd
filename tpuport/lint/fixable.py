"""What `--fix` can do at each place as it stands: the label of a finding, and the numbers of the summary."""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

from tpuport.lint.findings import Applicability, Finding

# libcst reads some 14,000 lines a second. Beyond this a finding keeps what its rule can do at best.
_LINES: Final = 20_000


def at_each_place(
    findings: Sequence[Finding], lines: Callable[[str], Sequence[str]]
) -> tuple[list[Finding], bool]:
    """The findings with the rewrite that there is for each, and whether that was looked at.

    Args:
        findings: of any number of files.
        lines: a file's lines, by the path in its findings.
    """
    by_path: dict[str, list[Finding]] = collections.defaultdict(list)
    for finding in findings:
        if finding.fix is not Applicability.NONE:
            by_path[finding.path].append(finding)
    if sum(len(lines(path)) for path in by_path) > _LINES:
        return list(findings), False
    if not by_path:
        return list(findings), True
    # Importing libcst takes as long as linting a file.
    from tpuport.lint.fixes import applicability

    exact: dict[int, Applicability] = {}
    for path, listed in by_path.items():
        answers = applicability("\n".join(lines(path)) + "\n", listed)
        exact.update((id(finding), answer) for finding, answer in zip(listed, answers, strict=True))
    return [
        dataclasses.replace(finding, fix=exact[id(finding)]) if id(finding) in exact else finding
        for finding in findings
    ], True
