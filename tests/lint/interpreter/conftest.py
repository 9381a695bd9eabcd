"""Snippets that say what is to be found: a line that ends in `#! TPU205` must carry that error, no other may."""

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


def marked(text):
    """The (line, rule) pairs that a snippet asks for."""
    found = set()
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.search(r"#! (.*)$", line):
            found |= {(number, rule) for rule in match[1].split()}
    return found


@pytest.fixture
def errors(tmp_path):
    """Lint files given by name; the errors of TPU1xx and TPU2xx in the first of them, as (line, rule) pairs."""

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
    """Lint a module, and compare with its marks."""

    def run(text, **others):
        text = HEAD + textwrap.dedent(text)
        others = {name: HEAD + textwrap.dedent(other) for name, other in others.items()}
        assert errors(model=text, **others) == marked(text)

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
