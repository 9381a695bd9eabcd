"""Patches that cannot be applied, or are not for what is installed."""

import logging

import pytest
import torch

import tpuport
from tpuport import PortError, activation
from tpuport.patches import Patch, registry

# The digest of no function.
NOWHERE = f"{'0' * 8}-{'0' * 32}"


@pytest.mark.parametrize("qualname", ["scale", "Base.shape"])
def test_a_target_that_a_module_has_only_imported(library, qualname):
    target = f"fakelib.user:{qualname}"
    registry.register(Patch("there", target, "why", "fakeours:constant", (NOWHERE,)))
    registry.apply_all()
    import fakelib.user  # noqa: F401

    detail = library.state("there").detail
    assert "not defined there but in fakelib.core" in detail
    assert f"name fakelib.core:{qualname}" in detail


def model_of(library, module="core"):
    """A model whose class the library defines."""
    library.write(f"fakelib/{module}.py", (library.root / f"fakelib/{module}.py").read_text() + MODEL)
    return __import__(f"fakelib.{module}", fromlist=["Model"]).Model()


MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x):
        return scale(self.layer(x))
"""


@pytest.mark.parametrize("strictness", ["warn", "error"])
def test_another_source_is_said_by_port_and_never_by_an_import(library, caplog, strictness):
    digest = library.source_digest("scale")
    registry.register(library.patch(source=(NOWHERE,)))
    tpuport.enable(patches=strictness)
    with caplog.at_level(logging.WARNING, logger="tpuport"):
        model = model_of(library)
    assert not caplog.text
    assert library.state().state == "source differs"
    assert digest in library.state().detail
    if strictness == "error":
        with pytest.raises(PortError, match=r"another source of fakelib\.core:scale") as caught:
            tpuport.port(model)
        assert "TPUPORT_PATCHES=warn" in str(caught.value)
        assert not tpuport.compat.is_ported(model.layer.weight)
        return
    x = torch.ones(1, 2)
    expected = model(x)
    torch.testing.assert_close(tpuport.to_cpu(tpuport.port(model)(x)), expected)
    message = "patch fakelib.scale is off: fakelib 1.2 has another source of fakelib.core:scale"
    assert caplog.text.count(message) == 1
    assert "It cannot be traced." in caplog.text
    tpuport.port(model)
    assert caplog.text.count(message) == 1


def test_a_target_of_another_name_is_said_beside_what_is_replaced(library, caplog):
    registry.register(library.patch("sclae", name="fakelib.scale", source=(library.source_digest("scale"),)))
    tpuport.enable()
    with caplog.at_level(logging.WARNING, logger="tpuport"):
        tpuport.port(model_of(library))
    assert "patch fakelib.scale has lost its target: fakelib 1.2 lacks the function" in caplog.text
    assert "It replaces fakelib.core:scale alone, with the same source" in caplog.text


def test_a_model_of_other_code_is_not_told(library, caplog):
    registry.register(library.patch(source=(NOWHERE,)))
    tpuport.enable()
    import fakelib.core  # noqa: F401

    tpuport.port(torch.nn.Linear(2, 2))
    assert "patch" not in caplog.text


def test_an_import_survives_a_search_that_fails(library, caplog, monkeypatch):
    registry.register(library.patch())
    registry.apply_all()
    monkeypatch.setattr(registry, "check_definition", lambda *_: 1 / 0)
    import fakelib.core

    assert fakelib.core.scale(3) == 6
    assert "patches of fakelib.core: ZeroDivisionError" in caplog.text


def test_an_import_that_fails_by_itself_fails_as_before(library):
    registry.register(library.patch())
    registry.apply_all()
    library.write("fakelib/core.py", "import not_there")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="not_there"):
            import fakelib.core  # noqa: F401
    library.write("fakelib/core.py", "def scale(x, factor=2):\n    return x * factor\n")
    from fakelib import core

    assert core.scale(3) == ("patched", 6)


def test_another_source_of_an_imported_target_fails_enable_which_changes_nothing(library):
    from fakelib import core

    registry.register(library.patch("Base.shape", "constant"))
    registry.register(library.patch(source=(NOWHERE,)))
    with pytest.raises(PortError, match="another source"):
        tpuport.enable(patches="error")
    assert not registry.applied()
    assert core.Base().shape(0) == "original"
    assert not tpuport.activation.enabled()


def test_an_error_where_the_user_asks(library, monkeypatch):
    registry.register(library.patch(source=(NOWHERE,)))
    tpuport.enable()
    from fakelib import core

    assert core.scale(3) == 6
    with pytest.raises(PortError, match="another source"):
        tpuport.enable(patches="error")
    tpuport.disable()
    monkeypatch.setenv("TPUPORT_PATCHES", "error")
    with pytest.raises(PortError, match="another source"):
        tpuport.enable()


def test_the_version_does_not_matter(library):
    registry.register(library.patch())
    tpuport.enable()
    metadata = "Metadata-Version: 2.1\nName: fakelib\nVersion: 99.0\n"
    library.write("fakelib-1.2.dist-info/METADATA", metadata)
    from fakelib import core

    assert core.scale(3) == ("patched", 6)


def test_a_package_that_is_not_installed(library):
    registry.register(Patch("absent", "absent.code:f", "why", "fakeours:scale", (NOWHERE,)))
    registry.apply_all()
    assert library.state("absent").state == "not installed"


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
    registry.register(library.patch(qualname, source=(NOWHERE,)))
    registry.apply_all()
    import fakelib.core  # noqa: F401

    status = library.state(f"fakelib.{qualname}")
    assert status.state == "target missing"
    assert message in status.detail


def test_a_replacement_that_is_not_there(library):
    registry.register(library.patch(replacement="nothing"))
    registry.apply_all()
    from fakelib import core

    assert core.scale(3) == 6
    assert library.state().state == "failed"
    assert "replacement of patch 'fakelib.scale' cannot be imported" in library.state().detail


def test_two_patches_for_one_function_or_of_one_name(library):
    registry.register(library.patch())
    with pytest.raises(PortError, match="two patches are named"):
        registry.register(library.patch(replacement="constant"))
    registry.register(library.patch(name="second"))
    registry.apply_all()
    from fakelib import core

    assert core.scale(3) == ("patched", 6)
    assert "replace the same function" in library.state("second").detail


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("target", "fakelib.core.scale", "is not a qualified name"),
        ("replacement", "scale", "is not a qualified name"),
        ("source", (), "does not say which source"),
        ("source", ("a" * 64,), "does not say which source"),
        ("source", "0123abcd-" + "a" * 32, "does not say which source"),
        ("when", "sometimes", "is neither of ported, always"),
    ],
)
def test_a_patch_that_says_too_little(field, value, message):
    good = {
        "name": "n", "target": "m:f", "why": "w", "replacement": "r:f", "source": (NOWHERE,),
    }  # fmt: skip
    Patch(**good)
    with pytest.raises(PortError, match=message):
        Patch(**{**good, field: value})


def test_what_is_no_patch_and_no_strictness():
    with pytest.raises(PortError, match="register takes a Patch, and got a list"):
        registry.register([])
    tpuport.disable()
    with pytest.raises(PortError, match="patches='bogus' is none of error, warn, off"):
        tpuport.enable(patches="bogus")
    assert not activation.enabled()
