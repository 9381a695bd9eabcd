"""TPU111: `pad_sequence` and its relatives."""

from typing import Final

from tpuport.lint.abstract_values import Sequence
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Context, Example, Rule

_PACKED: Final = frozenset({"pack_padded_sequence", "pad_packed_sequence", "pack_sequence", "unpad_sequence"})


def check(event: Call, context: Context) -> bool:
    """Of `torch.nn.utils.rnn`: packing reads lengths; padding belongs to sequences of different lengths."""
    head, _, last = event.name.rpartition(".")
    if head != "torch.nn.utils.rnn":
        return False
    # The others read lengths whatever their sequences are.
    if last != "pad_sequence":
        return last in _PACKED
    sequences = event.args[0] if event.args else event.keywords.get("sequences")
    # A display of tensors has known shapes; the lengths in a list that a loop fills come from values.
    return isinstance(sequences, Sequence) and sequences.items is None


RULE = Rule(
    id="TPU111",
    name="pad-sequence",
    severity=Severity.ERROR,
    summary="`pad_sequence`, `pack_padded_sequence` and their relatives in traced code",
    why="Where sequences of different lengths are cut depends on values: on lengths or masks. Packing reads "
    "the lengths on the host, and a list of rows of different lengths cannot be built while the program is "
    "traced. A batch that arrives padded, with a mask, needs neither.",
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
    events=(Call,),
    check=check,
)
