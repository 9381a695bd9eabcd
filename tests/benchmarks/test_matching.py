"""Errors are held against watched lines statement by statement."""

from types import SimpleNamespace

import pytest

from benchmarks.matching import PLACES, Span, score, spans

SOURCE = """\
def f(x, y):
    if (
        x.any()
        and y
    ):
        z = g(
            x.item(),
            y,
        )
        return z
    for a in x: print(a)
    with g(x) as h:
        @wrap
        def k(): return x
    return x
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "code.py"
    file.write_text(SOURCE, encoding="utf-8")
    return str(file)


def error(path, line, rule="TPU201", severity="error", scenario="", column=1):
    return SimpleNamespace(
        path=path, line=line, end_line=line, column=column, rule=rule, severity=severity, scenario=scenario
    )


def observed(path, ran, **notes):
    return {
        path: {"ran": ran, "notes": {line[1:]: {"kinds": kinds, "by": []} for line, kinds in notes.items()}}
    }


def lines(places):
    return [place.line for place in places]


def test_headers_end_before_their_bodies_and_simple_statements_are_whole():
    found = spans(SOURCE)
    assert found[1] == Span(1, 1)
    assert found[3] == Span(2, 5)
    assert found[7] == Span(6, 9)
    assert found[11] == Span(11, 11)
    assert found[12] == Span(12, 12)
    assert found[15] == Span(15, 15)


def test_an_error_matches_a_watched_line_of_its_statement_alone(path):
    files = observed(path, [2, 3, 6, 7, 10], _3=["value:__bool__"], _7=["value:item"])
    tally = score(files, [error(path, 6), error(path, 10), error(path, 15)])
    assert lines(tally.hits) == [7]
    assert lines(tally.misses) == [3]
    assert lines(tally.right) == [6]
    assert lines(tally.wrong) == [10]
    assert tally.idle == 1
    assert (tally.recall, tally.precision) == (0.5, 0.5)


def test_an_error_in_a_body_does_not_match_the_condition(path):
    tally = score(observed(path, [2, 6], _2=["value:__bool__"]), [error(path, 6)])
    assert (lines(tally.misses), lines(tally.wrong)) == ([2], [6])


@pytest.mark.parametrize("other", [{"rule": "TPU301"}, {"severity": "warning"}])
def test_other_rules_and_warnings_are_not_looked_at(path, other):
    tally = score(observed(path, [10]), [error(path, 10, **other)])
    assert not tally.wrong


def test_writes_through_masks_are_not_counted(path):
    tally = score(observed(path, [10], _10=["write:mask"]), [error(path, 10)])
    assert (lines(tally.misses), lines(tally.wrong)) == ([], [10])


def test_a_kind_left_out_counts_neither_for_nor_against(path):
    files = observed(path, [10], _10=["value:__format__"])
    tally = score(files, [error(path, 10)], without=["value:__format__"])
    assert [tally.hits, tally.misses, tally.right, tally.wrong] == [[]] * 4


def test_nothing_watched_and_nothing_found_agree():
    tally = score({}, [])
    assert (tally.recall, tally.precision) == (1.0, 1.0)


@pytest.mark.parametrize(("passed", "wrong"), [(["ids"], 0), (["ids", "mask"], 1)])
def test_an_error_of_calls_that_were_not_made_is_not_judged(path, passed, wrong):
    files = observed(path, [10])
    files[path]["passed"] = passed
    tally = score(files, [error(path, 10, scenario="Model.forward with `mask`")])
    assert (len(tally.wrong), tally.idle) == (wrong, 1 - wrong)


def test_tensors_of_the_host_are_compared_by_themselves(path):
    files = observed(path, [1, 6, 10], _6=["host:add"], _10=["value:item"])
    findings = [error(path, 6, "TPU313"), error(path, 10, "TPU313")]
    tally = score(files, findings, subject=PLACES)
    assert (lines(tally.hits), lines(tally.right), lines(tally.wrong)) == ([6], [6], [10])
    assert lines(score(files, findings).misses) == [10]


def test_a_step_without_a_mask_needs_a_cache(path):
    files = observed(path, [6])
    scenario = "f in a step with a static cache as `past`, without `mask`"
    for passed, idle in ((["x"], 1), (["x", "past"], 0)):
        files[path]["passed"] = passed
        assert score(files, [error(path, 6, scenario=scenario)]).idle == idle


@pytest.mark.parametrize(
    ("ran", "column", "wrong"),
    [([22], 23, 1), ([12], 23, 0), ([12], 5, 1), (None, 23, 1), ([46], 47, 1), ([39], 47, 0), ([], 35, 0)],
)
def test_an_error_in_a_part_that_never_ran_is_not_judged(tmp_path, ran, column, wrong):
    file = tmp_path / "code.py"
    file.write_text("def f(x):\n    g, n = (lambda t: t.item()), (x if x else x.item())\n", encoding="utf-8")
    files = observed(str(file), [2])
    if ran is not None:
        files[str(file)]["parts"] = [(2, column, 2, column + 1) for column in ran]
    tally = score(files, [error(str(file), 2, column=column)])
    assert (len(tally.wrong), tally.idle) == (wrong, 1 - wrong)
