"""TPU313: a tensor of the host beside one on the device."""

from collections.abc import Iterable
from typing import Final

from tpuport.lint.abstract_values import (
    FLOAT_TENSOR,
    Layer,
    Sequence,
    Static,
    Tensor,
    Value,
    is_traced,
)
from tpuport.lint.events import Arithmetic, Call, Comparison, Subscript
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Context, Example, Rule

# What takes a tensor of the host beside a traced one: moves, and what reads only a
# shape or numbers.
_TAKES_BOTH: Final = frozenset(
    "to type_as expand_as view_as reshape_as new_tensor repeat_interleave tensor_split broadcast_tensors is_same_size "
    "fill_ "
    # A tensor among their sizes is another rule's subject, wherever it is.
    "view reshape expand repeat tile unflatten narrow split chunk roll new_zeros new_ones new_full new_empty".split()
)
# Layers of torch with weights, which are on the device.
_WITH_WEIGHTS: Final = (
    "torch.nn.Linear",
    "torch.nn.Bilinear",
    "torch.nn.Embedding",
    "torch.nn.Conv",
    "torch.nn.LSTM",
    "torch.nn.GRU",
    "torch.nn.MultiheadAttention",
)


def check(event: Arithmetic | Call | Comparison | Subscript, context: Context) -> bool:
    """An operation on both, apart from an index: what is indexed may be on the device,
    and the index on the host.
    """
    match event:
        case Arithmetic(left=left, right=right) | Comparison(left=left, right=right):
            return _meet([left, right])
        case Subscript(base=Tensor(several=True)):
            return any(map(is_traced, (*event.indices, event.value)))
        case Call():
            # In this order, since tensors hardly ever meet.
            return (
                _meet(_operands(event)) or _chooses_number(event)
            ) and _is_operation(event)
    return False


def _is_operation(event: Call) -> bool:
    """Whether it is a call of a function, method or layer of torch that computes a
    tensor from others.
    """
    last = event.name.rpartition(".")[2]
    if last in _TAKES_BOTH or not isinstance(event.result, Tensor | Sequence):
        return False
    # What a tensor of the device gets is copied there.
    if last == "copy_":
        return not is_traced(event.receiver)
    return isinstance(event.receiver, Tensor | Layer) or event.name.startswith("torch.")


def _operands(event: Call) -> list[Value | None]:
    """What an operation works on, the tensors of a list as well; of a layer with
    weights, a weight too.
    """
    operands: list[Value | None] = []
    for value in (event.receiver, *event.args, *event.keywords.values()):
        operands += (value.items or ()) if isinstance(value, Sequence) else (value,)
    match event.receiver:
        case Layer(name=name) if name.startswith(_WITH_WEIGHTS):
            operands.append(FLOAT_TENSOR)
    return operands


def _chooses_number(event: Call) -> bool:
    """Whether it is `torch.where(mask, 1.0, 0.0)` of a mask of the host: the numbers
    are tensors of the device.
    """
    match event:
        case Call(name="torch.where", args=[Tensor(several=True), *choices]):
            return any(isinstance(choice, Static) for choice in choices)
        case _:
            return False


def _meet(values: Iterable[Value | None]) -> bool:
    """Whether one is a tensor of the host with several elements, and one is traced."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    return any(x.several for x in tensors) and any(map(is_traced, tensors))


RULE = Rule(
    id="TPU313",
    name="host-tensor",
    severity=Severity.ERROR,
    summary="a tensor created without `device=` in one operation with a tensor on the device",
    why="A tensor that traced code creates without `device=` is an ordinary tensor of the host, and no operation takes "
    "tensors of both places, as in torch with a GPU: `masked_fill`, `where`, `cat`, `gather`, a mask of attention, "
    "arithmetic. What works is an index (`x[mask]`, `x[mask] = 0`), a copy (`copy_`, `x[0] = y`), and a tensor of a "
    "single element, which counts as a number.",
    reason="one tensor is on the host, because it is created without `device=`, and another is on the device",
    remedy="create it on the device, `device=x.device`, or move it there, `y.to(x.device)`",
    bad=Example("""
class Model(nn.Module):
    def forward(self, x):
        late = torch.arange(x.shape[-1]) > 1
        return x.masked_fill(late, 0.0)
"""),
    good=Example("""
class Model(nn.Module):
    def forward(self, x):
        late = torch.arange(x.shape[-1], device=x.device) > 1
        return x.masked_fill(late, 0.0)
"""),
    quiet=(
        # An index may be on the host, and so may a single number.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        even = torch.arange(x.shape[-1]) % 2 == 0
        return x[..., even] * torch.tensor(2.0) + torch.ones(1)
"""),
        # It is copied to the device.
        Example("""
class Model(nn.Module):
    def forward(self, x):
        y = torch.zeros_like(x)
        y[..., :2] = torch.ones(2)
        return x + y + torch.arange(x.shape[-1]).to(x.device)
"""),
    ),
    events=(Arithmetic, Call, Comparison, Subscript),
    check=check,
)
