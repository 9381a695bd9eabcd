"""The best mesh split of a model, found by compiling its program for each split that
suits it.
"""

from collections.abc import Callable, Mapping
from itertools import starmap
from math import prod
from typing import Any, Final, NamedTuple

from tpuport.errors import PortError
from tpuport.sharding.sequence import transformer_blocks
from tpuport.topology.compiling import compile_lowered
from tpuport.topology.lowering import Lowered
from tpuport.topology.mesh_splits import (
    Facts,
    Split,
    SplitOutcome,
    outcome_of,
    rank,
    split_reasons,
    suitable_splits,
)
from tpuport.trace_errors import CannotTrace

# The compiler's effort if several splits are tried: several times faster, for somewhat
# more memory.
HASTE: Final = -1.0

Compile = Callable[[Lowered, float | None], Mapping[str, Any]]


class SplitSuggestion(NamedTuple):
    """Ranked splits.

    Attributes:
        outcomes: of every split, the best first; after those that were tried come the
            others, with the reason.
        best: the split of the first outcome with a compiled program.
        lowered: the program of the best split.
    """

    outcomes: tuple[SplitOutcome, ...]
    best: Split
    lowered: Lowered


def _compile_to_dict(lowered: Lowered, effort: float | None) -> dict[str, Any]:
    return compile_lowered(lowered, effort).to_dict()


def suggest_splits(
    lower: Callable[..., Lowered],
    mesh: Mapping[str, int],
    *,
    fixed: Mapping[str, int] | None = None,
    effort: float | None = None,
    compile: Compile = _compile_to_dict,
) -> SplitSuggestion:
    """Rank the ways to divide a model over the devices of a slice, by compiling it for
    each that suits it.

        lower = functools.partial(lower_for, model, inputs, topology="v5e:2x4")
        suggest_splits(lower, {"dp": 1, "sp": 1, "tp": 8})

    If several splits are tried they are compiled with effort -1, which is several times
    faster.

    Args:
        lower: takes the sizes dp, sp and tp and returns the program of that split.
        mesh: axis sizes of the split to begin with; their product is the number of
            devices.
        fixed: sizes of axes that every split must have.
        effort: the compiler's for a split that is alone; as in `compile_for`.
        compile: takes a program and an effort and returns `Report.to_dict()`; for
            example from a cache.

    Raises:
        PortError: no split can be lowered. If all are refused, it is the error of
            `mesh`.
        CannotTrace: the model's code cannot be traced.
    """
    search = _Search(lower, compile, prod(mesh.values()), fixed or {})
    start = Split(**mesh)
    first = search.lower_any(start)
    facts = facts_of(first)
    candidates = search.candidates(facts)
    several = len(candidates) - len(search.refusals) > 1
    for split in candidates:
        search.compile(split, first, HASTE if several else effort)
    if not search.reports:
        # Everything that suits was refused. The first program could be lowered, so its
        # split is possible at least.
        search.compile(Split(**first.mesh.shape), first, effort)
    if not search.reports:
        raise search.refusals.get(start, search.any_refusal())
    tried = search.ranked_outcomes()
    # If none fits, the one nearest to fitting comes first of those that could be
    # compiled.
    best = next(outcome.split for outcome in tried if outcome.split in search.reports)
    return SplitSuggestion(
        (*tried, *search.untried_outcomes(facts)), best, search.lower(best, first)
    )


class _Search:
    """Lowers and compiles splits, and remembers reports and refusals by split."""

    def __init__(
        self,
        lower: Callable[..., Lowered],
        compile: Compile,
        devices: int,
        fixed: Mapping[str, int],
    ) -> None:
        self.devices = devices
        self.reports: dict[Split, Mapping[str, Any]] = {}
        self.refusals: dict[Split, PortError] = {}
        self._lower = lower
        self._compile = compile
        self._fixed = fixed.items()

    def matching_splits(self, facts: Facts) -> dict[Split, str]:
        """The splits that have the fixed sizes, with the reason against each or ""."""
        reasons = split_reasons(self.devices, facts)
        return {
            split: reason
            for split, reason in reasons.items()
            if self._fixed <= split._asdict().items()
        }

    def candidates(self, facts: Facts) -> list[Split]:
        """The splits to compile. Refused ones are part of the ranking too, with their
        reasons.
        """
        selected = {*suitable_splits(self.devices, facts), *self.refusals}
        return [split for split in self.matching_splits(facts) if split in selected]

    def lower_any(self, start: Split) -> Lowered:
        """The program of the first split that is not refused, beginning with this one.

        Raises:
            PortError: all splits are refused, or two in the same words, which then
                concern neither of them.
            CannotTrace: the model's code cannot be traced.
        """
        # Without facts of the program every split is possible.
        for split in sorted(
            self.matching_splits(Facts()), key=lambda split: split != start
        ):
            try:
                return self._lower(**split._asdict())
            except CannotTrace:
                raise
            except PortError as error:
                if str(error) in map(str, self.refusals.values()):
                    raise
                self.refusals[split] = error
        raise self.any_refusal()

    def lower(self, split: Split, first: Lowered) -> Lowered:
        """The program of the split, which `first` may be already."""
        # Tracing a large model again would take as long as the first time.
        if split == Split(**first.mesh.shape):
            return first
        return self._lower(**split._asdict())

    def compile(self, split: Split, first: Lowered, effort: float | None) -> None:
        """Compile a split unless it is refused, as by rules that name an axis for a
        dimension it does not divide.
        """
        if split in self.refusals:
            return
        try:
            self.reports[split] = self._compile(self.lower(split, first), effort)
        except PortError as error:
            self.refusals[split] = error

    def any_refusal(self) -> PortError:
        return next(iter(self.refusals.values()))

    def ranked_outcomes(self) -> tuple[SplitOutcome, ...]:
        compiled = list(starmap(outcome_of, self.reports.items()))
        refused = [
            SplitOutcome(split, why=error.what)
            for split, error in self.refusals.items()
        ]
        return rank([*compiled, *refused])

    def untried_outcomes(self, facts: Facts) -> list[SplitOutcome]:
        """The splits that were neither compiled nor refused, with the reason."""
        tried = self.reports.keys() | self.refusals
        return [
            SplitOutcome(split, tried=False, why=reason)
            for split, reason in self.matching_splits(facts).items()
            if split not in tried
        ]


def facts_of(lowered: Lowered) -> Facts:
    """What decides on splits of this program, whatever mesh it was traced for."""
    calls = [call for call, _ in lowered.attention]
    query_lengths = {call.query[2] for call in calls}
    return Facts(
        heads=min((call.query[1] for call in calls), default=None),
        kv_heads=min((call.key[1] for call in calls), default=None),
        batch=_batch_of(lowered),
        sequences=lowered.sequences or tuple(sorted(query_lengths)),
        divides_blocks=bool(transformer_blocks(lowered.model)),
    )


def _batch_of(lowered: Lowered) -> int:
    if lowered.task != "forward":
        return lowered.inputs["batch"]
    # Batch is the first dimension of the first input that has any.
    for value in lowered.inputs.values():
        if getattr(value, "shape", None):
            return int(value.shape[0])
    return 1
