"""Where in a file a syntax node is shown."""

import ast


def place(node: ast.AST, lines: tuple[str, ...]) -> tuple[int, int, int, int]:
    """Line and column of a node's start and of its end, all from 1, columns in characters.

    A method call in a chain over several lines starts at its method's name, which is where Python's own tracebacks
    point; everything else starts where its expression does.
    """
    line = getattr(node, "lineno", 1)
    column = getattr(node, "col_offset", 0)
    end_line = getattr(node, "end_lineno", None) or line
    end_column = getattr(node, "end_col_offset", None) or column
    func = node.func if isinstance(node, ast.Call) else None
    if isinstance(func, ast.Attribute) and func.end_lineno and func.end_lineno != line:
        line = func.end_lineno
        column = (func.end_col_offset or 0) - len(func.attr.encode())
    return line, _characters(lines, line, column), end_line, _characters(lines, end_line, end_column)


def _characters(lines: tuple[str, ...], line: int, offset: int) -> int:
    """Column from 1 in characters, of an offset in UTF-8 bytes."""
    text = lines[line - 1] if 0 < line <= len(lines) else ""
    if text.isascii():
        return offset + 1
    return len(text.encode()[:offset].decode(errors="ignore")) + 1
