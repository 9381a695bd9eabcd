"""The door: where findings are, what overlaps, what stays as it was."""

import pytest

from tpuport.lint import Applicability, Finding, Severity
from tpuport.lint.fixes import all_rewrites, available_fixes, fix_text
from tpuport.lint.rules.rule_registry import all_rules


def _finding(span: tuple[int, int, int, int], rule: str = "TPU301", fix: str = "safe") -> Finding:
    return Finding("m.py", *span, rule, Severity.ERROR, "", "", "f", ("M.forward",), Applicability(fix))


def test_every_rewrite_has_a_rule_that_says_so() -> None:
    rules = {rule.id: rule for rule in all_rules()}
    assert {rule.id for rule in rules.values() if rule.fix is not Applicability.NONE} == set(all_rewrites())


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("y = x.cuda()\n", (1, 5, 1, 13)),
        ("y = 'é𝔼', x.cuda()\n", (1, 11, 1, 19)),  # columns count characters, not bytes
        ("if y:\n\ty = x.cuda()\n", (2, 6, 2, 14)),
        ("y = 1\r\ny = x.cuda()\r\n", (2, 5, 2, 13)),
        ("\ufeffy = x.cuda()\n", (1, 5, 1, 13)),
        ("y = (x\n  .cuda())\n", (2, 4, 2, 10)),  # where Python's tracebacks point
        ("y = (x\n  .cuda())\n", (1, 6, 2, 10)),
    ],
)
def test_places(text: str, span: tuple[int, int, int, int]) -> None:
    new, count = fix_text(text, [_finding(span)], unsafe=True)
    assert count == 1
    assert "cuda" not in new
    assert new[0] == text[0]
    assert ("\r\n" in new) == ("\r\n" in text)


@pytest.mark.parametrize("span", [(1, 1, 1, 2), (9, 1, 9, 9), (1, 5, 1, 12), (2, 1, 1, 1)])
def test_places_where_nothing_is(span: tuple[int, int, int, int]) -> None:
    assert fix_text("y = x.cuda()\n", [_finding(span)], unsafe=True) == ("y = x.cuda()\n", 0)


def test_a_file_that_does_not_parse_is_left_alone() -> None:
    text = "y = x.cuda(\n"
    assert fix_text(text, [_finding((1, 5, 1, 12))], unsafe=True) == (text, 0)
    deep = f"y = {'(' * 3000}x.cuda(){')' * 3000}\n"
    assert fix_text(deep, [_finding((1, 3005, 1, 3013))], unsafe=True)[0] == deep


def test_only_what_is_wanted() -> None:
    text = "y = x.cuda()\n"
    span = (1, 5, 1, 13)
    assert fix_text(text, [_finding(span, fix="none")], unsafe=True) == (text, 0)
    assert fix_text(text, [_finding(span, fix="unsafe")], unsafe=False) == (text, 0)
    assert fix_text(text, [_finding(span, fix="unsafe")], unsafe=True) == ("y = x\n", 1)
    assert fix_text(text, [_finding(span, rule="TPU999")], unsafe=True) == (text, 0)
    assert fix_text(text, [], unsafe=True) == (text, 0)


def test_of_overlapping_rewrites_the_outer_one_is_first() -> None:
    text = "y = x.cuda(a.cuda()).cuda() + z.cuda()\n"
    findings = [
        _finding((1, 12, 1, 20)),
        _finding((1, 5, 1, 21)),
        _finding((1, 5, 1, 28)),
        _finding((1, 31, 1, 39)),
    ]
    assert fix_text(text, findings, unsafe=True) == ("y = x.cuda(a.cuda()) + z\n", 2)


def test_the_same_finding_twice_is_done_once() -> None:
    finding = _finding((1, 5, 1, 13))
    assert fix_text("y = x.cuda()\n", [finding, finding], unsafe=True) == ("y = x\n", 1)


def test_what_can_be_done_at_each_place() -> None:
    text = (
        "import torch\ndef forward(self, x):\n    x[x > 0] *= 2\n    y = x.pin_memory()\n    y[y > 0] *= z\n"
    )
    findings = [
        _finding((3, 5, 3, 18), "TPU113"),
        _finding((4, 9, 4, 23), "TPU311"),
        _finding((5, 5, 5, 18), "TPU113"),
        _finding((4, 9, 4, 23), "TPU311", fix="unsafe"),
        _finding((4, 9, 4, 23), "TPU311", fix="none"),
    ]
    expected = ["unsafe", "safe", "none", "unsafe", "none"]
    assert available_fixes(text, findings) == expected
    assert available_fixes("y = (\n", findings[:1]) == ["none"]


def test_warnings_of_the_compiler_are_not_passed_on() -> None:
    text = "y = x.cuda(), '\\d'\n"
    assert fix_text(text, [_finding((1, 5, 1, 13))], unsafe=True)[1] == 1
