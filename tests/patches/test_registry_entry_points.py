"""Patches that another distribution brings."""

import importlib.metadata
import logging
import sys
import textwrap

import pytest

import tpuport
from tpuport import PortError
from tpuport.patches import catalog, digest, entry_points, registry

GOOD = """
    from tpuport.patches import Patch, digest

    def double(x):
        return x * 3

    one = Patch("pointed.one", "pointedlib:f", "why", "pointed:double", SOURCE, "always")
    several = [one]

    def made():
        return (one,)
"""


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """A function that installs one whose entry point has a value."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pointedlib.py").write_text("def f(x):\n    return x * 2\n")
    source = repr((digest("pointedlib:f"),))
    del sys.modules["pointedlib"]
    (tmp_path / "pointed.py").write_text(textwrap.dedent(GOOD).replace("SOURCE", source))
    (tmp_path / "pointedlib-1.0.dist-info").mkdir()
    (tmp_path / "pointedlib-1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: pointedlib\nVersion: 1.0\n"
    )
    info = tmp_path / "pointed-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pointed\nVersion: 0.3\n")

    def install(value):
        (info / "entry_points.txt").write_text(f"[tpuport.patches]\nmine = {value}\n")

    tpuport.disable()
    monkeypatch.setattr(catalog, "_loaded", False)
    yield install
    tpuport.disable()
    registry.unregister("pointed.one")
    for name in ("pointed", "pointedlib"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("value", ["pointed:one", "pointed:several", "pointed:made"])
def test_a_patch_by_entry_point(distribution, value):
    distribution(value)
    tpuport.enable()
    (status,) = [status for status in registry.statuses() if status.patch.name == "pointed.one"]
    assert (status.origin, status.state) == ("pointed", "waiting for import")
    import pointedlib

    assert pointedlib.f(1) == 3
    tpuport.disable()
    assert pointedlib.f(1) == 2


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("pointed:nothing", "cannot be loaded: AttributeError"),
        ("not_there:patches", "cannot be loaded: ModuleNotFoundError"),
        ("pointed:GOOD", "cannot be loaded"),
        ("sys:path", "gives str as a patch"),
    ],
)
def test_a_broken_entry_point_names_its_distribution(distribution, caplog, value, message):
    distribution(value)
    with pytest.raises(PortError, match=message) as caught:
        registry.apply_all("error")
    assert "of pointed" in str(caught.value)
    assert registry.applied() == ()
    with caplog.at_level(logging.WARNING, logger="tpuport"):
        registry.apply_all("warn")
        assert all(status.origin != "pointed" for status in registry.statuses())
    assert message.partition(":")[0] in caplog.text


def test_the_group_is_the_documented_one():
    assert entry_points.GROUP == "tpuport.patches"
    assert entry_points.points() == list(importlib.metadata.entry_points(group="tpuport.patches"))
