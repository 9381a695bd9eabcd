"""What the linter once missed around layers of torch and methods of modules, by cause.

Each case stands beside a near twin that the linter must tell apart. A line that ends in `#! TPU201` is an error, and
there is no other. Where a case has inputs, its `Model` runs too: with an error it cannot be traced, and without one it
gives what torch gives.
"""

from collections.abc import Callable

import pytest

from tpuport.lint.rules import Example


def not_run(code: str) -> Example:
    return Example(code, inputs="")


CASES = {
    "a layer whose weight is normalized": Example(
        """
from torch.nn.utils import parametrizations, weight_norm

def convolution(*sizes):
    return weight_norm(nn.Conv1d(*sizes))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = convolution(3, 4, 1)
        self.second = parametrizations.spectral_norm(nn.Linear(5, 5))

    def forward(self, x):
        x = self.second(self.first(x))
        return x[x > 0]  #! TPU101
""",
        "(torch.randn(2, 3, 5),)",
    ),
    "a layer whose weight is normalized, without a read": Example(
        """
from torch.nn.utils.parametrizations import weight_norm

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = weight_norm(nn.Conv1d(3, 4, 1))

    def forward(self, x):
        y = self.first(x)
        return torch.where(y > 0, y, 0.0)
""",
        "(torch.randn(2, 3, 5),)",
    ),
    "a packed sequence through a recurrent layer": not_run("""
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x, lengths):
        sizes = lengths.cpu()  #! TPU312
        packed = pack_padded_sequence(x, sizes, batch_first=True)  #! TPU111
        packed, _ = self.rnn(packed)  #! TPU111
        y, _ = pad_packed_sequence(packed, batch_first=True)  #! TPU111
        return self.head(y)
"""),
    "a layer of one of two classes": not_run("""
from torch.nn.utils.rnn import pack_padded_sequence

class Model(nn.Module):
    def __init__(self, kind: str, fast: bool):
        super().__init__()
        layer = nn.GRU if kind == "gru" else nn.LSTM
        self.rnn = layer(3, 4, batch_first=True)
        self.activation = F.relu if fast else F.gelu

    def forward(self, x, lengths):
        output, hidden = self.rnn(pack_padded_sequence(x, lengths))  #! TPU111
        y, hidden = self.rnn(x)
        if self.activation(y).sum() > 0:  #! TPU205
            return y
        return y[y > 0], output  #! TPU101
"""),
    "a state of a recurrent layer": Example(
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x):
        y, (hidden, cell) = self.lstm(x)
        if hidden.mean() > cell.mean():  #! TPU205
            return y
        return -y
""",
        "(torch.randn(2, 3, 3),)",
    ),
    "a padded batch through a recurrent layer": Example(
        """
from torch.nn.utils.rnn import PackedSequence

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True)

    def forward(self, x: torch.Tensor):
        if isinstance(x, PackedSequence):
            return int(x.batch_sizes[0])
        y, hidden = self.gru(x)
        return y + hidden[-1][:, None]
""",
        "(torch.randn(2, 3, 3),)",
    ),
    "texts and sizes of tensors": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        if "Half" in x.type() or (2, 3) == x.size() or x.size() == torch.Size([2]):
            return -x
        rows, columns = x.size()
        return x.type(torch.float32).reshape(columns, rows) + x.max()
""",
        "(torch.randn(2, 3),)",
    ),
    "a dict that is called features": not_run("""
class Sum(nn.Module):
    def forward(self, x, other):
        total = {}
        for degree, part in x.items():
            degree = str(degree)
            if degree in other:
                part = part + other[degree]
            total[degree] = part
        return total

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.sum = Sum()

    def forward(self, features, y):
        total = self.sum(self.double(features), features)
        return total["0"] * 2 if 3 in y.abs() else total["0"]  #! TPU209

    def double(self, features):
        return {degree: 2 * part for degree, part in features.items()}
"""),
    "a dict that is called a mask": Example(
        """
class Block(nn.Module):
    def forward(self, x, index, mask):
        return x[index.view(-1)] + mask

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def choose(self, x, table_and_mask):
        return self.block(x, table_and_mask["index"], table_and_mask["mask"])

    def forward(self, x, mask):
        index = torch.arange(2, device=x.device)
        return self.choose(x, {"index": index, "mask": mask}) + x[mask > 0]  #! TPU101
""",
        "(torch.randn(2), torch.ones(2))",
    ),
    "the other direction of a flow": not_run("""
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("is_ready", torch.tensor(False))
        self.log_scale = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return x * self.log_scale.exp()

    def inverse(self, y):
        if not self.is_ready:  #! TPU205
            self.is_ready = torch.tensor(True)
        return y * (-self.log_scale).exp()

class Flow(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.steps = nn.ModuleList(steps)

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x

    def log_prob(self, y):
        for i in range(len(self.steps) - 1, -1, -1):
            y = self.steps[i].inverse(y)
        return -y.square().sum() if y.max() > 0 else y  #! TPU205
"""),
    "a named tuple that is unpacked": Example(
        """
from collections import namedtuple
from typing import Any, NamedTuple

Evaluated = namedtuple("Evaluated", ["value", "slope"])

class Bounds(NamedTuple):
    low: Any
    high: Any

class Model(nn.Module):
    def evaluate(self, x):
        return Evaluated(slope=x.shape[0], value=x.sum())

    def forward(self, x):
        low, high = Bounds(high=x.max(), low=-3)
        value, slope = self.evaluate(x)
        if slope > 1 and low < 0:
            x = x + 1
        if value > high:  #! TPU205
            x = x - 1
        return x
""",
        "(torch.randn(4),)",
    ),
    "a named tuple of numbers": Example(
        """
import collections

Sizes = collections.namedtuple("Sizes", "rows columns")

class Model(nn.Module):
    def forward(self, x):
        rows, columns = Sizes(columns=x.shape[1], rows=x.shape[0])
        return x * 2 if rows > columns else x
""",
        "(torch.randn(2, 3),)",
    ),
    "a named tuple that renames a field": Example(
        """
import collections

Sizes = collections.namedtuple("Sizes", "class columns", rename=True)

class Model(nn.Module):
    def forward(self, x):
        if x.sum() > 0:  #! TPU205
            x = x + 1
        return x * 2 if Sizes(x.shape[0], x.shape[1]).columns > 2 else x
""",
        "(torch.randn(2, 3),)",
    ),
    "numbers that become a tensor where they are not none": Example(
        """
class Model(nn.Module):
    def forward(self, x, sizes=None):
        if len(sizes) and sizes[0] > 3:
            x = x + 1
        if sizes is not None:
            sizes = torch.tensor(sizes, device=x.device)
        return x + sizes
""",
        "(torch.randn(2), [4, 5])",
    ),
    "an object in the place of none": Example(
        """
class Stepper:
    def step(self, loss):
        return loss if loss > 3 else -loss  #! TPU205

class Counter:
    def count(self, n):
        return n + 1 if n > 3 else n

class Model(nn.Module):
    def __init__(self, stepper=None, counter=None):
        super().__init__()
        self.stepper = Stepper() if stepper is None else stepper
        self.counter = counter or Counter()

    def forward(self, x):
        return x * self.counter.count(x.shape[0]) + self.stepper.step(x.norm())
""",
        "(torch.randn(2, 3),)",
    ),
    "a number that a loop makes a tensor of": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        rounds, gain = 0, -1
        while rounds < 3:
            rounds += 1
            if rounds == 2:
                continue
            gain = x.sum() - rounds
        return x if gain > 0 else -x  #! TPU205
""",
        "(torch.randn(2, 3),)",
    ),
    "a number that a loop leaves": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        rounds, gain = 0, -1
        while rounds < 3:
            rounds += 1
            if rounds == 2:
                continue
            gain = x.shape[0] - rounds
        return x if gain > 0 else -x
""",
        "(torch.randn(2, 3),)",
    ),
    "an object of the caller's": not_run("""
class Stepper:
    def step(self, loss):
        return loss * 2

class Halver:
    def step(self, loss):
        return loss / 2

class Search:
    def __init__(self, stepper=None):
        if stepper is None:
            stepper = Stepper()
        self.stepper = stepper

class Model(nn.Module):
    def forward(self, x):
        search = Search(Halver())
        return search.stepper.step(x)
"""),
    "what a block enters": Example(
        """
import contextlib

@contextlib.contextmanager
def doubled(x):
    yield x * 2

class Timer:
    def __init__(self, x):
        self.x = x

    def __enter__(self):
        return 3

    def __exit__(self, *error):
        pass

class Model(nn.Module):
    def forward(self, x):
        with Timer(x) as count:
            if count > 2:
                x = x + 1
        with doubled(x) as y:
            return x if y.sum() > 0 else y  #! TPU205
""",
        "(torch.randn(2, 4),)",
    ),
    "an assignment by SciPy": Example(
        """
from scipy.optimize import linear_sum_assignment

class Model(nn.Module):
    def forward(self, cost):
        rows, columns = linear_sum_assignment(cost.detach())  #! TPU203
        return cost[rows, columns].sum()
""",
        "(torch.randn(3, 3),)",
    ),
    "a window by SciPy": Example(
        """
from scipy.signal import get_window

class Model(nn.Module):
    def forward(self, x):
        return x * torch.tensor(get_window("hann", x.shape[-1]), dtype=x.dtype, device=x.device)
""",
        "(torch.randn(2, 4),)",
    ),
    "a class of tensors called with tensors": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        return torch.FloatTensor([x.min(), x.max()]) + torch.FloatTensor(2).fill_(x.shape[0])  #! TPU213
""",
        "(torch.randn(2, 4),)",
    ),
    "methods that only hosts call": not_run("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(x)

    def inverse(self, path: str):
        return open(path).read() if path else ""

    def summarize(self, x):
        return x.sum().item()
"""),
}


@pytest.mark.parametrize("example", CASES.values(), ids=CASES)
def test_the_errors_are_these(assert_errors: Callable[[Example], None], example: Example) -> None:
    assert_errors(example)


RUNNABLE = {name: example for name, example in CASES.items() if example.inputs}


@pytest.mark.parametrize("example", RUNNABLE.values(), ids=RUNNABLE)
def test_the_errors_are_true(assert_true: Callable[[Example], None], example: Example) -> None:
    assert_true(example)
