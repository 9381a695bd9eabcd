"""The rules as a set, the page that is made from them, and their examples, which are compiled."""

import ast
import importlib.util
import linecache
import re
import types
from pathlib import Path
from typing import Any

import pytest

import tpuport
from tpuport.errors import PortError
from tpuport.topology import Report
from tpuport.topology.advice import AdviceRule, advice_rule_by_id, all_advice_rules

ROOT = Path(__file__).parents[3]
# Rules whose examples compile in about a second. Those of the others are compiled by `make test-all`; the programs in
# the other tests of this folder have what they find, and are smaller.
QUICK = {"TPC006", "TPC010", "TPC023"}


def load_generator() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("gen_advice", ROOT / "docs" / "gen_advice.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    return generator


GENERATOR = load_generator()
EXAMPLES = [
    pytest.param(rule, id=rule.id, marks=[] if rule.id in QUICK else pytest.mark.slow)
    for rule in all_advice_rules()
]


def test_the_page_is_what_the_rules_say() -> None:
    assert not GENERATOR.is_stale(), "run python docs/gen_advice.py"


def test_ids_and_names_are_given_once_and_every_file_is_a_rule() -> None:
    rules = all_advice_rules()
    files = sorted((ROOT / "tpuport" / "topology" / "advice").glob("tpc[0-9]*_*.py"))
    names = [f"{rule.id.lower()}_{rule.name.replace('-', '_')}.py" for rule in rules]
    assert names == [file.name for file in files]
    assert len({rule.id for rule in rules}) == len({rule.name for rule in rules}) == len(rules)


@pytest.mark.parametrize("rule", all_advice_rules(), ids=lambda rule: rule.id)
def test_a_rule_says_everything_about_itself(rule: AdviceRule) -> None:
    assert re.fullmatch(r"TPC\d{3}", rule.id)
    assert not rule.summary.endswith(".")
    for text in (rule.why, rule.measured):
        assert text.endswith(".")
    assert rule.before != rule.after
    assert f"## {rule.id} {rule.name}" in GENERATOR.render_page()


def compile_example(name: str, code: str) -> Report:
    """Run an example after the lines that the page shows; the report of its last expression."""
    source = f"{GENERATOR.PRELUDE}\n\n{code}\n"
    # tpuport reads lines of code where it names them.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    *statements, last = ast.parse(source).body
    assert isinstance(last, ast.Expr), "an example ends with a call of compile_for"
    namespace: dict[str, Any] = {"__name__": "example"}
    exec(compile(ast.Module(statements, []), name, "exec"), namespace)
    return eval(compile(ast.Expression(last.value), name, "eval"), namespace)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype", "ignore:float64 becomes float32")
@pytest.mark.parametrize("rule", EXAMPLES)
def test_the_example_has_it_before_and_not_after(rule: AdviceRule) -> None:
    before = compile_example(f"<{rule.id} before>", rule.before)
    assert rule.id in {finding.rule for finding in before.advice}
    after = compile_example(f"<{rule.id} after>", rule.after)
    assert after.fits
    assert rule.id not in {finding.rule for finding in after.advice}


@pytest.mark.parametrize("rule", all_advice_rules(), ids=lambda rule: rule.id)
def test_what_the_remedy_may_name_of_tpuport_exists(rule: AdviceRule) -> None:
    """`tpuport.x` in the examples is an attribute of tpuport."""
    for name in re.findall(r"tpuport\.(\w+)", rule.before + rule.after):
        assert hasattr(tpuport, name) or importlib.util.find_spec(f"tpuport.{name}")


def test_a_rule_is_found_by_its_id_and_by_its_name() -> None:
    assert advice_rule_by_id("tpc003") is advice_rule_by_id("dense-mask")
    with pytest.raises(PortError, match="there is no advice 'TPC999'"):
        advice_rule_by_id("TPC999")
