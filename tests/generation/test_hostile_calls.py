"""Calls with tokens, masks, criteria and options of the wrong kind; the cases are those of `benchmarks`."""

import copy
import warnings

import pytest
import torch

import tpuport
from benchmarks.abuse_generate import build, cases, ordinary_ids, outcome
from tpuport import PortError

with warnings.catch_warnings():
    # Torch's own, about the kinds of tensors.
    warnings.simplefilter("ignore")
    CASES = list(cases())
# Every so many of the options; `make test-all` runs the others too.
STEP = 11


@pytest.fixture(scope="module")
def models():
    reference = build()
    return reference, tpuport.port(copy.deepcopy(reference))


def is_slow(number, case):
    return not case.name.startswith(("ids:", "mask:", "criteria:")) and number % STEP != 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.slow] if is_slow(number, case) else [])
        for number, case in enumerate(CASES)
    ],
)
def test_a_call_gives_transformers_tokens_or_one_clear_error(case, models):
    assert outcome(case, *models) == "right"


@pytest.mark.parametrize("value", [0.5, float("nan"), float("inf"), -1.0, 1j], ids=str)
def test_a_mask_of_numbers_that_say_nothing_is_refused(value, models):
    mask = torch.ones(2, 5, dtype=torch.complex64 if isinstance(value, complex) else torch.float32)
    mask[1, 2] = value
    with pytest.raises(PortError, match="attention_mask has numbers between zero and one, or that are none"):
        tpuport.generate(models[1], ordinary_ids(), attention_mask=mask, max_new_tokens=3)
