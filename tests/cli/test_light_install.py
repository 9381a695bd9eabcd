"""`tpuport lint` where nothing is installed but what the pre-commit hook installs."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODEL = """\
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        y = x.clone()
        y[x > 0] *= 2
        return y
"""
# Every other package is as if it were not installed.
WITHOUT_OTHERS = """\
import sys

INSTALLED = {"tpuport", "libcst", "yaml", "_yaml", "typing_extensions"}


class Missing:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in INSTALLED and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())
from tpuport.cli import main

sys.exit(max([main(command.split()) for command in sys.argv[1:]]))
"""


def run(directory: Path, *commands: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_OTHERS, *commands]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def test_lint_needs_libcst_only(tmp_path: Path) -> None:
    formats = ("text", "json", "sarif", "junit")
    for format_ in formats:
        (tmp_path / f"model_{format_}.py").write_text(MODEL)
    commands = [f"lint model_{format_}.py --fix --no-cache --format {format_}" for format_ in formats]
    process = run(tmp_path, *commands)
    assert (process.returncode, process.stderr) == (0, "")
    for format_ in formats:
        assert "y[x > 0]" not in (tmp_path / f"model_{format_}.py").read_text()


def test_another_command_names_what_is_missing(tmp_path: Path) -> None:
    process = run(tmp_path, "tune attention --topology v5e:2x2 --shape 1,1,1,8,8,8")
    assert (process.returncode, process.stdout) == (2, "")
    assert re.fullmatch(r"the package \w+ is not installed\n  fix: pip install tpuport\n", process.stderr)


def test_the_hook_installs_what_lint_needs() -> None:
    hook = (ROOT / ".pre-commit-hooks.yaml").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (libcst,) = (line for line in project["dependencies"] if line.startswith("libcst"))
    installed = re.findall(r'"([^"]+)"', hook)
    assert installed[:2] == ["--no-deps", libcst]
