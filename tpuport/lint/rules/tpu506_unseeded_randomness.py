"""TPU506: randomness without a generator."""

import ast
from typing import Final

from tpuport.lint.abstract_values import Static, Unknown
from tpuport.lint.events import (
    Call,
)
from tpuport.lint.findings import Severity
from tpuport.lint.rules.event_queries import (
    argument,
    is_call_of,
    is_missing_or_none,
    keyword_nodes,
)
from tpuport.lint.rules.rule import Context, Example, Rule

_DRAWS: Final = tuple(
    "rand randn randint randperm rand_like randn_like randint_like bernoulli multinomial normal gumbel_softmax"
    " normal_ uniform_ bernoulli_ random_ exponential_ geometric_ cauchy_ log_normal_".split()
)
_DROPOUTS: Final = tuple("dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout".split())


def check(event: Call, context: Context) -> bool:
    """A draw from the global generator."""
    if is_call_of(event, *_DROPOUTS):
        return event.receiver is None and _drops(event)
    # An unknown receiver may be a generator of another library.
    if isinstance(event.receiver, Unknown) or not is_call_of(event, *_DRAWS):
        return False
    return is_missing_or_none(event.keywords.get("generator"))


def _drops(event: Call) -> bool:
    # With p = 0 nothing is dropped.
    probabilities = [*event.call.args[1:2], *keyword_nodes(event.call, "p")]
    if any(isinstance(node, ast.Constant) and node.value == 0 for node in probabilities):
        return False
    # The default is true. A flag of the module is not known to be.
    training = argument(event, 2, "training")
    return training is None or (isinstance(training, Static) and training.constant is True)


RULE = Rule(
    id="TPU506",
    name="unseeded-randomness",
    severity=Severity.WARNING,
    summary="randomness without a generator in traced code: `torch.randn`, `F.dropout`, `.normal_()`",
    why="jax has no hidden random state: the numbers that a program draws follow from its arguments. torchax "
    "keeps a key outside the program and splits it while tracing, so every compiled call draws the same "
    "numbers, and the key itself is a tracer afterwards: the next tracing that draws ends with "
    "`UnexpectedTracerError`.",
    reason="each compiled call draws the same numbers, and the next tracing that draws fails",
    remedy="draw outside the compiled code and pass the numbers in; pass `training=self.training` to dropout",
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
        # Neither draws in evaluation; a weight is drawn before the trace.
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
