"""Reading files: encodings, syntax, odd files."""

import ast
import os
from pathlib import Path

import pytest

from tpuport.lint import source
from tpuport.lint.regular_files import read_regular_file
from tpuport.lint.source import node_span

NOT_READ = {
    "syntax": (b"def f(:\n", "TPU001", 1, "invalid syntax"),
    "indent": (b"if 1:\nx\n", "TPU001", 2, "expected an indented block"),
    "null": (b"x = 1\n\0\n", "TPU002", 2, "null byte"),
    "latin": (b"\n\nx = '\xe9'\n", "TPU002", 3, "byte 0xe9 on line 3 is not utf-8"),
    "latin in line one": (b"x = '\xe9'\n", "TPU002", 1, "byte 0xe9 on line 1 is not utf-8"),
    "utf-16": ("x = 1\n".encode("utf-16"), "TPU002", 1, "byte 0xff on line 1"),
    "cookie": (b"# coding: nonsense\n", "TPU002", 1, "unknown encoding: nonsense"),
    "codec": (b"# coding: rot13\nx = 1\n", "TPU002", 1, "not a text encoding"),
    "deep": (b"x = " + b"-" * 100_000 + b"1\n", "TPU002", 1, "nested too deeply"),
    "long sum": (b"x = " + b"+".join([b"1"] * 100_000) + b"\n", "TPU002", 1, "nested too deeply"),
}


@pytest.mark.parametrize("name", NOT_READ)
def test_what_cannot_be_read_says_why_and_where(name: str, tmp_path: Path) -> None:
    data, rule, line, words = NOT_READ[name]
    file = tmp_path / "m.py"
    file.write_bytes(data)
    with pytest.raises(source.Unreadable) as caught:
        source.read(file, "shown/m.py")
    finding = caught.value.finding
    assert (finding.rule, finding.line, finding.path) == (rule, line, "shown/m.py")
    assert words in finding.reason
    assert (finding.end_line, finding.end_column) > (finding.line, finding.column)


@pytest.mark.parametrize(
    ("data", "encoding", "last"),
    [
        (b"x = '\xc3\xa9'\n", "utf-8", "x = 'é'"),
        (b"# -*- coding: latin-1 -*-\nx = '\xe9'\n", "iso-8859-1", "x = 'é'"),
        (b"\xef\xbb\xbfx = 1\r\n", "utf-8-sig", "x = 1"),
        (b"a = 1\x0c\nb = '\x1c'\rc = 2\r\n", "utf-8", "c = 2"),
    ],
)
def test_text_goes_back_to_the_same_bytes(data: bytes, encoding: str, last: str, tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_bytes(data)
    read = source.read(file, "m.py")
    assert (read.encoding, read.lines[-2]) == (encoding, last)
    assert read.text.encode(read.encoding) == data


def test_lines_are_numbered_as_python_numbers_them(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_bytes("a = 1\x0c\nb = '\u2028\x0b'\rclass C: pass\n".encode())
    read = source.read(file, "m.py")
    assert read.lines[read.tree.body[-1].lineno - 1] == "class C: pass"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.py")
    with pytest.raises(source.Unreadable, match="not a regular file"):
        source.read(tmp_path / "m.py", "m.py")


def test_a_file_of_data_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_regular_file, "__defaults__", (10,))
    (tmp_path / "m.py").write_text("x = 1234567890\n")
    with pytest.raises(source.Unreadable, match="15 bytes, more than the 10"):
        source.read(tmp_path / "m.py", "m.py")


def test_the_linted_codes_own_warnings_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text('x = "\\d"\ny = x is "a"\n')
    assert source.read(tmp_path / "m.py", "m.py").tree.body


def first(code: str, kind: type[ast.AST]) -> ast.AST:
    return next(node for node in ast.walk(ast.parse(code)) if isinstance(node, kind))


def shown(code: str, kind: type[ast.AST] = ast.Call) -> tuple[int, int, int, int]:
    return node_span(first(code, kind), tuple(code.split("\n")))


def test_both_ends_count_from_one() -> None:
    assert shown("a = f(x)") == (1, 5, 1, 9)


def test_columns_count_characters() -> None:
    code = "'é', '漢字', '🙂', f('é')"
    assert shown(code) == (1, code.index("f(") + 1, 1, len(code) + 1)


@pytest.mark.parametrize("code", ["(x\n  .view(3)\n  .item())", "(x\n  .view(3)\n  .\\\n  item())"])
def test_a_chain_of_calls_starts_at_the_methods_name(code: str) -> None:
    line, column, _, end_column = shown(code)
    assert code.split("\n")[line - 1][column - 1 :].startswith("item()")
    assert end_column == column + 6


def test_a_chain_on_one_line_starts_where_it_starts() -> None:
    assert shown("x.view(3).item()")[:2] == (1, 1)
    assert shown("f(\n  x\n)") == (1, 1, 3, 2)


def test_a_chain_that_begins_in_other_letters() -> None:
    code = "('é'\n  .漢字(3))"
    assert shown(code) == (2, 4, 2, 9)


def test_what_has_no_place_is_at_the_start() -> None:
    assert node_span(ast.Load(), ("x",)) == (1, 1, 1, 1)


def test_lines_that_are_missing_do_no_harm() -> None:
    assert node_span(first("\n\nf(x)", ast.Call), ("one line",)) == (3, 1, 3, 5)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_an_encoding_is_named_in_a_line_of_any_end(line_end: bytes) -> None:
    data = b"# -*- coding: latin-1 -*-" + line_end + b"x = '\xe9'" + line_end
    text, encoding = source.decode(data, "x.py")
    assert encoding == "iso-8859-1"
    assert text.encode(encoding) == data
