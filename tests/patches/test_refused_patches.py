"""Patches that cannot be applied, or are not for what is installed."""

import logging
import sys

import pytest

import tpuport
from tpuport import PortError
from tpuport.patches import registry


@pytest.mark.parametrize("qualname", ["scale", "Base.shape"])
def test_a_target_that_a_module_has_only_imported(library, qualname):
    target = f"fakelib.user:{qualname}"
    registry.register(registry.Patch("there", target, "fakelib", "", "why", "fakeours:constant", ("0" * 64,)))
    registry.apply_all()
    with pytest.raises(PortError, match=r"not defined there but in fakelib\.core") as caught:
        import fakelib.user  # noqa: F401
    assert f"name fakelib.core:{qualname}" in str(caught.value)


def test_another_source_fails_the_import_and_every_import_after_it(library):
    digest = library.source_digest("scale")
    registry.register(library.patch(source=("0" * 64,)))
    registry.apply_all()
    for _ in range(2):
        with pytest.raises(PortError, match="another source") as caught:
            import fakelib.core
        assert "fakelib.core" not in sys.modules
    text = str(caught.value)
    assert "'fakelib.scale'" in text
    assert "fakelib 1.2" in text
    assert digest in text
    assert 'tpuport.enable(patches="warn")' in text
    assert library.state().state == "source differs"
    registry.apply_all("warn")
    import fakelib.core

    assert fakelib.core.scale(3) == 6


def test_another_source_of_an_imported_target_fails_enable_which_changes_nothing(library):
    from fakelib import core

    registry.register(library.patch("Base.shape", "constant"))
    registry.register(library.patch(source=("0" * 64,)))
    with pytest.raises(PortError, match="another source"):
        tpuport.enable()
    assert not registry.applied()
    assert core.Base().shape(0) == "original"
    assert not tpuport.activation.enabled()


def test_a_warning_where_the_user_asks(library, caplog, monkeypatch):
    registry.register(library.patch(source=("0" * 64,)))
    monkeypatch.setenv("TPUPORT_PATCHES", "warn")
    tpuport.enable()
    with caplog.at_level(logging.WARNING, logger="tpuport"):
        from fakelib import core
    assert "another source" in caplog.text
    assert core.scale(3) == 6
    assert "digest" in library.state().detail
    with pytest.raises(PortError, match="another source"):
        tpuport.enable(patches="error")


def test_versions_outside_of_the_range_are_left_alone_and_said(library, caplog):
    registry.register(library.patch(versions=">=1.3"))
    registry.register(library.patch("Base.shape", "constant"))
    registry.apply_all()
    assert (library.state().state, library.state().installed) == ("version outside range", "1.2")
    from fakelib import core

    assert core.scale(3) == 6
    assert core.Base().shape(0) == "patched"
    registry.apply_all()
    assert caplog.text.count("fakelib 1.2 is installed, the patch is for >=1.3") == 1


def test_a_package_that_is_not_installed_and_code_that_is_no_package(library):
    absent = registry.Patch(
        "absent", "absent.code:f", "absent-package", "", "why", "fakeours:scale", ("0" * 64,)
    )
    registry.register(absent)
    cloned = registry.Patch(
        "cloned",
        "fakelib.core:scale",
        "",
        "",
        "why",
        "fakeours:scale",
        (library.source_digest("scale"),),
        "always",
    )
    registry.register(cloned)
    registry.apply_all()
    assert library.state("absent").state == "not installed"
    from fakelib import core

    assert core.scale(3) == ("patched", 6)


@pytest.mark.parametrize(
    ("qualname", "message"),
    [
        ("nothing", "there is no nothing"),
        ("Base.nothing", "there is no nothing"),
        ("Nothing.shape", "there is no class Nothing"),
        ("Child.shape", "shape is inherited"),
        ("Base", "Base is not a function"),
        ("TABLE", "TABLE is not a function"),
    ],
)
def test_a_target_that_is_not_there_or_no_function(library, qualname, message):
    registry.register(library.patch(qualname, source=("0" * 64,)))
    registry.apply_all()
    with pytest.raises(PortError, match=message):
        import fakelib.core  # noqa: F401
    assert library.state(f"fakelib.{qualname}").state == "target missing"


def test_a_replacement_that_is_not_there(library):
    registry.register(library.patch(replacement="nothing"))
    registry.apply_all()
    with pytest.raises(PortError, match=r"replacement of patch 'fakelib.scale' cannot be imported"):
        import fakelib.core  # noqa: F401


def test_two_patches_for_one_function_or_of_one_name(library):
    registry.register(library.patch())
    with pytest.raises(PortError, match="two patches are named"):
        registry.register(library.patch(replacement="constant"))
    registry.register(library.patch(name="second"))
    registry.apply_all()
    with pytest.raises(PortError, match="replace the same function"):
        import fakelib.core  # noqa: F401


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("target", "fakelib.core.scale", "is not a qualified name"),
        ("replacement", "scale", "is not a qualified name"),
        ("versions", "new ones", "cannot be read"),
        ("source", (), "does not say which source"),
        ("source", ("abc",), "does not say which source"),
    ],
)
def test_a_patch_that_says_too_little(field, value, message):
    good = {
        "name": "n", "target": "m:f", "package": "p", "versions": ">=1", "why": "w", "replacement": "r:f",
        "source": ("0" * 64,),
    }  # fmt: skip
    registry.Patch(**good)
    with pytest.raises(PortError, match=message):
        registry.Patch(**{**good, field: value})
