"""Snippets with their expected findings: a line that ends in `#! TPU205` must have that error, no other line may."""

import re
import textwrap

import pytest

from tpuport.lint.analysis import Analyser, Options
from tpuport.lint.findings import Severity
from tpuport.lint.rules import all_rules
from tpuport.lint.source import read

HEAD = """\
import math
import torch
import torch.nn.functional as F
from torch import nn
from typing import NamedTuple, Optional
"""


def expected_errors(text):
    """The (line, rule) pairs that a snippet's comments expect."""
    expected = set()
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.search(r"#! (.*)$", line):
            expected |= {(number, rule) for rule in match[1].split()}
    return expected


@pytest.fixture
def errors(tmp_path):
    """Lint files by name; the errors of TPU1xx and TPU2xx in the first of them, as (line, rule) pairs."""

    def run(**files):
        paths = []
        for name, text in files.items():
            path = tmp_path / f"{name}.py"
            path.write_text(text, encoding="utf-8")
            paths.append(path)
        outcome = Analyser(Options(tuple(all_rules()))).analyse(read(paths[0], paths[0].name))
        return {
            (finding.line, finding.rule)
            for finding in outcome.findings
            if finding.severity is Severity.ERROR
            and finding.rule.startswith(("TPU1", "TPU2"))
            and finding.path == str(paths[0])
        }

    return run


@pytest.fixture
def check(errors):
    """Lint a module, and compare with its comments."""

    def run(text, **others):
        text = HEAD + textwrap.dedent(text)
        others = {name: HEAD + textwrap.dedent(other) for name, other in others.items()}
        assert errors(model=text, **others) == expected_errors(text)

    return run


@pytest.fixture
def check_forward(check):
    """The same for statements of a forward(self, x, ids, mask, cond), of a module with a few attributes."""

    def run(body, init="pass"):
        check(
            "class Model(nn.Module):\n"
            "    def __init__(self, config):\n"
            "        super().__init__()\n"
            "        self.config = config\n"
            "        self.linear = nn.Linear(4, 4)\n"
            "        self.flag = config.flag\n"
            + textwrap.indent(textwrap.dedent(init), " " * 8)
            + "\n\n    def forward(self, x: torch.Tensor, ids: torch.LongTensor, mask: torch.BoolTensor,\n"
            "                cond: Optional[torch.Tensor] = None):\n"
            + textwrap.indent(textwrap.dedent(body), " " * 8)
        )

    return run
