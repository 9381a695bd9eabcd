"""The profile in a terminal: its tables, and that their parts add up to the step."""

import copy
import io
import re
from typing import Any

import pytest
from rich.console import Console

from tpuport.topology.compile_messages import CompileResult
from tpuport.topology.reports import estimated_time
from tpuport.topology.reports.text import render_results


def shown(results: list[CompileResult], width: int = 110) -> str:
    out = io.StringIO()
    renderable = render_results(results, profile=True)
    Console(file=out, width=width, highlight=False, markup=False, emoji=False).print(renderable)
    return out.getvalue()


def after(text: str, heading: str) -> list[str]:
    """The lines of a section."""
    return text.partition(f"\n{heading}\n")[2].split("\n\n")[0].splitlines()


@pytest.mark.parametrize("width", [80, 110])
def test_it_ends_with_where_the_time_goes(results, width: int) -> None:
    text = shown(results[:1], width)
    assert max(map(len, text.splitlines())) <= width
    end = text[text.index("llama decodes at 10,667 tokens a second on v5e:2x4: where the time goes") :]
    whole = " ".join(end.split())
    for said in (
        "1.60 ms 53.3% model.layers.*.mlp.down_proj matrix products",
        "100 µs 3.3% in no module",
        "2.60 ms 86.7% llama/modeling_llama.py:248",
        "the compiler names no line",
        "1.60 ms 53.3% 32 memory 12% 97% fusion.7 matrix products",
    ):
        assert said in whole, said
    # A shape may be longer than its column.
    assert "bf16[32,4096]{1,0:T(8,128)(2,1)S(1)}" in "".join(end.split())
    assert "Estimated time" not in text, "it is not shown twice"


def test_bars_are_as_long_as_their_kind(results) -> None:
    lines = after(
        shown(results[:1]), "llama decodes at 10,667 tokens a second on v5e:2x4: where the time goes"
    )
    bars = {line[:17].strip(): line.count("█") for line in lines if "█" in line}
    assert bars == {"matrix products": 24, "waiting": round(0.3 * 24), "elementwise": round(0.2 * 24)}


def test_what_is_left_out_is_summed_up(results) -> None:
    profile = results[0].report["profile"]
    small = {"name": "model.layers.*.norm", "seconds": 0.003 / 50, "kinds": {"elementwise": 0.003 / 50}}
    profile["modules"] = [{**small, "name": f"{small['name']}{index}"} for index in range(48)]
    profile["modules"] += [{**small, "name": "tiny", "seconds": 1e-9}] * 2
    lines = after(shown(results[:1]), "Time by module")
    assert len(lines) == 2 + 16 + 1
    assert re.fullmatch(r" +1\.92 ms +64\.0% +and 34 more *", lines[-1])


def test_what_does_not_fit_has_no_profile(results) -> None:
    assert "where the time goes" not in shown(results[1:])


def test_a_program_that_does_nothing_takes_no_time(results) -> None:
    report = copy.deepcopy(results[0].report)
    report["profile"] |= {
        "seconds": 0.0,
        "kinds": {},
        "modules": [],
        "lines": [],
        "instructions": [],
        "matrix_units": 0.0,
        "schedule_share": 0.0,
    }
    report["estimate"]["seconds"] = 0.0
    facts = estimated_time.facts(report)
    assert facts == {"a step": "0 s", "cycles": "by the compiler's own estimates: it wrote no schedules"}
    shown([CompileResult("nothing", "v6e:1x1", report)])


def test_the_pace_is_in_the_words_of_the_task(results) -> None:
    report: dict[str, Any] = results[0].report
    assert estimated_time.headline("llama decode", "v5e:2x4", report).startswith(
        "llama decodes at 10,667 tokens"
    )
    report["task"], report["estimate"]["unit"] = "forward", "steps"
    assert estimated_time.headline("flux", "v6e:1x1", report) == "flux on v6e:1x1: 10,667 steps a second"
