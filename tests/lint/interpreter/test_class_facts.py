"""Classes: attributes, properties, bases, mixins, states."""


def test_attributes(check):
    check("""
    class Model(nn.Module):
        scale = 2
        def __init__(self, config, depth=2):
            super().__init__()
            self.config, self.depth, self.hidden = config, depth, config.hidden
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("step", torch.zeros(1))
            self.cache = None
        @property
        def size(self): return self.config.hidden // 2
        @property
        def total(self): return self.weight.sum()
        def forward(self, x: torch.Tensor):
            if self.depth > 1 or self.hidden > 2 or self.scale > 1 or self.size > 1 or self.cache is None: pass
            if self.step == 0: pass  #! TPU205
            if self.weight.sum() > 0: pass  #! TPU205
            if self.total > 0: pass  #! TPU205
    """)


def test_bases(check):
    check("""
    class Mixin:
        def decode(self, x): return x.argmax().item()  #! TPU201
    class Base(nn.Module):
        def forward(self, x: torch.Tensor): return self.finish(self.run(x))
        def finish(self, x): return x[x > 0]  #! TPU101
    class Model(Mixin, Base):
        def run(self, x): return self.decode(x) * x
        def finish(self, x): return super().finish(x)
    """)


def test_states(check):
    check("""
    from dataclasses import dataclass
    class Pair(NamedTuple):
        h: torch.Tensor
        n: int
    @dataclass
    class State:
        x: torch.Tensor
        step: int = 0
    class Helper:
        def __init__(self, x, size):
            self.x, self.size = x, size
        def __call__(self): return self.x.sum()
    class Model(nn.Module):
        def forward(self, x: torch.Tensor):
            pair, state, helper = Pair(x, 2), State(x), Helper(x, x.shape[0])
            if pair.n > 1 or state.step > 0 or helper.size > 2: pass
            if pair.h.sum() > 0: pass  #! TPU205
            if state.x.sum() > 0: pass  #! TPU205
            if helper() > 0: pass  #! TPU205
    """)


def test_layers(check):
    check("""
    class Inner(nn.Module):
        def forward(self, x): return x.norm()
    class Model(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.table = nn.ModuleDict({"a": Inner(), "b": Inner()})
            self.act = nn.ReLU() if config.relu else nn.GELU()
            self.seq = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        def forward(self, x: torch.Tensor, key: str):
            if self.table[key](x) > 0: pass  #! TPU205
            if self.act(x).sum() > 0: pass  #! TPU205
            if self.seq(x).sum() > 0: pass  #! TPU205
            if self.seq[0].weight.shape[0] > 1 and len(self.seq) > 1: pass
    """)


def test_what_a_module_got_to_call(check):
    check("""
    class Wrapper(nn.Module):
        def __init__(self, fn, act=nn.ReLU):
            super().__init__()
            self.fn = fn
            self.act = act()

        def forward(self, x):
            y = self.act(x)
            if y > 1: pass  #! TPU205
            return self.fn(y)

    class Half(nn.Module):
        def forward(self, x):
            return x / 2

    class Size(nn.Module):
        def forward(self, x):
            return x.shape[0]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = Wrapper(Half())
            self.many = nn.ModuleList([Wrapper(Wrapper(nn.Linear(4, 4))) for _ in range(3)])
            self.size = Wrapper(Size())
            self.any = Wrapper(fn=lambda x: x * 2, act=nn.GELU)

        def forward(self, x: torch.Tensor):
            if self.one(x) > 1: pass  #! TPU205
            for layer in self.many:
                if layer(x) > 1: pass  #! TPU205
            if self.size(x) > 1: pass
            if self.any(x) > 1: pass  #! TPU205
            return x
    """)


def test_a_module_that_creates_another_of_its_class(check):
    check("""
    class Tree(nn.Module):
        def __init__(self, layer, depth):
            super().__init__()
            self.layer = layer
            self.child = Tree(layer, depth - 1) if depth else None

        def forward(self, x: torch.Tensor):
            y = self.layer(x)
            return y if self.child is None else self.child(y)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tree = Tree(nn.Linear(4, 4), 3)

        def forward(self, x: torch.Tensor):
            return self.tree(x)
    """)


def test_layers_that_are_registered_one_by_one(check):
    check("""
    class Half(nn.Module):
        def forward(self, x):
            return x / 2

    class Model(nn.Module):
        def __init__(self, count: int):
            super().__init__()
            self.kinds = nn.ModuleDict()
            self.kinds["half"] = Half()
            self.scales = nn.ParameterList([nn.Parameter(torch.zeros(3)) for _ in range(count)])
            self.body = nn.Sequential(nn.Linear(4, 4), Half())
            self.stem = nn.Sequential(*list(self.body.children())[:1])
            for i in range(count):
                self.add_module(f"layer{i}", Half())
                setattr(self, "width%d" % i, 2 * i)

        def forward(self, x: torch.Tensor, kind: str, i: int):
            if self.kinds[kind](x) > 1: pass  #! TPU205
            if self.scales[i] > 1: pass  #! TPU205
            if self.stem(x) > 1: pass  #! TPU205
            if getattr(self, f"layer{i}")(x) > 1: pass  #! TPU205
            if getattr(self, f"width{i}") > 1: pass
            return x
    """)
