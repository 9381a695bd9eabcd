"""Habits of packages: flags, answers that are False or a tensor, states of optimizers, packed sequences."""


def test_a_name_holds_the_answer_to_a_condition(check):
    check("""
from torch.nn.utils.rnn import PackedSequence

class Cell(nn.Module):
    def forward(self, x):
        is_packed = isinstance(x, PackedSequence)
        if is_packed:
            data, batch_sizes, order, _ = x
            steps = data.split(tuple(batch_sizes))  #! TPU109
            return steps[int(batch_sizes[0])]  #! TPU204
        return x

class Model(nn.Module):
    def forward(self, x, mask=None):
        has_mask = mask is not None
        if has_mask:
            x = x * mask.float()
        return x
""")


def test_a_flag_says_nothing_of_another_value(check):
    check("""
class Model(nn.Module):
    def forward(self, x, n=None):
        is_missing = n is None
        n = 3
        if is_missing:
            n = n + 1
        return x * n
""")


def test_sizes_of_a_sequence_that_was_packed_by_numbers(check):
    check("""
from torch.nn.utils.rnn import pack_padded_sequence

class Model(nn.Module):
    def forward(self, x):
        packed = pack_padded_sequence(x, [3, 2])  #! TPU111
        return packed.data[: int(packed.batch_sizes[0])] + packed[1].tolist()[0]
""")


def test_an_answer_is_false_or_a_tensor(check):
    check("""
def converged(values):
    if len(values) < 2:
        return False
    return (values[-1] - values[-2]).abs().max() < 1e-3

class Model(nn.Module):
    def forward(self, x):
        values = []
        for _ in range(3):
            values.append(x)
            if converged(values):  #! TPU205
                break
        return x
""")


def test_the_state_of_an_optimizer(check):
    check("""
class Scaled(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 1e-3})

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["mean"] = torch.zeros_like(p)
                state["step"] += 1
                state["rms"] = p.grad.norm()
                scale = max(state["rms"], 1e-3)  #! TPU212
                if state["mean"].sum() > 0:  #! TPU205
                    scale = scale * 2
                if state["step"] > 2:
                    scale = scale / 2
                p.data.add_(p.grad, alpha=-group["lr"] / scale)  #! TPU215

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.optimizer = Scaled([self.weight])

    def forward(self, x):
        self.optimizer.step()
        return x * self.weight
""")


def test_optimizers_of_torch(check):
    check("""
from torch.optim.lbfgs import _strong_wolfe

class Model(nn.Module):
    def forward(self, x):
        weight = torch.ones_like(x, requires_grad=True)
        adam, search = torch.optim.Adam([weight]), torch.optim.LBFGS([weight])

        def closure():
            loss = (weight - x).pow(2).sum()
            if loss > 10:  #! TPU205
                loss = loss / 2
            return loss

        adam.step()
        search.step(closure)  #! TPU210
        value, gradient, step, count = _strong_wolfe(closure, x, 1.0, x, 0.0, x, x.sum())  #! TPU210
        if count > 2 and gradient.norm() > 1:  #! TPU205
            return value
        return weight
""")


def test_what_has_several_dimensions_is_a_tensor(check):
    check("""
class Model(nn.Module):
    def forward(self, x, groups):
        kept = [row[row[:, 0] > 0] for row in groups]  #! TPU101
        return x, kept
""")


def test_a_table_of_tables(check):
    check("""
def dense(x):
    return x * x.norm().item()  #! TPU201

def sparse(x):
    return x

def sliced(x):
    if x.sum() > 0:  #! TPU205
        return x
    return -x

TABLE = {"a": {"dense": dense, "sparse": None}, "b": {"dense": sparse}, "c": {"dense": sliced}, "d": {"dense": dense}}

class Model(nn.Module):
    def __init__(self, kind, backend):
        super().__init__()
        self.kind, self.backend = kind, backend

    def forward(self, x):
        return TABLE[self.kind][self.backend](x)
""")


def test_a_state_that_a_method_registers(check):
    check("""
class Metric(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_state("total", torch.tensor(0))

    def add_state(self, name, default):
        setattr(self, name, default)

    def forward(self, x):
        if self.total == 0:  #! TPU205
            return x
        return x / self.total
""")


def test_a_base_from_torch_or_from_the_package_itself(errors, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("HAS_TORCH = True\n")
    (tmp_path / "package" / "dummy.py").write_text("class Dummy:\n    pass\n")
    text = """
from package import HAS_TORCH
if HAS_TORCH:
    from torch.nn import Module
else:
    from .dummy import Dummy as Module

class Model(Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x
"""
    assert errors(**{"package/model": text}) == {(10, "TPU205")}


def test_a_package_that_gathers_a_dozen_modules_by_stars(errors, tmp_path):
    (tmp_path / "parts").mkdir()
    for n in range(20):
        (tmp_path / "parts" / f"part{n}.py").write_text(f"def scale{n}(x):\n    return x.sum() / {n}\n")
    stars = "".join(f"from .part{n} import *\n" for n in range(20))
    (tmp_path / "parts" / "__init__.py").write_text(stars)
    text = """
import parts
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        if parts.scale3(x) > 0:
            return x
        return -x
"""
    assert errors(model=text) == {(7, "TPU205")}


def test_a_backend_is_chosen_by_the_class_of_an_argument(check):
    check("""
import numpy as np

class NumpyBackend:
    kind = np.ndarray

    def any(self, a):
        return np.any(a)

class TorchBackend:
    kind = torch.Tensor

    def any(self, a):
        return torch.any(a)

BACKENDS = [NumpyBackend, TorchBackend]
CACHE = {}

def get_backend(*args):
    for backend in BACKENDS:
        if isinstance(args[0], backend.kind):
            if backend not in CACHE:
                CACHE[backend] = backend()
            return CACHE[backend]
    raise ValueError

class Model(nn.Module):
    def forward(self, x):
        nx = get_backend(x)
        if nx.any(x > 0):  #! TPU205
            return x
        return -x
""")


def test_a_list_in_a_dict_grows(check):
    check("""
class Model(nn.Module):
    def forward(self, x):
        log = {"error": [], "steps": []}
        for step in range(3):
            log["error"].append(x.norm())
            log["steps"].append(step)
        if log["error"][-1] > 1 and log["steps"][-1] > 1:  #! TPU205
            return x
        return -x
""")


def test_modules_in_a_list_that_a_constructor_gets(check):
    check("""
class Part(nn.Module):
    def summarize(self, x):
        return x.mean().item()  #! TPU201

class Mixture(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        return [part.summarize(x) for part in self.parts]

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixture = Mixture([Part(), Part()])

    def forward(self, x):
        return self.mixture(x)
""")


def test_layers_of_several_kinds_whose_number_is_not_known(check):
    check("""
class Scale(nn.Module):
    def forward(self, x):
        return x * 2

class Model(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(count):
            self.layers.append(nn.Linear(2, 2))
            self.layers.append(Scale())

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            if x.sum() > 0:  #! TPU205
                x = -x
        return x
""")


def test_a_nested_function_that_calls_itself(check):
    check("""
class Search:
    def __call__(self, x, sizes):
        def branch(path, rest):
            if len(rest) == 0:
                return path
            for item in rest:
                path = branch((*path, item), [other for other in rest if other != item])
                path = branch((*path, item), rest[1:])
                path = branch((*path, item, item), rest[2:])
            return path

        branch((), sizes)
        return x.max().item()  #! TPU201

class Model(nn.Module):
    def forward(self, x):
        return Search()(x, [1, 2, 3])
""")


def test_a_context_decorates_a_function(check):
    check("""
class Model(nn.Module):
    def forward(self, x):
        def closure():
            return x.pow(2).sum()

        closure = torch.enable_grad()(closure)
        return x * float(closure())  #! TPU204
""")


def test_methods_of_unknown_objects_take_tensors(check):
    check("""
class Model(nn.Module):
    def forward(self, x, nx):
        return nx.norm(x) + nx.dropout(x)
""")


def test_a_package_that_can_do_without_torch(errors):
    """What stands in torch's place where it is missing does not hide torch."""
    text = """
try:
    import torch
    from torch import nn
    import torch.nn.functional as F
except Exception:
    torch = nn = None
    F = None

class Model(nn.Module if nn is not None else object):
    def __init__(self):
        if nn is None:
            raise RuntimeError("install torch")
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = F.relu(self.linear(x))
        if y.sum() > 0:
            return kept(y)
        return y

def kept(x):
    if torch is None:
        raise RuntimeError("install torch")
    return x[torch.nonzero(x)]
"""
    assert errors(model=text) == {(19, "TPU205"), (26, "TPU102")}


def test_draws_that_are_repeated_until_they_are_within_bounds(check):
    """torch asks each time whether all are; it draws weights while the model is built."""
    check("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        nn.init.trunc_normal_(self.linear.weight, std=0.02)
        self.apply(self._start)
    def _start(self, part):
        if isinstance(part, nn.Linear): nn.init.trunc_normal_(part.weight)
    def forward(self, x):
        noise, bias = torch.empty_like(x), torch.empty(2)
        nn.init.trunc_normal_(noise, std=0.02)  #! TPU210
        nn.init.trunc_normal_(bias, std=0.02)
        nn.init.normal_(noise)
        return self.linear(x + noise)
""")
