"""Patches of a small library, from the import of their targets until they are reverted."""

import importlib
import sys
import textwrap
import threading
import types

import pytest
import torch

import tpuport
from tpuport import PortError, compat
from tpuport.patches import original, registry


def test_applied_when_the_target_is_imported_and_reverted(library):
    registry.register(library.patch())
    assert library.state().state == "off"
    registry.apply_all()
    assert library.state().state == "waiting for import"
    assert not any(name in sys.modules for name in ("fakelib.core", "fakeours"))
    from fakelib import user

    assert library.state().state == "applied"
    assert user.scale(3) == user.renamed(3) == ("patched", 6)
    registry.revert_all()
    assert library.state().state == "off"
    assert user.scale(3) == user.core.scale(3) == user.core.TABLE["scale"](3) == 6


def test_names_bound_before_are_rewritten_and_put_back(library):
    from fakelib import core, user

    first = core.scale
    registry.register(library.patch())
    registry.register(library.patch("Base.fixed", "constant"))
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


def test_every_kind_of_method_and_its_aliases(library):
    registry.register(library.patch("Base.shape", "constant"))
    registry.register(library.patch("Base.fixed", "constant"))
    registry.register(library.patch("Base.made", "of_class"))
    registry.register(library.patch("Base.size", "constant"))
    from fakelib.core import Base, Child

    before = dict(vars(Base)), dict(vars(Child))
    registry.apply_all()
    for thing in (Base(), Child()):
        assert thing.shape(0) == thing(0) == thing.fixed(0) == thing.size == "patched"
        assert thing.other(0) == "other"
    assert Child().again(0) == "patched"
    assert (Base.made(0), Child.made(0), Base.fixed(0)) == ("patched Base", "patched Child", "patched")
    assert original("fakelib.core:Base.shape")(Base(), 0) == "original"
    registry.revert_all()
    assert (dict(vars(Base)), dict(vars(Child))) == before


def test_applying_twice_changes_nothing(library):
    registry.register(library.patch())
    registry.register(library.patch())
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
    registry.register(library.patch())
    registry.apply_all()
    registry.revert_all()
    from fakelib import core

    assert core.scale(3) == 6
    registry.apply_all()
    assert core.scale(3) == ("patched", 6)


def test_registered_while_patches_are_in_force(library):
    registry.apply_all()
    from fakelib import core

    registry.register(library.patch())
    assert core.scale(3) == ("patched", 6)
    registry.unregister("fakelib.scale")
    assert core.scale(3) == 6


def test_off_applies_none_and_stays_off(library, monkeypatch):
    registry.register(library.patch())
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
    registry.register(library.patch())
    tpuport.enable()
    from fakelib import core

    tpuport.disable()
    assert core.scale(3) == 6


def test_an_import_in_several_threads_is_patched_for_all(library):
    library.slow_down(seconds=0.2)
    registry.register(library.patch())
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
    library.slow_down(seconds=0.3)
    digest = library.source_digest("scale")
    thread = threading.Thread(target=importlib.import_module, args=("fakelib.core",))
    thread.start()
    while "fakelib.core" not in sys.modules:
        pass
    registry.register(library.patch(source=(digest,)))
    registry.apply_all()
    thread.join(timeout=120)
    assert sys.modules["fakelib.core"].scale(3) == ("patched", 6)


def test_a_module_imported_anew_is_patched_by_the_next_call(library):
    registry.register(library.patch())
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


def test_methods_of_a_reloaded_module_are_patched_too(library):
    registry.register(library.patch("Base.shape", "constant"))
    registry.apply_all()
    core = importlib.import_module("fakelib.core")
    before = core.Base
    importlib.reload(core)
    assert before is not core.Base
    assert (before().shape(0), core.Base().shape(0)) == ("patched", "patched")
    registry.revert_all()
    assert (before().shape(0), core.Base().shape(0)) == ("original", "original")


def test_what_a_notebook_defines_later_is_patched(library, monkeypatch):
    registry.register(library.patch())
    registry.apply_all()
    notebook = types.ModuleType("fakenotebook")
    monkeypatch.setitem(sys.modules, "fakenotebook", notebook)

    def run_cell(name, text):
        file = library.root / name
        file.write_text(textwrap.dedent(text))
        exec(compile(file.read_text(), file, "exec"), vars(notebook))

    run_cell("first.py", """
        import torch
        class Model(torch.nn.Module):
            pass
    """)  # fmt: skip
    registry.apply_for(notebook.Model())
    run_cell("second.py", """
        def enlarge(x, factor=2):
            return x * factor
    """)  # fmt: skip
    registry.apply_for(notebook.Model())
    assert notebook.enlarge(3) == ("patched", 6)


def test_two_threads_that_port_a_model_both_find_it_patched(library):
    # The first is in the middle of its search while the replacement is imported.
    library.write("fakeours.py", "import time\ntime.sleep(0.5)\n" + textwrap.dedent(library.REPLACEMENTS))
    library.write("fakeresearch.py", """
        import torch
        def enlarge(x, factor=2):
            return x * factor
        class Model(torch.nn.Module):
            pass
    """)  # fmt: skip
    registry.register(library.patch())
    registry.apply_all()
    research = importlib.import_module("fakeresearch")
    results = []

    def port():
        registry.apply_for(research.Model())
        results.append(research.enlarge(3))

    threads = [threading.Thread(target=port) for _ in range(2)]
    threads[0].start()
    while "fakeours" not in sys.modules:
        pass
    threads[1].start()
    for thread in threads:
        thread.join(timeout=120)
    del sys.modules["fakeresearch"]
    assert results == [("patched", 6)] * 2


def test_what_somebody_else_put_there_stays(library):
    from fakelib import core

    registry.register(library.patch())
    registry.apply_all()
    ours = core.scale
    core.scale = lambda x: ("theirs", ours(x))
    registry.revert_all()
    assert core.scale(3) == ("theirs", 6)


def test_ported_patches_serve_ported_calls_alone(library):
    registry.register(library.patch(when="ported"))
    registry.register(library.patch("Base.shape", "constant", when="ported"))
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

    registry.register(library.patch("Base.shape", "constant", when="ported"))
    tpuport.enable()
    from fakelib import core

    seen = []

    def traced(array):
        seen.append(core.Base().shape(compat.wrap(array)))
        return array

    jax.jit(traced)(compat.to_jax(torch.ones(2)))
    assert seen == ["patched"]


def test_what_is_decided_before_tracing(library):
    library.write("fakeours.py", library.REPLACEMENTS + '''
    @before_tracing("fakelib.core:Base")
    def without(module, args, kwargs):
        return args, {key: value for key, value in kwargs.items() if key != "extra"}
    ''')  # fmt: skip
    from fakelib.core import Child

    registry.register(library.patch("Base.shape", "constant"))
    arguments = Child(), (1,), {"extra": 2, "kept": 3}
    assert registry.prepared(*arguments) == ((1,), {"extra": 2, "kept": 3}), "the patch is not in force"
    registry.apply_all()
    assert registry.prepared(*arguments) == ((1,), {"kept": 3})
    assert arguments[2] == {"extra": 2, "kept": 3}
    assert registry.prepared(object(), (1,), {"extra": 2}) == ((1,), {"extra": 2})
    registry.revert_all()
    assert registry.prepared(*arguments) == ((1,), {"extra": 2, "kept": 3})


def test_a_replacement_may_import_its_target(library):
    library.write("fakeours.py", "from fakelib.core import Base\n" + textwrap.dedent(library.REPLACEMENTS))
    registry.register(library.patch())
    registry.apply_all()
    import fakeours  # the first import of both, from the other end

    assert sys.modules["fakelib.core"].scale(3) == ("patched", 6)
    assert fakeours.Base is sys.modules["fakelib.core"].Base
