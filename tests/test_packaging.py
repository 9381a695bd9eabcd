"""The pins and the declared dependencies are what the code says and imports; the wheel holds the package and runs."""

import ast
import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

import tpuport
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


def test_no_dependency_has_an_upper_bound() -> None:
    assert [line for line in PROJECT["dependencies"] if "<" in line or "==" in line] == []


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    oldest = pins("constraints-oldest.txt")
    bounds = dict(line.split(">=") for line in PROJECT["dependencies"])
    assert all(Version(oldest[name]) >= Version(bound) for name, bound in bounds.items())
    for name in ("torch", "torchax", "jax", "transformers", "diffusers", "accelerate"):
        assert Version(oldest[name]) == Version(bounds[name])


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-newest.txt", "constraints-oldest.txt"])
def test_every_line_of_the_constraints_is_an_exact_pin(name: str) -> None:
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == len(pins(name))


def test_every_import_is_a_declared_dependency() -> None:
    optional = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *optional["gguf"], *optional["server"]]
    declared = {re.match(r"[\w.-]+", line).group() for line in lines}
    packages = imported()
    assert packages - declared <= {"jaxlib"}  # comes with jax
    assert declared <= packages


def build(folder: Path, project: Path = ROOT, *, target: str | None = None) -> list[Path]:
    """The sdist and the wheel of a project, as `make dist` builds them, or one of them."""
    targets = ["--target", target] if target else []
    command = [sys.executable, "-m", "hatchling", "build", *targets, "--directory", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(distributions: list[Path]) -> Path:
    return distributions[0]


@pytest.fixture(scope="module")
def sdist(distributions: list[Path]) -> Path:
    return distributions[1]


def tracked_package_files() -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "tpuport"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return {path for path in listed.stdout.splitlines() if (ROOT / path).exists()}


def test_the_wheel_holds_the_package_and_its_metadata(wheel: Path) -> None:
    assert wheel.name == f"tpuport-{tpuport.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        folder = f"tpuport-{tpuport.__version__}.dist-info"
        metadata = email.message_from_bytes(archive.read(f"{folder}/METADATA"))
        commands = archive.read(f"{folder}/entry_points.txt").decode()
    package = {name for name in names if name.startswith("tpuport/")}
    assert package >= tracked_package_files() - {"tpuport/ruff.toml"}
    assert not [name for name in package if not name.endswith((".py", ".json", ".css", ".js", ".typed"))]
    assert {name for name in names - package if not name.startswith(folder)} == set()
    assert f"{folder}/licenses/LICENSE" in names
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert "tpuport = tpuport.__main__:main" in commands


def test_the_pages_name_the_wheel_of_this_version() -> None:
    named = {
        version
        for page in ("README.md", "docs/install.md")
        for version in re.findall(r"tpuport-([\w.]+)-py3-none-any\.whl", (ROOT / page).read_text())
    }
    assert named == {tpuport.__version__}


def test_the_sdist_holds_what_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (project,) = tmp_path.iterdir()
    assert {path.name for path in project.iterdir()} == {
        "tpuport", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO", ".gitignore"
    }  # fmt: skip
    (rebuilt,) = build(tmp_path / "dist", project, target="wheel")
    assert rebuilt.read_bytes() == wheel.read_bytes()


def test_both_are_reproducible(distributions: list[Path], tmp_path: Path) -> None:
    assert [path.read_bytes() for path in build(tmp_path)] == [path.read_bytes() for path in distributions]


def test_neither_holds_data_that_the_code_does_not_need(wheel: Path, sdist: Path) -> None:
    """Both are the code: 5 MB of Python, a third of that compressed."""
    with zipfile.ZipFile(wheel) as archive:
        sizes = {entry.filename: entry.compress_size for entry in archive.infolist()}
    code = sum(size for name, size in sizes.items() if name.endswith(".py"))
    assert sum(sizes.values()) - code < 150_000
    assert sdist.stat().st_size < wheel.stat().st_size < 2_500_000


@pytest.mark.slow  # `test_the_wheel_holds_the_package_and_its_metadata`
def test_an_installed_wheel_diagnoses_lints_and_ports(wheel: Path, tmp_path: Path) -> None:
    """In an environment that has nothing but the wheel, and finds the dependencies of this one behind it."""
    environment = tmp_path / "environment"
    python = environment / "bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        wheel,
    ]
    subprocess.run(install, check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    dependencies = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages / "dependencies.pth").write_text("\n".join(dependencies))
    program = ROOT / "tests/installed_package.py"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, "-P", program], cwd=tmp_path, env=variables, check=True)


def test_the_notes_of_this_version_are_a_page_whose_links_lead_somewhere() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    newest = re.split("^## ", text, flags=re.MULTILINE)[1]
    assert newest.startswith(f"{tpuport.__version__} ")
    assert len(newest) < 9_000
    links = re.findall(r"\]\((?!https)([^)#]+)(?:#([^)]+))?\)", text)
    assert len(links) > 10
    for page, anchor in links:
        headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, (page, anchor)
