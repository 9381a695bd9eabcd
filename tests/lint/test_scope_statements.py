"""Walks over syntax."""

import ast
import inspect

from tpuport.lint import analysis, modules, scanner
from tpuport.lint.scope_statements import all_nodes


def test_all_nodes_are_those_that_ast_walks_over_in_the_same_order() -> None:
    for module in (analysis, modules, scanner):
        tree = ast.parse(inspect.getsource(module))
        assert all_nodes(tree) == list(ast.walk(tree))
