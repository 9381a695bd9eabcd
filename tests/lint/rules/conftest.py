"""What the linter says about an example, and whether it is true."""

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import tpuport
from tpuport.errors import PortError
from tpuport.lint.analysis import Analyser, Options
from tpuport.lint.findings import Finding, Severity
from tpuport.lint.rules import Example, all_rules
from tpuport.lint.source import read

_spec = importlib.util.spec_from_file_location("causes_oracle", Path(__file__).with_name("oracle.py"))
assert _spec
assert _spec.loader
_oracle = importlib.util.module_from_spec(_spec)
sys.modules["causes_oracle"] = _oracle
_spec.loader.exec_module(_oracle)


@pytest.fixture(scope="session")
def oracle() -> ModuleType:
    """The module `oracle.py`."""
    return _oracle


def _marked_rules(text: str) -> list[tuple[int, str]]:
    """Numbers of the lines that end in `#! TPU201`, and the rules that they name."""
    marks = ((number, re.search(r"#! (\S+)$", line)) for number, line in enumerate(text.splitlines(), 1))
    return [(number, mark[1]) for number, mark in marks if mark]


@pytest.fixture(scope="session")
def marked_rules() -> Callable[[str], list[tuple[int, str]]]:
    return _marked_rules


def _findings(root: Path, name: str) -> list[Finding]:
    return Analyser(Options(rules=all_rules())).analyse(read(root / name, name)).findings


@pytest.fixture
def assert_errors(tmp_path: Path) -> Callable[[Example], None]:
    """Asserts that the lines that an example marks are its errors, and that there are no others."""

    def check(example: Example) -> None:
        text = _oracle.text(example)
        (tmp_path / "model.py").write_text(text)
        findings = _findings(tmp_path, "model.py")
        errors = {(finding.line, finding.rule) for finding in findings if finding.severity is Severity.ERROR}
        assert sorted(errors) == _marked_rules(text)

    return check


@pytest.fixture
def assert_true(tmp_path: Path) -> Callable[[Example], None]:
    """Asserts that an example with errors cannot be traced, and that another gives what torch gives."""

    def check(example: Example) -> None:
        tpuport.enable()
        shop = _oracle.Workshop(tmp_path)
        expected = shop.eager(example)
        text = _oracle.text(example)
        marked_lines = {number for number, _ in _marked_rules(text)}
        if not marked_lines:
            _oracle.assert_same(shop.traced(example), expected)
            return
        with pytest.raises(PortError) as failure:
            shop.traced(example)
        line = re.search(r"line (\d+)", str(failure.value))
        assert line is not None
        assert int(line[1]) in marked_lines

    return check
