import subprocess
import sys

import pytest

import tpuport
from tpuport.compat import versions

WORKING = {
    "torch": "2.13.0+cpu", "torchax": "0.0.13", "jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": None,
    "transformers": "5.23.0", "diffusers": "0.42.1",
}  # fmt: skip


def installed(monkeypatch, **changes):
    monkeypatch.setattr(versions, "checked_versions", lambda: {**WORKING, **changes})


@pytest.mark.parametrize("torch", ["2.13.0", "2.13.0+cpu"])
def test_the_pinned_versions_pass_in_silence(monkeypatch, caplog, torch):
    caplog.set_level("DEBUG", logger="tpuport")
    installed(monkeypatch, torch=torch)
    versions.check()
    assert not caplog.records


@pytest.mark.parametrize(
    ("changes", "install"),
    [
        ({"torch": "2.7.1"}, "torch==2.13.0"),
        ({"torchax": "0.0.11"}, "torchax==0.0.13"),
        ({"jax": "0.9.2", "jaxlib": "0.9.2"}, "jax==0.10.2 jaxlib==0.10.2"),
        ({"jax": "0.10.1"}, "pip install jax==0.10.1 jaxlib==0.10.1"),
        ({"torchax": None}, "pip install torchax==0.0.13"),
        ({"torch": None, "jax": None}, "pip install torch==2.13.0 jax==0.10.2"),
    ],
)
def test_what_cannot_work_names_the_versions_to_install(monkeypatch, changes, install):
    installed(monkeypatch, **changes)
    with pytest.raises(tpuport.PortError) as raised:
        versions.check()
    assert install in (raised.value.fix or "")


@pytest.mark.parametrize(
    "changes",
    [
        {"torch": "2.14.1"},
        {"torch": "2.15.0+cu132", "torchax": "0.0.14.dev20261026"},
        {"torch": "2.99.0.a0+gitabc"},
        {"jax": "0.12.0.1", "jaxlib": "0.12.0.1"},
        {"torch": "1!built-by-hand"},
        {"jaxlib": "1!built-by-hand"},
        {"jax": "1!built-by-hand"},
    ],
)
def test_untried_versions_are_noted_and_given_their_chance(monkeypatch, caplog, changes):
    caplog.set_level("INFO", logger="tpuport")
    installed(monkeypatch, **changes)
    versions.check()
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert "pinned to pip install torch==2.13.0" in record.message


def test_the_installed_versions_are_read_from_their_metadata():
    import jax
    import torch

    found = versions.checked_versions()
    assert found["jax"] == jax.__version__
    # torch itself adds the build.
    assert torch.__version__.startswith(found["torch"])
    assert set(found) == set(versions.PACKAGES)


def test_checked_before_anything_is_imported():
    code = (
        "import sys\n"
        "from tpuport import PortError, enable\n"
        "from tpuport.compat import versions\n"
        "versions.checked_versions = lambda: dict.fromkeys(versions.PACKAGES, '0.0.1')\n"
        "try:\n    enable()\n"
        "except PortError as error:\n    print(error.fix)\n"
        "assert not {'torch', 'jax', 'torchax'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("pip install torch==2.13.0 torchax==0.0.13")
