"""Command lines of the documentation, given to the parsers of the programs that they name."""

import argparse
import ast
import importlib.util
import os
import re
import runpy
import shlex
import sys
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from tests.docs.names import check_names
from tests.docs.pages import ROOT, Block
from tpuport import cli
from tpuport.cli import COMMANDS, compile_request
from tpuport.hardware import parse_slice

# What no parser of ours reads.
_OF_THE_SYSTEM = {"printf", "cat", "curl", "wait"}
# A word in capitals stands for the reader's own, and "..." for more of it.
_PLACEHOLDER = re.compile(r"\.\.\.|(?<![a-z])[A-Z]{3,}(?![a-z])|ClassName")


class _Parsed(BaseException):
    """A program has read its arguments."""


def commands_of(block: Block) -> Iterator[str]:
    """The command lines of a block: of a console's those behind a `$`, of a script's all."""
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        if block.language != "console":
            command = line
        elif line.startswith("$ "):
            command = line[2:]
        else:
            continue
        if shlex.split(command, comments=True):
            yield command


def is_command(span: str) -> bool:
    """Whether code within a sentence is a command line of a program that is checked here."""
    return re.match(r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(tpuport|python|make|pip) ", span) is not None


def check_command(command: str) -> None:
    """Let the program that a command line names read its arguments.

    Raises:
        AssertionError: there is no such program, file, target or option.
    """
    words = shlex.split(command, comments=True)
    while re.match(r"[A-Z_]+=", words[0]):
        del words[0]
    end = next((place for place, word in enumerate(words) if word in {"&", ">", "|"}), len(words))
    program, *arguments = words[:end]
    match program.removeprefix(".venv/bin/"):
        case "tpuport":
            _check_tpuport(arguments)
        case "python":
            _check_python(arguments)
        case "make":
            _check_make(arguments)
        case "pip":
            _check_pip(arguments)
        case "pre-commit":
            assert arguments == ["install"]
        case name:
            assert name in _OF_THE_SYSTEM, f"nothing here knows the program {name}"


def _check_tpuport(arguments: list[str]) -> None:
    name, *rest = arguments
    if name == "COMMAND":
        assert rest == ["--help"]
        return
    assert name in COMMANDS
    if name == "tune" and rest in ([], ["attention"]):
        return  # the command's name, as sentences have it
    module = importlib.import_module(f"tpuport.cli.{name}")
    if any(_PLACEHOLDER.fullmatch(word) for word in rest):
        known = module.parser().format_help()
        known += _help_of_kernels(module) if name == "tune" else ""
        assert {word for word in rest if word.startswith("--")} <= set(re.findall(r"--[\w-]+", known))
        return
    options = module.parser().parse_args(rest)
    if name == "compile" and options.target is not None and options.topology:
        compile_request.requests_from(options)
    if name == "tune":
        parse_slice(options.topology)
    if (
        name == "lint"
        and (options.paths or options.explain)
        and not {"-", "--confirm", "--watch"} & set(rest)
    ):
        assert cli.main(arguments) in {0, 1}


def _help_of_kernels(module: object) -> str:
    """The help of `tpuport tune attention`."""
    parser = module.parser()  # type: ignore[attr-defined]
    [kernels] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return kernels.choices["attention"].format_help()


def _check_python(arguments: list[str]) -> None:
    match arguments:
        case ["-c", code]:
            check_names(ast.parse(code))
        case ["-m", "pytest", *rest]:
            _check_pytest(rest)
        case ["-m", module, *rest]:
            _check_program(module, rest)
        case ["..."]:
            pass
        case [file, *rest]:
            assert (ROOT / file).is_file()
            _check_program(file.removesuffix(".py").replace("/", "."), rest)


def _check_pytest(arguments: list[str]) -> None:
    is_value = False
    for argument in arguments:
        if argument.startswith("-"):
            is_value = True
        elif is_value:
            is_value = False
        else:
            assert _PLACEHOLDER.search(argument) or (ROOT / argument).exists(), argument


def _check_program(module: str, arguments: list[str]) -> None:
    """Run a program until it has read its arguments; without any, only look it up."""
    if module.endswith(".NAME"):
        assert (ROOT / module.removesuffix(".NAME")).is_dir()
        return
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"there is no module {module}"
    if spec.submodule_search_locations is not None:
        assert importlib.util.find_spec(f"{module}.__main__") is not None
    if not arguments or module == "tpuport":
        return
    try:
        taken = _takes(module, arguments)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"recipes", "benchmarks", "tpuport"}:
            raise
        # A package that is not installed: the options are looked up in the text beside the program.
        text = "".join(file.read_text() for file in Path(spec.origin or "").parent.glob("*.py"))
        taken = all(f'"{word}"' in text for word in arguments if word.startswith("--"))
    assert taken, f"{module} does not take {arguments}"


def _takes(module: str, arguments: list[str]) -> bool:
    """Whether a program, run until it has read its arguments, takes them."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(
        parser: argparse.ArgumentParser, given: object = None, namespace: object = None
    ) -> None:
        parse(parser, given, namespace)  # type: ignore[call-overload]
        raise _Parsed

    with (
        mock.patch.object(argparse.ArgumentParser, "parse_args", parse_and_stop),
        mock.patch.object(sys, "argv", [module, *arguments]),
        mock.patch.dict(os.environ),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", RuntimeWarning)  # other tests have imported it
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except _Parsed:
            return True
        except SystemExit as end:
            return end.code == 0
    return False  # it has not read them


def _check_make(arguments: list[str]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    variables = set(re.findall(r"^([A-Z_]+) \?=", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for argument in arguments:
        name, is_assignment, _ = argument.partition("=")
        assert name in (variables if is_assignment else targets), argument


def _check_pip(arguments: list[str]) -> None:
    verb, *words = arguments
    assert verb == "install"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for option, word in zip(["", *words], words, strict=False):
        if option == "-c":
            assert (ROOT / word).is_file()
        ours = re.fullmatch(r"(?:\.|tpuport|(?:dist/)?tpuport-[\d.]+-py3-none-any\.whl)\[(\w+)\]", word)
        assert ours is None or ours[1] in extras, word


def make_reader_directory(directory: Path) -> None:
    """Write what the commands of the pages are given, as small as it can be."""
    llama = ROOT / "recipes/llama/checkpoint"
    for name, file in {
        "path/to/pipeline": ROOT / "recipes/hunyuan_video/checkpoint",
        "path/to/config.json": llama / "config.json",
        "model_dir": llama,
        "recipes": ROOT / "recipes",
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).symlink_to(file)
    model = "from torch import nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        return x[x > 0]\n"
    for name in ("model.py", "src/model.py", "path/to/transformer_file.py", "path/to/modeling_file.py"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(model)
    (directory / "mine.py").write_text("def target():\n    raise NotImplementedError\n")
    (directory / "rules.json").write_text('{".*": ["tp", null]}')
