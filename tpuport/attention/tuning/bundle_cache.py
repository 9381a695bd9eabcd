"""What was compiled once, on disk: an interrupted search continues where it stopped."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from tpuport.attention.tuning.bundle_compiler import Compilation, Compiler


@dataclass(frozen=True)
class Measurement:
    """The schedule of a program's only kernel, or why it has none."""

    bundles: int
    sections: tuple[int, ...]
    matrix_unit: float
    failure: str | None


def versions() -> dict[str, str]:
    """Versions of jax and libtpu, on which schedules depend."""
    return {name: metadata.version(name) for name in ("jax", "jaxlib", "libtpu")}


def cache_file(topology: str) -> Path:
    """The file for measurements with these versions, this kernel and this topology."""
    digest = hashlib.blake2b(json.dumps([versions(), topology]).encode(), digest_size=8)
    # Another kernel has other schedules.
    for file in ("flash_kernel.py", "kernel_body.py", "kernel_layout.py"):
        digest.update((resources.files("tpuport.attention") / file).read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (
        cache
        / "tpuport"
        / "tune"
        / f"{topology.replace(':', '-')}-{digest.hexdigest()}.jsonl"
    )


class Measurements:
    """Measured programs: from a file, or else from the compiler.

    Args:
        compiler: entered.
        file: a line of JSON for each program; created with the first measurement.
    """

    def __init__(self, compiler: Compiler, file: Path) -> None:
        self._compiler = compiler
        self.file = file
        self._known = _read_lines(file)

    def measure(self, function: str, arguments: dict[str, Any]) -> Measurement:
        """The measurement of a program, as `Compiler.count` takes it."""
        key = json.dumps([function, arguments], sort_keys=True)
        if key not in self._known:
            compilation = self._compiler.count(function, arguments)
            self._known[key] = _to_measurement(compilation)
            # A compiler that died may succeed another time, with more time or memory.
            if not compilation.died:
                self._append(key, self._known[key])
        return self._known[key]

    def _append(self, key: str, measurement: Measurement) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as file:
            # The newline comes first: an interruption may have cut off the last line.
            file.write("\n" + json.dumps({"program": key, **asdict(measurement)}))


def _to_measurement(compilation: Compilation) -> Measurement:
    if compilation.failure is not None:
        return Measurement(0, (), 0.0, compilation.failure)
    if len(compilation.kernels) != 1:
        return Measurement(
            0, (), 0.0, f"the program has {len(compilation.kernels)} kernels, not one"
        )
    (kernel,) = compilation.kernels
    return Measurement(kernel.bundles, kernel.sections, kernel.utilization["MXU"], None)


def _read_lines(file: Path) -> dict[str, Measurement]:
    """The file's measurements by program, without a line that an interruption cut
    off.
    """
    measurements = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    for line in lines:
        try:
            entry = json.loads(line)
            program = entry.pop("program")
            measurements[program] = Measurement(
                **{**entry, "sections": tuple(entry["sections"])}
            )
        except (ValueError, KeyError, TypeError):
            continue
    return measurements
