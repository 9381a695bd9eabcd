"""Findings made by hand: every node of a kind whose text is the wanted one."""

import ast
import copy
import functools
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest
import torch

import tpuport
from tpuport import compat
from tpuport.lint import Applicability, Finding, Severity
from tpuport.lint.fixes import fix_text
from tpuport.lint.source import node_span


def _spans(text: str, target: str) -> list[tuple[tuple[int, int, int, int], str]]:
    """Places of the syntax nodes with this source text, with the function each is in."""
    lines = tuple(text.splitlines())
    functions: dict[tuple[int, int, int, int], str] = {}

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}" if function else node.name
        if hasattr(node, "lineno") and ast.get_source_segment(text, node) == target:
            functions.setdefault(node_span(node, lines), function)
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(ast.parse(text), "")
    return list(functions.items())


def find(text: str, rule: str, target: str, fix: Applicability, severity: Severity) -> list[Finding]:
    return [
        Finding(
            "m.py", *span, rule, severity, "", "", function, ("Model.forward",) * ("forward" in function), fix
        )
        for span, function in _spans(text, target)
    ]


Fix = Callable[..., str]


@pytest.fixture(scope="session")
def fix() -> Fix:
    """fix(text, (rule, source of the node), ..., unsafe=False, host=False) -> text after the fixpoint."""

    @functools.cache
    def run(
        text: str, *targets: tuple[str, str], unsafe: bool = False, host: bool = False, rounds: int = 1
    ) -> str:
        text = dedent(text)
        assert all(_spans(text, node) for _, node in targets), "a node that is nowhere in the text"
        severity = Severity.WARNING if host else Severity.ERROR
        for _ in range(rounds):
            findings = [
                finding
                for rule, node in targets
                for finding in find(
                    text, rule, node, Applicability.UNSAFE if unsafe else Applicability.SAFE, severity
                )
            ]
            text, _ = fix_text(text, findings, unsafe)
        return text

    return run


_HEAD = "import functools\nimport math\n\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"


@pytest.fixture
def fix_forward(fix: Fix) -> Fix:
    """The body of a `forward(self, x, mask)` after its findings are rewritten; options as for `fix`."""

    def run(body: str, *targets: tuple[str, str], arguments: str = "x, mask", **options: bool) -> str:
        new = fix(forward(body, arguments), *targets, **options)
        return dedent(new.removeprefix(forward("", arguments))).rstrip()

    return run


def forward(body: str, arguments: str) -> str:
    lines = "".join(
        f"        {line}\n" if line else "\n" for line in dedent(body).strip("\n").split("\n") if body
    )
    return f"{_HEAD}class Model(nn.Module):\n    def forward(self, {arguments}):\n{lines}"


def _model(text: str) -> torch.nn.Module:
    namespace: dict = {}
    exec(text, namespace)
    return namespace["Model"]()


def _compare(got: object, expected: object) -> None:
    if isinstance(expected, tuple):
        for one, other in zip(got, expected, strict=True):  # type: ignore[call-overload]
            _compare(one, other)
        return
    got = compat.to_torch(compat.as_jax(got)) if compat.is_ported(got) else got
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, check_dtype=False, equal_nan=True)


@pytest.fixture
def same_results() -> Callable[..., None]:
    """same_results(before, after, *inputs): both texts' `Model` agree in torch, and the latter traces and agrees.

    `before` is None where it cannot run without a GPU.
    """

    def check(before: str | None, after: str, *inputs: object) -> None:
        torch.manual_seed(0)
        model = _model(after)
        expected = model(*copy.deepcopy(inputs))
        if before is not None:
            torch.manual_seed(0)
            _compare(expected, _model(before)(*copy.deepcopy(inputs)))
        traced = tpuport.compile(tpuport.port(model))(*copy.deepcopy(inputs))
        _compare(traced, expected)

    return check


@pytest.fixture
def as_forward() -> Callable[..., str]:
    """as_forward(body, arguments="x, mask") -> a module's text whose `Model` has this forward."""
    return lambda body, arguments="x, mask": forward(body, arguments)


@pytest.fixture
def evaluate() -> Callable[..., Any]:
    """evaluate(text, *inputs) -> what the text's `Model` gives in torch for copies of the inputs."""
    return lambda text, *inputs: _model(text)(*copy.deepcopy(inputs))
