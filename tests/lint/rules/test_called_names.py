"""The names of calls that a rule wants are all that it answers to: it finds no more if it is asked about every call."""

import dataclasses
from pathlib import Path

import pytest

from tpuport.lint import source
from tpuport.lint.analysis import Analyser, Options
from tpuport.lint.findings import Finding
from tpuport.lint.rules import all_rules
from tpuport.lint.rules.rule import Rule

HEAD = "import math, torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
CORPUS = sorted((Path(__file__).parents[1] / "corpus").glob("*.py"))


def findings_in(files: list[Path], rules: tuple[Rule, ...]) -> list[list[Finding]]:
    analyser = Analyser(Options(rules=rules))
    return [analyser.analyse(source.read(file, str(file))).findings for file in files]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The examples of all rules, and the corpus."""
    directory = tmp_path_factory.mktemp("examples")
    examples = []
    for rule in all_rules():
        for number, example in enumerate((rule.bad, rule.good, *rule.quiet)):
            file = directory / f"{rule.id}_{number}.py"
            file.write_text(HEAD + example.code)
            examples.append(file)
    return examples + CORPUS


def test_a_rule_answers_to_no_other_names(files: list[Path]) -> None:
    rules = tuple(all_rules())
    asked_about_all = tuple(dataclasses.replace(rule, calls=None) for rule in rules)
    assert findings_in(files, rules) == findings_in(files, asked_about_all)
