"""The charts of a profile on the page, as markup."""

import copy
import re
from html import unescape
from typing import Any

import pytest

from tpuport.topology.reports.flame_chart import flame_chart
from tpuport.topology.reports.html_profile import profile_cards, time_card

BAR = re.compile(
    r'<span class="(?P<kind>[^"]*)" title="(?P<title>[^"]*)" data-seconds="(?P<seconds>[^"]*)" '
    r'style="left:(?P<left>[\d.]+)%;width:(?P<width>[\d.]+)%(?:;top:(?P<top>\d+)px)?">(?P<text>[^<]*)</span>'
)


def bars(markup: str) -> list[dict[str, Any]]:
    found = [match.groupdict() for match in BAR.finditer(markup)]
    return [{**bar, "seconds": float(bar["seconds"]), "left": float(bar["left"])} for bar in found]


def test_a_module_is_as_long_as_what_it_contains_and_its_own_time(results) -> None:
    profile = results[0].report["profile"]
    chart = {unescape(bar["title"]).partition(":")[0]: bar for bar in bars(flame_chart(profile))}
    assert {name: bar["seconds"] for name, bar in chart.items()} == pytest.approx(
        {
            "a step": 0.003,
            "model": 0.0028,
            "model.layers.*": 0.0028,
            "model.layers.*.mlp": 0.0016,
            "model.layers.*.mlp.down_proj": 0.0016,
            "model.layers.*.self_attn": 0.0009,
            "model.layers.*.self_attn.q_proj": 0.0009,
            "lm_head": 0.0001,
        }
    )
    # Beside each other, and below what contains them.
    assert chart["model.layers.*.self_attn"]["left"] == pytest.approx(100 * 0.0016 / 0.003, abs=0.001)
    assert chart["lm_head"]["left"] == pytest.approx(100 * 0.0028 / 0.003, abs=0.001)
    assert [chart[name]["top"] for name in ("a step", "model", "lm_head", "model.layers.*.mlp")] == [
        "0",
        "24",
        "24",
        "72",
    ]
    assert chart["model.layers.*"]["text"] == "layers.*"
    assert "53.3% (matrix products 1.00 ms, waiting 600 µs)" in chart["model.layers.*.mlp"]["title"]


def test_without_modules_there_is_no_chart(results) -> None:
    profile = results[0].report["profile"]
    assert (
        flame_chart(profile | {"modules": [{"name": "", "seconds": 0.003, "kinds": {"elementwise": 0.003}}]})
        == ""
    )
    assert flame_chart(profile | {"modules": []}) == ""


def test_a_round_has_the_core_and_what_goes_on_beside_it(results) -> None:
    markup = profile_cards(results[0].report, results[0].trace)
    lanes = dict(
        re.findall(
            r'<span class="quiet">([^<]*)</span><span class="lane">((?:<span[^>]*>[^<]*</span>)*)', markup
        )
    )
    assert list(lanes) == ["core", "code of", "copies", "dp+sp", "tp"]
    wait, product = bars(lanes["core"])
    assert (wait["kind"], wait["left"], wait["width"]) == ("kind waiting", 0, "25.000")
    assert (product["kind"], product["left"], product["width"]) == ("kind products", 25, "75.000")
    assert "model.layers.0.mlp.down_proj\n/srv/me" in unescape(product["title"])
    [module] = bars(lanes["code of"])
    assert (module["text"], module["width"]) == ("down_proj", "100.000")
    assert [bar["left"] for bar in bars(lanes["copies"])] == pytest.approx([100 / 6, 50], abs=0.001)


def test_without_a_trace_the_rest_is_there(results) -> None:
    markup = profile_cards(results[0].report, None)
    assert "Time by module" in markup
    assert "One round" not in markup


def test_a_program_that_does_nothing(results) -> None:
    report = copy.deepcopy(results[0].report)
    report["profile"] |= {"seconds": 0.0, "kinds": {}, "modules": [], "lines": [], "instructions": []}
    empty = {"seconds": 0.0, "core": [], "copies": [], "collectives": []}
    trace = {
        "seconds": 0.0,
        "entry": "main",
        "computations": {"main": empty},
        "instructions": [],
        "sources": [],
    }
    assert profile_cards(report, trace) == ""
    assert "0 s" in time_card(report)
