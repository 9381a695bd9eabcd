"""Walks over syntax."""

import ast
import inspect
import textwrap

from tpuport.lint import analysis, modules, scanner
from tpuport.lint.scope_statements import DefinitionNode, all_nodes, definitions


def test_all_nodes_are_those_that_ast_walks_over_in_the_same_order() -> None:
    for module in (analysis, modules, scanner):
        tree = ast.parse(inspect.getsource(module))
        assert all_nodes(tree) == list(ast.walk(tree))


def test_definitions_stand_in_every_kind_of_block() -> None:
    text = """
    def a(x=lambda: 0):
        class b:
            async def c(self): ...
        return b
    if a:
        def d(): ...
    else:
        def e(): ...
    try:
        def f(): ...
    except OSError:
        def g(): ...
    else:
        def h(): ...
    finally:
        def i(): ...
    for _ in a:
        def j(): ...
    else:
        def k(): ...
    while a:
        def l(): ...
    with a:
        def m(): ...
    match a:
        case 1:
            class n: ...
        case _:
            def o(): ...
    """
    tree = ast.parse(textwrap.dedent(text))
    in_order = list(definitions(tree))
    assert [definition.node.name for definition in in_order] == list("abcdefghijklmno")
    assert [definition.prefix for definition in in_order[:4]] == ["", "a", "a.b", ""]
    assert [definition.parent for definition in in_order[:4]] == [
        None,
        in_order[0].node,
        in_order[1].node,
        None,
    ]


def test_definitions_are_all_that_a_file_has_in_its_order() -> None:
    for module in (analysis, modules, scanner):
        tree = ast.parse(inspect.getsource(module))
        expected = [node for node in ast.walk(tree) if isinstance(node, DefinitionNode)]
        expected.sort(key=lambda node: node.lineno)
        assert [definition.node for definition in definitions(tree)] == expected
