"""How long an analysis takes, where findings are, and that they depend on the files alone."""

import dataclasses
import itertools
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from tpuport.lint.abstract_values import Tensor
from tpuport.lint.analysis import Analyser, Options
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.interpreter.frame import Frame
from tpuport.lint.rules import Hit, all_rules

CALLER = "\n\nclass Model(nn.Module):\n    def forward(self, x: torch.Tensor):\n        return {}(x)\n"

# --- bounds ---


def test_recursion_ends(tree) -> None:
    tree.write(
        "model.py",
        """
        def fold(x, n):
            return x.item() if n == 0 else fold(x * 2, n - 1)

        def ping(x, *rest):
            return pong(x, x, *rest)

        def pong(x, *rest):
            return ping(x, x, *rest)

        class Model(nn.Module):
            def forward(self, x: torch.Tensor):
                return fold(x, 3), ping(x), self.forward([x])
        """,
    )
    assert tree.stops("model.py") == ["model.py fold: x.item() if n == 0 else fold(x * 2, n - 1)"]


def test_a_chain_of_many_calls_ends(tree) -> None:
    links = "".join(f"def f{n}(x):\n    return f{n + 1}(x)\n\n" for n in range(300))
    tree.write("model.py", links + "def f300(x):\n    return x.item()\n" + CALLER.format("f0"))
    tree.analyse("model.py")


def _nested(headers: list[str], inner: str) -> str:
    lines = [f"{'    ' * depth}{header}:" for depth, header in enumerate(headers, 2)]
    return "\n".join([*lines, f"{'    ' * (len(headers) + 2)}{inner}\n"])


# How big, and the body of a function that is so big.
BIG: dict[str, tuple[int, Callable[[int], str]]] = {
    "branches": (200, lambda n: "        if self.a:\n            x = x + 1\n" * n),
    "branches in one if": (200, lambda n: "        if self.a == 0:\n            pass\n"
        + "".join(f"        elif self.a == {i}:\n            x = x + {i}\n" for i in range(n))),
    "nested blocks": (90, lambda n: _nested(["with self.c", "if self.a"] * (n // 2), "x = x + 1")),
    "nested brackets": (180, lambda n: f"        x = {'(' * n}x{' + 1)' * n}\n"),
    "nested loops": (18, lambda n: _nested([f"for i{i} in range(self.a)" for i in range(n)], "x = [x, x]")),
    "a name bound anew": (200, lambda n: "        y = x\n        x = (x, y)[0]\n" * n),
}  # fmt: skip


@pytest.mark.parametrize("kind", BIG)
def test_a_function_twice_as_big_takes_little_more_than_twice_the_work(
    tree, kind: str, lines_run: Callable[[Callable[[], object]], int]
) -> None:
    size, body = BIG[kind]

    def lines(size: int) -> int:
        code = "class Model(nn.Module):\n    def forward(self, x: torch.Tensor):\n"
        tree.write("model.py", f"{code}{body(size)}        return x.item()\n")
        return lines_run(lambda: tree.analyse("model.py"))

    # The body of a loop is interpreted again where the loop around it has others to say, so depth counts twice.
    assert lines(size) < (5 if kind == "nested loops" else 2.2) * lines(size // 2)


@pytest.mark.parametrize("kind", ["branches", "branches in one if", "nested brackets"])
def test_what_follows_much_else_is_found(tree, kind: str) -> None:
    size, body = BIG[kind]
    code = "class Model(nn.Module):\n    def forward(self, x: torch.Tensor):\n"
    tree.write("model.py", f"{code}{body(size)}        return x.item()\n")
    findings = tree.analyse("model.py").findings
    assert [finding.rule for finding in findings if finding.severity == Severity.ERROR] == ["TPU201"]


# --- the same findings however it is asked ---


def _library(tree) -> list[str]:
    """A package whose files share helpers that are called in many ways."""
    tree.write("pkg/__init__.py", "", head="")
    tree.write(
        "pkg/shared.py",
        """
        from .flags import LOUD

        def mix(x, y=None, n=1):
            if y is not None:
                return x[y]
            return x.item() if LOUD else x

        class Base(nn.Module):
            def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None):
                return self.mix(x, mask)

            def mix(self, x, mask):
                return mix(x, mask)
        """,
    )
    tree.write("pkg/flags.py", "LOUD = True\n", head="")
    names = ["pkg/shared.py", "pkg/flags.py"]
    for number in range(6):
        name = f"pkg/model_{number}.py"
        ways = ", ".join(
            f"mix({value}, {other})"
            for value in ("x", "[x]", "3", "(x, x)", "None", "{}")[: number + 1]
            for other in ("None", "x > 0", "x.shape", "'a'")
        )
        tree.write(
            name,
            f"""
            from .shared import Base, mix

            class Part{number}(Base):
                def mix(self, x, mask):
                    return super().mix(x, None), {ways}

            class Model{number}(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.part = Part{number}()

                def forward(self, x: torch.Tensor, ids):
                    return self.part(x, ids > 3), mix(ids)
            """,
        )
        names.append(name)
    return names


def test_findings_do_not_depend_on_what_was_analysed_before(tree) -> None:
    names = _library(tree)
    alone = {name: tree.analyse(name) for name in names}
    assert len({finding for outcome in alone.values() for finding in outcome.findings}) > 6
    for order in (names, names[::-1], names[3:] + names[:3], [*names, *names]):
        analyser = Analyser(Options(rules=all_rules()))
        for name in order:
            again = tree.analyse(name, analyser)
            assert again.findings == alone[name].findings, name
            assert (again.traced, again.entry_points) == (alone[name].traced, alone[name].entry_points)


def test_findings_do_not_depend_on_how_many_modules_are_kept(tree, monkeypatch: pytest.MonkeyPatch) -> None:
    names = _library(tree)
    alone = {name: tree.analyse(name).findings for name in names}
    monkeypatch.setattr("tpuport.lint.project._MAX_MODULES", 2)
    analyser = Analyser(Options(rules=all_rules()))
    assert {name: tree.analyse(name, analyser).findings for name in names} == alone


def test_a_call_made_in_another_file_is_no_call_of_this_one(tree) -> None:
    """One file calls `inner` in so many ways that it is no longer told apart; the other knows its one way."""
    tree.write("shared.py", "def inner(x, y):\n    return x[y]\n\ndef outer(x, y):\n    return inner(x, y)\n")
    ways = "\n".join(
        f"        inner({value}, x)"
        for value in ("0", "'a'", "None", "[]", "()", "{}", "[x]", "(x,)", "x.shape")
    )
    head = "from shared import inner, outer\n\nclass Model(nn.Module):\n    def forward(self, x: torch.Tensor):\n"
    tree.write("many.py", f"{head}{ways}\n        return outer(x, x > 0)\n")
    tree.write("single.py", f"{head}        return outer(x, x > 0)\n")
    expected = ["shared.py inner: x[y]"]
    assert tree.stops("single.py") == expected
    analyser = Analyser(Options(rules=all_rules()))
    tree.analyse("many.py", analyser)
    assert tree.stops("single.py", analyser) == expected


def test_of_two_ways_to_one_place_the_worse_is_told(tree) -> None:
    def check(event: Call, context: object) -> Hit | None:
        tensor = any(isinstance(value, Tensor) for value in event.args)
        return (
            Hit(severity=Severity.ERROR if tensor else Severity.WARNING)
            if event.name == "torch.abs"
            else None
        )

    rule = dataclasses.replace(all_rules()[0], events=(Call,), check=check)
    calls = ["helper(3)", "helper(x)", "helper([])"]
    for order in itertools.permutations(calls):
        body = "\n".join(f"        {call}" for call in order)
        tree.write(
            "model.py",
            "def helper(y):\n    return torch.abs(y)\n\n"
            f"class Model(nn.Module):\n    def forward(self, x: torch.Tensor):\n{body}\n",
        )
        (finding,) = tree.analyse("model.py", Analyser(Options(rules=(rule,)))).findings
        assert finding.severity == Severity.ERROR, order


@pytest.mark.parametrize("after", [1, 3, 8, 14, 20])
def test_a_file_that_could_not_be_analysed_spoils_no_other(
    tree, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    names = _library(tree)
    expected = tree.analyse(names[-1])
    analyser = Analyser(Options(rules=all_rules()))
    real, calls = Frame.execute, 0

    def failing(*args: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls > after:
            raise RecursionError
        return real(*args)

    monkeypatch.setattr(Frame, "execute", failing)
    with pytest.raises(RecursionError):
        tree.analyse(names[-1], analyser)
    monkeypatch.undo()
    assert tree.analyse(names[-1], analyser) == expected


def test_every_file_that_matters_is_a_dependency_whatever_was_analysed_before(tree) -> None:
    names = _library(tree)
    analyser = Analyser(Options(rules=all_rules()))
    outcomes = {name: tree.analyse(name, analyser) for name in names}
    for name in names[2:]:
        assert {str(tree.root / other) for other in ("pkg/shared.py", "pkg/flags.py")} <= set(
            outcomes[name].dependencies
        )
        assert str(tree.root / name) not in outcomes[name].dependencies
    # Changing, removing or adding any file changes nothing for those that do not name it.
    for changed in [*names, "shared.py", "pkg/shared/__init__.py", "__init__.py"]:
        path = tree.root / changed
        before = path.read_text() if path.exists() else None
        path.parent.mkdir(exist_ok=True)
        path.write_text("LOUD = None\n")
        for name in names:
            if name != changed and str(path) not in outcomes[name].dependencies:
                assert tree.analyse(name).findings == outcomes[name].findings, (changed, name)
        if before is None:
            path.unlink()
        else:
            path.write_text(before)
        if path.parent != tree.root and not any(path.parent.iterdir()):
            shutil.rmtree(path.parent)


# --- places ---


def test_columns_count_characters(tree) -> None:
    body = '"ключ", x.item()  # 名前'
    tree.write(
        "model.py", "class Model(nn.Module):\n    def forward(self, x: torch.Tensor):\n        return " + body
    )
    (finding,) = tree.analyse("model.py").findings
    assert (finding.column, finding.end_column) == (24, 32)


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
def test_other_line_ends(tree, ending: str) -> None:
    path = tree.write("model.py", CALLER.format("float"))
    (expected,) = tree.analyse("model.py").findings
    path.write_bytes(path.read_text().replace("\n", ending).encode())
    (finding,) = tree.analyse("model.py").findings
    assert finding == expected


@pytest.mark.parametrize("character", ["\f", "\v", "\x1c", "\x85", "\u2028"])
def test_characters_that_end_no_line(tree, character: str) -> None:
    body = f'x = x + len("{character}")\n        return x.item()'
    tree.write(
        "model.py", f"class Model(nn.Module):\n    def forward(self, x: torch.Tensor):\n        {body}\n"
    )
    (finding,) = tree.analyse("model.py").findings
    assert (finding.line, finding.column) == (7, 16)
