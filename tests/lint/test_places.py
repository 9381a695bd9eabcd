"""Where a finding is shown."""

import ast

import pytest

from tpuport.lint.places import place


def first(code: str, kind: type[ast.AST]) -> ast.AST:
    return next(node for node in ast.walk(ast.parse(code)) if isinstance(node, kind))


def shown(code: str, kind: type[ast.AST] = ast.Call) -> tuple[int, int, int, int]:
    return place(first(code, kind), tuple(code.split("\n")))


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
    assert place(ast.Load(), ("x",)) == (1, 1, 1, 1)


def test_lines_that_are_missing_do_no_harm() -> None:
    assert place(first("\n\nf(x)", ast.Call), ("one line",)) == (3, 1, 3, 5)
