"""Which ways to share a model out over the devices of a slice are worth compiling, and which of those is best."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from tpuport.hardware import GIB

# What `ranked` goes by, for people.
RANKED_BY = (
    "Ranked by the estimated time of a step that does nothing else while devices send to each other: the longer of "
    "compute and memory, and the interconnect's; then by memory. Several are compiled in haste (effort -1), "
    "which takes more memory: what fits here fits."
)
_LAST = float("inf")
# One reason of a split that is left out: the axis, or the axes together, and what is wrong with it.
_REASON: Final = re.compile(r"(?P<axes>\w+=\d+(?: beside \w+=\d+)?) (?P<why>.*)")


class Split(NamedTuple):
    """Sizes of a mesh's axes, as `create_mesh` takes them; `why_not`: why it is not worth trying, "" where it is."""

    dp: int
    sp: int
    tp: int
    why_not: str = ""

    def __str__(self) -> str:
        sizes = {"dp": self.dp, "sp": self.sp, "tp": self.tp}
        return " ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1) or "one device"

    @property
    def axes(self) -> int:
        """How many axes have more than one device."""
        return sum(size > 1 for size in (self.dp, self.sp, self.tp))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What compiling for a split came to.

    Attributes:
        fits: whether there is a program, and the device has the memory for it.
        seconds: of a step, as `RANKED_BY` says; None where it does not fit.
        used: bytes of HBM a device; None where nobody says.
        binds: what bounds the step; "" where it does not fit.
        why: why it does not fit, in a sentence.
    """

    split: Split
    fits: bool
    seconds: float | None = None
    used: int | None = None
    binds: str = ""
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Facts:
    """What of a program decides which splits suit it.

    Attributes:
        heads: attention heads, of the attention that has the fewest; None where there is no attention.
        kv_heads: key/value heads; None is as many as heads.
        batch: rows of a step.
        sequences: lengths of what sp can share out: the hidden states of a diffusion transformer without its text (see
            `tpuport.sharding.sequence`), or the queries of attention, between two of which other models are whole on
            every device of sp; none where there is no attention.
        cut: whether sp shares out a denoiser: rows of its batch are then no better shared out than its sequence.
    """

    heads: int | None = None
    kv_heads: int | None = None
    batch: int = 1
    sequences: tuple[int, ...] = ()
    cut: bool = True


def splits(devices: int, facts: Facts) -> tuple[Split, ...]:
    """The splits that are worth trying, those with the fewest axes first, and of those the most tp.

    tp over all devices is one of them, as that is the mesh where none is given: where it cuts through heads, attention
    is whole on each device, and all else is divided. Where no split suits, the most tp that divides the heads is
    another, with dp over the rest: the batch is filled up, or whole on each device.

    Args:
        devices: of the slice; each split uses all.
        facts: of the program.
    """
    every = considered(devices, facts)
    wanted = {one[:3] for one in every if not one.why_not}
    if not wanted:
        most = max(one.tp for one in every if not uneven(one.tp, facts.heads, facts.kv_heads))
        wanted.add((devices // most, 1, most))
    return tuple(one for one in every if one[:3] in wanted | {(1, 1, devices)})


def considered(devices: int, facts: Facts) -> tuple[Split, ...]:
    """Every split of the devices, in the order of `splits`, those that it leaves out with the reason."""
    parts = [size for size in range(1, devices + 1) if devices % size == 0]
    found = []
    for dp, tp in itertools.product(parts, parts):
        sp, rest = divmod(devices, dp * tp)
        if rest or not sp:
            continue
        reasons = (uneven(tp, facts.heads, facts.kv_heads), _batch(dp, facts), _sequence(sp, dp, facts))
        found.append(Split(dp, sp, tp, "; ".join(filter(None, reasons))))
    return tuple(sorted(found, key=lambda one: (one.axes, -one.tp, -one.dp)))


def facts_of(lowered: Any) -> Facts:
    """Those of a `lowering.Lowered`, on whatever mesh it was traced."""
    from tpuport.sharding.sequence import transformer_blocks

    calls = [call for call, _ in lowered.attention]
    shapes = [value.shape for value in lowered.inputs.values() if getattr(value, "shape", None)]
    rows = int(shapes[0][0]) if shapes else 1
    return Facts(
        heads=min((call.query[1] for call in calls), default=None),
        kv_heads=min((call.key[1] for call in calls), default=None),
        batch=rows if lowered.task == "forward" else lowered.inputs["batch"],
        sequences=lowered.sequences or tuple(sorted({call.query[2] for call in calls})),
        cut=bool(transformer_blocks(lowered.model)),
    )


def outcome(split: Split, report: Mapping[str, Any] | None, error: str = "") -> Outcome:
    """What is to be ranked of a report.

    Args:
        split: that it is of.
        report: `Report.to_dict()`; None where there is none.
        error: why there is none.
    """
    if report is None:
        return Outcome(split, False, why=error or "it was not compiled")
    memory, estimate, failure = report["memory"], report["estimate"], report["failure"]
    used = memory["used"]
    if report["fits"] and estimate:
        return Outcome(split, True, _seconds(estimate), used, estimate["binds"])
    needed = "more" if used is None else f"{used / GIB:.2f} GiB"
    why = (
        failure["message"]
        if failure
        else f"needs {needed} a device, which has {memory['capacity'] / GIB:.2f} GiB"
    )
    return Outcome(split, False, used=used, why=why)


def _seconds(estimate: Mapping[str, Any]) -> float:
    """Of a step whose collectives stand between its products: arrays come from HBM while others are multiplied.

    By the longest of the three alone, splits that are all bound by compute would be ranked by chance, those that send
    nothing beside those that send much.
    """
    return float(max(estimate["compute"], estimate["memory"]) + estimate["interconnect"])


def ranked(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """Those that fit by estimated seconds, then memory; after them those that do not, the nearest to it first."""

    def order(one: Outcome) -> tuple[Any, ...]:
        seconds = _LAST if one.seconds is None else one.seconds
        used = _LAST if one.used is None else one.used
        return not one.fits, seconds if one.fits else 0.0, used, one.split.axes, one.split[:3]

    return tuple(sorted(outcomes, key=order))


def uneven(tp: int, heads: int | None, kv_heads: int | None = None) -> str:
    """Why tp does not suit the heads; "" where it does.

    Fewer key/value heads than devices are repeated, where that comes out even.

    Args:
        heads, kv_heads: as in `Facts`.
    """
    kv_heads = heads if kv_heads is None else kv_heads
    if tp == 1 or heads is None:
        return ""
    if heads % tp:
        return f"tp={tp} does not divide {heads} heads"
    if kv_heads and kv_heads % tp and tp % kv_heads:
        return f"tp={tp} neither divides {kv_heads} key/value heads nor is a multiple of them"
    return ""


def left_out(splits: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """By program, why splits were not tried: "dp=2, dp=4 (does not divide a batch of 1); tp=4 (...)".

    Args:
        splits: plain values, as `job` tells them; those that were tried are passed over.
    """
    found: dict[str, dict[str, dict[str, None]]] = {}
    for one in splits:
        if one["tried"]:
            continue
        reasons = found.setdefault(f"{one['target']} on {one['topology']}", {})
        for reason in one["why"].split("; "):
            parts = _REASON.fullmatch(reason)
            axes, why = parts.groups() if parts else (reason, "")
            reasons.setdefault(why, {})[axes] = None
    return {
        program: "; ".join(
            f"{', '.join(axes)} ({why})" if why else ", ".join(axes) for why, axes in told.items()
        )
        for program, told in found.items()
    }


def _batch(dp: int, facts: Facts) -> str:
    return f"dp={dp} does not divide a batch of {facts.batch}" if facts.batch % dp else ""


def _sequence(sp: int, dp: int, facts: Facts) -> str:
    if sp == 1:
        return ""
    if not facts.sequences:
        return f"sp={sp} has no sequence to share out: there is no attention"
    if facts.sequences == (1,):
        return f"sp={sp} has no sequence to share out: a row is one token"
    whole = [str(length) for length in facts.sequences if length % sp]
    if whole:
        return f"sp={sp} does not divide {' and '.join(whole)} tokens"
    if not facts.cut and dp > 1 and facts.batch % (dp * sp) == 0:
        return f"sp={sp} beside dp={dp} sends what dp={dp * sp} need not"
    return ""
