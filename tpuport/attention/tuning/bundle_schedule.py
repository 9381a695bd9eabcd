"""Reads what the compiler writes about the schedule of a kernel.

A TPU core executes one bundle of instructions a cycle if nothing stalls. With the flags
of `dump_flags` the compiler writes three files for each kernel: how many bundles one
step of its grid has, the bundles themselves, and which units each of them uses.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from tpuport.hardware import schedules
from tpuport.hardware.schedules import Bundle
from tpuport.hardware.schedules.schedule_dump import ANALYSIS, BUNDLES, read_files

_UTILIZATION: Final = "final_hlo-static-per-bundle-utilization"
_PALLAS_KERNEL: Final = 'custom_call_target="tpu_custom_call"'


@dataclass(frozen=True)
class KernelBundles:
    """The final schedule of one Pallas kernel.

    Attributes:
        name: as passed to `pallas_call`.
        bundles: scheduled for one step of the grid, including everything in it that
            runs only under a condition.
        sections: bundles of each part of the step that runs only under a condition
            (`pl.when`), in the order of the program; a part inside another is not
            listed.
        utilization: the share of its slots that each unit uses: 1.0 is a unit that is
            busy in every bundle.
    """

    name: str
    bundles: int
    sections: tuple[int, ...]
    utilization: dict[str, float]

    @classmethod
    def from_json(cls, kernel: dict[str, Any]) -> "KernelBundles":
        """The inverse of dataclasses.asdict, through JSON."""
        return cls(**{**kernel, "sections": tuple(kernel["sections"])})


def dump_flags(directory: Path) -> str:
    """LIBTPU_INIT_ARGS that make the compiler write its final schedules into a
    directory, and little else.
    """
    return schedules.dump_flags(directory, ANALYSIS, BUNDLES, _UTILIZATION)


def read_kernels(directory: Path) -> list[KernelBundles]:
    """Every Pallas kernel that was compiled since the directory was empty, in the order
    of compilation.
    """
    listings, utilization = (
        dict(read_files(directory, BUNDLES)),
        dict(read_files(directory, _UTILIZATION)),
    )
    kernels = []
    for name, analysis in read_files(directory, ANALYSIS):
        if _PALLAS_KERNEL not in analysis:
            continue
        bundles = schedules.read_listing(listings[name])
        kernels.append(
            KernelBundles(
                name=re.sub(r"\.\d+$", "", name),
                bundles=len(bundles),
                sections=section_lengths(bundles),
                utilization=unit_utilization(utilization[name]),
            )
        )
    return kernels


class _Span(NamedTuple):
    """Address of a branch over a part of the program, and of the first bundle after the
    part.
    """

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start

    def is_within(self, other: "_Span") -> bool:
        return other != self and other.start <= self.start and self.end <= other.end


def section_lengths(bundles: Sequence[Bundle]) -> tuple[int, ...]:
    """Lengths of the conditional parts of the step."""
    spans = _conditional_spans(bundles)
    # The pipeline wraps the kernel's own code in another condition, which holds in
    # every step.
    widest = max(spans, key=lambda span: span.length, default=_Span(0, 0))
    if 2 * widest.length > len(bundles):
        spans = [span for span in spans if span.is_within(widest)]
    outermost = [span for span in spans if not any(map(span.is_within, spans))]
    # Without the branch itself, which is in every step.
    return tuple(span.length - 1 for span in sorted(outermost))


def _conditional_spans(bundles: Sequence[Bundle]) -> list[_Span]:
    """The parts over which a branch may jump."""
    branches: dict[str, int] = {}
    spans = []
    for address, bundle in enumerate(bundles):
        for region in bundle.regions:
            start = branches.pop(region, None)
            if start is not None:
                spans.append(_Span(start, address))
        # A branch jumps over the part that begins after it, to the start of a region.
        if bundle.branch is not None and bundle.branch.guard is not None:
            branches[bundle.branch.region] = address
    return spans


def unit_utilization(table: str) -> dict[str, float]:
    """The share of its slots that each unit uses, from the table of units by bundle."""
    head, _, rows = table.partition("== UTILIZATION:")
    names, capacities = head.strip().splitlines()[-2:]
    # A row for each bundle, a column for each unit.
    used = np.loadtxt(rows.splitlines(), dtype=np.int64, ndmin=2)
    slots = len(used) * np.array(capacities.split(), np.int64)
    # Newer compilers count what loads weights into the matrix units by itself.
    units = (
        "MXU" if name.strip() == "MATMUL" else name.strip() for name in names.split(",")
    )
    return dict(zip(units, (used.sum(0) / slots).tolist(), strict=True))
