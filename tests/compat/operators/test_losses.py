import pytest
import torch
from torch.nn import functional

LOG_PROBS = torch.randn(10, 2, 5).log_softmax(-1)
TARGETS = torch.tensor([[1, 2, 2], [1, 4, 0]])
STEPS = torch.tensor([10, 8])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("sizes", [(3, 2), (3, 0), (1, 1)], ids=str)
def test_ctc_loss(agree, reduction, sizes):
    def loss(log_probs, targets, steps, sizes):
        return functional.ctc_loss(log_probs, targets, steps, sizes, reduction=reduction)

    agree(loss, LOG_PROBS, TARGETS, STEPS, torch.tensor(sizes))


def test_targets_one_after_the_other(agree):
    agree(
        functional.ctc_loss, LOG_PROBS, torch.tensor([1, 2, 2, 1, 4]), STEPS, torch.tensor([3, 2]), jit=False
    )


def test_too_few_steps_are_infinite_or_zero(agree):
    def losses(log_probs, targets, steps, sizes):
        return [
            functional.ctc_loss(log_probs, targets, steps, sizes, reduction="none", zero_infinity=is_zero)
            for is_zero in (False, True)
        ]

    agree(losses, LOG_PROBS, TARGETS, torch.tensor([3, 1]), torch.tensor([3, 2]))


def test_another_blank_and_no_batch(agree):
    def loss(log_probs, target):
        return functional.ctc_loss(log_probs, target, [10], [3], blank=4)

    agree(loss, LOG_PROBS[:, 0], TARGETS[0])
