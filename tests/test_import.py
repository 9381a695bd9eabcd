"""What `import tpuport` costs, and that every public name is there."""

import subprocess
import sys

import pytest

import tpuport

HEAVY = ("torch", "jax", "jaxlib", "torchax", "transformers", "numpy")


def imported_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement", ["import tpuport", "import tpuport; dir(tpuport)", "import tpuport.cli"]
)
def test_importing_tpuport_imports_no_heavy_package(statement: str) -> None:
    assert imported_by(statement).isdisjoint(HEAVY)


def test_a_wrong_shape_is_an_error_before_anything_heavy_is_imported() -> None:
    arguments = ["tune", "attention", "--topology", "v5e", "--shape", "nonsense"]
    assert imported_by(f"from tpuport.cli import main; assert main({arguments}) == 2").isdisjoint(HEAVY)


def test_a_heavy_package_would_be_seen() -> None:
    assert "numpy" in imported_by("import numpy")


def test_enabling_imports_no_kernels() -> None:
    """Pallas takes a tenth of a second."""
    imported = imported_by("import tpuport.auto")
    assert "torchax" in imported
    assert "jax.experimental.pallas" not in imported
    assert "transformers" not in imported


@pytest.mark.slow  # tests/distributed joins processes after importing tpuport
def test_no_module_starts_the_devices_when_it_is_imported() -> None:
    """Processes can be joined only before the devices are started."""
    code = """
import importlib, pkgutil, sys, tpuport
for module in pkgutil.walk_packages(tpuport.__path__, "tpuport."):
    if module.name not in ("tpuport.__main__", "tpuport.auto"):  # these two are run by being imported
        importlib.import_module(module.name)
        backends = sys.modules["jax._src.xla_bridge"]._backends if "jax" in sys.modules else {}
        assert not backends, module.name
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", tpuport.__all__)
def test_public_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(tpuport, name)
    assert getattr(tpuport, name) is value
    assert name in dir(tpuport)
    assert name == "__version__" or value.__doc__


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tpuport.nonsense
