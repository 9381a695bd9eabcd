"""What counts as rounding, on numbers whose differences are known."""

import math

import pytest
import torch

from tpuport.verification.bounds import deviation, total_distance

EXACT = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
TORCH = EXACT.float() * (1 + 1e-7)


def test_an_error_as_large_as_torchs_is_rounding_and_a_larger_one_is_not() -> None:
    near = deviation(EXACT.float() * (1 - 2e-7), TORCH, EXACT)
    assert near is not None
    assert near.is_rounding
    far = deviation(EXACT.float() * (1 + 1e-5), TORCH, EXACT)
    assert far is not None
    assert not far.is_rounding


@pytest.mark.parametrize("count", [1, 4, 100_000])
def test_few_numbers_may_round_by_more_units_than_many(count: int) -> None:
    exact = torch.linspace(1.1, 2, count, dtype=torch.float64)
    # By chance torch is exact, as a loss may be that is a single number.
    theirs = exact.float()
    exact = theirs.double()

    def is_rounding(units: float) -> bool:
        difference = deviation((exact * (1 + units * torch.finfo(torch.float32).eps)).float(), theirs, exact)
        return difference is None or difference.is_rounding

    bound = {1: 4, 4: 2.5, 100_000: 1}[count]
    assert is_rounding(0.9 * bound)
    assert not is_rounding(1.6 * bound)
    # A slip into bfloat16 is none, whatever the count.
    slipped = deviation(theirs.bfloat16().float(), theirs, exact)
    assert slipped is not None
    assert not slipped.is_rounding


@pytest.mark.parametrize("special", [-math.inf, torch.finfo(torch.float32).min, math.nan])
def test_a_mask_or_nan_does_not_hide_what_differs_beside_it(special: float) -> None:
    with_special = torch.tensor([special])
    theirs, exact = torch.cat([TORCH, with_special]), torch.cat([EXACT, with_special.double()])
    rounded = deviation(torch.cat([EXACT.float() * (1 - 2e-7), with_special]), theirs, exact)
    assert rounded is not None
    assert rounded.is_rounding
    wrong = deviation(torch.cat([EXACT.float() * 1.001, with_special]), theirs, exact)
    assert wrong is not None
    assert not wrong.is_rounding
    missing = deviation(torch.cat([TORCH, torch.tensor([0.0])]), theirs, exact)
    assert missing is not None
    assert not missing.is_rounding
    assert missing.index == (3,)


def test_numbers_that_differ_never_read_the_same() -> None:
    theirs = torch.tensor([0.1], dtype=torch.float64)
    difference = deviation(theirs.float(), theirs, None)
    assert difference is not None
    assert difference.ours != difference.torch


def test_a_number_that_overflows_in_torch_alone_does_not_hide_what_differs_beside_it() -> None:
    theirs = torch.tensor([1.0, 2.0, math.inf], dtype=torch.float16)
    exact = torch.tensor([1.0, 2.0, 1e5], dtype=torch.float64)
    wrong = deviation(torch.tensor([1.0, 2.5, math.inf], dtype=torch.float16), theirs, exact)
    assert wrong is not None
    assert not wrong.is_rounding


def test_the_worst_element_of_complex_numbers_has_their_index() -> None:
    theirs = torch.tensor([1 + 1j, 2 + 2j, 3 + 3j])
    difference = deviation(theirs + torch.tensor([0, 0, 1j]), theirs, theirs.to(torch.complex128))
    assert difference is not None
    assert difference.index == (2,)
    assert difference.ours == "(3+4j)"


def test_distances_count_complex_numbers_and_leave_out_equal_infinities() -> None:
    assert total_distance(torch.tensor([1j, 2.0]), torch.tensor([2j, 2.0])) == 1
    assert total_distance(torch.tensor([-math.inf, 1.0]), torch.tensor([-math.inf, 3.0])) == 2
