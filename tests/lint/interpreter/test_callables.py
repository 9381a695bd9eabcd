"""Calls: functions, closures, lambdas, partials, generators, methods looked up by name, other files."""

import pytest


def test_functions_of_all_kinds(check):
    check("""
    from functools import partial
    def plain(t): return t.max()
    def pieces(t):
        for row in t: yield row.sum()
    shrink = lambda t: t[t > 0]  #! TPU101
    class Model(nn.Module):
        def forward(self, x: torch.Tensor):
            def inner(t): return t + x
            if plain(x) > 0: pass  #! TPU205
            if inner(1).sum() > 0: pass  #! TPU205
            if partial(torch.sum, x)() > 0: pass  #! TPU205
            shrink(x)
            for piece in pieces(x):
                if piece > 0: pass  #! TPU205
            q, k = map(lambda t: t.abs().sum(), (x, x))
            if q > k: pass  #! TPU205
            kept = list(filter(lambda n: n > 1, x.shape))
            if len(kept) > 1: pass
    """)


def test_other_files(check):
    check(
        """
    import tools
    from tools import *
    from tools import lengths as how_long
    class Model(nn.Module):
        def forward(self, x: torch.Tensor):
            if tools.largest(x) > 0: pass  #! TPU205
            if largest(x) > 0: pass  #! TPU205
            if how_long(x) > 0: pass
    """,
        tools="""
    def largest(t): return t.max()
    def lengths(t): return t.shape[0]
    """,
    )


def test_methods_by_name(check):
    check("""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            for i in range(2): setattr(self, f"layer{i}", nn.Linear(4, 4))
        def forward(self, x: torch.Tensor, mode="a"):
            return getattr(self, "_run_" + mode)(x)
        def _run_a(self, x): return x.item()  #! TPU201
        def _run_b(self, x): return x.tolist()  #! TPU202
        def other(self, x): return x.tolist()
    """)


def test_a_decorated_forward_of_a_choice_takes_no_more_arguments_than_it_has(check):
    check("""
    import functools
    def renaming(function):
        @functools.wraps(function)
        def renamed(*args, **kwargs): return function(*args, **kwargs)
        return renamed
    class Full(nn.Module):
        @renaming
        def forward(self, x, length=0): return x if length > 0 else x + 1
    class Sparse(nn.Module):
        @renaming
        def forward(self, x, band, blocks): return x * band * blocks
    class Model(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.part = Full() if config.full else Sparse()
        def forward(self, x: torch.Tensor):
            return self.part(x) if self.config.full else self.part(x, x, x)
    """)


def test_autograd_functions(check):
    check("""
    class Round(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, limit):
            ctx.limit = limit
            if limit > 3: pass
            if x.abs().max() > limit: x = x / 2  #! TPU205
            return x.round()
        @staticmethod
        def backward(ctx, g):
            if g.sum() > 0: return g, None
    rounded = Round.apply
    class Model(nn.Module):
        def forward(self, x: torch.Tensor):
            if rounded(x, 4).sum() > 0: pass  #! TPU205
            return Round.apply(x, 4)
    """)


def test_only_what_is_reached(check):
    check("""
    def host(t): return t.item()
    class Model(nn.Module):
        def __init__(self, table: torch.Tensor):
            super().__init__()
            self.limit = table.max().item()
        def forward(self, x: torch.Tensor): return x
        def save(self, x: torch.Tensor): return x.tolist()
    def train(model, x: torch.Tensor):
        if model(x).sum() > 0: return host(x)
    """)


def test_recursion_ends(check):
    check("""
    def down(t, n):
        if t.sum() > 0: return t  #! TPU205
        return down(t, n - 1)
    class Model(nn.Module):
        def forward(self, x: torch.Tensor): return down(x, 3)
    """)


def test_calls_that_one_of_two_classes_refuses(check):
    check("""
    class Full(nn.Module):
        def forward(self, x, lengths=None, scale=1.0):
            return x if lengths is None else x[:, : lengths.max()]
    class Sparse(nn.Module):
        def forward(self, x, band_mask, edge_mask, block_mask):
            return x * band_mask * edge_mask * block_mask
    class Cut(nn.Module):
        def forward(self, x, lengths, stop=None):
            return x[:, : lengths.max()]  #! TPU108
    class Model(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.attention = Full() if config.kind == "full" else Sparse()
            self.cut = Full() if config.kind == "full" else Cut()
        def forward(self, x: torch.Tensor, mask: torch.Tensor):
            x = self.cut(x, mask, stop=4)
            if self.config.kind == "full":
                return self.attention(x, scale=2.0)
            return self.attention(x, mask, mask, mask)
    """)


def test_an_annotation_completes_what_is_returned(check):
    check("""
    def parts(x: torch.Tensor, kind) -> tuple[torch.Tensor, int]:
        if kind is None:
            return x, 1
        return kind.convert(x), kind.count

    class Model(nn.Module):
        def forward(self, x: torch.Tensor, kind):
            y, count = parts(x, kind)
            if count > 3: x = x + 1
            return x[y > 0]  #! TPU101
    """)


def test_a_helper_that_is_called_often(check):
    parts = ", ".join(["default(given, x)"] * 12)
    check(f"""
    def default(value, other):
        return other if value is None else value

    class Model(nn.Module):
        def forward(self, x: torch.Tensor, given: Optional[torch.Tensor] = None):
            parts = [{parts}]
            x = default(given, parts[-1])
            if x > 1: pass  #! TPU205
            return x
    """)


def test_a_function_that_calls_itself(check):
    check("""
    def halve(x):
        if x.shape[0] < 2:
            return x
        y = halve(x[::2])
        if y > 1: pass  #! TPU205
        return y * 2

    def count(x):
        if x.shape[0] < 2:
            return 0
        n = count(x[::2])
        if n > 3: pass
        return n + 1

    class Model(nn.Module):
        def forward(self, x: torch.Tensor):
            return halve(x) + count(x)
    """)


def test_gradients_are_tensors(check_forward):
    check_forward("""
    slope = torch.autograd.grad(x.sum(), x, create_graph=True)[0]
    if slope > 1: pass  #! TPU205
    return torch.where(slope)[0]  #! TPU102
    """)


def test_classes_that_a_registry_builds_by_settings(check):
    """Which of the few that are registered is not known; a class may be given in place of a name."""
    check("""
    class Registry:
        def __init__(self):
            self.kinds = {}
        def register(self, kind):
            self.kinds[kind.__name__] = kind
            return kind
        def build(self, settings):
            arguments = dict(settings)
            kind = arguments.pop("type")
            kind = self.kinds.get(kind) if isinstance(kind, str) else kind
            return kind(**arguments)

    PARTS = Registry()

    @PARTS.register
    class Scale(nn.Module):
        def forward(self, x):
            return x.sum() * 2

    @PARTS.register
    class Head(nn.Module):
        def loss(self, x, other):
            return {"first": x.mean(), "second": other}
        def count(self, x):
            return x.shape[0]

    class Model(nn.Module):
        def __init__(self, scale, head):
            super().__init__()
            self.scale, self.head = PARTS.build(scale), PARTS.build(head)
        def forward(self, x, other):
            if self.scale(x) > 1: x = x * 2  #! TPU205
            losses = self.head.loss(x, other)
            if losses["first"] > 1: x = x * 2  #! TPU205
            if self.head.count(x) > 1: x = x * 2
            return x
    """)


@pytest.mark.parametrize("decorator", ["guarded", "guarded()", "guarded(limit=2)"])
def test_a_decorator_with_and_without_arguments(check, decorator):
    check(f"""
import functools

def guarded(function=None, *, limit=1):
    if function is None:
        return functools.partial(guarded, limit=limit)

    @functools.wraps(function)
    def wrapper(self, x):
        y = function(self, x)
        if limit > 1 or x.shape[0] > 1:
            y = y + 1
        if y.max() > limit:  #! TPU205
            raise ValueError
        return y

    return wrapper

class Model(nn.Module):
    @{decorator}
    def forward(self, x):
        return x * 2
""")
