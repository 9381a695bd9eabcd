"""TPU111: packed sequences."""

from typing import Final

from tpuport.lint.abstract_values import PACKED_SEQUENCE, Layer, Namespace
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Context, Example, Rule, named

_PACKED: Final = frozenset(
    {"pack_padded_sequence", "pad_packed_sequence", "pack_sequence", "unpad_sequence"}
)


def check(event: Call, context: Context) -> bool:
    """Packing, whatever the sequences are, and layers that take a packed sequence whose
    sizes are traced: all of these read lengths.
    """
    match event:
        case Call(receiver=Layer(), args=[Namespace() as sequence, *_]):
            return sequence == PACKED_SEQUENCE
    head, _, last = event.name.rpartition(".")
    return head == "torch.nn.utils.rnn" and last in _PACKED


RULE = Rule(
    id="TPU111",
    name="pad-sequence",
    severity=Severity.ERROR,
    summary="`pack_padded_sequence` and its relatives in traced code",
    why="Packing reads the lengths of the sequences on the host, and while the program is traced they have no "
    "values. A batch that arrives padded, with a mask, needs no packing. `pad_sequence` can be traced: a sequence "
    "whose length depends on values is found where it is cut.",
    reason="the sequences' lengths depend on values that are not known while tracing",
    remedy="pad before the call, and let the model take the padded batch with a mask",
    bad=Example(
        """
class Model(nn.Module):
    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return packed.data.sum()
""",
        "(torch.randn(2, 4, 3), torch.tensor([4, 2]))",
    ),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x, lengths):
        inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        return torch.where(inside[..., None], x, 0.0).sum()
""",
        "(torch.randn(2, 4, 3), torch.tensor([4, 2]))",
    ),
    quiet=(
        # Each sequence has a known length.
        Example(
            """
class Model(nn.Module):
    def forward(self, x):
        sequences = [x[row, : row + 2] for row in range(x.shape[0])]
        return nn.utils.rnn.pad_sequence(sequences, batch_first=True)
""",
            "(torch.randn(2, 4, 3),)",
        ),
    ),
    events=(Call,),
    calls=named(*_PACKED, "forward"),
    check=check,
)
