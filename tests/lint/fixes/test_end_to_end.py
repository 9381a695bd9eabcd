"""The rules' own findings, rewritten until nothing changes."""

import ast
import importlib.util
import itertools
import tokenize
from collections import Counter
from io import StringIO
from pathlib import Path

import pytest
import torch
from torch import nn

from tpuport.lint import Applicability, Finding, Severity
from tpuport.lint.analysis import Analyser, Options
from tpuport.lint.fixes import all_rewrites, fix_text
from tpuport.lint.rules.rule_registry import all_rules, rule_by_id
from tpuport.lint.source import node_span, read

_HEAD = "import math\n\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
# Their bad examples use what they find in a way that has no rewrite.
_NO_WAY = {"TPU102", "TPU211"}


def _findings(path: Path, text: str) -> list[Finding]:
    path.write_text(text)
    findings = Analyser(Options(all_rules())).analyse(read(path, str(path))).findings
    return [finding for finding in findings if finding.path == str(path)]


def _fixpoint(path: Path, text: str, *rules: str) -> str:
    for _ in range(10):
        findings = [finding for finding in _findings(path, text) if finding.rule in rules]
        text, count = fix_text(text, findings, unsafe=True)
        if not count:
            return text
    raise AssertionError("the rewrites go in circles")


@pytest.mark.parametrize("id_", sorted(set(all_rewrites()) - _NO_WAY))
def test_the_bad_example_of_a_rule_is_mended(id_: str, tmp_path: Path, same_results) -> None:
    rule = rule_by_id(id_)
    path = tmp_path / "model.py"
    before = _HEAD + rule.bad.code
    assert any(finding.rule == id_ for finding in _findings(path, before))
    after = _fixpoint(path, before, id_)
    assert not any(finding.rule == id_ for finding in _findings(path, after))
    inputs = eval(rule.bad.inputs, {"torch": torch, "nn": nn, "math": None})
    same_results(None, after, *inputs)


@pytest.mark.parametrize("id_", sorted(_NO_WAY))
def test_bad_examples_without_a_rewrite_stay(id_: str, tmp_path: Path) -> None:
    before = _HEAD + rule_by_id(id_).bad.code
    assert _fixpoint(tmp_path / "model.py", before, id_) == before


@pytest.mark.slow  # the bad examples above
def test_the_reordering_of_hunyuan_video(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("diffusers")
    assert spec is not None
    assert spec.submodule_search_locations
    source = Path(spec.submodule_search_locations[0]) / "models/transformers/transformer_hunyuan_video15.py"
    text = source.read_text()
    reads = [finding for finding in _findings(tmp_path / "m.py", text) if finding.rule == "TPU101"]
    assert len(reads) == 12
    after = _fixpoint(tmp_path / "m.py", text, "TPU101")
    assert after.count("torch.argsort(") == 1  # the masks come in the order that the values have
    assert after.count(")[order]") == 2
    assert _comments(after) == _comments(text)


def _comments(text: str) -> Counter[str]:
    tokens = tokenize.generate_tokens(StringIO(text).readline)
    return Counter(token.string for token in tokens if token.type == tokenize.COMMENT)


def _everywhere(text: str, severity: Severity) -> list[Finding]:
    """A finding of every rule on every node."""
    lines = tuple(text.splitlines())
    spans = {node_span(node, lines) for node in ast.walk(ast.parse(text)) if hasattr(node, "lineno")}
    return [
        Finding("m.py", *span, rule, severity, "", "", "Model.forward", (), Applicability.UNSAFE)
        for span, rule in itertools.product(sorted(spans), all_rewrites())
    ]


def batches(items: list[str]) -> list[list[str]]:
    return [items[start : start + 10] for start in range(0, len(items), 10)]


_BAD_EXAMPLES = [rule.bad.code for rule in all_rules()]
_OTHER_EXAMPLES = [example.code for rule in all_rules() for example in (rule.good, *rule.quiet)]


@pytest.mark.parametrize(
    "examples",
    [
        # Every rule is tried on every node of each of them.
        batches(_BAD_EXAMPLES)[0],
        *(
            pytest.param(batch, marks=pytest.mark.slow)
            for batch in [*batches(_BAD_EXAMPLES)[1:], *batches(_OTHER_EXAMPLES)]
        ),
    ],
)
def test_findings_where_no_rule_would_have_them(examples: list[str]) -> None:
    """Nothing raises, every result is Python, no comment is lost, and it ends."""
    for code in examples:
        lines = [f"{line}  # {n}" if line.strip() else line for n, line in enumerate(code.splitlines())]
        text = _HEAD + "\n".join(lines) + "\n"
        for _ in range(12):
            new, count = fix_text(text, _everywhere(text, Severity.ERROR), unsafe=True)
            ast.parse(new)
            assert _comments(new) == _comments(text)
            assert bool(count) == (new != text)
            if not count:
                break
            text = new
