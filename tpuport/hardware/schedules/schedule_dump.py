"""The files that libtpu writes about the schedules of a program's kernels: fusions,
copies, Pallas kernels.

libtpu reads its flags when it is loaded, so that a process writes the schedules of all
its programs or of none. Kernels that are the same but for their names are compiled, and
written, once.
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tpuport.hardware.schedules.bundle_listing import read_listing
from tpuport.hardware.schedules.scalar_execution import execute

ANALYSIS: Final = "schedule-analysis_final_bundles"
BUNDLES: Final = "final_bundles"


class KernelSchedule(NamedTuple):
    """One kernel of a program.

    Attributes:
        name: of its instruction in the program.
        cycles: bundles that one call executes.
        copies: that one call starts between memories.
        exact: False if their number depends on what only a run knows, such as an index.
    """

    name: str
    cycles: int
    copies: int
    exact: bool


def dump_flags(directory: Path | str, *labels: str) -> str:
    """LIBTPU_INIT_ARGS that make the compiler write schedules into a directory, and
    little else.

    Args:
        directory: must exist.
        labels: the kinds of files, as the compiler names them; by default those that
            `read_schedules` needs.
    """
    # All passes of one kernel would be 150 MB. The compiler writes nothing for a
    # pattern with one alternative.
    passes = "|".join(labels or (ANALYSIS, BUNDLES))
    return f"--xla_jf_dump_to={directory} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=({passes})"


def read_schedules(directory: Path | str) -> dict[str, KernelSchedule]:
    """Every kernel that was compiled since the directory was empty, by name."""
    schedules = {}
    for kernel, listing in read_files(directory, BUNDLES):
        execution = execute(read_listing(listing))
        schedules[kernel] = KernelSchedule(kernel, *dataclasses.astuple(execution))
    return schedules


def read_files(directory: Path | str, label: str) -> Iterator[tuple[str, str]]:
    """The name of each kernel and its file of a kind, in the order of compilation."""
    pattern = re.compile(rf"\d+-(?P<kernel>.+)-\d+-{label}\.txt")
    for file in sorted(Path(directory).iterdir()):
        match = pattern.fullmatch(file.name)
        # "TLP" is the program that calls the kernels, and "<late-initialization>" is
        # not of the program.
        if match is None or match["kernel"] == "TLP" or match["kernel"].startswith("<"):
            continue
        yield match["kernel"], file.read_text(errors="replace")
