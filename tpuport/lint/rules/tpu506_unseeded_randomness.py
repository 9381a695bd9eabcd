"""TPU506: randomness without a generator."""

import ast

from tpuport.lint.abstract_values import Static, Tensor
from tpuport.lint.events import Call
from tpuport.lint.findings import Severity
from tpuport.lint.rules.matching import argument, is_call_of, is_none
from tpuport.lint.rules.rule import Context, Example, Hit, Rule

_DRAWS = tuple(
    "rand randn randint randperm rand_like randn_like randint_like bernoulli multinomial normal gumbel_softmax".split()
)
_IN_PLACE = tuple("normal_ uniform_ bernoulli_ random_ exponential_ geometric_ cauchy_ log_normal_".split())
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def check(event: Call, context: Context) -> Hit | None:
    """A draw from the global generator."""
    if is_call_of(event, *_DROPOUTS):
        return Hit() if event.receiver is None and _drops(event) else None
    if event.receiver is not None and not isinstance(event.receiver, Tensor):
        return None
    if not is_call_of(event, *_DRAWS, *_IN_PLACE):
        return None
    return Hit() if is_none(event.keywords.get("generator")) else None


def _drops(event: Call) -> bool:
    training = argument(event, 2, "training")
    shares = [*event.call.args[1:2], *(word.value for word in event.call.keywords if word.arg == "p")]
    if any(isinstance(share, ast.Constant) and share.value == 0 for share in shares):
        return False
    return training is None or (isinstance(training, Static) and training.constant is True)


RULE = Rule(
    id="TPU506",
    name="unseeded-randomness",
    severity=Severity.WARNING,
    summary="randomness without a generator in traced code: `torch.randn`, `F.dropout`, `.normal_()`",
    why="jax has no hidden random state: the numbers of a program follow from its arguments. torchax keeps a "
    "key beside the program and splits it while tracing, so that every compiled call draws the same "
    "numbers, and the key itself is a tracer afterwards: the next tracing that draws ends with "
    "`UnexpectedTracerError`.",
    reason="each compiled call draws the same numbers, and the next tracing that draws fails",
    remedy="draw outside of the compiled code and pass the numbers in; say `training=self.training` to dropout",
    bad=Example("""
class Model(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)
"""),
    good=Example(
        """
class Model(nn.Module):
    def forward(self, x, noise):
        return x + noise
""",
        "(torch.randn(2, 4), torch.randn(2, 4))",
    ),
    quiet=(
        Example("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.1)
        self.start = nn.Parameter(torch.randn(4))

    def forward(self, x):
        x = F.dropout(x + self.start, 0.1, training=self.training)
        if self.training:
            x = x + torch.randn_like(x)
        return self.dropout(x)
"""),
    ),
    harm="constant",
    events=(Call,),
    check=check,
)
