"""The rules as a set, and the page that is made from them."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

import tpuport
from tpuport.errors import PortError
from tpuport.topology.advice import all_rules, rule_by_id
from tpuport.topology.advice.catalogue import page

ROOT = Path(__file__).parents[3]


def test_the_page_is_what_the_rules_say() -> None:
    spec = importlib.util.spec_from_file_location("gen_advice", ROOT / "docs" / "gen_advice.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert not generator.is_stale(), "run python docs/gen_advice.py"


def test_ids_and_names_are_given_once_and_every_file_is_a_rule() -> None:
    rules = all_rules()
    files = sorted((ROOT / "tpuport" / "topology" / "advice").glob("tpc[0-9]*_*.py"))
    assert [f"{rule.id.lower()}_{rule.name.replace('-', '_')}.py" for rule in rules] == [
        one.name for one in files
    ]
    assert len({rule.id for rule in rules}) == len({rule.name for rule in rules}) == len(rules)


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_a_rule_says_everything_about_itself(rule) -> None:
    assert re.fullmatch(r"TPC\d{3}", rule.id)
    assert not rule.summary.endswith(".")
    for text in (rule.why, rule.measured):
        assert text.endswith(".")
    for code in (rule.before, rule.after):
        ast.parse(code)
    assert rule.before != rule.after
    assert f"## {rule.id} {rule.name}" in page()


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_what_the_page_calls_of_tpuport_is_there(rule) -> None:
    """`tpuport.x` in the examples is an attribute of tpuport."""
    for name in re.findall(r"tpuport\.(\w+)", rule.before + rule.after):
        assert hasattr(tpuport, name) or importlib.util.find_spec(f"tpuport.{name}")


def test_a_rule_is_found_by_its_id_and_by_its_name() -> None:
    assert rule_by_id("tpc003") is rule_by_id("dense-mask")
    with pytest.raises(PortError, match="there is no advice 'TPC999'"):
        rule_by_id("TPC999")
