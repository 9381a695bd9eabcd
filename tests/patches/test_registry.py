"""Patches of a small library that is written for the test, as a user meets them."""

import importlib
import logging
import sys
import textwrap
import threading

import pytest
import torch

import tpuport
from tpuport import PortError, compat
from tpuport.patches import digests, registry

CORE = '''
    """A library."""
    import functools

    def loud(function):
        @functools.wraps(function)
        def inner(*args, **kwargs):
            return function(*args, **kwargs)
        return inner

    def scale(x, factor=2):
        """Doubles."""
        # a comment
        return x * factor

    @loud
    def decorated(x):
        return x + 1

    TABLE = {"scale": scale, "nested": 1}

    class Base:
        def shape(self, x):
            return "original"
        __call__ = shape

        def other(self, x):
            return "other"

        @staticmethod
        def fixed(x):
            return "original"

        @classmethod
        def made(cls, x):
            return f"original {cls.__name__}"

        @property
        def size(self):
            return "original"

    class Child(Base):
        again = Base.shape
'''
USER = """
    from fakelib import core
    from fakelib.core import scale, Base
    from fakelib.core import scale as renamed

    FUNCTIONS = [scale, len]

    class Holder:
        function = staticmethod(scale)
        table = {"scale": core.scale}

    plain = Base.fixed
"""
OURS = """
    from tpuport.patches import registry

    def scale(x, factor=2):
        return ("patched", registry.original("fakelib.core:scale")(x, factor))

    def constant(*args, **kwargs):
        return "patched"

    def of_class(cls, x):
        return f"patched {cls.__name__}"

    def plus_two(x):
        return x + 2
"""
VERSIONS = ">=1.0,<2.0"


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Writes the library, version 1.2, and forgets it afterwards."""
    tpuport.disable()
    for name, text in (("fakelib/core.py", CORE), ("fakelib/user.py", USER), ("fakeours.py", OURS)):
        write(tmp_path / name, text)
    write(tmp_path / "fakelib/__init__.py", "")
    write(tmp_path / "fakelib-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: fakelib\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry._load(strict=True)  # the builtin ones are there before as well as afterwards
    before = set(registry._patches)
    yield tmp_path
    registry.revert_all()
    for name in set(registry._patches) - before:
        registry.unregister(name)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("fakelib", "fakeours")]:
        del sys.modules[name]
    tpuport.disable()


def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text))
    importlib.invalidate_caches()


def source_digest(qualname):
    """The digest, from an import that is forgotten again."""
    known = {name for name in sys.modules if name.startswith("fakelib")}
    value = registry.digest(f"fakelib.core:{qualname}")
    for name in {name for name in sys.modules if name.startswith("fakelib")} - known:
        del sys.modules[name]
        vars(sys.modules.get("fakelib", sys)).pop("core", None)
    return value


def patch(qualname="scale", replacement="scale", **options):
    options = {"name": f"fakelib.{qualname}", "versions": VERSIONS, "when": "always", **options}
    if "source" not in options:
        options["source"] = ("a" * 64, source_digest(qualname))
    return registry.Patch(
        target=f"fakelib.core:{qualname}", package="fakelib", why="It cannot be traced.",
        replacement=f"fakeours:{replacement}", **options,
    )  # fmt: skip


def state(name="fakelib.scale"):
    return {status.patch.name: status for status in registry.statuses()}[name]


def test_applied_when_the_target_is_imported_and_reverted(library):
    registry.register(patch())
    assert state().state == "off"
    registry.apply_all()
    assert state().state == "waiting for import"
    assert not any(name in sys.modules for name in ("fakelib.core", "fakeours"))
    from fakelib import user

    assert state().state == "applied"
    assert user.scale(3) == user.renamed(3) == ("patched", 6)
    registry.revert_all()
    assert state().state == "off"
    assert user.scale(3) == user.core.scale(3) == user.core.TABLE["scale"](3) == 6


def test_names_bound_before_are_rewritten_and_put_back(library):
    from fakelib import core, user

    first = core.scale
    registry.register(patch())
    registry.register(patch("Base.fixed", "constant"))
    registry.apply_all()
    places = (
        core.scale, user.scale, user.renamed, user.FUNCTIONS[0], user.Holder.function, user.Holder.table["scale"],
        core.TABLE["scale"],
    )  # fmt: skip
    assert [place(3) for place in places] == [("patched", 6)] * len(places)
    assert user.plain(0) == core.Base.fixed(0) == core.Child().fixed(0) == "patched"
    assert user.FUNCTIONS[1] is len
    bound_while_patched = core.scale
    registry.revert_all()
    places = (
        core.scale, user.scale, user.renamed, user.FUNCTIONS[0], user.Holder.function, user.Holder.table["scale"],
        core.TABLE["scale"],
    )  # fmt: skip
    assert all(place is first for place in places)
    assert user.plain(0) == core.Base.fixed(0) == "original"
    assert bound_while_patched(3) == 6, "whoever kept the wrapper has the original again"
    assert isinstance(vars(core.Base)["fixed"], staticmethod)


@pytest.mark.parametrize("qualname", ["scale", "Base.shape"])
def test_a_target_that_a_module_has_only_imported(library, qualname):
    target = f"fakelib.user:{qualname}"
    registry.register(registry.Patch("there", target, "fakelib", "", "why", "fakeours:constant", ("0" * 64,)))
    registry.apply_all()
    with pytest.raises(PortError, match=r"not defined there but in fakelib\.core") as caught:
        import fakelib.user  # noqa: F401
    assert f"name fakelib.core:{qualname}" in str(caught.value)


def test_every_kind_of_method_and_its_aliases(library):
    registry.register(patch("Base.shape", "constant"))
    registry.register(patch("Base.fixed", "constant"))
    registry.register(patch("Base.made", "of_class"))
    registry.register(patch("Base.size", "constant"))
    from fakelib.core import Base, Child

    before = dict(vars(Base)), dict(vars(Child))
    registry.apply_all()
    for thing in (Base(), Child()):
        assert thing.shape(0) == thing(0) == thing.fixed(0) == thing.size == "patched"
        assert thing.other(0) == "other"
    assert Child().again(0) == "patched"
    assert (Base.made(0), Child.made(0), Base.fixed(0)) == ("patched Base", "patched Child", "patched")
    assert registry.original("fakelib.core:Base.shape")(Base(), 0) == "original"
    registry.revert_all()
    assert (dict(vars(Base)), dict(vars(Child))) == before


def test_applying_twice_changes_nothing(library):
    registry.register(patch())
    registry.register(patch())
    registry.apply_all()
    from fakelib import core

    once = core.scale
    registry.apply_all()
    assert core.scale is once
    assert registry.applied().count("fakelib.scale") == 1
    registry.revert_all()
    registry.revert_all()
    assert core.scale(3) == 6
    registry.apply_all()
    assert core.scale(3) == ("patched", 6)


def test_a_hook_is_inert_after_revert_and_alive_when_applied_again(library):
    registry.register(patch())
    registry.apply_all()
    registry.revert_all()
    from fakelib import core

    assert core.scale(3) == 6
    registry.apply_all()
    assert core.scale(3) == ("patched", 6)


def test_registered_while_patches_are_in_force(library):
    registry.apply_all()
    from fakelib import core

    registry.register(patch())
    assert core.scale(3) == ("patched", 6)
    registry.unregister("fakelib.scale")
    assert core.scale(3) == 6


def test_another_source_fails_the_import_and_every_import_after_it(library):
    digest = source_digest("scale")
    registry.register(patch(source=("0" * 64,)))
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
    assert state().state == "source differs"
    registry.apply_all("warn")
    import fakelib.core

    assert fakelib.core.scale(3) == 6


def test_another_source_of_an_imported_target_fails_enable_which_changes_nothing(library):
    from fakelib import core

    registry.register(patch("Base.shape", "constant"))
    registry.register(patch(source=("0" * 64,)))
    with pytest.raises(PortError, match="another source"):
        tpuport.enable()
    assert not registry.applied()
    assert core.Base().shape(0) == "original"
    assert not tpuport.activation.enabled()


def test_a_warning_where_the_user_asks(library, caplog, monkeypatch):
    registry.register(patch(source=("0" * 64,)))
    monkeypatch.setenv("TPUPORT_PATCHES", "warn")
    tpuport.enable()
    with caplog.at_level(logging.WARNING, logger="tpuport"):
        from fakelib import core
    assert "another source" in caplog.text
    assert core.scale(3) == 6
    assert "digest" in state().detail
    with pytest.raises(PortError, match="another source"):
        tpuport.enable(patches="error")


def test_off_applies_none_and_stays_off(library, monkeypatch):
    registry.register(patch())
    tpuport.enable()
    from fakelib import core

    assert core.scale(3) == ("patched", 6)
    tpuport.enable(patches="off")
    registry.apply_all()  # as port does
    assert core.scale(3) == 6
    assert registry.applied() == ()
    tpuport.disable()
    monkeypatch.setenv("TPUPORT_PATCHES", "sometimes")
    with pytest.raises(PortError, match="TPUPORT_PATCHES is 'sometimes'"):
        tpuport.enable()


def test_disable_reverts(library):
    registry.register(patch())
    tpuport.enable()
    from fakelib import core

    tpuport.disable()
    assert core.scale(3) == 6


def test_versions_outside_of_the_range_are_left_alone_and_said(library, caplog):
    registry.register(patch(versions=">=1.3"))
    registry.register(patch("Base.shape", "constant"))
    registry.apply_all()
    assert (state().state, state().installed) == ("version outside range", "1.2")
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
        "cloned", "fakelib.core:scale", "", "", "why", "fakeours:scale", (source_digest("scale"),), "always"
    )
    registry.register(cloned)
    registry.apply_all()
    assert state("absent").state == "not installed"
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
    registry.register(patch(qualname, source=("0" * 64,)))
    registry.apply_all()
    with pytest.raises(PortError, match=message):
        import fakelib.core  # noqa: F401
    assert state(f"fakelib.{qualname}").state == "target missing"


def test_a_replacement_that_is_not_there(library):
    registry.register(patch(replacement="nothing"))
    registry.apply_all()
    with pytest.raises(PortError, match=r"replacement of patch 'fakelib.scale' cannot be imported"):
        import fakelib.core  # noqa: F401


def test_two_patches_for_one_function_or_of_one_name(library):
    registry.register(patch())
    with pytest.raises(PortError, match="two patches are named"):
        registry.register(patch(replacement="constant"))
    registry.register(patch(name="second"))
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


def test_an_import_in_several_threads_is_patched_for_all(library):
    slow = "import time\ntime.sleep(0.2)\n"
    (library / "fakelib/core.py").write_text(slow + textwrap.dedent(CORE))
    registry.register(patch())
    registry.apply_all()
    results, errors = [], []
    gate = threading.Barrier(6)

    def work():
        gate.wait()
        try:
            from fakelib.core import scale

            results.append(scale(3))
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    gate.wait()
    registry.apply_all()
    for thread in threads:
        thread.join(timeout=120)
    assert not errors
    assert results == [("patched", 6)] * 5


def test_patches_applied_while_another_thread_imports_the_target(library):
    (library / "fakelib/core.py").write_text("import time\ntime.sleep(0.3)\n" + textwrap.dedent(CORE))
    digest = source_digest("scale")
    thread = threading.Thread(target=importlib.import_module, args=("fakelib.core",))
    thread.start()
    while "fakelib.core" not in sys.modules:
        pass
    registry.register(patch(source=(digest,)))
    registry.apply_all()
    thread.join(timeout=120)
    assert sys.modules["fakelib.core"].scale(3) == ("patched", 6)


def test_a_module_imported_anew_is_patched_by_the_next_call(library):
    registry.register(patch())
    registry.apply_all()
    first = importlib.import_module("fakelib.core")
    del sys.modules["fakelib.core"]
    second = importlib.import_module("fakelib.core")
    registry.apply_all()
    assert second.scale(3) == ("patched", 6)
    assert first.scale(3) == 6
    importlib.reload(second)
    registry.apply_all()
    assert second.scale(3) == ("patched", 6)


def test_what_somebody_else_put_there_stays(library):
    from fakelib import core

    registry.register(patch())
    registry.apply_all()
    ours = core.scale
    core.scale = lambda x: ("theirs", ours(x))
    registry.revert_all()
    assert core.scale(3) == ("theirs", 6)


def test_the_digest_is_of_what_runs(library, tmp_path):
    from fakelib import core

    assert digests.digest(core.scale) == registry.digest("fakelib.core:scale")
    variants = {
        "same": "def scale(x: int, factor: float = 2) -> int:\n    'Other words.'\n    return (x *\n        factor)\n",
        "default": "def scale(x, factor=3):\n    return x * factor\n",
        "body": "def scale(x, factor=2):\n    return factor * x\n",
        "decorated": "@print\ndef scale(x, factor=2):\n    return x * factor\n",
        "name": "def scale(x, *, factor=2):\n    return x * factor\n",
    }
    digests_by_name = {}
    for name, text in variants.items():
        write(tmp_path / f"fakelib/{name}.py", f"print = lambda f: f\n{text}")
        digests_by_name[name] = registry.digest(f"fakelib.{name}:scale")
    assert digests_by_name.pop("same") == digests.digest(core.scale)
    assert len({*digests_by_name.values(), digests.digest(core.scale)}) == len(digests_by_name) + 1


def test_the_source_of_a_function_is_read_once(library, monkeypatch):
    from fakelib import core

    read = []
    getsource = digests.inspect.getsource
    monkeypatch.setattr(digests.inspect, "getsource", lambda of: read.append(of) or getsource(of))
    first = digests.digest(core.scale)
    assert digests.digest(core.scale) == first
    assert read == [core.scale]
    core.scale.__code__ = core.scale.__code__.replace(co_stacksize=9)
    digests.digest(core.scale)
    assert len(read) == 2, "the function has other code now"


def test_the_digest_looks_under_decorators(library, tmp_path):
    plain = "def hide(f):\n    def inner(x):\n        return f(x)\n    return inner\n\n"
    for name, factor in (("one", 1), ("two", 2), ("again", 1)):
        write(tmp_path / f"fakelib/{name}.py", f"{plain}@hide\ndef f(x):\n    return x * {factor}\n")
    one, two, again = (registry.digest(f"fakelib.{name}:f") for name in ("one", "two", "again"))
    assert one == again != two
    registry.register(patch("decorated", "plus_two"))
    before = source_digest("decorated")
    registry.apply_all()
    from fakelib import core

    assert core.decorated(1) == 3
    assert registry.digest("fakelib.core:decorated") == before, "of the original, patched or not"


def test_the_digest_is_the_same_in_every_python(library, tmp_path):
    text = (
        "def f(a, *b, c: int = 1, **d):\n    'Doc.'\n    with open(f'{a!r:>{c}} x' 'y') as e, e: pass\n"
        "    return [x for x in b if x], a[1:2, ...], lambda: (yield)\n"
    )
    write(tmp_path / "fakelib/many.py", text)
    # As Python 3.11, 3.12 and 3.13 give it.
    assert registry.digest("fakelib.many:f").startswith("8df5bb16cae9b8b94cf4")


def test_ported_patches_serve_ported_calls_alone(library):
    registry.register(patch(when="ported"))
    registry.register(patch("Base.shape", "constant", when="ported"))
    tpuport.enable()
    from fakelib import core

    host, device = torch.ones(2), compat.wrap(compat.to_jax(torch.ones(2)))
    assert torch.equal(core.scale(host), 2 * host)
    assert core.scale(3) == 6
    with compat.environment():
        assert core.scale(device)[0] == core.scale(x=device)[0] == "patched"
    base = core.Base()
    assert (base.shape(host), base.shape(x=device), base.shape((host, device))) == (
        "original",
        "patched",
        "patched",
    )
    module = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 2))
    assert base.shape(module) == "original"
    assert base.shape(tpuport.port(module)) == "patched"
    registry.revert_all()
    assert base.shape(device) == "original"


def test_a_call_that_is_traced_is_ported(library):
    import jax

    registry.register(patch("Base.shape", "constant", when="ported"))
    tpuport.enable()
    from fakelib import core

    seen = []

    def traced(array):
        seen.append(core.Base().shape(compat.wrap(array)))
        return array

    jax.jit(traced)(compat.to_jax(torch.ones(2)))
    assert seen == ["patched"]


def test_what_is_decided_before_tracing(library):
    write(library / "fakeours.py", OURS + '''
    @registry.before_tracing("fakelib.core:Base")
    def without(module, args, kwargs):
        return args, {key: value for key, value in kwargs.items() if key != "extra"}
    ''')  # fmt: skip
    from fakelib.core import Child

    registry.register(patch("Base.shape", "constant"))
    arguments = Child(), (1,), {"extra": 2, "kept": 3}
    assert registry.prepared(*arguments) == ((1,), {"extra": 2, "kept": 3}), "the patch is not in force"
    registry.apply_all()
    assert registry.prepared(*arguments) == ((1,), {"kept": 3})
    assert arguments[2] == {"extra": 2, "kept": 3}
    assert registry.prepared(object(), (1,), {"extra": 2}) == ((1,), {"extra": 2})
    registry.revert_all()
    assert registry.prepared(*arguments) == ((1,), {"extra": 2, "kept": 3})


def test_a_replacement_may_import_its_target(library):
    write(library / "fakeours.py", "from fakelib.core import Base\n" + textwrap.dedent(OURS))
    registry.register(patch())
    registry.apply_all()
    import fakeours  # the first import of both, from the other end

    assert sys.modules["fakelib.core"].scale(3) == ("patched", 6)
    assert fakeours.Base is sys.modules["fakelib.core"].Base
