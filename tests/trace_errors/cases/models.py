"""Models that cannot be traced, each for a reason of its own.

A comment at the line where Python stops says the class and the rule: `# Name TPU205`, or `# Name none`.
"""

import functools
import math

import torch
from torch import nn

from . import helpers, parents


class Condition(nn.Module):
    def forward(self, x):
        if x.sum() > 0:  # Condition TPU205
            return x * 2
        return x


class Item(nn.Module):
    def forward(self, x):
        y = x * 2
        return y / y.max().item()  # Item TPU201


class MaskRead(nn.Module):
    def forward(self, x):
        keep = x > 0
        return x[keep].mean()  # MaskRead TPU101


class MaskWrite(nn.Module):
    def forward(self, x):
        y = x + 1
        y[x > 0] *= 2  # MaskWrite TPU113
        return y


class Places(nn.Module):
    def forward(self, x):
        return torch.nonzero(x)  # Places TPU102


class Listed(nn.Module):
    def forward(self, x):
        sizes = x[0].int().tolist()  # Listed TPU202
        return x[:, : sizes[0]]


class Whole(nn.Module):
    def forward(self, x):
        return x * int(x.sum())  # Whole TPU204


class Fraction(nn.Module):
    def forward(self, x):
        return x * float(x.mean())  # Fraction TPU204


class Root(nn.Module):
    def forward(self, x):
        return x / math.sqrt(x.var())  # Root TPU204


class Bound(nn.Module):
    def forward(self, x, lengths):
        return x[:, : lengths[0]]  # Bound TPU108


class Diagonal(nn.Module):
    def forward(self, x, lengths):
        return x.tril(lengths[0])  # Diagonal TPU107


class Filled(nn.Module):
    def forward(self, x, lengths):
        return torch.ones((lengths.sum(),), device=x.device)  # Filled TPU107


class Array(nn.Module):
    def forward(self, x):
        return torch.from_numpy(x.numpy() * 2)  # Array TPU203


class WhileLarge(nn.Module):
    def forward(self, x):
        while x.norm() > 1:  # WhileLarge TPU205
            x = x / 2
        return x


class Unsupported(nn.Module):
    def forward(self, x):
        y = x + 1
        return torch.fake_quantize_per_tensor_affine(y, 0.1, 0, 0, 255)  # Unsupported none


class Asserted(nn.Module):
    def forward(self, x):
        assert (x >= 0).all(), "negative"  # Asserted TPU206
        return x.sqrt()


class FromHelper(nn.Module):
    def forward(self, x, lengths):
        return x[:, : helpers.valid_length(lengths)]


class Unfollowed(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = [torch.tanh, getattr(helpers, "first_" + "positive")]

    def forward(self, x):
        return helpers.through(self.steps, x[0])


class Comprehension(nn.Module):
    def forward(self, x):
        rows = [row for row in x.unbind(0) if row.sum() > 0]  # Comprehension TPU205
        return torch.stack(rows)


class Lambda(nn.Module):
    def forward(self, x):
        scale = lambda t: 1 / t.max().item()  # noqa: E731 # Lambda TPU201
        return x * scale(x)


class Lines(nn.Module):
    def forward(self, x):
        return torch.cat(
            [
                x,
                x
                * float(  # Lines TPU204
                    x.sum()
                ),
            ],
            dim=-1,
        )


class Property(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    @property
    def scale(self):
        return self.weight.sum().item()  # Property TPU201

    def forward(self, x):
        return x * self.scale


class FromParent(parents.Base):
    def forward(self, x):
        return super().forward(x) + 1


class Different(nn.Module):
    def forward(self, x):
        return torch.unique(x)  # Different TPU104


class Decorated(nn.Module):
    @helpers.checked
    def forward(self, x):
        repeats = (x[0] > 0).int() + 1
        return torch.repeat_interleave(x, repeats, dim=1)  # Decorated TPU105


class Reduced(nn.Module):
    def forward(self, x):
        larger = lambda a, b: a if a.sum() > b.sum() else b  # noqa: E731 # Reduced TPU205
        return functools.reduce(larger, x.unbind(0))


class Range(nn.Module):
    def forward(self, x, lengths):
        for _ in range(lengths[0]):  # Range TPU208
            x = x * 2
        return x


class Member(nn.Module):
    def forward(self, x, lengths):
        return x if 3 in lengths else x * 2  # Member TPU209


class Largest(nn.Module):
    def forward(self, x):
        return max(x[0, 0], x[0, 1])  # Largest TPU212


class Chosen(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, lengths):
        return self.experts[lengths[0]](x)  # Chosen TPU214


class Scaled(nn.Module):
    def forward(self, x):
        return x.add(x.sign(), alpha=x.mean())  # Scaled TPU215


class Built(nn.Module):
    def forward(self, x):
        return torch.tensor([x.min(), x.max()])  # Built TPU213


class Formatted(nn.Module):
    def forward(self, x):
        self.title = f"{x.mean():.2f}"  # Formatted TPU211
        return x


class Gpu(nn.Module):
    def forward(self, x):
        torch.cuda.set_device(0)  # Gpu TPU303
        return x


class Host(nn.Module):
    def forward(self, x):
        return x.cpu() + 1  # Host TPU312


class Reraised(nn.Module):
    def forward(self, x):
        try:
            return x * x.sum().item()  # Reraised TPU201
        except Exception as error:
            raise RuntimeError("the scale cannot be computed") from error


class Handled(nn.Module):
    def forward(self, x):
        try:
            return self.missing[0]
        except AttributeError:
            return x if x.any() else x * 2  # Handled TPU205


class Shapes(nn.Module):
    def forward(self, x):
        return x @ torch.ones(5, 3, device=x.device)  # Shapes none


class Key(nn.Module):
    def forward(self, x):
        tables = {"sin": x.sin()}
        return tables["cos"]  # Key none


class Missing(nn.Module):
    def forward(self, x):
        return self.layer(x)  # Missing none


class Plain(nn.Module):
    def forward(self, x, lengths=None):
        return x * lengths.shape[0]  # Plain none


class Output(dict):
    """As transformers' ModelOutput: read by attribute too."""

    def __getattr__(self, name):
        return self[name]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, hidden_states, **kwargs):
        residual = hidden_states
        hidden_states = self.mlp(hidden_states)
        if torch.isinf(hidden_states).any():  # Plumbing TPU205
            hidden_states = hidden_states.clamp(-1e4, 1e4)
        return residual + hidden_states


class Plumbing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    @helpers.checked
    def run(self, hidden_states, **kwargs):
        for layer in self.layers[:2]:
            hidden_states = layer(hidden_states, **kwargs)
        return Output(last_hidden_state=hidden_states)

    def forward(self, x):
        return self.run(x, use_cache=False).last_hidden_state
