"""What conditions say of names."""


def test_none(check_forward):
    check_forward("""
        if cond is None:
            if cond: x = x + 1
        else:
            if cond.sum(): x = x + 1  #! TPU205
        if cond is not None and cond.sum() > 0: x = x + 1  #! TPU205
        if cond is None or cond.any(): x = x + 1  #! TPU205
        if not (cond is None): x = x + 1
    """)


def test_types(check):
    check("""
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, scale):
            if isinstance(scale, float) and scale > 1: x = x + 1
            if isinstance(scale, torch.Tensor) and scale > 1: x = x + 1  #! TPU205
            if torch.is_tensor(scale):
                if scale > 1: x = x + 1  #! TPU205
            if isinstance(scale, (int, float)):
                if scale > 1: x = x + 1
            if isinstance(x, list): return x[0].item()
            if isinstance(scale, ()): x = x + 1
            return x
    """)


def test_a_shape_is_a_tuple_and_no_tensor(check):
    check("""
    def first(shape: torch.Tensor):
        if isinstance(shape, tuple): return shape[0]
        if isinstance(shape, torch.Tensor): return int(shape[0])
        raise TypeError
    class Model(nn.Module):
        def forward(self, x: torch.Tensor):
            return x[: first(x.shape)]
    """)


def test_what_is_surely_a_tensor(check):
    check("""
    def as_tensor(t):
        if torch.is_tensor(t): return t
        return torch.tensor([t])
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, n: int):
            as_tensor(x)
            as_tensor(n)
            y = x if torch.is_tensor(x) else torch.tensor([x])
            z = x.item() if torch.is_tensor(n) else n
            return y
    """)


def test_one_of_several_layers(check):
    check("""
    class Counting(nn.Module):
        def forward(self, x, step):
            if step.sum() > 0: return x  #! TPU205
            return x
    class Plain(nn.Module):
        def forward(self, x): return x
    class Model(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.layers = nn.ModuleList([Counting() if config.a else Plain(), nn.Linear(4, 4)])
        def forward(self, x: torch.Tensor):
            for layer in self.layers:
                if isinstance(layer, Counting):
                    x = layer(x, x)
                else:
                    x = layer(x)
            return x[x > 0]  #! TPU101
    """)


def test_answers_of_tracing(check):
    check("""
    class Model(nn.Module):
        def forward(self, x: torch.Tensor):
            if torch.jit.is_tracing(): return x.item()
            if torch.compiler.is_compiling() and x.sum() > 0: return x
            if torch.cuda.is_available(): return x.item()
            if not torch.compiler.is_compiling() and x.sum() > 0: return x  #! TPU205
            return x
    """)


def test_lists_without_elements(check):
    check("""
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, flags: list[bool]):
            parts = [x.sum()]
            for flag in flags:
                if flag: parts.append(x.max())
            a = torch.stack(parts) if len(parts) > 0 else torch.tensor(parts)
            b = torch.tensor(parts) if len(parts) == 0 else torch.stack(parts)
            c = torch.tensor(parts) if len(parts) > 0 else a  #! TPU213
            d = torch.tensor(parts) if len(parts) > 1 else b  #! TPU213
            return a + b + c + d
    """)
