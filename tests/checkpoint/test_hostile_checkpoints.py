"""Damaged and contradictory checkpoints: each gives one clear error. The cases are those of `benchmarks/abuse.py`."""

import signal
from pathlib import Path

import pytest

from benchmarks.abuse import ALL_CASES, outcome

# Some of each kind; `make test-all` runs the others too.
STEP = 9
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def interrupted():
    def interrupt(*_):
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, previous)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[] if number % STEP == 0 else [pytest.mark.slow])
        for number, case in enumerate(ALL_CASES)
    ],
)
def test_a_checkpoint_that_must_not_be_is_one_clear_error(case, tmp_path):
    assert outcome(case, tmp_path) == "right"


def test_there_are_as_many_cases_as_the_page_says():
    page = (ROOT / "docs/reliability.md").read_text()
    assert f"in {len(ALL_CASES)} ways" in page
    named = sum(bool(case.words) for case in ALL_CASES)
    assert f"in {named} cases it must name" in page
    harmless = sum(case.may_load for case in ALL_CASES)
    assert f"In {harmless} cases" in page
    assert len({case.name for case in ALL_CASES}) == len(ALL_CASES)
