import subprocess
import sys
from pathlib import Path

import pytest

import tpuport
from tpuport.compat import versions

WORKING = {
    "torch": "2.13.0+cpu", "torchax": "0.0.13", "jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": None,
    "transformers": "5.23.0", "diffusers": "0.42.1",
}  # fmt: skip


def installed(monkeypatch, **changes):
    monkeypatch.setattr(versions, "checked_versions", lambda: {**WORKING, **changes})


@pytest.mark.parametrize("torchax", ["0.0.13", versions.NIGHTLY])
@pytest.mark.parametrize("torch", ["2.13.0", "2.13.0+cpu", "2.13.1"])
def test_tested_combinations_pass_in_silence(monkeypatch, caplog, torch, torchax):
    installed(monkeypatch, torch=torch, torchax=torchax)
    versions.check()
    assert not caplog.records


@pytest.mark.parametrize(
    ("changes", "install"),
    [
        ({"torch": "2.14.0"}, "pip install torch==2.13.0"),
        ({"torch": "2.15.0+cu130"}, "pip install torch==2.13.0"),
        ({"torch": "2.14.0", "torchax": "0.0.14.dev20260801"}, "pip install torch==2.13.0"),
        ({"torch": "2.7.1"}, "torch==2.13.0"),
        ({"torchax": "0.0.11"}, "torchax==0.0.13"),
        ({"jax": "0.7.2", "jaxlib": "0.7.2"}, "jax==0.10.2 jaxlib==0.10.2"),
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
    "changes", [{"torchax": "0.0.14.dev20261101"}, {"jax": "0.11.0", "jaxlib": "0.11.0"}]
)
def test_untested_versions_are_logged_and_given_their_chance(monkeypatch, caplog, changes):
    installed(monkeypatch, **changes)
    versions.check()
    assert "untested" in caplog.text


def test_the_installed_versions_are_read_from_their_metadata():
    import jax
    import torch

    found = versions.checked_versions()
    assert found["jax"] == jax.__version__
    assert found["torch"] == torch.__version__
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


def test_the_pins_are_the_versions_that_are_recommended():
    root = Path(__file__).parents[2]

    def pinned(name):
        lines = (root / name).read_text().splitlines()
        return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))

    assert {name: pinned("constraints.txt")[name] for name in versions.RECOMMENDED} == versions.RECOMMENDED
    assert pinned("constraints-nightly.txt")["torchax"] == versions.NIGHTLY
