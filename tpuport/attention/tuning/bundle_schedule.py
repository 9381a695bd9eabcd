"""What the compiler writes about the schedule of a kernel, read.

A TPU core executes one bundle of instructions a cycle when nothing stalls. With the flags of `flags` the compiler
writes three files for each kernel: how many bundles one step of its grid has, the bundles themselves, and which units
each of them uses.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ANALYSIS: Final = "schedule-analysis_final_bundles"
_BUNDLES: Final = "final_bundles"
_USE: Final = "final_hlo-static-per-bundle-utilization"
_FILE: Final = re.compile(rf"\d+-(?P<kernel>.+?)-\d+-{_ANALYSIS}\.txt")
_TOTAL: Final = re.compile(r"total scheduled bundles:\s+(\d+)")
_BUNDLE: Final = re.compile(r"^\s*(0x[0-9a-f]+|0)\s+(?:[A-Z]{2})?\s*:")
_BRANCH: Final = re.compile(r"sbr\.rel \([^)]*\) target = \$region(\d+)")
_TARGET: Final = re.compile(r"Start/End empty region (\d+)")


@dataclass(frozen=True)
class KernelBundles:
    """The final schedule of one Pallas kernel.

    Attributes:
        name: as given to `pallas_call`.
        bundles: scheduled for one step of the grid, with everything in it that runs only under a condition.
        sections: bundles of each part of the step that runs only under a condition (`pl.when`), in the order of the
            program; a part inside another is not listed.
        utilization: the share of its slots that each unit uses: 1.0 is a unit that is busy in every bundle.
    """

    name: str
    bundles: int
    sections: tuple[int, ...]
    utilization: dict[str, float]


def flags(directory: Path) -> str:
    """LIBTPU_INIT_ARGS that make the compiler write its final schedules into a directory, and little else."""
    # Written in full, the passes of one kernel take 150 MB, and longer than compiling does.
    wanted = f"({_ANALYSIS}|{_BUNDLES}|{_USE})"
    return f"--xla_jf_dump_to={directory} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex={wanted}"


def kernels(directory: Path) -> list[KernelBundles]:
    """Every Pallas kernel that was compiled since the directory was empty, in the order of compilation."""
    found = []
    for file in sorted(directory.iterdir()):
        named = _FILE.fullmatch(file.name)
        if named is None or named["kernel"] == "TLP":  # the program as a whole
            continue
        text = file.read_text(errors="replace")
        if 'custom_call_target="tpu_custom_call"' in text:
            found.append(_kernel(directory, named["kernel"], text))
    return found


def _kernel(directory: Path, kernel: str, analysis: str) -> KernelBundles:
    total = _TOTAL.search(analysis)
    if total is None:
        raise ValueError(f"the compiler's schedule analysis of {kernel} has no total")
    return KernelBundles(
        name=re.sub(r"\.\d+$", "", kernel),
        bundles=int(total[1]),
        sections=sections(_text(directory, kernel, _BUNDLES)),
        utilization=utilization(_text(directory, kernel, _USE)),
    )


def _text(directory: Path, kernel: str, label: str) -> str:
    name = re.compile(rf"\d+-{re.escape(kernel)}-\d+-{label}\.txt")
    (file,) = (file for file in directory.iterdir() if name.fullmatch(file.name))
    return file.read_text(errors="replace")


def sections(bundles: str) -> tuple[int, ...]:
    """Lengths of the conditional parts inside the step, from the listing of all bundles."""
    spans, length = _conditional(bundles)
    # Around the kernel's own code the pipeline puts a condition of its own, which holds in every step.
    widest = max(spans, key=lambda span: span[1] - span[0], default=(0, 0))
    if 2 * (widest[1] - widest[0]) > length:
        spans = [span for span in spans if span != widest and _within(span, widest)]
    top = [span for span in spans if not any(_within(span, other) for other in spans if other != span)]
    return tuple(end - start - 1 for start, end in sorted(top))


def _within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _conditional(bundles: str) -> tuple[list[tuple[int, int]], int]:
    """(address of each branch over a part of the program, and of the first bundle after the part); all bundles."""
    branches: dict[str, int] = {}
    spans = []
    address = 0
    for line in bundles.splitlines():
        start = _BUNDLE.match(line)
        if start:
            address = int(start[1], 0)
        spans += [(branches.pop(region), address) for region in _TARGET.findall(line) if region in branches]
        branch = _BRANCH.search(line)
        if branch:
            branches[branch[1]] = address
    return spans, address + 1


def utilization(table: str) -> dict[str, float]:
    """The share of its slots that each unit uses, from the table of units by bundle."""
    head, _, rows = table.partition("== UTILIZATION:")
    names, capacities = head.strip().splitlines()[-2:]
    units = [name.strip() for name in names.split(",")]
    used = [[int(count) for count in row.split()] for row in rows.split("\n") if row.strip()]
    slots = [int(capacity) * len(used) for capacity in capacities.split()]
    totals = [sum(column) for column in zip(*used, strict=True)]
    return {unit: total / slot for unit, total, slot in zip(units, totals, slots, strict=True)}
