"""The pins and the declared dependencies are what the code says and imports."""

import ast
import re
import sys
import tomllib
from pathlib import Path

from tpuport.compat import versions

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / name).read_text(), re.MULTILINE))


def imported() -> set[str]:
    """Top-level packages that the package's code imports, wherever it does."""
    packages = set()
    for path in (ROOT / "tpuport").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                packages |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                packages.add(node.module.split(".")[0])
    return packages - set(sys.stdlib_module_names) - {"tpuport"}


def test_the_recommended_versions_are_the_pinned_ones() -> None:
    constraints = pins("constraints.txt")
    assert {name: constraints[name] for name in versions.RECOMMENDED} == versions.RECOMMENDED
    assert pins("constraints-nightly.txt") == {"torchax": versions.NIGHTLY}


def test_every_line_of_the_constraints_is_an_exact_pin() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == len(pins("constraints.txt"))


def test_every_import_is_a_declared_dependency() -> None:
    optional = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *optional["gguf"], *optional["server"]]
    declared = {re.match(r"[\w.-]+", line).group() for line in lines}
    packages = imported()
    assert packages - declared <= {"jaxlib"}  # comes with jax
    assert declared <= packages
