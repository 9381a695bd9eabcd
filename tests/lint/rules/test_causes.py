"""What the linter once got wrong about values in published repositories, by cause.

Each case stands beside a near twin that the linter must tell apart. A line that ends in `#! TPU201` is an error, and
there is no other. Where a case has inputs, its `Model` runs too: with an error it cannot be traced, and without one it
gives what torch gives.
"""

from collections.abc import Callable

import pytest

from tpuport.lint.rules import Example

CASES = {
    "sizes in a tensor of the host": Example(
        """
class Block(nn.Module):
    def forward(self, x, grid_sizes, lengths):
        rows = [x[i, : h * w] for i, (h, w) in enumerate(grid_sizes.tolist())]
        if lengths.min() < 2:
            return x
        return torch.stack(rows)[:, : lengths[0]]

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(2)])

    def forward(self, x):
        grid_sizes = torch.stack([torch.tensor(u.shape[1:], dtype=torch.long) for u in x])
        lengths = torch.tensor([u.numel() for u in x], dtype=torch.long)
        assert lengths.max() <= 64
        x = x.flatten(1)
        kwargs = dict(grid_sizes=grid_sizes, lengths=lengths)
        for block in self.blocks:
            x = block(x, **kwargs)
        return x[:, : lengths.max().item()]
""",
        "(torch.randn(2, 3, 4, 4),)",
    ),
    "sizes in a tensor on the device": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        sizes = torch.tensor(x.shape, device=x.device)
        return x * sizes.tolist()[0]  #! TPU202
""",
        "(torch.randn(2, 3),)",
    ),
    "a tensor of the host, moved to the device": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        lengths = torch.tensor([x.shape[0], 3]).to(x.device)
        if lengths.sum() > 3:  #! TPU205
            return x
        return x * lengths[0]
""",
        "(torch.randn(2, 3),)",
    ),
    "tensors of the host in a dict of the object": Example(
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = {}

    def forward(self, x):
        n = x.shape[-1]
        if n not in self.tables:
            self.tables[n] = torch.arange(n).float()
        return x * self.tables[n].sum().item()
""",
        "(torch.randn(2, 3),)",
    ),
    "traced tensors in a dict of the object": Example(
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = {}

    def forward(self, x):
        if x.shape[-1] not in self.tables:
            self.tables[x.shape[-1]] = torch.arange(x.shape[-1], device=x.device).float()
        return x * self.tables[x.shape[-1]].sum().item()  #! TPU201
""",
        "(torch.randn(2, 3),)",
    ),
    "what stays on the host": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        counts = torch.stack([torch.tensor([3]), torch.LongTensor([2])]) * 2 - torch.eye(2, dtype=torch.long)
        larger = torch.where(counts > 2, counts, torch.zeros_like(counts))
        return x * sum(larger.flatten().tolist()) + torch.outer(torch.arange(3), torch.ones(2)).max().item()
""",
        "(torch.randn(2, 8),)",
    ),
    "arithmetic of numbers by torch": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        count = torch.div(x.shape[1], 2, rounding_mode="trunc")
        return x.view(x.shape[0], count, 2)  #! TPU107
""",
        "(torch.randn(2, 8),)",
    ),
    "indices that are created on the host": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        return x * (torch.tril_indices(3, 3)[0, 0].item() + 1)
""",
        "(torch.randn(2, 8),)",
    ),
    "numbers that are chosen on the device": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        return x * torch.where(torch.tensor(True), 1, 2).item()  #! TPU201
""",
        "(torch.randn(2, 8),)",
    ),
    "one-hot rows of host indices": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        return x * F.one_hot(torch.tensor([1]), 3).sum().item()  #! TPU201
""",
        "(torch.randn(2, 8),)",
    ),
    "lists and tuples": Example(
        """
def sizes(features):
    if isinstance(features, list):
        return features[0].shape[-1]
    return int(features[0])

class Model(nn.Module):
    def forward(self, x):
        features = [x, x * 2]
        features[0] = x[:, :1]
        return x[:, : sizes(features)]
""",
        "(torch.randn(2, 8),)",
    ),
    "values after numpy()": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        total = 0.0
        for step in torch.linspace(0, 1, 5).numpy():
            if step > 0.3:
                total += float(step)
        return x * total
""",
        "(torch.randn(2, 3),)",
    ),
    "numpy() of a traced tensor": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        values = x.detach().numpy()  #! TPU203
        for row in values:
            if row.max() > 1:
                return x
        return x * values.mean().item()
""",
        "(torch.randn(2, 3),)",
    ),
    "numbers in spite of their names": Example(
        """
def cut(x: torch.Tensor, mask: int, tokens: int = 3, weights: float = 0.5, hidden: bool = False):
    if mask > 2 and hidden:
        x = x[:, :tokens]
    return x * weights if weights else x

class Model(nn.Module):
    def forward(self, x: torch.Tensor, tokens: int, t: float, features: list[int]):
        x = cut(x, tokens)
        if t > 0.5:
            x = x + t
        for feature in features:
            if feature > 1:
                x = x * feature
        return x[:, :tokens]
""",
        "(torch.randn(2, 8), 3, 0.7, [1, 2])",
    ),
    "guards by type": Example(
        """
class Model(nn.Module):
    def forward(self, x, tokens):
        if type(tokens) is int and tokens > 2:
            x = x * 2
        if type(tokens) in (int, float) and tokens > 2:
            x = x * 2
        if not isinstance(tokens, torch.Tensor) and tokens > 2:
            x = x * 2
        if not torch.is_tensor(tokens) and tokens > 2:
            x = x * 2
        return x
""",
        "(torch.randn(2, 3), 3)",
    ),
    "guards by constants": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        if 0:
            return x.item()
        while False:
            x = x[x > 0]
        if not torch.jit.is_scripting() or True:
            return x * 2
        return x.tolist()
""",
        "(torch.randn(2, 3),)",
    ),
    "constants that let through": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        if 1:
            x = x * x.sum().item()  #! TPU201
        if "":
            return x.tolist()
        return x[x > 0]  #! TPU101
""",
        "(torch.randn(2, 3),)",
    ),
    "arguments and their parameters": Example(
        """
import functools

def cut(x, *, length, mask=None, scale=1.0):
    if scale > 2:
        x = x * scale
    return x[:, :length]

def variadic(*tensors, count=2, **options):
    return tensors[0][:, :count] if count > 1 else tensors[0]

class Attention(nn.Module):
    def forward(self, x, context=None, length=3, *extra, **kwargs):
        if length > 2:
            x = x[:, :length]
        return x + extra[0][:, :length] if extra else x

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def run(self, n, x):
        return x[:, :n] if n > 1 else x
    two = functools.partialmethod(run, 2)

    def forward(self, x):
        x = cut(x, length=x.shape[1] - 1, mask=x)
        x = variadic(x, x, count=3)
        x = self.attention(x, None, 3, x)
        x = functools.partial(cut, length=3)(x)
        pair = (x, x.shape[1])
        x = self.attention(*pair[:1], length=pair[1])
        x = Model.run(self, 3, x)
        return self.two(x)
""",
        "(torch.randn(2, 8),)",
    ),
    "sequences of known lengths": Example(
        """
from torch.nn.utils.rnn import pad_sequence

class Model(nn.Module):
    def forward(self, x):
        rows = []
        for i in range(2):
            rows.append(x[i, : i + 1])
        return pad_sequence(rows, batch_first=True) + pad_sequence(x.unbind(0)).transpose(0, 1)[:, :2]
""",
        "(torch.randn(2, 3, 4),)",
    ),
    "sequences whose lengths depend on values": Example(
        """
from torch.nn.utils.rnn import pad_sequence

class Model(nn.Module):
    def forward(self, x):
        rows = [row[row > 0] for row in x]  #! TPU101
        return pad_sequence(rows, batch_first=True)
""",
        "(torch.randn(2, 3),)",
    ),
    "tensors that fill": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        x = x.masked_fill(x > 0, x.max())
        return torch.full((2, 3), x.sum(), device=x.device) + torch.zeros_like(x).fill_(x.min())
""",
        "(torch.randn(2, 3),)",
    ),
    "tensors that fill like another": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        return torch.full_like(x, x.mean()) + x.new_full((2, 3), x.max())  #! TPU213
""",
        "(torch.randn(2, 3),)",
    ),
}


@pytest.mark.parametrize("example", CASES.values(), ids=CASES)
def test_the_errors_are_these(assert_errors: Callable[[Example], None], example: Example) -> None:
    assert_errors(example)


RUNNABLE = {name: example for name, example in CASES.items() if example.inputs}


@pytest.mark.parametrize("example", RUNNABLE.values(), ids=RUNNABLE)
def test_the_errors_are_true(assert_true: Callable[[Example], None], example: Example) -> None:
    assert_true(example)
