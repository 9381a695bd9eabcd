"""What rules hear of code that needs no interpretation."""

import ast
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tpuport.lint import source
from tpuport.lint.abstract_values import Tensor
from tpuport.lint.analysis import Analyser, Options
from tpuport.lint.events import Definition, Event, Import, ModuleClass, Text, Use
from tpuport.lint.findings import Severity
from tpuport.lint.rules import Example, Rule

HEAD = "import torch\nfrom torch import nn\n"


def heard(path: Path, code: str, *kinds: type[Event]) -> list[Any]:
    """The events of these kinds that the analysis of a file tells, in the file's order."""
    events: list[Any] = []

    def check(event: Any, context: object) -> None:
        events.append(event)

    rule = Rule(
        id="TPU999", name="ear", severity=Severity.INFO, summary="", why="", reason="", remedy="",
        bad=Example(""), good=Example(""), events=kinds, check=check,
    )  # fmt: skip
    file = path / "model.py"
    file.write_text(HEAD + textwrap.dedent(code))
    Analyser(Options(rules=(rule,))).analyse(source.read(file, str(file)))
    return sorted(events, key=lambda event: (event.node.lineno, event.node.col_offset))


def uses(path: Path, code: str, name: str) -> list[Use]:
    return [event for event in heard(path, code, Use) if event.name == name and event.call is not None]


FLAGS = ("at_import", "in_init", "traced", "guarded", "checked", "decorator")


def flags(event: Any) -> set[str]:
    return {flag for flag in FLAGS if getattr(event, flag, False)}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("torch.cuda.f()", {"at_import"}),
        ("class C:\n    x = torch.cuda.f()", {"at_import"}),
        ("def f(x=torch.cuda.f()): pass", {"at_import"}),
        ("@torch.cuda.f()\ndef g(): pass", {"at_import", "decorator"}),
        ("@torch.cuda.f()\nclass C: pass", {"at_import", "decorator"}),
        ("if a:\n    torch.cuda.f()", {"at_import", "guarded"}),
        ("if a:\n    pass\nelse:\n    torch.cuda.f()", {"at_import", "guarded"}),
        ("try:\n    torch.cuda.f()\nexcept RuntimeError:\n    pass", {"at_import", "guarded"}),
        ("try:\n    pass\nexcept RuntimeError:\n    torch.cuda.f()", {"at_import", "guarded"}),
        ("try:\n    torch.cuda.f()\nfinally:\n    pass", {"at_import"}),
        ("try:\n    pass\nexcept E:\n    pass\nelse:\n    torch.cuda.f()", {"at_import"}),
        ("if torch.cuda.is_available():\n    torch.cuda.f()", {"at_import", "guarded", "checked"}),
        ("if is_triton_available():\n    torch.cuda.f()", {"at_import", "guarded", "checked"}),
        ("if HAS_FLASH:\n    torch.cuda.f()", {"at_import", "guarded", "checked"}),
        ("if torch.cuda.is_available():\n    pass\nelse:\n    torch.cuda.f()", {"at_import", "guarded"}),
        ('if __name__ == "__main__":\n    torch.cuda.f()', {"guarded"}),
        ("def g():\n    torch.cuda.f()", set()),
        ("async def g():\n    torch.cuda.f()", set()),
        ("if a:\n    def g():\n        torch.cuda.f()", set()),
        ("def g():\n    if a:\n        torch.cuda.f()", {"guarded"}),
        ("class C:\n    def __init__(self):\n        torch.cuda.f()", set()),
        ("class C(nn.Module):\n    def __init__(self):\n        torch.cuda.f()", {"in_init"}),
        (
            "class C(nn.Module):\n    def __init__(self):\n        def g():\n            torch.cuda.f()\n        g()",
            {"in_init"},
        ),
        ("class C(nn.Module):\n    def other(self):\n        torch.cuda.f()", set()),
        ("class C(nn.Module):\n    def forward(self, x):\n        torch.cuda.f()", {"traced"}),
        (
            "class C(nn.Module):\n    def forward(self, x):\n        return g(x)\n\ndef g(x):\n    torch.cuda.f()",
            {"traced"},
        ),
        (
            (
                "class C(nn.Module):\n    def forward(self, x):\n        if torch.cuda.is_available():\n"
                "            torch.cuda.f()"
            ),
            {"traced", "guarded", "checked"},
        ),
        (
            "def g():\n    class C(nn.Module):\n        def __init__(self):\n            torch.cuda.f()",
            {"in_init"},
        ),
        ("torch.compile(torch.cuda.f())(a)", {"at_import"}),
        ("a[torch.cuda.f()](3)", {"at_import"}),
        ("a(torch.cuda.f())(b)", {"at_import"}),
        ("x: int = torch.cuda.f()", {"at_import"}),
        ("lambda: torch.cuda.f()", set()),
        ("x = [torch.cuda.f() for y in z]", {"at_import"}),
    ],
)
def test_where_a_call_stands(tmp_path: Path, code: str, expected: set[str]) -> None:
    (event,) = uses(tmp_path, code, "torch.cuda.f")
    assert flags(event) == expected


@pytest.mark.parametrize(
    ("code", "name", "called"),
    [
        ("from torch import cuda\ncuda.f()", "torch.cuda.f", True),
        ("from torch.cuda import f as g\ng()", "torch.cuda.f", True),
        ("import torch.cuda as c\ny = c.f", "torch.cuda.f", False),
        ("x.cuda()", ".cuda", True),
        ("x.y[0].cuda()", ".cuda", True),
        ("f(x).cuda()", ".cuda", True),
        ("torch.ones(3).cuda()", ".cuda", True),
    ],
)
def test_names_are_resolved_through_imports(tmp_path: Path, code: str, name: str, called: bool) -> None:
    found = [event for event in heard(tmp_path, code, Use) if event.name == name]
    assert [event.call is not None for event in found] == [called]


def test_a_chain_of_methods_is_told_call_by_call(tmp_path: Path) -> None:
    found = heard(tmp_path, "torch.ones(3).cuda().half()", Use)
    assert {event.name for event in found if event.call} == {"torch.ones", ".cuda", ".half"}


@pytest.mark.parametrize(
    ("code", "name", "expected"),
    [
        ("import flash_attn", "flash_attn", {"at_import"}),
        ("import apex.normalization as n", "apex.normalization", {"at_import"}),
        ("from flash_attn import f", "flash_attn.f", {"at_import"}),
        (
            "try:\n    import flash_attn\nexcept ImportError:\n    pass",
            "flash_attn",
            {"at_import", "guarded"},
        ),
        ("try:\n    import flash_attn\nfinally:\n    pass", "flash_attn", {"at_import"}),
        ("if a:\n    import flash_attn", "flash_attn", {"at_import", "guarded"}),
        ("def f():\n    import flash_attn", "flash_attn", set()),
        ("class C(nn.Module):\n    def forward(self, x):\n        import flash_attn", "flash_attn", set()),
        # Nothing else in such a file is looked at.
        ("import plainlib", "plainlib", {"at_import"}),
    ],
)
def test_imports(tmp_path: Path, code: str, name: str, expected: set[str]) -> None:
    (event,) = [event for event in heard(tmp_path, code, Import) if event.name == name]
    assert flags(event) == expected


@pytest.mark.parametrize(
    ("code", "role", "callee"),
    [
        ('x.to("cuda")', "argument", ".to"),
        ('torch.ones(3, device="cuda:1")', "keyword device", "torch.ones"),
        ('def f(device="cuda"): pass', "default", ""),
        ('def f(*, device="cuda"): pass', "default", ""),
        ('x.cuda_device == "cuda"', "compare", ""),
        ('device = "cuda"', "assign", ""),
        ('device: str = "cuda"', "assign", ""),
        ('a = ["cuda"]', "other", ""),
        ('f("gpu:0")  # cuda', "argument", ""),
    ],
)
def test_words_for_devices(tmp_path: Path, code: str, role: str, callee: str) -> None:
    (event,) = heard(tmp_path, code, Text)
    assert (event.role, event.callee, flags(event)) == (role, callee, {"at_import"})


@pytest.mark.parametrize("word", ["cuda is fast", "cuda:", "cudagraphs", "xcuda", "cuda:a", ""])
def test_other_words_are_not_told(tmp_path: Path, word: str) -> None:
    assert heard(tmp_path, f'f("{word}")\n"""cuda"""[0]\n', Text)[1:] == []


def test_definitions(tmp_path: Path) -> None:
    found = heard(
        tmp_path,
        """
        class C(nn.Module):
            def forward(self, x): return helper(x)
            def other(self): pass

        class D:
            def method(self): pass

        def helper(x): return x
        def unused(): pass
        """,
        Definition,
    )
    assert {event.info.qualname: event.traced for event in found} == {
        "C.forward": True, "C.other": False, "D.method": False, "helper": True, "unused": False,
    }  # fmt: skip
    assert len(found) == 5


def test_module_classes(tmp_path: Path) -> None:
    (event,) = heard(
        tmp_path,
        """
        class Plain:
            def __init__(self):
                self.x = torch.ones(3)

        class C(nn.Module):
            def __init__(self, n: int):
                super().__init__()
                self.n = n
                self.plain = torch.ones(3)
                self.weight = nn.Parameter(torch.ones(3))
                self.register_buffer("kept", torch.ones(3))
                self.layer = nn.Linear(3, 3)
        """,
        ModuleClass,
    )
    assert event.info.qualname == "C"
    assert isinstance(event.attributes["plain"], Tensor)
    assert {name: node.lineno - event.node.lineno for name, node in event.assignments.items()} == {
        "n": 3, "plain": 4, "weight": 5, "layer": 7,
    }  # fmt: skip


def test_each_place_is_told_once(tmp_path: Path) -> None:
    code = """
        class C(nn.Module):
            def forward(self, x):
                def inner(y):
                    return y.cuda()
                return inner(x) + self.step(x)

            def step(self, x):
                return x.cuda()

        def host(x):
            def inner(y):
                return y.cuda()
            return inner(x)
        """
    places = {(event.node.lineno, event.traced) for event in uses(tmp_path, code, ".cuda")}
    assert len(places) == 3
    assert [traced for _, traced in sorted(places)] == [True, True, False]


def test_deep_syntax_is_walked(tmp_path: Path) -> None:
    code = "x = " + "f(" * 90 + "torch.cuda.f()" + ")" * 90
    ast.parse(code)
    assert len(uses(tmp_path, code, "torch.cuda.f")) == 1
