"""Every rule's examples, executed: bad really is bad, good is good, and the linter says so."""

import dataclasses
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tpuport
from tpuport import compat
from tpuport.errors import NoCudaError
from tpuport.lint.findings import Finding, Severity
from tpuport.lint.rules import Example, Rule, all_rules

_spec = importlib.util.spec_from_file_location("lint_oracle", Path(__file__).with_name("oracle.py"))
assert _spec
assert _spec.loader
oracle = importlib.util.module_from_spec(_spec)
sys.modules["lint_oracle"] = oracle
_spec.loader.exec_module(oracle)


def _parameters(rules: Iterable[Rule]) -> list[Any]:
    return [pytest.param(rule, id=f"{rule.id}-{rule.name}") for rule in rules]


RULES = _parameters(all_rules())
COMPARABLE = _parameters(rule for rule in all_rules() if rule.harm not in oracle.INCOMPARABLE)
# One rule for each kind of harm.
HARMFUL = _parameters({rule.harm: rule for rule in all_rules()}.values())
QUIET = [
    pytest.param(rule, example, id=f"{rule.id}-{number}")
    for rule in all_rules()
    for number, example in enumerate(rule.quiet)
]

# By default the examples of one rule for each kind of harm run, and the first exemption of each rule: what torch and
# jax make of the others changes with those two alone. What the linter says of each is tested below.
SAMPLE = {rule.harm: rule.id for rule in all_rules()}.values()
EXECUTED = [
    pytest.param(rule, id=f"{rule.id}-{rule.name}", marks=[] if rule.id in SAMPLE else pytest.mark.slow)
    for rule in all_rules()
]
EXECUTED_QUIET = [
    pytest.param(rule, example, id=f"{rule.id}-{number}", marks=[pytest.mark.slow] if number else [])
    for rule in all_rules()
    for number, example in enumerate(rule.quiet)
]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Where examples become models; afterwards torchax has a random key that is none of a trace's."""
    tpuport.enable()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    yield oracle.Workshop(tmp_path)
    compat.environment().manual_seed(0)
    for name in [name for name in sys.modules if name.startswith(f"example_{tmp_path.name}")]:
        del sys.modules[name]


@pytest.mark.parametrize("rule", EXECUTED)
def test_the_bad_example_shows_the_harm(shop: Any, rule: Rule) -> None:
    oracle.HARMS[rule.harm](shop, rule)


@pytest.mark.parametrize("rule", EXECUTED)
def test_the_good_example_traces_and_agrees_with_torch(shop: Any, rule: Rule) -> None:
    expected = shop.eager(rule.good)
    oracle.assert_same(shop.traced(rule.good), expected)


@pytest.mark.parametrize("rule", HARMFUL)
def test_a_harmless_example_is_told_from_a_harmful_one(shop: Any, rule: Rule) -> None:
    with pytest.raises(AssertionError):
        oracle.HARMS[rule.harm](shop, dataclasses.replace(rule, bad=rule.good))


@pytest.mark.parametrize("rule", COMPARABLE)
def test_the_good_example_means_what_the_bad_one_does(shop: Any, rule: Rule) -> None:
    try:
        expected = shop.eager(oracle.on_host(rule.bad))
    except (RuntimeError, ValueError, AssertionError) as failure:
        # Only what needs a GPU or a process group cannot run here.
        assert rule.id.startswith("TPU3"), failure  # noqa: PT017
        pytest.skip(f"torch cannot run it here: {failure}")
    oracle.assert_same(shop.eager(rule.good), expected)


@pytest.mark.parametrize(("rule", "example"), EXECUTED_QUIET)
def test_an_exemption_is_right(shop: Any, rule: Rule, example: Example) -> None:
    try:
        expected = shop.eager(example)
    except NoCudaError:
        # What traced code leaves on the device, torch cannot move to a GPU here.
        expected = shop.eager(oracle.on_host(example))
    oracle.assert_same(shop.traced(example), expected)


# --- the linter's side ---


def lint(path: Path, example: Example) -> list[Finding]:
    """Findings of all rules in an example."""
    from tpuport.lint import source
    from tpuport.lint.analysis import Analyser, Options

    file = path / "example.py"
    file.write_text(oracle.text(example))
    return Analyser(Options(rules=all_rules())).analyse(source.read(file, str(file))).findings


@pytest.mark.parametrize("rule", RULES)
def test_the_bad_example_is_found(tmp_path: Path, rule: Rule) -> None:
    findings = lint(tmp_path, rule.bad)
    errors = {finding.rule for finding in findings if finding.severity is Severity.ERROR}
    assert errors <= {rule.id}
    own = [finding for finding in findings if finding.rule == rule.id]
    assert any(finding.severity is rule.severity for finding in own)
    assert all(finding.reason and finding.remedy and finding.line > 6 for finding in own)


@pytest.mark.parametrize("rule", RULES)
def test_the_good_example_is_clean(tmp_path: Path, rule: Rule) -> None:
    findings = lint(tmp_path, rule.good)
    assert [finding for finding in findings if finding.severity is not Severity.INFO] == []
    assert [finding for finding in findings if finding.rule == rule.id] == []


@pytest.mark.parametrize(("rule", "example"), QUIET)
def test_an_exemption_is_quiet(tmp_path: Path, rule: Rule, example: Example) -> None:
    assert [finding for finding in lint(tmp_path, example) if finding.rule == rule.id] == []
