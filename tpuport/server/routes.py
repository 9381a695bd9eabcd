"""Where the functions are through which tracing gets to a finding."""

import functools
from pathlib import Path
from typing import NamedTuple

from tpuport.lint import source
from tpuport.lint.findings import Finding
from tpuport.lint.scope_statements import definitions, join_names


class RouteStep(NamedTuple):
    """A function on the route to a finding: its qualified name, its file, and its line
    and column from 1.
    """

    name: str
    path: str
    line: int
    column: int


def steps_of_route(finding: Finding, traced: frozenset[str]) -> tuple[RouteStep, ...]:
    """The functions of a finding's route, from the entry point inwards, without those
    that cannot be located.

    Args:
        finding: its route has qualified names without files.
        traced: `path:qualname` of the traced functions.
    """
    # The only function of a route is the one that the finding is in.
    if len(finding.route) < 2:
        return ()
    steps = [_locate(name, finding, traced) for name in finding.route]
    return tuple(step for step in steps if step is not None)


def _locate(name: str, finding: Finding, traced: frozenset[str]) -> RouteStep | None:
    suffix = f":{name}"
    paths = [
        function.removesuffix(suffix)
        for function in traced
        if function.endswith(suffix)
    ]
    own = [path for path in paths if path == finding.path]
    # A name that several files have may mean either.
    candidates = own or paths
    if len(candidates) != 1:
        return None
    (path,) = candidates
    line = _definition_lines(path, _text_of(path)).get(name)
    return RouteStep(name, path, *line) if line is not None else None


def _text_of(path: str) -> str:
    try:
        return source.read(Path(path), path).text
    except source.Unreadable:
        return ""


@functools.lru_cache(maxsize=64)
def _definition_lines(path: str, text: str) -> dict[str, tuple[int, int]]:
    """Line and column of each function of a file, by its qualified name."""
    try:
        tree = source.parse(text, Path(path), path).tree
    except source.Unreadable:
        return {}
    return {
        join_names(prefix, node.name): (node.lineno, node.col_offset + 1)
        for node, prefix, _ in definitions(tree)
    }
