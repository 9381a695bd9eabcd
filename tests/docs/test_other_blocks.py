"""Blocks of the documentation that are neither Python nor commands: settings, differences, and what programs print."""

import ast
import importlib
import json
import re
import tomllib

import pytest
import yaml

from tests.docs.commands import check_command
from tests.docs.pages import ROOT, find_pages, read_blocks
from tpuport.cli import COMMANDS
from tpuport.patches import entry_points
from tpuport.server.code_actions import FIX_ALL

BLOCKS = [block for page in find_pages() for block in read_blocks(page)]

# What a program prints, by the page and the first words: what holds it against the program, or why nothing does.
PRINTED = {
    ("docs/check.md", "check of ReadsValues"): "test_targets.py",
    ("docs/compile.md", "llama-2-7b, decode"): "test_targets.py",
    ("docs/lint.md", "train.ipynb:cell"): "tests/lint/test_notebooks.py has findings of this form",
    ("docs/lint.md", "In models, 3 of 4"): "tests/lint/test_entry_verdicts.py has verdicts of this form",
    (
        "docs/reliability.md",
        "tpuport: process 1",
    ): "tests/distributed/test_process_watch.py has sentences of this form",
    (
        "recipes/flux/README.md",
        "ported FluxPipeline",
    ): "figures of a run; tests/recipes/test_pipeline_recipes.py",
    ("recipes/hunyuan_video/README.md", "line 702"): "lines of one release of diffusers",
    ("recipes/hunyuan_video/README.md", "programs compiled"): "tests/recipes/test_hunyuan_recipe.py",
    (
        "recipes/hunyuan_video/README.md",
        "tpuport: a pixel",
    ): "figures of a run; tests/recipes/test_hunyuan_recipe.py",
    (
        "recipes/hunyuan_video/README.md",
        "mask dropped",
    ): "figures of a run; tests/recipes/test_hunyuan_masking.py",
    (
        "recipes/qwen_image/README.md",
        "ported QwenImage",
    ): "figures of a run; tests/recipes/test_pipeline_recipes.py",
    ("recipes/vision_language/README.md", "image 1"): "tests/recipes/test_generation_recipes.py",
    (
        "recipes/wan/README.md",
        "ported WanPipeline",
    ): "figures of a run; tests/recipes/test_pipeline_recipes.py",
    ("recipes/whisper/README.md", "recording 1"): "tests/recipes/test_generation_recipes.py",
}


def of(language):
    blocks = [block for block in BLOCKS if block.language == language]
    return [pytest.param(block, id=f"{block.page}:{block.line}") for block in blocks]


def test_every_block_has_a_test():
    """Python has test_python_blocks.py, commands have test_commands.py, and others the tests below."""
    elsewhere = {"python", "py", "bash", "console"}
    here = {"toml", "yaml", "json", "lua", "elisp", "diff", "text"}
    none = {"mermaid"}  # a diagram, which the reader's browser draws
    assert [block for block in BLOCKS if block.language not in elsewhere | here | none] == []


def test_what_is_printed_on_a_page_is_held_against_its_program():
    unnamed = [block for block in BLOCKS if block.language == "text" and block.page != "docs/cli.md"]
    for page, head in PRINTED:
        [named] = [block for block in unnamed if block.page == page and block.head.startswith(head)]
        unnamed.remove(named)
    assert unnamed == []
    for tests in PRINTED.values():
        for file in re.findall(r"\S+\.py", tests):
            assert (ROOT / file).is_file() or (ROOT / "tests/docs" / file).is_file()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_options_of_a_command_are_those_of_its_synopsis(name, capsys):
    synopses = [
        block.text for block in read_blocks("docs/cli.md") if block.text.startswith(f"tpuport {name}")
    ]
    parser = importlib.import_module(f"tpuport.cli.{name}").parser()
    with pytest.raises(SystemExit):
        parser.parse_args(["attention", "--help"] if name == "tune" else ["--help"])
    taken = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    # Of a switch with two forms the one that is not the default.
    shown = set(re.findall(r"--[a-z][a-z-]+", "".join(synopses)))
    assert shown <= taken
    assert taken - shown <= {"--help", "--show-source"}


@pytest.mark.parametrize("block", of("toml"))
def test_settings_in_toml(block):
    """Those of the linter are read by tests/lint/test_docs.py."""
    settings = tomllib.loads(block.text)
    assert set(settings) <= {"tool", "project", "language-server", "language"}
    for server in settings.get("language-server", {}).values():
        check_command(" ".join([server["command"], *server["args"]]))
    for language in settings.get("language", []):
        assert set(settings["language-server"]) <= set(language["language-servers"])
    if "project" in settings:
        assert set(settings["project"]["entry-points"]) == {entry_points.GROUP}


@pytest.mark.parametrize("block", of("yaml"))
@pytest.mark.usefixtures("reader_directory")
def test_commands_in_yaml(block):
    """tests/lint/test_docs.py compares the workflow with its file."""
    text = json.dumps(yaml.load(block.text, yaml.BaseLoader))
    commands = re.findall(r'"(?:run|entry)": "([^"]+)"', text)
    assert commands
    for command in commands:
        check_command(command)


EDITORS = [*of("json"), *of("lua"), *of("elisp")]


@pytest.mark.parametrize("block", EDITORS)
def test_editors_start_the_server(block):
    words = re.findall(r'"([^"]*)"', block.text)
    assert words.index("server") > next(place for place, word in enumerate(words) if word.endswith("tpuport"))
    assert {word for word in words if word.startswith("source.")} <= {FIX_ALL}
    if block.language == "json":
        json.loads(block.text)


@pytest.mark.parametrize("block", of("diff"))
def test_differences_are_those_of_the_files(block):
    """A line that goes is in a file of `before`, and one that comes in a file of `after`."""
    folders = (ROOT / block.page).parent
    for sign, name in {"-": "before", "+": "after"}.items():
        files = [file.read_text() for file in (folders / name).glob("*.py")]
        lines = {line for file in files for line in file.splitlines()}
        assert {line[1:] for line in block.text.splitlines() if line.startswith(sign)} <= lines


def test_the_python_of_pages_parses():
    """Of those too whose blocks are run by other tests."""
    for block in BLOCKS:
        if block.language in {"python", "py"}:
            ast.parse(block.text)
