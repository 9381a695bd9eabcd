"""Ways to divide a model over the devices of a slice: which of them suit it, and how
compiled ones compare.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, Final, NamedTuple

from tpuport.hardware import GIB

# How `rank` orders splits, for people.
RANKED_BY: Final = (
    "Ranked by the estimated time of a step, of the instructions as they were scheduled; then by memory. If there are "
    "several they are compiled in haste (effort -1), which takes more memory: what fits here fits."
)
# One reason against a split: the axis, or two axes together, and what is wrong with it.
_REASON: Final = re.compile(
    r"(?P<axes>\w+=\d+(?: beside \w+=\d+)?) (?P<explanation>.*)"
)


class Split(NamedTuple):
    """The sizes of a mesh's axes, as `create_mesh` takes them."""

    dp: int
    sp: int
    tp: int

    def __str__(self) -> str:
        return (
            " ".join(
                f"{axis}={size}" for axis, size in self._asdict().items() if size > 1
            )
            or "one device"
        )

    @property
    def axes(self) -> int:
        """How many axes have more than one device."""
        return sum(size > 1 for size in self)


@dataclasses.dataclass(frozen=True)
class Facts:
    """What decides which splits suit a program.

    Attributes:
        heads: attention heads, of the call with the fewest; None if there is no
            attention.
        kv_heads: key/value heads; None means as many as heads.
        batch: rows of a step.
        sequences: lengths of what sp can divide: the hidden states of a diffusion
            transformer without its text (see `tpuport.sharding.sequence`), or the
            queries of attention; other models are whole on every device of sp between
            two attention calls. Empty if there is no attention.
        divides_blocks: whether sp divides the whole denoiser; then rows of the batch
            are no better to divide.
    """

    heads: int | None = None
    kv_heads: int | None = None
    batch: int = 1
    sequences: tuple[int, ...] = ()
    divides_blocks: bool = True


@dataclasses.dataclass(frozen=True)
class SplitOutcome:
    """What compiling a program for a split came to. The JSON Schema describes the
    fields.

    Attributes:
        seconds: of a step, as `RANKED_BY` says; roofline: that it takes at least; None
            if it does not fit.
        used: bytes of HBM of one device; None if unknown. capacity: bytes that it can
            have.
        why: why it does not fit, or was not tried, in a sentence.
    """

    split: Split
    tried: bool = True
    fits: bool = False
    used: int | None = None
    capacity: int | None = None
    seconds: float | None = None
    roofline: float | None = None
    unit: str | None = None
    units_per_second: float | None = None
    binds: str | None = None
    why: str = ""

    def to_dict(
        self, target: str, topology: str, quantize: str | None = None
    ) -> dict[str, Any]:
        """Plain values for JSON; `quantize` is the scheme of the program's weights."""
        fields = dict(vars(self))
        split = fields.pop("split")
        return {
            "target": target, "topology": topology, "mesh": split._asdict(), "quantize": quantize, **fields,
        }  # fmt: skip


def suitable_splits(devices: int, facts: Facts) -> tuple[Split, ...]:
    """The splits that are worth trying: those with the fewest axes first, and of those
    the most tp.

    tp over all devices is one of them, because that is the default mesh: if it cuts
    through heads, attention is whole on each device, and the rest of the model is
    divided. If no split suits, the most tp that divides the heads is another, with dp
    over the rest: the batch is padded, or whole on each device.

    Args:
        devices: of the slice; each split uses all.
        facts: of the program.
    """
    reasons = split_reasons(devices, facts)
    suitable = {split for split, reason in reasons.items() if not reason}
    if not suitable:
        tp = max(
            split.tp
            for split in reasons
            if not uneven(split.tp, facts.heads, facts.kv_heads)
        )
        suitable.add(Split(devices // tp, 1, tp))
    # The default mesh is always compared.
    suitable.add(Split(1, 1, devices))
    return tuple(split for split in reasons if split in suitable)


def split_reasons(devices: int, facts: Facts) -> dict[Split, str]:
    """Every split of the devices in the order of `suitable_splits`, with the reason
    against it or "".
    """
    divisors = [size for size in range(1, devices + 1) if devices % size == 0]
    # At most a few thousand, of a pod.
    sizes = itertools.product(divisors, repeat=3)
    splits = [Split(dp, sp, tp) for dp, sp, tp in sizes if dp * sp * tp == devices]
    splits.sort(key=lambda split: (split.axes, -split.tp, -split.dp))
    return {split: _reasons_against(split, facts) for split in splits}


def _reasons_against(split: Split, facts: Facts) -> str:
    reasons = (
        uneven(split.tp, facts.heads, facts.kv_heads),
        _uneven_batch(split.dp, facts),
        _uneven_sequence(split, facts),
    )
    return "; ".join(filter(None, reasons))


def uneven(tp: int, heads: int | None, kv_heads: int | None = None) -> str:
    """Why tp does not suit the heads; "" if it does.

    Fewer key/value heads than devices are repeated, if they divide the devices.

    Args:
        heads, kv_heads: as in `Facts`.
    """
    if tp == 1 or heads is None:
        return ""
    if heads % tp:
        return f"tp={tp} does not divide {heads} heads"
    if kv_heads and kv_heads % tp and tp % kv_heads:
        return f"tp={tp} neither divides {kv_heads} key/value heads nor is a multiple of them"
    return ""


def _uneven_batch(dp: int, facts: Facts) -> str:
    if facts.batch % dp:
        return f"dp={dp} does not divide a batch of {facts.batch}"
    return ""


def _uneven_sequence(split: Split, facts: Facts) -> str:
    dp, sp, _ = split
    if sp == 1:
        return ""
    if not facts.sequences:
        return f"sp={sp} has no sequence to divide: there is no attention"
    if facts.sequences == (1,):
        return f"sp={sp} has no sequence to divide: a row is one token"
    undivided = [str(length) for length in facts.sequences if length % sp]
    if undivided:
        return f"sp={sp} does not divide {' and '.join(undivided)} tokens"
    # Rows are independent, so dp sends nothing for what sp has to exchange.
    if not facts.divides_blocks and dp > 1 and facts.batch % (dp * sp) == 0:
        return f"sp={sp} beside dp={dp} sends what dp={dp * sp} need not"
    return ""


def outcome_of(split: Split, report: Mapping[str, Any]) -> SplitOutcome:
    """The outcome of a split whose program was compiled.

    Args:
        split: of the program.
        report: `Report.to_dict()`.
    """
    memory = report["memory"]
    estimate = report["estimate"] or {}
    outcome = SplitOutcome(
        split,
        used=memory["used"],
        capacity=memory["capacity"],
        unit=estimate.get("unit"),
    )
    if not (report["fits"] and estimate):
        return dataclasses.replace(outcome, why=_why_not(report))
    seconds = report["profile"]["seconds"]
    rate = None
    # A program that does nothing takes no time.
    if seconds:
        rate = estimate["units"] / seconds
    return dataclasses.replace(
        outcome,
        fits=True,
        seconds=seconds,
        roofline=estimate["seconds"],
        units_per_second=rate,
        binds=estimate["binds"],
    )


def _why_not(report: Mapping[str, Any]) -> str:
    if report["failure"]:
        return report["failure"]["message"]
    memory = report["memory"]
    needed = "more"
    if memory["used"] is not None:
        needed = f"{memory['used'] / GIB:.2f} GiB"
    return f"needs {needed} a device, which has {memory['capacity'] / GIB:.2f} GiB"


def rank(outcomes: Iterable[SplitOutcome]) -> tuple[SplitOutcome, ...]:
    """Those that fit by estimated seconds, then memory; after them the others, the one
    nearest to fitting first.
    """

    def order(outcome: SplitOutcome) -> tuple[Any, ...]:
        # None counts as infinite. The split itself decides last, so that the order of
        # the outcomes never does.
        figures = (
            inf if figure is None else figure
            for figure in (outcome.seconds, outcome.used)
        )
        return not outcome.fits, *figures, outcome.split.axes, outcome.split

    return tuple(sorted(outcomes, key=order))


def tried_splits(splits: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The splits that were compiled, or refused when they were to be, in the same
    order.
    """
    return [split for split in splits if split["tried"]]


def untried_reasons(splits: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """By program, why splits were not tried: "dp=2, dp=4 (does not divide a batch of
    1); tp=4 (...)".

    Args:
        splits: as `SplitOutcome.to_dict` gives them; those that were tried are skipped.
    """
    axes_by_program: dict[str, dict[str, dict[str, None]]] = {}
    for split in splits:
        if split["tried"]:
            continue
        axes_by_reason = axes_by_program.setdefault(
            f"{split['target']} on {split['topology']}", {}
        )
        for reason in split["why"].split("; "):
            axes, explanation = reason, ""
            if match := _REASON.fullmatch(reason):
                axes, explanation = match.groups()
            # A dict is a set in the order of insertion.
            axes_by_reason.setdefault(explanation, {})[axes] = None
    return {
        program: _join_reasons(reasons) for program, reasons in axes_by_program.items()
    }


def _join_reasons(axes_by_reason: dict[str, dict[str, None]]) -> str:
    parts = []
    for explanation, axes in axes_by_reason.items():
        part = ", ".join(axes)
        if explanation:
            part += f" ({explanation})"
        parts.append(part)
    return "; ".join(parts)
