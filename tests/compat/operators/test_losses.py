import itertools

import pytest
import torch
from torch.nn import functional

from tpuport import compat

LOG_PROBS = torch.randn(10, 2, 5).log_softmax(-1)
TARGETS = torch.tensor([[1, 2, 2], [1, 4, 0]])
STEPS = torch.tensor([10, 8])


# A reduction is of what each row has, whatever the sizes are.
CTC_SAMPLE = {("none", (3, 2)), ("mean", (3, 0)), ("sum", (1, 1))}


@pytest.mark.parametrize(
    ("reduction", "sizes"),
    [
        pytest.param(*case, marks=[] if case in CTC_SAMPLE else pytest.mark.slow)
        for case in itertools.product(["none", "mean", "sum"], [(3, 2), (3, 0), (1, 1)])
    ],
    ids=str,
)
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


def test_no_sample_is_torchs_error():
    lengths = torch.zeros(0, dtype=torch.long, device="jax")
    targets = torch.zeros(0, 3, dtype=torch.long, device="jax")
    with pytest.raises(RuntimeError, match="log_probs tensor must not be empty"):
        functional.ctc_loss(torch.zeros(5, 0, 4, device="jax"), targets, lengths, lengths)


VARIANCES = {"of each element": (3, 4), "of each row": (3,), "of each row, kept": (3, 1)}


@pytest.mark.parametrize("name", VARIANCES)
def test_gaussian_loss(agree, name):
    def losses(x, target, var):
        return [
            functional.gaussian_nll_loss(x, target, var, full=full, reduction=reduction, eps=0.3)
            for full in (False, True)
            for reduction in ("none", "mean", "sum")
        ]

    x, target, var = torch.randn(3, 4), torch.randn(3, 4), torch.rand(VARIANCES[name])
    agree(losses, x, target, var, eager=name == "of each row")


def test_gaussian_loss_of_a_number(agree):
    agree(lambda x, y: functional.gaussian_nll_loss(x, y, 0.5), torch.randn(3, 4), torch.randn(3, 4))


@pytest.mark.parametrize(
    ("var", "message"), [(-torch.ones(3, 4), "negative"), (-1.0, "negative"), (torch.ones(4), "size")]
)
def test_gaussian_loss_refuses_what_torch_refuses(var, message):
    x = compat.wrap(compat.to_jax(torch.randn(3, 4)))
    if isinstance(var, torch.Tensor):
        var = compat.wrap(compat.to_jax(var))
    with compat.environment(), pytest.raises(ValueError, match=message):
        functional.gaussian_nll_loss(x, x, var)


@pytest.mark.parametrize("rows", [(), (3,)])
def test_multilabel_margin_loss_has_a_number_for_each_row(agree, rows):
    def losses(x, target):
        return [
            functional.multilabel_margin_loss(x, target, reduction=name) for name in ("none", "mean", "sum")
        ]

    agree(losses, torch.randn(*rows, 5), torch.tensor([3, 0, -1, 1, 2]).expand(*rows, 5))


def test_multilabel_margin_loss_of_a_single_class(agree):
    agree(functional.multilabel_margin_loss, torch.tensor(0.3), torch.tensor(0))


SCORES = torch.tensor([[0.3, torch.nan, -1.0, 2.0], [torch.inf, 0.1, 0.2, -torch.inf], [0.5, 0.6, 0.7, 0.8]])


@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_loss_leaves_out_nan(agree, p):
    """Also where a weight is no number, of a margin that is kept."""
    weight = torch.tensor([0.5, torch.nan, torch.inf, 2.0])

    def losses(scores, target, weight):
        return [
            functional.multi_margin_loss(x, target, p, 0.4, of_class, reduction=reduction)
            for x in (scores, scores[2:].expand(3, 4))
            for of_class in (None, weight)
            for reduction in ("none", "mean", "sum")
        ]

    agree(losses, SCORES, torch.tensor([0, 1, 2]), weight)


def test_multi_margin_loss_of_one_row_or_class(agree):
    agree(
        lambda x, target: [
            functional.multi_margin_loss(x[2], target[2], reduction="none"),
            functional.multi_margin_loss(x[2], target[2:], reduction="none"),
            functional.multi_margin_loss(x[2, 0], target[0], reduction="none"),
        ],
        SCORES,
        torch.tensor([0, 1, 3]),
    )


def test_multi_margin_loss_of_a_class_that_is_none():
    target = torch.tensor([0, 4, 1])
    for scores, classes in ((SCORES, target), (SCORES.to("jax"), target.to("jax"))):
        with pytest.raises(RuntimeError, match="target out of range"):
            functional.multi_margin_loss(scores, classes)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_no_classes_of_which_all_are_ignored(agree, reduction):
    def loss(scores, target, weight):
        options = {"ignore_index": 0, "reduction": reduction}
        return [
            functional.nll_loss(scores, target, **options),
            functional.nll_loss(scores, target, weight, **options),
            functional.nll_loss(scores[0], target[0], **options),
        ]

    agree(loss, torch.ones(2, 0), torch.tensor([0, 0]), torch.ones(0))
