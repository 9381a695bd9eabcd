"""TPU215: tensors where operators take a number."""

from typing import Final, NamedTuple

from tpuport.lint.abstract_values import Static, Unknown, Value, is_traced
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import is_call_of, operands
from tpuport.lint.rules.rule import Context, Example, Rule


class _Numbers(NamedTuple):
    """Which arguments of a function are numbers: by position, the tensor being 0, and
    by name.
    """

    positions: tuple[int, ...]
    names: tuple[str, ...]


_PRODUCTS: Final = _Numbers((), ("alpha", "beta"))
_SUMS: Final = _Numbers((), ("alpha",))
_FUNCTIONS: Final[dict[str, _Numbers]] = {
    **dict.fromkeys("add sub subtract rsub index_add".split(), _SUMS),
    **dict.fromkeys("addmm addmv addr addbmm baddbmm".split(), _PRODUCTS),
    **dict.fromkeys(("addcmul", "addcdiv"), _Numbers((), ("value",))),
    **dict.fromkeys(("elu", "celu"), _Numbers((1,), ("alpha",))),
    "leaky_relu": _Numbers((1,), ("negative_slope",)),
    "softplus": _Numbers((1, 2), ("beta", "threshold")),
    "hardtanh": _Numbers((1, 2), ("min_val", "max_val")),
    "threshold": _Numbers((1, 2), ("threshold", "value")),
    **dict.fromkeys(("hardshrink", "softshrink"), _Numbers((1,), ("lambd",))),
    "norm": _Numbers((1,), ("p",)),
    "normalize": _Numbers((1,), ("p", "eps")),
    "cdist": _Numbers((2,), ("p",)),
    **dict.fromkeys("dropout dropout1d dropout2d dropout3d alpha_dropout".split(), _Numbers((1,), ("p",))),
    "huber_loss": _Numbers((), ("delta",)),
    "smooth_l1_loss": _Numbers((), ("beta",)),
    "cross_entropy": _Numbers((), ("label_smoothing",)),
    **dict.fromkeys(
        ("triplet_margin_loss", "margin_ranking_loss", "cosine_embedding_loss"), _Numbers((3,), ("margin",))
    ),
    **dict.fromkeys("layer_norm batch_norm group_norm rms_norm".split(), _Numbers((), ("eps",))),
    "cosine_similarity": _Numbers((), ("eps",)),
    "nan_to_num": _Numbers((1, 2, 3), ("nan", "posinf", "neginf")),
    **dict.fromkeys(("std", "var"), _Numbers((), ("correction",))),
    "logit": _Numbers((1,), ("eps",)),
    "histc": _Numbers((1, 2, 3), ("bins", "min", "max")),
    **dict.fromkeys(("isclose", "allclose"), _Numbers((2, 3), ("rtol", "atol"))),
    **dict.fromkeys(("trapezoid", "trapz"), _Numbers((), ("dx",))),
    **dict.fromkeys(("normal_", "uniform_"), _Numbers((1, 2), ("mean", "std", "from", "to"))),
    "renorm": _Numbers((1, 2, 3), ("p", "dim", "maxnorm")),
}  # fmt: skip


_CLAMPS: Final = frozenset("clamp clamp_ clip clip_".split())
_KINDS_OF_NUMBERS: Final = frozenset({"int", "float"})


def _mixes_bounds(event: Call) -> bool:
    """`x.clamp(0, t)`: beside a number, torch takes the other bound for one too."""
    bounds = [*operands(event)[1:], *map(event.keywords.get, ("min", "max"))]
    has_number = any(
        isinstance(bound, Static) and bound.kind in _KINDS_OF_NUMBERS
        for bound in bounds
    )
    return has_number and any(map(is_traced, bounds))


def _numbers_of(name: str) -> _Numbers | None:
    return _FUNCTIONS.get(name) or _FUNCTIONS.get(name.removesuffix("_"))


def _takes_numbers(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last in _CLAMPS or _numbers_of(last) is not None


def check(event: Call, context: Context) -> bool:
    """`x.add(y, alpha=t)`, `F.elu(x, t)`: torch converts the tensor to a number."""
    name = event.name.rpartition(".")[2]
    if name in _CLAMPS:
        return is_call_of(event, name) and _mixes_bounds(event)
    numbers = _numbers_of(name)
    # Of an unknown object, `nx.norm(x)`, the first argument may be the tensor.
    if (
        numbers is None
        or isinstance(event.receiver, Unknown)
        or not is_call_of(event, name)
    ):
        return False
    positional = operands(event)
    values: list[Value | None] = [
        positional[position]
        for position in numbers.positions
        if position < len(positional)
    ]
    values += map(event.keywords.get, numbers.names)
    return any(map(is_traced, values))


RULE = Rule(
    id="TPU215",
    name="tensor-as-scalar",
    severity=Severity.ERROR,
    summary="a tensor where an operator takes a number: `x.add(y, alpha=t)`, `F.elu(x, t)`, `x.norm(p=t)`",
    why="These arguments are numbers, parts of the operator like a size. torch converts a tensor with one element to a "
    "number, and while the program is traced it has no value.",
    reason="this argument of the operator is a number, and while tracing the tensor has no value to make it of",
    remedy="write the arithmetic with tensors: `x + t * y` for `x.add(y, alpha=t)`, `x + t * a * b` for "
    "`x.addcmul(a, b, value=t)`; or pass a number",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        return x.add(x.sign(), alpha=x.mean())
"""
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x):
        return x + x.mean() * x.sign()
"""
    ),
    quiet=(
        # These take tensors as well as numbers.
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        return F.pad(x.clamp(min=x.mean()), (1, 1), value=x.mean()).masked_fill(x.mean() > 0, x.sum())
"""
        ),
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        return x.add(x.sign(), alpha=1 / x.shape[0])
"""
        ),
    ),
    events=(Call,),
    calls=_takes_numbers,
    check=check,
)
