"""The Python of every page runs as it is written, block after block."""

import ast
import contextlib
import io
import re
import sys

import pytest

import tpuport
from tests.docs.names import check_names
from tests.docs.pages import find_pages, read_blocks, read_spans
from tests.docs.readers import READERS, common, write_checkpoint

# Their blocks are run by the tests of what they are written from, or are files of a program.
RUN_ELSEWHERE = {
    "docs/compile-advice.md": "tests/topology/advice/test_advice_rules.py",
    "docs/patches.md": "tests/patches/test_registry_docs.py",
    "docs/rules/": "tests/lint/rules/test_oracle.py",
}


def _code_of(page):
    return [block for block in read_blocks(page) if block.language in {"python", "py"}]


def _place(page):
    """Where the blocks of a page are run, if not here."""
    return next((tests for start, tests in RUN_ELSEWHERE.items() if page.startswith(start)), None)


WITH_CODE = [page for page in find_pages() if _code_of(page) and _place(page) is None]


def _number_of_quick(page):
    """How many of a page's blocks run in the default tests."""
    reader, blocks = READERS[page], _code_of(page)
    if not reader.slow:
        return len(blocks)
    return next(place for place, block in enumerate(blocks) if reader.slow in block.text)


def _cases():
    for page in WITH_CODE:
        quick, whole = (_number_of_quick(page), len(_code_of(page))) if page in READERS else (1, 1)
        if quick:
            yield pytest.param(page, quick, id=page)
        if quick < whole:
            yield pytest.param(page, whole, id=f"{page}, whole", marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(directory)
    return directory


@pytest.fixture
def directory(tmp_path, checkpoint, monkeypatch):
    """Where the blocks run, with the checkpoints that they name."""
    (tmp_path / "path/to").mkdir(parents=True)
    for name in ("checkpoint", "smaller"):
        (tmp_path / "path/to" / name).symlink_to(checkpoint)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(
        sys.modules, "tpuport.auto", raising=False
    )  # so that it is imported as for the first time
    return tmp_path


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
@pytest.mark.filterwarnings("ignore:float64 becomes float32")
@pytest.mark.parametrize(("page", "count"), list(_cases()))
def test_a_pages_blocks_run_in_their_order(page, count, directory):
    assert page in READERS, "say in tests/docs/readers.py what its reader has"
    reader, blocks = READERS[page], _code_of(page)
    names = common(directory) | reader.names(directory)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            for block in blocks[:count]:
                code = block.text
                for pattern, smaller in reader.smaller:
                    code = re.sub(pattern, smaller, code)
                exec(compile("\n" * (block.line - 1) + code, page, "exec"), names)
        if count == len(blocks):
            reader.then(names, printed.getvalue(), directory)
    finally:
        tpuport.attention.unregister()
        tpuport.disable()


@pytest.mark.parametrize("page", WITH_CODE)
def test_what_is_said_of_a_reader_is_about_the_page(page):
    """What is replaced in the blocks of a page stands there."""
    text = "".join(block.text for block in _code_of(page))
    assert [pattern for pattern, _ in READERS[page].smaller if not re.search(pattern, text)] == []


def test_readers_and_exceptions_are_of_pages():
    assert set(READERS) == set(WITH_CODE)
    for start, tests in RUN_ELSEWHERE.items():
        assert any(page.startswith(start) for page in find_pages()), start
        assert re.match(r"tests/", tests)


@pytest.mark.parametrize("page", find_pages())
def test_the_names_of_a_page_exist(page):
    """What its blocks and its sentences take from tpuport is there, and has the arguments that they pass by name."""
    if page.startswith("docs/rules/"):
        return
    for block in _code_of(page):
        check_names(ast.parse(block.text))
    for span in read_spans(page):
        if re.search(r"\btpuport\.\w", span):
            with contextlib.suppress(SyntaxError):
                check_names(ast.parse(span.removeprefix("@").removesuffix(":").removeprefix("with ")))


@pytest.mark.parametrize(
    "code",
    [
        "tpuport.nothing",
        "tpuport.topology.nothing(model)",
        "from tpuport.sharding import nothing",
        "tpuport.load(cls, path, nothing=1)",
        "tpuport.port(pipe, nothing=1)",
        "tpuport.generate(model, ids, no_option_of_a_generation=1)",
        "from tpuport.topology import compile_for\ncompile_for(model, inputs, nothing=1)",
    ],
)
def test_what_tpuport_does_not_have_is_found(code):
    with pytest.raises((AssertionError, AttributeError, ImportError)):
        check_names(ast.parse(code))
