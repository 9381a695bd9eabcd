"""Digests, by which a patch recognizes the source of its target."""

from tpuport.patches import digest, digests, registry


def test_the_digest_is_of_what_runs(library):
    from fakelib import core

    assert digest(core.scale) == digest("fakelib.core:scale")
    variants = {
        "same": "def scale(x: int, factor: float = 2) -> int:\n    'Other words.'\n    return (x *\n        factor)\n",
        "default": "def scale(x, factor=3):\n    return x * factor\n",
        "body": "def scale(x, factor=2):\n    return factor * x\n",
        "decorated": "@print\ndef scale(x, factor=2):\n    return x * factor\n",
        "arguments": "def scale(x, *, factor=2):\n    return x * factor\n",
    }
    digests_by_name = {}
    for name, text in variants.items():
        library.write(f"fakelib/{name}.py", f"print = lambda f: f\n{text}")
        digests_by_name[name] = digest(f"fakelib.{name}:scale")
    assert digests_by_name.pop("same") == digest(core.scale)
    assert len({*digests_by_name.values(), digest(core.scale)}) == len(digests_by_name) + 1


def test_the_source_of_a_function_is_read_once(library, monkeypatch):
    from fakelib import core

    read = []
    getsource = digests.inspect.getsource
    monkeypatch.setattr(digests.inspect, "getsource", lambda of: read.append(of) or getsource(of))
    first = digest(core.scale)
    assert digest(core.scale) == first
    assert read == [core.scale]
    core.scale.__code__ = core.scale.__code__.replace(co_stacksize=9)
    digest(core.scale)
    assert len(read) == 2, "the function has other code now"


def test_the_digest_looks_under_decorators(library):
    plain = "def hide(f):\n    def inner(x):\n        return f(x)\n    return inner\n\n"
    for name, factor in (("one", 1), ("two", 2), ("again", 1)):
        library.write(f"fakelib/{name}.py", f"{plain}@hide\ndef f(x):\n    return x * {factor}\n")
    digests_by_name = {name: digest(f"fakelib.{name}:f") for name in ("one", "two", "again")}
    assert digests_by_name["one"] == digests_by_name["again"] != digests_by_name["two"]
    registry.register(library.patch("decorated", "plus_two"))
    before = library.source_digest("decorated")
    registry.apply_all()
    from fakelib import core

    assert core.decorated(1) == 3
    assert digest("fakelib.core:decorated") == before, "of the original, patched or not"


def test_the_digest_is_the_same_in_every_python(library):
    text = (
        "def f(a, *b, c: int = 1, **d):\n    'Doc.'\n    with open(f'{a!r:>{c}} x' 'y') as e, e: pass\n"
        "    return [x for x in b if x], a[1:2, ...], lambda: (yield)\n"
    )
    library.write("fakelib/many.py", text)
    # As Python 3.11, 3.12 and 3.13 give it.
    assert digest("fakelib.many:f") == "36897af3-434d323524bd067b13459f483f279894"


def test_the_digest_does_not_depend_on_the_name_but_on_what_it_calls(library):
    text = "def helper(x):\n    return x + {}\n\ndef {}(x):\n    return helper(x)\n"
    for module, number, name in (("one", 1, "f"), ("two", 1, "g"), ("three", 2, "f")):
        library.write(f"fakelib/{module}.py", text.format(number, name))
    first = digest("fakelib.one:f")
    assert digest("fakelib.two:g") == first
    assert digest("fakelib.three:f") != first, "another helper"
    run = "    def run(self, x):\n        return self.step(x)\n"
    methods = f"class {{}}:\n{run}    def step(self, x):\n        return {{}}\n"
    for module, name, result in (("four", "A", "x"), ("five", "B", "x"), ("six", "A", "-x")):
        library.write(f"fakelib/{module}.py", methods.format(name, result))
    first = digest("fakelib.four:A.run")
    assert digest("fakelib.five:B.run") == first
    assert digest("fakelib.six:A.run") != first
    library.write(
        "fakelib/seven.py", methods.format("A", "x") + "\nclass B(A):\n    step = abs\n    run = A.run\n"
    )
    assert digest("fakelib.seven:A.run") == first
    assert digest("fakelib.seven:B.run") != first, "the same function beside another helper"


def test_the_key_of_arguments_is_that_of_the_code(library):
    text = "def f(a, /, b, *c, d=1, **e): pass\ndef g(): pass\ndef h(a, *, b): pass\n"
    library.write("fakelib/many.py", text)
    import fakelib.many as module

    for name in "fgh":
        expected = digest(f"fakelib.many:{name}").partition("-")[0]
        assert digests.argument_key(getattr(module, name).__code__) == expected
