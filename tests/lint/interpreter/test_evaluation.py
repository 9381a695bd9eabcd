"""What expressions are taken for: what needs a number is found on its line, what Python knows is left alone."""

import pytest

STATIC = [
    "assert x.shape[0] == 4, x.shape",
    "assert x.size(0) == x.shape[0] and x.ndim == 3",
    "assert len(x) == len(ids)",
    "assert x.numel() > 0",
    "assert x.dtype == torch.float32 and x.device == ids.device",
    "assert x.shape[-1] % self.linear.in_features == 0",
    "if x.dim() == 2 or x.is_floating_point(): x = x[None]",
    "if self.config.use_bias and x.requires_grad: x = x + 1",
    "if self.flag: x = x * 2",
    "if self.training: print(x.sum().item())",
    "if cond is not None and x.shape[0] > 1: x = x + cond",
    "if cond is None: cond = torch.zeros_like(x)",
    "if isinstance(x, torch.Tensor) and torch.is_tensor(ids): x = x + 1",
    "if hasattr(self, 'extra') and callable(self.linear): x = x + 1",
    "b, n, d = x.shape\nx = x.view(b, n, 2, d // 2)[:, : n // 2]",
    "h = int(x.shape[1] ** 0.5)\nx = x[:, :h]\nfor i in range(h): x = x + i",
    "if x.shape == ids.shape or x.shape[:2] == (1, 2): x = x + 1",
    "size = x.new_zeros(x.shape[0], max(1, x.shape[1] - 2))",
    "if math.prod(x.shape) > 10: x = x + 1",
    "sizes = [t.shape[0] for t in (x, ids)]\nif max(sizes) > 3: x = x + 1\nx = x.split(sizes)",
    "x = x[None, ..., 0]\nx = x[:, ids]\nx = x[ids > 0] if False else x",
    "message = f'{x.shape} {x.dtype} {self.config}'",
    "if self.config.layer_types[0] in ('a', 'b') and 'x' in {'x': x}: x = x + 1",
    "x = x.masked_fill(mask, 0.0)\nx = torch.where(mask, x, 0.0)",
    "limit = torch.finfo(x.dtype).min\nif limit < 0: x = x + limit",
    "for row in x: ids = ids + row",
    "pairs = {'a': x, 'b': ids}\nfor key, value in pairs.items():\n    if key == 'a': x = x + value",
    "raise ValueError(f'{x:.2f}')",
    "x = x.repeat_interleave(2, dim=0)",
    "one = F.one_hot(ids, num_classes=4)",
]  # fmt: skip

NEEDS_NUMBERS = [
    "if x.sum() > 0: x = x + 1  #! TPU205",
    "if mask.any(): x = x + 1  #! TPU205",
    "while (x > 0).all(): x = x - 1  #! TPU205",
    "y = 1 if x.mean() > 0 else 2  #! TPU205",
    "y = x.sum() > 0 and x.shape[0] > 1  #! TPU205",
    "assert mask.all()  #! TPU206",
    "assert x.max() <= 1, 'too large'  #! TPU206",
    "n = x.max().item()  #! TPU201",
    "n = ids.tolist()  #! TPU202",
    "n = x.cpu().numpy()  #! TPU203",
    "n = int(ids.max()) + 1  #! TPU204",
    "n = float(x.mean())  #! TPU204",
    "x = x[mask]  #! TPU101",
    "x = x[~mask]  #! TPU101",
    "x = x[ids > 0]  #! TPU101",
    "x = x[..., mask, :]  #! TPU101",
    "x = x[mask.nonzero()]  #! TPU102",
    "i = torch.where(mask)[0]  #! TPU102",
    "x = torch.masked_select(x, mask)  #! TPU103",
    "u = torch.unique(ids)  #! TPU104",
    "x = x.repeat_interleave(ids, dim=0)  #! TPU105",
    "c = torch.bincount(ids)  #! TPU106",
    "z = torch.zeros(2, ids.max())  #! TPU107",
    "z = x.tril(ids.max())  #! TPU107",
    "x = x[:, : ids[0]]  #! TPU108",
    "p = x.split(ids.tolist())  #! TPU202",
    "o = F.one_hot(ids)  #! TPU110",
    "for i in range(ids[0]): x = x + i  #! TPU208",
    "found = 3 in ids  #! TPU209",
    "if torch.equal(x, ids): x = x + 1  #! TPU210",
    "text = f'{x.sum():.2f}'  #! TPU211",
    "m = max(ids[0], 3)  #! TPU212",
    "t = torch.tensor([ids[0], 2])  #! TPU213",
    "t = [1, 2, 3][ids[0]]  #! TPU214",
]  # fmt: skip


@pytest.mark.parametrize("body", STATIC)
def test_what_python_knows(check_forward, body):
    check_forward(body)


@pytest.mark.parametrize("body", NEEDS_NUMBERS)
def test_what_needs_numbers(check_forward, body):
    check_forward(body)


def test_lines_of_long_expressions(check_forward):
    check_forward("""
        y = (
            x.abs()
            .max()
            .item()  #! TPU201
        )
        if (
            x.shape[0] > 1
            and x.sum() > 0  #! TPU205
        ):
            x = x + 1
        z = torch.zeros(
            x.shape[0],
            int(ids.max()),  #! TPU204
        )
        w = [
            x,
            x[mask],  #! TPU101
        ]
    """)


def test_a_list_with_a_tensor_in_it(check_forward):
    check_forward("""
        lens = [0]
        for one in ids:
            lens += [4] * x.shape[0]
            lens += [one % 4]
        a = torch.tensor(lens)  #! TPU213
        b = torch.tensor([0] + [n for n in x.shape])
    """)


def test_hashed_containers_compare_nothing(check_forward):
    check_forward("""
        a = ids[0] in {1, 2}
        b = ids[0] in {1: x}
        c = ids[0] in [1, 2]  #! TPU209
    """)


def test_a_table_of_functions_of_several_kinds(check):
    check("""
    class Model(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config
            self.kinds = {"relu": F.relu, "picked": self.pick, "linear": nn.Linear(4, 4)}
            self.settings = {"depth": 3, "act": F.relu}

        def pick(self, x):
            return x[x > 0]  #! TPU101

        def forward(self, x: torch.Tensor):
            if self.settings[self.config.setting] == 3: pass
            return self.kinds[self.config.kind](x)
    """)
