"""Functions are found by their source, wherever they stand."""

import dataclasses
import importlib
import sys
import textwrap

import torch

import tpuport
from tpuport.patches import registry, search

# The library's `scale` under another name, `Base.shape` in another class, and another
# function with the same arguments.
COPIES = '''
    import functools
    import torch

    def enlarge(x, factor=2):  # copied
        return x * factor

    def other(x, factor=2):
        return x * factor + 1

    class Holder:
        def form(self, x):
            """Ours."""
            return "original"
'''


def test_copies_are_replaced_wherever_they_stand(library):
    library.write("fakelib/copies.py", COPIES)
    registry.register(library.patch())
    registry.register(library.patch("Base.shape", "constant"))
    registry.apply_all()
    from fakelib import copies

    assert library.state().places == ("fakelib.copies:enlarge",)
    assert copies.enlarge(3) == ("patched", 6)
    assert copies.Holder().form(0) == "patched"
    assert copies.other(3) == 7
    # The replacement calls the original at the target, which imports that.
    assert library.state().places == ("fakelib.copies:enlarge", "fakelib.core:scale")
    assert library.state("fakelib.Base.shape").state == "applied"
    registry.revert_all()
    assert (copies.enlarge(3), copies.Holder().form(0)) == (6, "original")


def test_a_replacement_gets_the_original_of_its_place(library):
    library.write("fakelib/copies.py", COPIES)
    library.write("fakeours.py", """
        from tpuport.patches import with_original

        @with_original
        def scale(original, x, factor=2):
            return original.__qualname__, original(x, factor)
    """)  # fmt: skip
    registry.register(library.patch())
    registry.apply_all()
    from fakelib import copies, core

    assert core.scale(3) == ("scale", 6)
    assert copies.enlarge(3) == ("enlarge", 6)


def test_another_library_with_a_copy_is_served_when_a_model_of_it_is_ported(library):
    registry.register(library.patch(when="ported", replacement="doubled_and_one"))
    library.write("fakeours.py", "def doubled_and_one(x, factor=2):\n    return x * factor + 1\n")
    library.write("fakeresearch/__init__.py", "")
    library.write("fakeresearch/ops.py", COPIES)
    library.write("fakeresearch/model.py", """
        import torch
        from fakeresearch.ops import enlarge

        class Model(torch.nn.Linear):
            def forward(self, x):
                return enlarge(super().forward(x))
    """)  # fmt: skip
    tpuport.enable()
    try:
        model = importlib.import_module("fakeresearch.model").Model(2, 2)
        x = torch.ones(1, 2)
        expected = model(x)
        ported = tpuport.port(model)
        torch.testing.assert_close(tpuport.to_cpu(ported(x)), expected + 1)
        assert "fakeresearch.ops:enlarge" in library.state().places
    finally:
        for name in [name for name in sys.modules if name.startswith("fakeresearch")]:
            del sys.modules[name]


def test_modules_of_the_library_that_were_imported_before_are_searched(library):
    library.write("fakelib/copies.py", COPIES)
    from fakelib import copies

    registry.register(library.patch())
    registry.apply_all()
    assert copies.enlarge(3) == ("patched", 6)


def test_only_functions_that_a_module_defines_are_looked_at(library):
    library.write("fakelib/copies.py", COPIES)
    from fakelib import copies, user

    assert {each.place for each in search.definitions(copies)} == {
        "fakelib.copies:enlarge", "fakelib.copies:other", "fakelib.copies:Holder.form",
    }  # fmt: skip
    assert not list(search.definitions(user))


def test_classes_of_one_name_are_patched_each(library):
    library.write("fakelib/copies.py", """
        class Holder:
            def form(self, x):
                return "original"

        Former = Holder

        class Holder(Former):
            def form(self, x):
                return "original"
    """)  # fmt: skip
    registry.register(library.patch("Base.shape", "constant"))
    registry.apply_all()
    from fakelib import copies

    assert (copies.Former().form(0), copies.Holder().form(0)) == ("patched", "patched")
    registry.revert_all()
    assert (copies.Former().form(0), copies.Holder().form(0)) == ("original", "original")


def test_the_patch_of_a_place_goes_before_a_copys_whenever_it_is_registered(library):
    library.write("fakelib/copies.py", COPIES)
    registry.register(library.patch())
    registry.apply_all()
    from fakelib import copies

    assert copies.enlarge(3) == ("patched", 6)
    own = dataclasses.replace(
        library.patch(replacement="constant"), name="fakelib.own", target="fakelib.copies:enlarge"
    )
    registry.register(own)
    assert copies.enlarge(3) == "patched"
    registry.unregister("fakelib.own")
    registry.apply_all()
    assert copies.enlarge(3) == ("patched", 6)


def test_two_names_of_a_function_stay_one_function(library):
    library.write("fakelib/copies.py", textwrap.dedent(COPIES) + "also = enlarge\n")
    registry.register(library.patch())
    registry.apply_all()
    from fakelib import copies

    assert copies.also is copies.enlarge
    assert copies.also(3) == ("patched", 6)


def test_the_hook_leaves_loaders_as_they_are(library):
    registry.register(library.patch())
    registry.apply_all()
    from fakelib import core

    assert "exec_module" not in vars(core.__spec__.loader)
    assert textwrap.dedent(core.__spec__.loader.get_source("fakelib.core")).startswith('\n"""A library')
    assert sum(isinstance(finder, registry.ImportHook) for finder in sys.meta_path) == 1
    registry.revert_all()
    assert not any(isinstance(finder, registry.ImportHook) for finder in sys.meta_path)
