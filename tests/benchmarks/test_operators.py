"""The benchmark of operators stays alive: a few of them, and what it says of planted differences."""

import math

import jax
import pytest
import torch

from benchmarks import operator_hostile, operator_table, operator_usage, operators
from benchmarks.operator_outcomes import compare, error_outcome
from benchmarks.operator_samples import database, forms, record
from tpuport.errors import MissingDtypeError, PortError


@pytest.mark.parametrize(
    "name",
    [
        "add",
        pytest.param("softmax", marks=pytest.mark.slow),
        pytest.param("nn.functional.silu", marks=pytest.mark.slow),
        "cumsum",
    ],
)
def test_sample(name):
    entry = record(name, "float32", compiled=True, limit=3)
    assert operator_table.verdict(entry) == "equal"


def test_forms():
    assert {"function", "method", "operator", "in-place method", "in-place operator"} == set(
        forms(database()["add"])
    )


@pytest.mark.parametrize(
    ("mine", "torchs", "reason"),
    [
        (torch.ones(2), torch.ones(2, dtype=torch.int64), "float32 for int64"),
        (torch.ones(2), torch.ones(2, 1), "shape [2] for [2, 1]"),
        (torch.tensor(True), True, "Tensor for bool"),
        (True, torch.tensor(True), "bool for a tensor"),
        ((torch.ones(2),), (torch.ones(2), 1), "1 outputs for 2"),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1]), "1 of 2 values: 2 for 2.1"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "1 of 2 values: 2 for 3"),
        (torch.tensor([1, 2]).int(), torch.tensor([1, 2]), "int32 for int64"),
    ],
)
def test_differences_are_named(mine, torchs, reason):
    assert compare(mine, torchs, None) == ("different", reason)


def test_double_precision_is_the_referee():
    third = torch.tensor([1 / 3], dtype=torch.bfloat16)
    torchs = torch.tensor([0.375], dtype=torch.bfloat16)
    assert compare(third, torchs, None).verdict == "different"
    assert compare(third, torchs, lambda: torch.tensor([1 / 3], dtype=torch.float64)).verdict == "equal"


def test_random_values_are_not_compared():
    assert compare(torch.zeros(2), torch.ones(2), None, values=False).verdict == "equal"


def test_errors():
    assert error_outcome(ValueError(), RuntimeError()).verdict == "equal"
    assert error_outcome(ValueError("axis"), None) == ("unexplained", "ValueError: axis")
    assert error_outcome(PortError("no aten::foo"), None).verdict == "refused"
    assert error_outcome(MissingDtypeError("no complex32"), None).verdict == "dtype"
    with pytest.raises(jax.errors.ConcretizationTypeError) as caught:
        jax.jit(lambda x: x if x else -x)(1.0)
    assert error_outcome(caught.value, None).verdict == "needs a value"


def test_page():
    form = {"counts": {"equal": 2, "different": 1}, "reasons": {"different": ["sample 1: 1 for 2"]}}
    entries = [
        {"operator": "bad", "dtype": "float32", "forms": {"function, eager": form}},
        {"operator": "worse", "dtype": "float32", "forms": {}, "crashed": "killed"},
        {"operator": "good", "dtype": "float32", "forms": {"method, eager": {"counts": {"equal": 1}}}},
    ]
    for entry in entries:
        entry |= {"date": "2026-11-27", "samples": 6}
    entries[2] |= {"date": "2026-01-02", "samples": None}
    text = operator_table.page(entries, {"torch": "2.13.0"})
    assert (
        "1 are of 2026-01-02 and 2 are of 2026-11-27.\nThe 1 of before 2026-11-27 are by a comparison" in text
    )
    assert (
        "For 1 results, of an operator in a dtype each, all samples of the database were run:\n1 of float32."
        in text
    )
    assert "| `bad` | different | float32 | function, eager | `1 for 2` |" in text
    assert "| `worse` | crashed | float32 |  | `killed` |" in text
    assert text.endswith("`good`\n")


def test_which_operators_models_use():
    used = operator_usage.occurring(
        ["softmax", "nn.functional.layer_norm", "var[unbiased]", "special.airy_ai"]
    )
    assert used == {"softmax", "nn.functional.layer_norm", "var[unbiased]"}


def test_results_of_an_earlier_day_are_due():
    entry = {"forms": {"function, eager": {}}}
    assert operators._is_due(None, None, compiled=False)
    assert not operators._is_due(entry, None, compiled=False)
    assert operators._is_due(entry, "2026-01-02", compiled=False)
    assert operators._is_due(entry | {"date": "2026-01-01"}, "2026-01-02", compiled=False)
    assert not operators._is_due(entry | {"date": "2026-01-02"}, "2026-01-02", compiled=False)


def test_results_without_compiled_programs_are_due_with_them():
    eager, both, crashed = (
        {"forms": {form: {} for form in forms}}
        for forms in (("function, eager",), ("function, eager", "function, traced"), ())
    )
    assert operators._is_due(eager, None, compiled=True)
    assert not operators._is_due(both, None, compiled=True)
    assert not operators._is_due(crashed, None, compiled=True)


def test_what_torch_refuses_is_explained_where_only_a_program_has_it():
    forms = record("quantile", "float32", compiled=True, limit=2, hostile=True)["forms"]
    assert set(forms["function, eager"]["counts"]) == {"equal"}
    traced = forms["function, traced"]
    assert set(traced["counts"]) == {"equal", "explained"}
    assert all(operator_hostile.UNKNOWN in reason for reason in traced["reasons"]["explained"])


def test_a_number_that_is_nan_equals_nan_alone():
    assert compare(math.nan, math.nan, None).verdict == "equal"
    assert compare(math.nan, 1.0, None).verdict == "different"
    assert compare(1.0, math.nan, None).verdict == "different"


def test_the_referee_gives_double_precision_for_a_half_that_is_asked_for():
    # torch's linspace rounds its steps to the half, and is off by two percent.
    counts = record("linspace", "bfloat16", compiled=False, limit=33)["forms"]["function, eager"]["counts"]
    assert counts == {"equal": 33}


def test_complex_numbers_with_an_infinite_part_are_compared_by_their_parts():
    expected = torch.tensor([complex(math.inf, 8.0), complex(math.nan, 2.0), 1 + 1j])
    close = torch.complex(expected.real, expected.imag * (1 + 1e-6))
    assert compare(close, expected, None).verdict == "equal"
    assert compare(torch.complex(expected.real, expected.imag * 1.1), expected, None).verdict == "different"


def test_page_of_hostile_samples():
    """Lists what is neither equal nor explained, unless it is as for the database's own samples."""

    def entry(name, dtype, verdict, form="function, eager"):
        forms = {form: {"counts": {verdict: 3}, "reasons": {verdict: ["sample 1: because"]}}}
        return {"operator": name, "dtype": dtype, "date": "2026-11-30", "samples": 4, "forms": forms}

    own = [entry("item", dtype, "needs a value") for dtype in ("float32", "bfloat16")]
    own += [entry("add", "float32", "equal"), entry("sub", "bfloat16", "equal")]
    hostile = [
        entry("item", "float32", "needs a value"),
        entry("add", "float32", "explained"),
        entry("sub", "bfloat16", "different"),
    ]
    text = operator_table.page(own, {"torch": "2.13.0"}, hostile).partition("## Hostile")[2]
    assert "of all 2 operators of float32 (4 samples of each) and 1 of the 2 operators of bfloat16" in text
    assert "different: 1" in text
    assert "| because | `add` |" in text
    assert "| `sub` | different | bfloat16 | function, eager | `because` |" in text
    assert "`item`" not in text
    rest = operator_table.page(own, {"torch": "2.13.0"}, hostile[:2])
    assert rest.endswith("All others are equal, or as in the table above.\n")
