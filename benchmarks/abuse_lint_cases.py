"""Source files that are made to take much time or memory: families of them, in several sizes each."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Final

_HEAD: Final = "import torch\nfrom torch import nn\n\n\n"


@dataclasses.dataclass(frozen=True)
class Case:
    """A file to lint.

    Attributes:
        name: the family, and the size within it.
        text: of the file.
    """

    name: str
    text: str


def _model(body: str, init: str = "", methods: str = "") -> str:
    """A module with a forward of these lines."""
    parts = [_HEAD, "class Model(nn.Module):\n"]
    if init:
        parts += ["    def __init__(self, config):\n        super().__init__()\n", _indented(init)]
    parts += [methods, "    def forward(self, x, *args):\n", _indented(body), "        return x\n"]
    return "".join(parts)


def _indented(lines: str) -> str:
    return "".join(f"        {line}\n" for line in lines.splitlines())


def _repeated(line: str, count: int) -> str:
    """A line with its number in place of `#`, and the number before it in place of `@`, `count` times."""
    numbers = range(1, count + 1)
    return "".join(line.replace("#", str(number)).replace("@", str(number - 1)) + "\n" for number in numbers)


def _list_literal(size: int) -> str:
    return f"{_HEAD}X = [{', '.join(map(str, range(size)))}]\n"


def _dict_literal(size: int) -> str:
    entries = ", ".join(f"'k{number}': ({number}, [{number}])" for number in range(size))
    return f"{_HEAD}X = {{{entries}}}\n" + _model("x = x * X['k3'][0]").removeprefix(_HEAD)


def _string_literal(size: int) -> str:
    return f"{_HEAD}X = '{'a' * size}'\n"


def _globals(size: int) -> str:
    return f"{_HEAD}a0 = 0\n{_repeated('a# = a@ + 1', size)}" + _model(f"x = x + a{size}").removeprefix(_HEAD)


def _functions(size: int) -> str:
    return _HEAD + _repeated("def f#(x):\n    return x + #", size)


def _function_chain(size: int) -> str:
    methods = "".join(
        f"    def f{number}(self, x):\n        return self.f{number + 1}(x)\n" for number in range(size)
    )
    return _model("x = self.f0(x)", "", f"{methods}    def f{size}(self, x):\n        return x\n")


def _function_tree(size: int) -> str:
    methods = "".join(
        f"    def f{number}(self, x):\n        return self.f{number + 1}(x) + self.f{number + 1}((x, x))\n"
        for number in range(size)
    )
    return _model("x = self.f0(x)", "", f"{methods}    def f{size}(self, x):\n        return x\n")


def _models(size: int) -> str:
    head = "class M#(nn.Module):\n    def forward(self, x):\n"
    model = f"{head}        if x.sum() > 0:\n            return x\n        return x.item()"
    return _HEAD + _repeated(model, size)


def _class_chain(size: int) -> str:
    return f"{_HEAD}class C0(nn.Module):\n    def forward(self, x):\n        return x\n" + _repeated(
        "class C#(C@):\n    pass", size
    )


def _class_diamonds(size: int) -> str:
    head = f"{_HEAD}class A0(nn.Module):\n    pass\nclass B0(nn.Module):\n    pass\n"
    return head + _repeated("class A#(A@, B@):\n    pass\nclass B#(A@, B@):\n    pass", size)


def _unions(size: int) -> str:
    init = "self.a0 = nn.Linear(3, 3)\n" + _repeated(
        "self.a# = self.a@ if config.x# else nn.Sequential(self.a@, nn.ReLU())", size
    )
    return _model(f"x = self.a{size}(x)", init)


def _tuple_unions(size: int) -> str:
    init = "self.a0 = 1\n" + _repeated("self.a# = self.a@ if config.x# else (self.a@, #)", size)
    return _model(f"x = x * self.a{size}", init)


def _dispatch(size: int) -> str:
    choices = "".join(f" if config.a{number} else self.g{number}" for number in range(size))
    methods = "".join(
        f"    def g{number}(self, x, y=None):\n        self.y = y\n        return self.f(x) + self.f(x, {number})\n"
        for number in range(size)
    )
    return _model("x = self.f(x)", f"self.f = self.g0{choices}", methods)


def _nested_loops(size: int) -> str:
    loops = "".join("    " * depth + f"for i{depth} in range(10):\n" for depth in range(size))
    return _model(f"{loops}{'    ' * size}x = x + 1")


def _nested_conditions(size: int) -> str:
    conditions = "".join("    " * depth + f"if args[{depth}]:\n" for depth in range(size))
    return _model(f"{conditions}{'    ' * size}x = x + 1")


def _module_lists(size: int) -> str:
    blocks = "nn.Linear(3, 3)"
    for depth in range(size):
        blocks = f"nn.ModuleList([{blocks} for _{depth} in range(1000)])"
    loops = "".join(
        "    " * depth + f"for b{depth + 1} in {'self.b' if not depth else f'b{depth}'}:\n"
        for depth in range(size)
    )
    return _model(f"{loops}{'    ' * size}x = b{size}(x)", f"self.b = {blocks}")


def _nested_functions(size: int) -> str:
    functions = "".join("    " * depth + f"def f{depth}(x):\n" for depth in range(size))
    return f"{_HEAD}{functions}{'    ' * size}return x\n"


def _nested_brackets(size: int) -> str:
    return _model(f"x = {'[' * size}x{']' * size}")


def _attribute_chain(size: int) -> str:
    return _model("x = x" + ".t()" * size)


def _sum(size: int) -> str:
    return _model("x = " + " + ".join(["x"] * size))


def _lambdas(size: int) -> str:
    return f"{_HEAD}f = {'lambda x: ' * size}x\n" + _model("x = f(x)").removeprefix(_HEAD)


def _decorators(size: int) -> str:
    return _HEAD + "@torch.no_grad()\n" * size + "def f(x):\n    return x\n"


def _suppressions(size: int) -> str:
    return _HEAD + "x = 1  # tpuport: ignore[TPU101]\n" * size


def _blank_lines(size: int) -> str:
    return _HEAD + "\n" * size + "x = 1\n"


def _one_line(size: int) -> str:
    return _HEAD + "; ".join(["x = 1"] * size) + "\n"


def _imports(size: int) -> str:
    return _HEAD + _repeated("import package#.module as m#", size)


def _findings(size: int) -> str:
    return _model("x[x > 0] = x.sum().item()\n" * size)


def _huge_numbers(size: int) -> str:
    texts = f"X = 10 ** 10 ** {size}\nY = 'a' * 10 ** {size}\nZ = [0] * 10 ** {size}\nW = 1 << 10 ** {size}\n"
    formats = f"F = f\"{{'a':>{10**size}}}\"\nG = '%{10**size}d' % 3\n"
    return f"{_HEAD}{texts}{formats}" + _model("x = x * X + len(Y) + len(Z) + W").removeprefix(_HEAD)


def lines_of_forward(line: str) -> Callable[[int], str]:
    """Files of one model, whose forward has this line so many times, `#` being its number."""
    return lambda size: _model("y = t = (x, x)\nd = {}\n" + _repeated(line, size).rstrip("\n"))


# What builds a file of a size, and the sizes.
FAMILIES: Final[dict[str, tuple[Callable[[int], str], tuple[int, ...]]]] = {
    "list literal": (_list_literal, (1_000, 10_000, 100_000, 600_000)),
    "dict literal": (_dict_literal, (1_000, 10_000, 100_000, 200_000)),
    "string literal": (_string_literal, (1_000_000, 10_000_000, 31_000_000, 40_000_000)),
    "globals": (_globals, (100, 1_000, 10_000, 50_000)),
    "functions": (_functions, (100, 1_000, 10_000, 30_000)),
    "function chain": (_function_chain, (100, 1_000, 5_000, 20_000)),
    "function tree": (_function_tree, (5, 10, 20, 40, 80, 160)),
    "models": (_models, (100, 1_000, 5_000)),
    "class chain": (_class_chain, (100, 1_000, 3_000, 5_000)),
    "class diamonds": (_class_diamonds, (10, 50, 200, 1_000)),
    "unions": (_unions, (10, 30, 60, 300, 1_000)),
    "unions of tuples": (_tuple_unions, (10, 30, 60, 300, 1_000)),
    "dispatch": (_dispatch, (4, 10, 60, 300)),
    "nested loops": (_nested_loops, (5, 10, 18)),
    "nested conditions": (_nested_conditions, (5, 20, 60, 90)),
    "lists of modules": (_module_lists, (2, 4, 8, 16)),
    "nested functions": (_nested_functions, (10, 50, 95)),
    "nested brackets": (_nested_brackets, (10, 100, 190, 100_000)),
    "attribute chain": (_attribute_chain, (100, 900, 5_000)),
    "sum": (_sum, (100, 3_000, 50_000)),
    "lambdas": (_lambdas, (10, 80, 1_000)),
    "decorators": (_decorators, (100, 20_000, 200_000)),
    "suppressions": (_suppressions, (1_000, 10_000, 100_000)),
    "blank lines": (_blank_lines, (100_000, 10_000_000)),
    "one line": (_one_line, (1_000, 100_000)),
    "imports": (_imports, (1_000, 10_000, 50_000)),
    "findings": (_findings, (100, 1_000, 10_000)),
    "huge numbers": (_huge_numbers, (3, 6, 9, 12)),
}

# Lines of a forward, each in these numbers.
_SIZES: Final = (10, 60, 1_000, 10_000)
LINES: Final = {
    "doubling list": "t = t + t",
    "doubling tuple": "t = (*t, *t)",
    "doubling in place": "t += t",
    "doubling text": "y = f'{y}{y}'",
    "doubling dict": "d = {'a#': d, 'b#': d}",
    "merged dicts": "d = {**d, 'a#': x, **d}",
    "nested tuples": "y = (y, y)",
    "nested choices": "y = (y, x) if args[#] else (x, y)",
    "branches": "if args[#]:\n    b# = x\nelse:\n    b# = None",
    "attempts": "try:\n    x = x + 1\nexcept ValueError:\n    y = None",
    "loops": "for i# in args:\n    x = x + i#",
    "endless loops": "while x.sum() > #:\n    x = x - 1",
    "closures": "y = lambda z, y=y: y(z) + y(z)",
    "comprehensions": "t = [a + b for a in t for b in t]",
    "calls": "x = torch.relu(x)",
    "calls of itself": "x = self.forward(x, #)",
    "subscripts": "t = t[:] + t[1:]",
    "zips": "t = list(zip(t, t))",
    "products": "import itertools; t = list(itertools.product(t, t))",
    "partials": "from functools import partial; y = partial(y, x, y)",
    "modules": "y = nn.Sequential(y, y)",
    "tensors": "y = torch.stack([y, y])",
    "assignments": "a#, *b#, c# = t",
    "matches": "match args:\n    case [x, *_]:\n        y = x",
    "deletions": "d['#'] = x; del d['#']",
    "attributes": "self.a# = x; y = self.a#",
}


def _cases() -> Iterable[Case]:
    for family, (build, sizes) in FAMILIES.items():
        for size in sizes:
            yield Case(f"{family}, {size:,}", build(size))
    for family, line in LINES.items():
        build = lines_of_forward(line)
        for size in _SIZES:
            yield Case(f"{family}, {size:,}", build(size))


def all_cases() -> list[Case]:
    """Every family in each of its sizes."""
    return list(_cases())
