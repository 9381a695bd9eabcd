"""Generated Python, and damaged real files: the linter neither fails nor writes what cannot be parsed."""

import ast
import contextlib
import importlib.util
import io
import sys
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tpuport.lint import fixing, source, suppressions
from tpuport.lint.configuration import Settings
from tpuport.lint.workers import analyse_file, make_real_analyser

NAMES = [
    "transformers/models/llama/modeling_llama.py", "transformers/models/clip/modeling_clip.py",
    "transformers/models/qwen2_vl/modeling_qwen2_vl.py", "diffusers/models/attention_processor.py",
    "diffusers/models/transformers/transformer_hunyuan_video15.py", "diffusers/models/embeddings.py",
]  # fmt: skip

FRAGMENTS = [
    "x = x[mask]", "x[mask] = 0", "x[x > 1] *= 2", "y = x.nonzero()", "if x.any(): pass", "assert x.max() < 1",
    "x = x.cuda()", "x = x.to('cuda')", "n = int(x.sum())", "for row in x: pass", "x = torch.where(x > 0)[0]",
    "return x", "self.y = x", "with torch.autocast('cuda'):\n    x = x + 1", "x = x.double()",
    "x = x.masked_fill(mask, float('-inf'))", "x = torch.view_as_complex(x)", "pass", "del x", "x: int = 1",
    "x = [a for a in x if a]", "while x: x = x - 1", "lambda: x[mask]", "x = yield x", "global x",
    "match x:\n    case _: pass",
    "try:\n    x = x.item()\nexcept Exception:\n    pass", "print(f'{x} {x.shape}')",
    "@f\ndef g(x=[]): return x[mask]",
    "x, *y = x", "x = x if x else y", "async def h(): await x", "class C: y = x", "x = torch.arange(x.shape[0])",
    "x = '''\n'''  # tpuport: ignore[TPU101]", "# tpuport: ignore[", "x = x[:, : lengths[0]]",
    "a[b][c] += x[mask][mask]",
]  # fmt: skip

TESTED = settings(
    max_examples=60, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)  # fmt: skip


def real_texts() -> list[str]:
    found = []
    for name in NAMES:
        spec = importlib.util.find_spec(name.partition("/")[0])
        assert spec is not None
        assert spec.origin is not None
        found.append((Path(spec.origin).parents[1] / name).read_text())
    return found


TEXTS = real_texts()


@st.composite
def generated(draw: st.DrawFn) -> str:
    """A module with a traced method made of fragments, nested at random."""
    lines = [
        "import torch",
        "from torch import nn",
        "class M(nn.Module):",
        "    def forward(self, x, mask, lengths):",
    ]
    depth = 2
    for fragment in draw(st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=12)):
        lines += ["    " * depth + line for line in fragment.splitlines()]
        if draw(st.integers(0, 3)) == 0:
            lines.append(
                "    " * depth
                + draw(st.sampled_from(["if x is None:", "for i in range(3):", "with x as y:"]))
            )
            depth += 1
        elif depth > 2 and draw(st.booleans()):
            depth -= 1
    return "\n".join([*lines, "    " * depth + "return x", ""])


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A stretch of a real file with lines deleted and doubled, and tokens swapped."""
    lines = draw(st.sampled_from(TEXTS)).splitlines(keepends=True)
    heads = [number for number, line in enumerate(lines) if line.startswith("class ")]
    start = draw(st.sampled_from(heads))
    imports = [line for line in lines[:start] if line.startswith(("import ", "from ")) and "(" not in line]
    lines = [*imports, *lines[start : start + 150]]
    for _ in range(draw(st.integers(0, 4))):
        number = draw(st.integers(len(imports), len(lines) - 1))
        what = draw(st.sampled_from(["delete", "double", "swap", "indent"]))
        if what == "delete" and len(lines) > len(imports) + 1:
            del lines[number]
        elif what == "double":
            lines.insert(number, lines[number])
        elif what == "indent":
            lines[number] = "    " + lines[number]
        else:
            lines[number] = swapped(lines[number], draw)
    return "".join(lines)


def swapped(line: str, draw: st.DrawFn) -> str:
    """A line with two of its words exchanged."""
    words = list(tokens(line))
    if len(words) < 2:
        return line
    first, second = sorted(
        draw(st.lists(st.integers(0, len(words) - 1), min_size=2, max_size=2, unique=True))
    )
    (a, b), (c, d) = words[first], words[second]
    return line[:a] + line[c:d] + line[b:c] + line[a:b] + line[d:]


def tokens(line: str) -> Sequence[tuple[int, int]]:
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(line.lstrip()).readline):
            offset = len(line) - len(line.lstrip())
            if token.string.strip() and token.start[0] == token.end[0] == 1:
                found.append((token.start[1] + offset, token.end[1] + offset))
    except (tokenize.TokenError, SyntaxError):
        pass
    return found


@pytest.fixture(autouse=True)
def _deep() -> Iterator[None]:
    """The analyser raises the limit, which hypothesis watches."""
    before = sys.getrecursionlimit()
    make_real_analyser(Settings())
    yield
    sys.setrecursionlimit(before)


def parses(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def check(text: str, directory: Path) -> None:
    """Linting ends without a failure of its own, and fixing gives text that parses."""
    file = directory / "m.py"
    file.write_text(text, encoding="utf-8", newline="")
    result = analyse_file(make_real_analyser(Settings()), str(file))
    rules = {finding.rule for finding in result.findings}
    assert "TPU006" not in rules, [finding.reason for finding in result.findings if finding.rule == "TPU006"]
    assert bool({"TPU001", "TPU002"} & rules) != parses(text)
    lines = source.split_lines(text)
    for finding in result.findings:
        assert 1 <= finding.line <= finding.end_line <= len(lines)
        assert 1 <= finding.column <= len(lines[finding.line - 1]) + 1
        assert (finding.end_line, finding.end_column) > (finding.line, finding.column)
    fixed, count = fixing.rewrite_text_with_libcst(text, result.findings, True)
    assert parses(fixed) == parses(text)
    assert (count > 0) == (fixed != text)


@TESTED
@given(generated())
def test_generated_modules(tmp_path: Path, text: str) -> None:
    check(text, tmp_path)


@TESTED
@given(damaged())
def test_damaged_real_files(tmp_path: Path, text: str) -> None:
    check(text, tmp_path)


@TESTED
@given(st.binary(max_size=400))
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "m.py"
    file.write_bytes(data)
    with contextlib.suppress(source.Unreadable):
        read = source.read(file, "m.py")
        assert read.text.encode(read.encoding) == data


@TESTED
@given(st.text(max_size=200))
def test_any_text_with_a_comment(text: str) -> None:
    assume("\0" not in text)
    suppressions.parse_suppressions(f"{text}\nx = 1  # tpuport: ignore[TPU101]\n")


@pytest.mark.parametrize(
    "text", ["", "\n", "#", "\\\n", "\x0c", "x" * 10_000, "\r", "'''\n'''", "x = 1\\\n\n"]
)
def test_small_oddities(tmp_path: Path, text: str) -> None:
    check(text, tmp_path)
