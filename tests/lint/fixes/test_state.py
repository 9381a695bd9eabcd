"""Rewrites of assertions, printing, infinite masks, defaults, buffers and caches."""

import pytest


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y = x\nassert x.max() < 1\nreturn y", "y = x\nreturn y"),
        ("# why\nassert x.max() < 1  # note\nreturn x", "# why\n# note\nreturn x"),
        ("if mask:\n    assert x.max() < 1\nreturn x", "if mask:\n    pass\nreturn x"),
        ("if mask:\n    # why\n    assert x.max() < 1\nreturn x", "if mask:\n    # why\n    pass\nreturn x"),
        ("return x\n\nassert x.max() < 1  # last", "return x\n\n# last"),
        ("y = x\n\nassert x.max() < 1\ny = 2", "y = x\n\ny = 2"),
    ],
)
def test_assertions_go(before: str, after: str, fix_forward) -> None:
    assert fix_forward(before, ("TPU206", "x.max() < 1"), unsafe=True) == after
    assert fix_forward(before, ("TPU206", "assert x.max() < 1"), unsafe=True) == after


def test_an_assertion_over_several_lines(fix_forward) -> None:
    text = 'assert (\n    x.max() < 1\n), f"too large: {x.max()}"\nreturn x'
    assert fix_forward(text, ("TPU206", "x.max() < 1"), unsafe=True) == "return x"
    commented = 'assert (\n    x.max() < 1  # strict\n), "too large"\nreturn x'
    assert fix_forward(commented, ("TPU206", "x.max() < 1"), unsafe=True) == commented


@pytest.mark.parametrize("node", ["(y := x.max()) < 1", "x.clamp_(0) < 1", "sizes.pop() < 1", "next(x) < 1"])
def test_assertions_that_do_something_stay(node: str, fix_forward) -> None:
    assert fix_forward(f"assert {node}", ("TPU206", node), unsafe=True) == f"assert {node}"


def test_printing_goes_when_asked(fix_forward) -> None:
    text = 'print(f"{x}")\nlogger.info(f"{x}")\nreturn x'
    assert fix_forward(text, ("TPU211", 'print(f"{x}")')) == text
    assert fix_forward(text, ("TPU211", 'print(f"{x}")'), unsafe=True) == 'logger.info(f"{x}")\nreturn x'
    assert fix_forward(text, ("TPU211", 'logger.info(f"{x}")'), unsafe=True) == text
    mine = "print(x)\nreturn x"
    assert fix_forward(mine, ("TPU211", "print(x)"), arguments="x, print", unsafe=True) == mine


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x.masked_fill(mask, {})", "x.masked_fill(mask, torch.finfo(x.dtype).min)"),
        ("self.x.masked_fill_(mask, {})", "self.x.masked_fill_(mask, torch.finfo(self.x.dtype).min)"),
        ("torch.where(mask, x, {})", "torch.where(mask, x, torch.finfo(x.dtype).min)"),
        ("torch.full((2, 3), {})", "torch.full((2, 3), torch.finfo(torch.get_default_dtype()).min)"),
        ("torch.full((2,), {}, dtype=x.dtype)", "torch.full((2,), torch.finfo(x.dtype).min, dtype=x.dtype)"),
        ("torch.full_like(x, {})", "torch.full_like(x, torch.finfo(x.dtype).min)"),
        ("(x + 1).masked_fill(mask, {})", None),
        ("torch.where(mask, {}, {})", None),
        ("self.fill(x, {})", None),
    ],
)
@pytest.mark.parametrize("infinity", ['float("-inf")', "-float('inf')", "-torch.inf", "-math.inf"])
def test_infinite_masks(before: str, after: str | None, infinity: str, fix_forward) -> None:
    text = before.format(infinity, infinity)
    assert fix_forward(text, ("TPU404", infinity)) == text
    assert fix_forward(text, ("TPU404", infinity), unsafe=True) == (after or text)
    assert fix_forward(text, ("TPU404", text), unsafe=True) == (after or text)


def test_defaults_are_made_in_each_call(fix) -> None:
    text = '''
    def f(a, sizes: list = [1, 2], *, b={}):
        """Doc."""

        # first
        return [s in b for s in sizes]
    '''
    after = fix(text, ("TPU505", "[1, 2]"))
    assert (
        after
        == '''
def f(a, sizes: list = None, *, b={}):
    """Doc."""

    # first
    if sizes is None:
        sizes = [1, 2]
    return [s in b for s in sizes]
'''
    )
    assert "if b is None:" in fix(after, ("TPU505", "{}"))


@pytest.mark.parametrize(
    "body",
    ["x.append(1)", "return x", "self.x = x", "x[0] = 1", "x += [1]", "g(x)", "y = x", "del x[0]", "yield x"],
)
def test_a_default_that_calls_share_is_unsafe(body: str, fix) -> None:
    text = f"def f(x=[]):\n    {body}\n"
    assert fix(text, ("TPU505", "[]")) == text
    assert "if x is None:" in fix(text, ("TPU505", "[]"), unsafe=True)


@pytest.mark.parametrize(
    "text",
    [
        "def f(x=[]): return x\n",
        "f = lambda x=[]: x\n",
        'def f(x=[]):\n    """Doc."""\n',
    ],
)
def test_defaults_left_alone(text: str, fix) -> None:
    assert fix(text, ("TPU505", "[]"), unsafe=True) == text


_CLASS = """
class Model(nn.Module):
{0}
    def __init__(self):
        {1}
        # a table
        self.x = torch.arange(3)  # fixed

    def forward(self, x):
        {2}
"""


def test_tensor_attributes_become_buffers(fix) -> None:
    text = _CLASS.format("", "super().__init__()", "return x")
    assert fix(text, ("TPU507", "self.x")) == text
    after = fix(text, ("TPU507", "self.x"), unsafe=True)
    line = (
        '        # a table\n        self.register_buffer("x", torch.arange(3), persistent=False)  # fixed\n'
    )
    assert line in after
    assert fix(text, ("TPU507", "self.x = torch.arange(3)"), unsafe=True) == after


@pytest.mark.parametrize(
    "parts",
    [
        ("", "pass", "return x"),  # nothing holds buffers yet
        ("", "super().__init__()", "self.x = x"),
        ("    # complex", "super().__init__()", "return x"),  # a dtype for all buffers would make it real
        ("    x = None", "super().__init__()", "return x"),
        ("    @property\n    def x(self): ...", "super().__init__()", "return x"),
    ],
)
def test_attributes_left_alone(parts: tuple[str, str, str], fix) -> None:
    text = _CLASS.format(*parts)
    assert fix(text, ("TPU507", "self.x = torch.arange(3)"), unsafe=True) == text
