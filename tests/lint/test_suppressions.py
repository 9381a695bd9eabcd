"""`# tpuport: ignore[...]`."""

import dataclasses
import textwrap
from pathlib import Path

import pytest

from tpuport.lint import suppressions
from tpuport.lint.engine import Run, lint_paths
from tpuport.lint.findings import Finding, Severity
from tpuport.lint.suppressions import Suppressions

CODE = """\
BAD  # tpuport: ignore[TPU101] known
BAD
call(
    BAD,
)  # tpuport: ignore[TPU101]
call(  # tpuport: ignore[TPU1]
    BAD,
    BAD,
)
call(
    BAD,  # tpuport: ignore[TPU101, TPU5]
    BAD,
)
def f(
    a,
):  # tpuport: ignore[TPU101]
    BAD
    if a:
        BAD

    BAD
BAD
@decorator  # tpuport: ignore[TPU101]
def g():
    BAD
if a:  # tpuport: ignore[TPU101]
    BAD
else:
    BAD
# tpuport: ignore[TPU101] the next line
BAD
BAD
with a: BAD  # tpuport: ignore[TPU101]
text = '''
# tpuport: ignore[TPU101]
BAD
'''
class C:
    def h(self):
        # tpuport: ignore[TPU101]
        BAD
        for x in y:  # tpuport:ignore[tpu101]
            while z:
                BAD
        BAD
"""


def words(path: str, lines: tuple[str, ...]) -> list[Finding]:
    """A finding wherever a line says BAD."""
    return [
        Finding(
            path,
            number,
            line.index("BAD") + 1,
            number,
            line.index("BAD") + 4,
            "TPU101",
            Severity.ERROR,
            "",
            "",
        )
        for number, line in enumerate(lines, 1)
        if "BAD" in line
    ]


def filter_code(code: str, enabled_ids: tuple[str, ...]) -> suppressions.FilteredFindings:
    comments = suppressions.parse_suppressions(code)
    return suppressions.filter_findings(
        words("m.py", tuple(code.splitlines())), comments, "m.py", enabled_ids
    )


def lines_left(code: str) -> list[int]:
    return [finding.line for finding in filter_code(code, ("TPU101",)).findings]


def test_what_a_comment_covers() -> None:
    everything = [number for number, line in enumerate(CODE.splitlines(), 1) if "BAD" in line]
    left = lines_left(CODE)
    assert left == [2, 12, 22, 29, 32, 36, 45]
    assert set(left) < set(everything)


def test_every_comment_was_used() -> None:
    filtered = filter_code(CODE, ("TPU101",))
    assert filtered.comment_findings == []
    assert filtered.suppressed == 14


def test_a_whole_file() -> None:
    assert lines_left("BAD\n# tpuport: ignore-file[TPU1] generated\nBAD\n") == []
    assert lines_left("BAD\n# tpuport: ignore-file[TPU2]\nBAD\n") == [1, 3]


def apply(code: str, enabled_ids: tuple[str, ...] = ("TPU101", "TPU501")) -> list[Finding]:
    filtered = filter_code(code, enabled_ids)
    return filtered.findings + filtered.comment_findings


def test_a_comment_at_the_end_of_a_finding() -> None:
    finding = dataclasses.replace(words("m.py", ("BAD",))[0], end_line=3)
    for line, remaining in ((1, 0), (2, 1), (3, 0), (4, 1)):
        code = "".join(f"x{'  # tpuport: ignore[TPU101]' * (number == line)}\n" for number in range(1, 5))
        comments = suppressions.parse_suppressions(code)
        assert (
            len(suppressions.filter_findings([finding], comments, "m.py", ("TPU101",)).findings) == remaining
        )


def test_an_unused_comment_is_a_finding() -> None:
    (finding,) = apply("good()  # tpuport: ignore[TPU101] was here\n")
    assert (finding.rule, finding.line, finding.column) == ("TPU003", 1, 9)
    assert finding.remedy == "remove the comment"


def test_of_several_ids_the_unused_are_named() -> None:
    (finding,) = apply("BAD  # tpuport: ignore[TPU101, TPU5]\n")
    assert finding.rule == "TPU003"
    assert finding.remedy == "remove TPU5 from the comment"


def test_rules_that_were_not_asked_are_not_missed() -> None:
    assert apply("good()  # tpuport: ignore[TPU2]\n", ("TPU101",)) == []


@pytest.mark.parametrize(
    ("comment", "reason"),
    [
        ("# tpuport: ignore", "names no rule"),
        ("# tpuport: ignore[]", "the brackets name no rule"),
        ("# tpuport: ignore[TPU999]", "no rule's id starts with 'TPU999'"),
        ("# tpuport: ignore[E501]", "no rule's id starts with 'E501'"),
        ("# tpuport: skip", "names no rule"),
    ],
)
def test_a_comment_that_cannot_be_meant_suppresses_nothing(comment: str, reason: str) -> None:
    kept = apply(f"BAD  {comment}\n")
    assert [finding.rule for finding in kept] == ["TPU101", "TPU005"]
    assert reason in kept[1].reason


def test_only_comments_count() -> None:
    assert suppressions.parse_suppressions('x = "# tpuport: ignore[TPU101]"\n') == Suppressions()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends(end: str) -> None:
    code = textwrap.dedent("BAD\nBAD  # tpuport: ignore[TPU101]\nBAD\n").replace("\n", end)
    (comment,) = suppressions.parse_suppressions(code).comments
    assert (comment.first, comment.last) == (2, 2)


def test_they_survive_the_cache() -> None:
    import json

    found = suppressions.parse_suppressions(CODE + "# tpuport: ignore[nothing]\n")
    assert found.problems
    assert Suppressions.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_suppression_may_follow_another_comment_and_name_a_rule(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    head = "from torch import nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        return "
    for comment in ("# noqa  # tpuport: ignore[TPU201] known", "# tpuport: ignore[item] known"):
        file.write_text(f"{head}x * x.max().item()  {comment}\n")
        report = lint_paths([file], run=Run(cache=False))
        assert (report.findings, report.suppressed) == ((), 1)


def test_noqa_with_an_id_is_for_its_line(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text(
        "from torch import nn\n\n\nclass Model(nn.Module):  # noqa: TPU2\n    def forward(self, x):\n"
        "        a = x[x > 0]  # NOQA:TPU101, E501 known\n"
        "        b = x[x > 0]  # noqa\n"
        "        c = x[x > 0]  # noqa: E501\n"
        "        return a, b, c, x[x > 0]  # noqa: TPU999\n"
    )
    report = lint_paths([model], run=Run(cache=False))
    found = {(finding.line, finding.rule) for finding in report.findings}
    assert found == {(4, "TPU003"), (7, "TPU101"), (8, "TPU101"), (9, "TPU101"), (9, "TPU005")}
    assert report.suppressed == 1
