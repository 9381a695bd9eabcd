"""Reads what the compiler writes about the schedule of a kernel.

A TPU core executes one bundle of instructions a cycle if nothing stalls. With the flags of `dump_flags` the compiler
writes three files for each kernel: how many bundles one step of its grid has, the bundles themselves, and which units
each of them uses.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from tpuport import schedules
from tpuport.schedules.schedule_dump import ANALYSIS as _ANALYSIS
from tpuport.schedules.schedule_dump import BUNDLES as _BUNDLES

_UTILIZATION: Final = "final_hlo-static-per-bundle-utilization"
_FILE: Final = re.compile(rf"\d+-(?P<kernel>.+?)-\d+-{_ANALYSIS}\.txt")
_TOTAL: Final = re.compile(r"total scheduled bundles:\s+(\d+)")
_BUNDLE: Final = re.compile(r"^\s*(0x[0-9a-f]+|0)\s+(?:[A-Z]{2})?\s*:")
_BRANCH: Final = re.compile(r"sbr\.rel \([^)]*\) target = \$region(\d+)")
_TARGET: Final = re.compile(r"Start/End empty region (\d+)")


@dataclass(frozen=True)
class KernelBundles:
    """The final schedule of one Pallas kernel.

    Attributes:
        name: as passed to `pallas_call`.
        bundles: scheduled for one step of the grid, including everything in it that runs only under a condition.
        sections: bundles of each part of the step that runs only under a condition (`pl.when`), in the order of the
            program; a part inside another is not listed.
        utilization: the share of its slots that each unit uses: 1.0 is a unit that is busy in every bundle.
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
    """LIBTPU_INIT_ARGS that make the compiler write its final schedules into a directory, and little else."""
    return schedules.dump_flags(directory, _ANALYSIS, _BUNDLES, _UTILIZATION)


def read_kernels(directory: Path) -> list[KernelBundles]:
    """Every Pallas kernel that was compiled since the directory was empty, in the order of compilation."""
    kernels = []
    for file in sorted(directory.iterdir()):
        match = _FILE.fullmatch(file.name)
        # TLP is the program as a whole.
        if match is None or match["kernel"] == "TLP":
            continue
        analysis = file.read_text(errors="replace")
        if 'custom_call_target="tpu_custom_call"' in analysis:
            kernels.append(_read_kernel(directory, match["kernel"], analysis))
    return kernels


def _read_kernel(directory: Path, kernel: str, analysis: str) -> KernelBundles:
    total = _TOTAL.search(analysis)
    if total is None:
        raise ValueError(f"the compiler's schedule analysis of {kernel} has no total")
    return KernelBundles(
        name=re.sub(r"\.\d+$", "", kernel),
        bundles=int(total[1]),
        sections=section_lengths(_read_dump(directory, kernel, _BUNDLES)),
        utilization=unit_utilization(_read_dump(directory, kernel, _UTILIZATION)),
    )


def _read_dump(directory: Path, kernel: str, label: str) -> str:
    name = re.compile(rf"\d+-{re.escape(kernel)}-\d+-{label}\.txt")
    (file,) = (file for file in directory.iterdir() if name.fullmatch(file.name))
    return file.read_text(errors="replace")


class _Span(NamedTuple):
    """Address of a branch over a part of the program, and of the first bundle after the part."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start

    def is_within(self, other: "_Span") -> bool:
        return other != self and other.start <= self.start and self.end <= other.end


def section_lengths(listing: str) -> tuple[int, ...]:
    """Lengths of the conditional parts of the step, from the listing of all bundles."""
    spans, bundles = _conditional_spans(listing)
    # The pipeline wraps the kernel's own code in another condition, which holds in every step.
    widest = max(spans, key=lambda span: span.length, default=_Span(0, 0))
    if 2 * widest.length > bundles:
        spans = [span for span in spans if span.is_within(widest)]
    outermost = [span for span in spans if not any(map(span.is_within, spans))]
    # Without the branch itself, which is in every step.
    return tuple(span.length - 1 for span in sorted(outermost))


def _conditional_spans(listing: str) -> tuple[list[_Span], int]:
    """The parts over which a branch may jump, and the number of all bundles."""
    branches: dict[str, int] = {}
    spans = []
    address = 0
    for line in listing.splitlines():
        bundle = _BUNDLE.match(line)
        if bundle:
            address = int(bundle[1], 0)
        for region in _TARGET.findall(line):
            start = branches.pop(region, None)
            if start is not None:
                spans.append(_Span(start, address))
        # A branch jumps over the part that begins after it, to the end of a region.
        branch = _BRANCH.search(line)
        if branch:
            branches[branch[1]] = address
    return spans, address + 1


def unit_utilization(table: str) -> dict[str, float]:
    """The share of its slots that each unit uses, from the table of units by bundle."""
    head, _, rows = table.partition("== UTILIZATION:")
    names, capacities = head.strip().splitlines()[-2:]
    # A row for each bundle, a column for each unit.
    used = np.loadtxt(rows.splitlines(), dtype=np.int64, ndmin=2)
    slots = len(used) * np.array(capacities.split(), np.int64)
    units = map(str.strip, names.split(","))
    return dict(zip(units, (used.sum(0) / slots).tolist(), strict=True))
