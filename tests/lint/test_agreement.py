"""The linter against the watcher: research-style models run eagerly, and the lines that need numbers are known."""

from pathlib import Path

import pytest

from benchmarks import agreement
from benchmarks.matching import Place, score
from tpuport.lint.analysis import Analyser, Options
from tpuport.lint.rules import all_rules
from tpuport.lint.source import read

CORPUS = Path(__file__).parent / "corpus"
MODELS = sorted([*CORPUS.glob("*.py"), *CORPUS.glob("*/run.py")])
WANTED = 0.95
# tests/lint/rules/test_oracle.py executes the examples of each rule.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def observed():
    """By path, what was seen of the corpus's files while its models ran, in one process of their own."""
    files = {}
    for record in agreement.run_all([f"file:{path}" for path in MODELS], traced=True):
        assert record["status"] == "ran", record
        agreement.merge(files, record["files"])
    return files


@pytest.fixture(scope="module")
def tally(observed):
    analyser = Analyser(Options(tuple(all_rules())))
    findings = {}
    for path in observed:
        for finding in analyser.analyse(read(Path(path), path)).findings:
            findings[finding.path, finding.line, finding.column, finding.rule] = finding
    return score(observed, findings.values())


def listed(places: list[Place]) -> str:
    return "".join(
        f"\n  {Path(place.path).relative_to(CORPUS)}:{place.line}: {place.what}" for place in places
    )


def test_the_corpus_is_varied(tally):
    assert len(MODELS) >= 35
    assert len(tally.hits) + len(tally.misses) >= 99


def test_what_needs_numbers_is_found(tally):
    assert tally.recall >= WANTED, f"recall {tally.recall:.1%}, missed:{listed(tally.misses)}"


def test_what_is_found_needs_numbers(tally):
    assert tally.precision >= WANTED, f"precision {tally.precision:.1%}, false alarms:{listed(tally.wrong)}"


def test_findings_stand_on_the_lines_of_tracebacks(observed, tally):
    """Of a statement over several lines, the finding names the line that Python names."""
    flagged = {(place.path, place.line) for place in tally.right}
    elsewhere = [hit for hit in tally.hits if (hit.path, hit.line) not in flagged]
    assert not elsewhere, listed(elsewhere)
