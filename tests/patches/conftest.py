"""A small library that is written for a test, and patches of it."""

import importlib
import sys
import textwrap

import pytest

import tpuport
from tpuport.patches import Patch, catalog, digest, registry

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
REPLACEMENTS = """
    from tpuport.patches import before_tracing, original

    def scale(x, factor=2):
        return ("patched", original("fakelib.core:scale")(x, factor))

    def constant(*args, **kwargs):
        return "patched"

    def of_class(cls, x):
        return f"patched {cls.__name__}"

    def plus_two(x):
        return x + 2
"""


class Library:
    """`fakelib` 1.2 in a directory that can be imported from, and `fakeours` with replacements for its functions."""

    REPLACEMENTS = REPLACEMENTS

    def __init__(self, root):
        self.root = root
        for name, text in (("core.py", CORE), ("user.py", USER), ("__init__.py", "")):
            self.write(f"fakelib/{name}", text)
        self.write("fakeours.py", REPLACEMENTS)
        metadata = "Metadata-Version: 2.1\nName: fakelib\nVersion: 1.2\n"
        self.write("fakelib-1.2.dist-info/METADATA", metadata)

    def write(self, name, text):
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
        importlib.invalidate_caches()

    def slow_down(self, seconds):
        """Let the import of `fakelib.core` take so long."""
        self.write("fakelib/core.py", f"import time\ntime.sleep({seconds})\n" + textwrap.dedent(CORE))

    def source_digest(self, qualname):
        """The digest, from an import that is forgotten again."""
        known = {name for name in sys.modules if name.startswith("fakelib")}
        value = digest(f"fakelib.core:{qualname}")
        for name in {name for name in sys.modules if name.startswith("fakelib")} - known:
            del sys.modules[name]
            vars(sys.modules.get("fakelib", sys)).pop("core", None)
        return value

    def patch(self, qualname="scale", replacement="scale", **options):
        options = {"name": f"fakelib.{qualname}", "when": "always", **options}
        if "source" not in options:
            options["source"] = (f"{'a' * 8}-{'a' * 32}", self.source_digest(qualname))
        return Patch(
            target=f"fakelib.core:{qualname}", why="It cannot be traced.",
            replacement=f"fakeours:{replacement}", **options,
        )  # fmt: skip

    def state(self, name="fakelib.scale"):
        return {status.patch.name: status for status in registry.statuses()}[name]


@pytest.fixture
def library(tmp_path, monkeypatch):
    tpuport.disable()
    library = Library(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    catalog.load(strict=True)  # the builtin ones are there before as well as afterwards
    before = catalog.patches()
    yield library
    registry.revert_all()
    for patch in catalog.patches():
        if patch not in before:
            registry.unregister(patch.name)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("fakelib", "fakeours")]:
        del sys.modules[name]
    tpuport.disable()
