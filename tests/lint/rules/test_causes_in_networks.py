"""What the linter once got wrong in networks that nobody here had seen, by cause.

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
    "sizes of a packed sequence": not_run("""
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence

class Recurrent(nn.Module):
    def forward(self, x, hidden=None):
        is_packed = isinstance(x, PackedSequence)
        if is_packed:
            x, sizes, order, _ = x
            rows = int(sizes[0])
        else:
            sizes, rows = None, x.size(0)
        hidden = x.new_zeros(rows, 4)
        if sizes is not None:
            start = 0
            for size in sizes.tolist():
                start += size
        return x[:rows], hidden

class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = Recurrent()
        self.lstm = nn.LSTM(4, 4)

    def forward(self, x, lengths: torch.Tensor):
        numbers = lengths[lengths.argsort()].tolist()  #! TPU202
        packed = pack_padded_sequence(x, numbers, batch_first=True)  #! TPU111
        parts = pack_sequence([x[0], x[1]])  #! TPU111
        if parts.batch_sizes[0] > 1:
            x = x + 1
        return self.recurrent(packed), self.lstm(parts), x
"""),
    "sizes of a packed sequence that a call gets": not_run("""
from torch.nn.utils.rnn import PackedSequence

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 4)

    def forward(self, x):
        if not isinstance(x, PackedSequence):
            return self.lstm(x)
        y, _ = self.lstm(x)  #! TPU111
        return y.data, int(x.batch_sizes[0])  #! TPU204
"""),
    "a packed sequence whose sizes are numbers": Example(
        """
from torch.nn.utils.rnn import PackedSequence

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 4)

    def forward(self, x):
        y, _ = self.lstm(PackedSequence(x.flatten(0, 1), torch.tensor([2, 2, 2])))
        return y.data[: int(y.batch_sizes[0])]
""",
        "(torch.randn(2, 3, 4),)",
    ),
    "a mask beside one position": Example(
        """
class Model(nn.Module):
    def forward(self, x, rows: torch.Tensor):
        y = x.clone()
        y[rows[0], x[0] > 0] = 0.0
        y[x.sum(-1).argmax(), x[0] < 0] = 1.0
        for row in rows:
            y[row, x[1] > 1] = 2.0
        return y
""",
        "(torch.randn(2, 4), torch.tensor([1, 0]))",
    ),
    "a mask beside several positions": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        y = x.clone()
        y[x.argmax(-1), x[0, :2] > -9] = 0.0  #! TPU113
        return y
""",
        "(torch.randn(2, 2),)",
    ),
    "sizes of full": Example(
        """
class Model(nn.Module):
    def forward(self, x, count: torch.Tensor):
        return torch.full(size=(2, count), fill_value=1.0)  #! TPU107
""",
        "(torch.randn(2, 4), torch.tensor(3))",
    ),
    "ends of a range without a device": not_run("""
class Model(nn.Module):
    def forward(self, x, count: torch.Tensor):
        points = torch.linspace(0, x.max(), 5)  #! TPU107
        return points, torch.logspace(start=x.min(), end=1, steps=5)  #! TPU107
"""),
    "ends of a range on the device": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        return torch.linspace(x.min(), end=x.max(), steps=5, device=x.device)
""",
        "(torch.randn(2, 4),)",
    ),
    "steps of a range": Example(
        """
class Model(nn.Module):
    def forward(self, x, count: torch.Tensor):
        return torch.linspace(0, 1, count, device=x.device)  #! TPU107
""",
        "(torch.randn(2, 4), torch.tensor(3))",
    ),
    "a decorator whose wrapper reads": Example(
        """
import functools

def checked(function):
    @functools.wraps(function)
    def wrapper(self, x, *args, **kwargs):
        if torch.isnan(x).any():  #! TPU205
            raise ValueError("not a number")
        return function(self, x, *args, **kwargs)
    return wrapper

class Model(nn.Module):
    def forward(self, x):
        return self.inner(x, scale=2)

    @checked
    def inner(self, x, scale=1):
        return x * scale
""",
        "(torch.randn(2, 4),)",
    ),
    "a decorator with options, of a forward": Example(
        """
def limited(limit):
    def decorator(function):
        def wrapper(*args, **kwargs):
            y = function(*args, **kwargs)
            return y / 2 if y.abs().max() > limit else y  #! TPU205
        return wrapper
    return decorator

class Model(nn.Module):
    @limited(3.0)
    def forward(self, x):
        return x * 2
""",
        "(torch.randn(2, 4),)",
    ),
    "arrays of NumPy beside tensors": Example(
        """
import numpy as np

def symmetric(count, backend=np):
    pairs = np.triu(np.ones((count, count)), 1).astype(bool)
    if pairs.sum() > 0:
        pairs = pairs | pairs.T
    if pairs.shape[0] * pairs.size > 4 and (pairs.flat[0] or pairs.real.max() > 0):
        pairs = pairs[pairs.any(-1)]
    return pairs

class Model(nn.Module):
    def forward(self, x):
        pairs = symmetric(3)
        if pairs.any():
            x = x + 1
        y = x | x.T
        if y.any():  #! TPU205
            x = x + 1
        return x
""",
        "(torch.ones(2, 2, dtype=torch.int32),)",
    ),
    "a table that a function's decorator fills": Example(
        """
LOSSES = {}

def register(name):
    def wrap(function):
        LOSSES[name] = function
        return function
    return wrap

@register("scaled")
def scaled(x):
    return x / x.sum().item()  #! TPU201

@register("plain")
def plain(x):
    return x / x.shape[0]

class Model(nn.Module):
    def __init__(self, kind="scaled"):
        super().__init__()
        self.loss = LOSSES[kind]

    def forward(self, x):
        return self.loss(x) + LOSSES["plain"](x)
""",
        "(torch.randn(2, 4),)",
    ),
    "a table that an object's method fills": Example(
        """
class Registry:
    def __init__(self):
        self.table = {}

    def register(self, name=None):
        def wrap(function):
            self.table[name or function.__name__] = function
            return function
        return wrap

    def get(self, name):
        return self.table[name]

OPERATIONS = Registry()

@OPERATIONS.register()
def mean(x):
    return x if x.mean() > 0 else -x  #! TPU205

@OPERATIONS.register(name="rows")
def count(x):
    return x if x.shape[0] > 0 else -x

class Model(nn.Module):
    def forward(self, x):
        return OPERATIONS.get("mean")(x) + OPERATIONS.get("rows")(x)
""",
        "(torch.randn(2, 4),)",
    ),
    "a table of what the model does not call": Example(
        """
READERS = {}

def reader(function):
    READERS[function.__name__] = function
    return function

def traced(function):
    return function

@reader
def first(x):
    return x.flatten()[0].item()

@traced
def second(x):
    return x + 1

class Model(nn.Module):
    def forward(self, x):
        return second(x) * len(READERS)
""",
        "(torch.randn(2, 4),)",
    ),
    "decorators that read nothing": Example(
        """
TABLE = {}

def register(name):
    def decorator(function):
        TABLE[name] = function
        return function
    return decorator

def doubled(function):
    def wrapper(*args):
        if len(args) > 1 and args[-1].shape[0] > 1:
            return function(*args) * 2
        return function(*args)
    return wrapper

class Model(nn.Module):
    @register("inner")
    @doubled
    def inner(self, x):
        return x + 1

    def forward(self, x):
        return self.inner(x) + x.sum()
""",
        "(torch.randn(2, 4),)",
    ),
    "dimensions in a tensor": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        order = torch.cat((torch.tensor([1, 0], device=x.device), torch.arange(2, x.ndim, device=x.device)))
        return x.permute(*order) + x.sum()  #! TPU107
""",
        "(torch.randn(2, 4, 3),)",
    ),
    "dimensions in a tensor of the host": Example(
        """
class Model(nn.Module):
    def forward(self, x):
        order = torch.cat((torch.tensor([1, 0]), torch.arange(2, x.ndim)))
        return x.permute(*order) + x.sum()
""",
        "(torch.randn(2, 4, 3),)",
    ),
    "the last dimension of what is not known": not_run("""
import models

class Model(nn.Module):
    def forward(self, x):
        boxes = models.build("boxes")(x)
        likely = boxes[..., 4] > 0.5
        table = models.build("table")(x)
        known = table["scores"] > 0.5
        return boxes[likely], table[known]  #! TPU101
"""),
    "what is indexed by its own comparison": not_run("""
class Model(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.kept = table[table > 0]

    def forward(self, batch):
        points, limit = batch["points"], batch["limit"]
        return points[points > limit], batch["names"][limit > 1]  #! TPU101
"""),
    "a module without a forward": not_run("""
class Output(nn.Module):
    def reduce(self, x, batch, count=None):
        if count is None:
            count = int(batch.max().item() + 1)  #! TPU201
        return x.new_zeros(count).index_add(0, batch, x)

    def show(self, x):
        print(x.sum().item())

    def named(self, name):
        return float(getattr(self, name).sum())

class Model(nn.Module):
    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, x, batch):
        return self.output.reduce(x, batch)

    def measure(self, x):
        return x.sum().item()
"""),
    "a class that a registry builds": not_run("""
from mylibrary import SAMPLERS, TRANSFORMS

@SAMPLERS.register_module()
class Hardest:
    def __init__(self, ignored=255):
        self.ignored = ignored

    def sample(self, logits, label):
        mask = label.squeeze(1) != self.ignored
        return logits.softmax(1)[mask]  #! TPU101

@TRANSFORMS.register_module()
class Flip:
    def transform(self, results: dict):
        if results["flip"].sum() > 0:
            results["img"] = results["img"][..., ::-1]
        return results

class Plain:
    def sample(self, logits, label):
        return logits.softmax(1)[label > 0]
"""),
    "fields of a dataclass whose base is none": not_run("""
import dataclasses

class Named:
    names: dict = {}

    def known(self, name, other):
        return name in self.names

@dataclasses.dataclass
class Rays(Named):
    origins: torch.Tensor
    length: torch.Tensor

class Model(nn.Module):
    def forward(self, x, name: str, number: int):
        rays = Rays(x, x * 2)
        if number in rays.names:
            return x
        if rays.origins.sum() > 0:  #! TPU205
            return rays.length
        return x
"""),
    "what torch takes for a mask": not_run("""
class Model(nn.Module):
    def __init__(self, assigner):
        super().__init__()
        self.assigner = assigner

    def masked_mean(self, values, weight):
        return (values * weight).sum()

    def forward(self, x):
        chosen, hidden, other, rows = self.assigner(x)
        scores = torch.masked_select(x, chosen)  #! TPU103
        faded = x.masked_fill(hidden, 0.0)
        scores = scores * x[chosen] + self.masked_mean(rows, x)  #! TPU101
        x = x[rows]
        return scores, faded[hidden], x[other]  #! TPU101
"""),
    "methods of a base whose forward others write": not_run("""
from abc import abstractmethod

class Head(nn.Module):
    @abstractmethod
    def forward(self, x):
        ...

    def loss(self, scores: torch.Tensor, labels):
        return scores.log_softmax(1)[scores > 0].mean()  #! TPU101

class Whole(nn.Module):
    def forward(self, x):
        return x

    def loss(self, scores: torch.Tensor, labels):
        return scores.log_softmax(1)[scores > 0].mean()
"""),
}


@pytest.mark.parametrize("example", CASES.values(), ids=CASES)
def test_the_errors_are_these(assert_errors: Callable[[Example], None], example: Example) -> None:
    assert_errors(example)


RUNNABLE = {name: example for name, example in CASES.items() if example.inputs}


@pytest.mark.parametrize("example", RUNNABLE.values(), ids=RUNNABLE)
def test_the_errors_are_true(assert_true: Callable[[Example], None], example: Example) -> None:
    assert_true(example)
