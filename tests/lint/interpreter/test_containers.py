"""What lists, dicts and objects hold after code has changed them, where nothing else tells that it is a tensor."""

import pytest


def in_forward(body):
    lines = [f"        {line}" if line else "" for line in body.strip().splitlines()]
    return "\n".join(["class Model(nn.Module):", "    def forward(self, x: torch.Tensor):", *lines, ""])


BODIES = {
    "an entry that grows": """
total = {"loss": 0, "steps": 0}
for row in x:
    total["loss"] += row.mean()
    total["steps"] += 1
if total["loss"] > 1:  #! TPU205
    x = x + 1
if total["steps"] > 1:
    x = x + 1
""",
    "an entry of an entry": """
table = {}
table["a"] = {}
table["a"]["loss"] = x.mean()
table["a"]["steps"] = 2
if table["a"]["loss"] > 1:  #! TPU205
    x = x + 1
if table["a"]["steps"] > 1:
    x = x + 1
""",
    "a dict of tensors and numbers": """
batch = {"loss": x.mean(), "steps": 3, "name": "a"}
batch = {key: value.to(x.device) if torch.is_tensor(value) else value for key, value in batch.items()}
if batch["loss"] > 1:  #! TPU205
    x = x + 1
if batch["steps"] > 1:
    x = x + 1
for key, value in batch.items():
    if key == "steps" and value > 1:
        x = x + 1
""",
    "a list of a tensor and a number": """
results = []
results.append(x.mean())
results.append(3)
if results[0] > 1:  #! TPU205
    x = x + 1
if results[1] > 1:
    x = x + 1
""",
    "a default that is filled": """
groups = {}
for name in ("a", "b"):
    groups.setdefault(name, []).append(x.mean())
if groups["a"][0] > 1:  #! TPU205
    x = x + 1
""",
    "a union of dicts": """
parts = {"a": 1}
parts |= {"b": x.mean()}
if parts["b"] > 1:  #! TPU205
    x = x + 1
if parts["a"] > 1:
    x = x + 1
""",
    "names of a function around": """
best, calls, seen = None, 0, []

def visit(value):
    nonlocal best, calls
    calls = calls + 1
    best = value
    seen.append(value)

for row in x:
    visit(row.mean())
if best > 1:  #! TPU205
    x = x + 1
if seen[0] > 1:  #! TPU205
    x = x + 1
if calls > 1:
    x = x + 1
""",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_what_a_container_holds(check, body):
    check(in_forward(body + "\nreturn x"))


def test_an_attribute_that_grows(check):
    check("""
class Meter:
    def __init__(self):
        self.sum, self.count = 0, 0

    def update(self, value):
        self.sum = self.sum + value
        self.count += 1

class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        meter = Meter()
        for row in x:
            meter.update(row.mean())
        if meter.sum > 1:  #! TPU205
            x = x + 1
        if meter.count > 1:
            x = x + 1
        return x
""")


def test_a_dict_with_attributes_of_its_own(check):
    check("""
class Batch(dict):
    def __getattr__(self, key):
        return self[key]

class Steps(list):
    def __call__(self, x):
        for step in self:
            x = step(x)
        return x

class Cut:
    def __call__(self, x):
        largest = x.max()
        if largest > 1:  #! TPU205
            x = x / 2
        return x

class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        batch = Batch(loss=x.mean(), steps=2)
        batch["top"] = x.max()
        if batch.loss > 1 or batch["top"] > 1:  #! TPU205
            x = x + 1
        if batch.steps > 1:
            x = x + 1
        steps = Steps([Cut()])
        steps.append(Cut())
        return steps(x)
""")


def test_a_computed_key_is_none_of_those_that_begin_otherwise(check):
    check("""
class Model(nn.Module):
    def forward(self, x: torch.Tensor, names=("a", "b")):
        kwargs = {"mask": x, "output_top": x.max()}
        for name in names:
            if kwargs.get(f"use_{name}", False): x = x + 1
            if kwargs.get(f"output_{name}") > 1: pass  #! TPU205
        return x
""")


def test_an_object_that_is_filled_by_name(check):
    check("""
class Data:
    def __init__(self, x=None, **others):
        self.x = x
        for key, value in others.items():
            setattr(self, key, value)

    def __setitem__(self, key, value):
        setattr(self, key, value)

class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        data = Data(x, loss=x.mean(), steps=3)
        data["top"] = x.max()
        if data.loss > 1:  #! TPU205
            x = x + 1
        if data.top > 1:  #! TPU205
            x = x + 1
        if data.steps > 1 or vars(data)["steps"] > 1:
            x = x + 1
        return x
""")


def test_fields_of_a_dataclass_one_by_one(check):
    check("""
import dataclasses

@dataclasses.dataclass
class Rays:
    near: torch.Tensor
    count: int = 2

class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        rays = Rays(x.mean())
        for field in dataclasses.fields(rays):
            value = getattr(rays, field.name)
            if field.name == "near" and value > 1:  #! TPU205
                x = x + 1
        if dataclasses.asdict(rays)["near"] > 1:  #! TPU205
            x = x + 1
        return x
""")


def test_what_a_dataclass_does_after_its_fields_are_set(check):
    check("""
import dataclasses

@dataclasses.dataclass
class Mixture:
    logits: torch.Tensor
    count: int = 2

    def __post_init__(self):
        if not torch.isfinite(self.logits).all():  #! TPU205
            raise ValueError(self.logits)
        self.top, self.half = self.logits.max(), self.count / 2

class Model(nn.Module):
    def forward(self, x: torch.Tensor):
        mixture = Mixture(x)
        if mixture.top > 1:  #! TPU205
            x = x + 1
        if mixture.half > 1:
            x = x + 1
        return x
""")


def test_an_attribute_that_the_first_call_makes(check):
    check("""
class Loss:
    def __init__(self, model):
        self.scale = 2.0

    def __call__(self, x):
        top = x.max()
        if top > self.scale:  #! TPU205
            x = x / 2
        return x

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.width = None

    def make_loss(self):
        return Loss(self)

    def forward(self, x: torch.Tensor):
        if not hasattr(self, "criterion"):
            self.criterion = self.make_loss()
        if getattr(self, "prototype", None) is None:
            self.prototype = x.mean()
        if self.prototype > 1:  #! TPU205
            x = x + 1
        if self.width is None:
            self.width = x.shape[0]
        if self.width > 2:
            x = x + 1
        return self.criterion(x)
""")


def test_a_list_that_other_methods_fill(check):
    check("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = []

    def keep(self, x):
        self.kept.append(x.mean())

    def forward(self, x: torch.Tensor):
        self.keep(x)
        if self.kept[-1] > 1:  #! TPU205
            x = x + 1
        return x
""")


def test_keywords_that_are_passed_on(check):
    """Whoever passes `**kwargs` on may pass anything by name; an annotation names what that may be."""
    check("""
class Inner(nn.Module):
    def forward(self, x, bias=None):
        if bias is not None and bias.sum() > 1:  #! TPU205
            x = x + bias
        return x

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor, **kwargs):
        return self.inner(x, **kwargs)
""")


def test_a_mask_or_zeros(check):
    check("""
class Model(nn.Module):
    def choose(self, x, limit):
        if x.shape[0] == 0:
            return torch.zeros_like(x.float())
        return x.float() > limit

    def forward(self, x: torch.Tensor):
        chosen = self.choose(x, 1.0)
        return x[chosen].sum()  #! TPU101
""")


def test_a_tree_by_its_kinds(check):
    check("""
def mapped(function, tree):
    if isinstance(tree, dict):
        return {key: mapped(function, value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [mapped(function, value) for value in tree]
    return function(tree)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterDict({"a": nn.Parameter(torch.ones(()))})

    def forward(self, x: torch.Tensor):
        means = mapped(lambda value: value.mean(), {"a": x, "b": [x, x]})
        if means["a"] > 1 or means["b"][0] > 1:  #! TPU205
            x = x + 1
        if self.scales["a"] > 1:  #! TPU205
            x = x + 1
        return x
""")
