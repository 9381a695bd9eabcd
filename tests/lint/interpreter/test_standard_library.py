"""What goes through functions of the standard library."""

import pytest

ITERATIONS = [
    "itertools.chain([x.max()], [x.min()])",
    "itertools.chain.from_iterable([[x.max()], [x.min()]])",
    "itertools.islice([x.max(), x.min()], 1)",
    "itertools.accumulate([x.max(), x.min()], lambda a, b: a + b)",
    "itertools.starmap(lambda a, b: a + b, [(x.max(), 1)])",
    "itertools.takewhile(lambda y: True, [x.max()])",
    "itertools.repeat(x.max(), 2)",
    "collections.deque([x.max()], maxlen=2)",
]
VALUES = [
    "functools.reduce(operator.add, [x.max(), x.min()])",
    "functools.reduce(lambda a, b: a + b, [x.max(), x.min()], 0)",
    "operator.truediv(x.max(), 2)",
    "typing.cast(torch.Tensor, x.max())",
    "heapq.heappop([x.max()])",
    "random.choice([x.max(), x.min()])",
    "dataclasses.replace(Point(1), value=x.max()).value",
    "torch.utils._pytree.tree_map(lambda y: y + 1, [x.max()])[0]",
    "torch.autograd.functional.jacobian(lambda y: y.sum(), x)",
]
BODY = """
import collections, dataclasses, functools, heapq, itertools, operator, random, typing

@dataclasses.dataclass
class Point:
    value: typing.Any

class Model(nn.Module):
    def forward(self, x):
"""


@pytest.mark.parametrize("source", ITERATIONS)
def test_elements(check, source):
    check(f"""{BODY}
        for y in {source}:
            if y > 0:  #! TPU205
                x = x + 1
            break
        return x
""")


@pytest.mark.parametrize("source", VALUES)
def test_values(check, source):
    check(f"""{BODY}
        if ({source}).sum() > 0:  #! TPU205
            x = x + 1
        return x
""")


def test_pairs_and_products(check):
    check(f"""{BODY}
        for a, b in itertools.product([x.max()], [1, 2]):
            if a > 0:  #! TPU205
                x = x + 1
            if b > 1:
                x = x + 1
        for first, second in itertools.pairwise([x.max(), x.min()]):
            if second > 0:  #! TPU205
                x = x + 1
        for chosen in itertools.combinations([1, 2, 3], 2):
            if chosen[0] > 1:
                x = x + 1
        return x
""")


def test_functions_that_get_functions_of_numbers(check):
    check(f"""{BODY}
        total = functools.reduce(operator.mul, x.shape)
        if total > 3 and operator.gt(total, 2):
            x = x + 1
        groups = collections.defaultdict(list)
        if len(groups["a"]) > 0:
            x = x + 1
        return x
""")


def test_rows_become_columns(check):
    check(f"""{BODY}
        largest, positions = zip(*[(row.max(), n) for n, row in enumerate(x)])
        if largest[0] > 0:  #! TPU205
            x = x + 1
        if positions[0] > 0:
            x = x + 1
        return x
""")


def test_modules_by_name(check):
    """What a module has that is imported by a computed name."""
    check(
        """
import importlib

class Model(nn.Module):
    def forward(self, x, backend: str = "own"):
        return normalised(x, "own")

def normalised(x, name):
    solvers = importlib.import_module(f"{name}_solvers")
    if solvers.scale(x) > 0:  #! TPU205
        return x
    return -x
""",
        own_solvers="""
def scale(x):
    return x.max()
""",
    )
