"""Damaged and contradictory checkpoints: each gives one clear error. The cases are those of `benchmarks/abuse.py`."""

import signal

import pytest

from benchmarks.abuse import outcome
from benchmarks.abuse_cases import CASES

# Some of each kind; `make test-all` runs the others too.
STEP = 9


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
        for number, case in enumerate(CASES)
    ],
)
def test_a_checkpoint_that_must_not_be_is_one_clear_error(case, tmp_path):
    assert outcome(case, tmp_path) == "right"


def test_there_are_as_many_cases_as_the_page_says():
    assert len(CASES) >= 400
    assert len({case.name for case in CASES}) == len(CASES)
