"""What `tpuport doctor` finds out; `probes` asks torch and jax, which are not imported here."""

import contextlib
import dataclasses
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import tpuport
from tpuport.cli import probes

_NEEDED = ("torch", "torchax", "jax", "jaxlib", "transformers")
_WITH = ("diffusers", "safetensors", "accelerate", "numpy")


@dataclasses.dataclass(frozen=True)
class Problem:
    """Something that cannot work here: what, where, and what to do."""

    what: str
    where: str | None = None
    fix: str | None = None


@dataclasses.dataclass
class Diagnosis:
    """The report, which `tpuport doctor --json` prints field by field.

    Attributes:
        works: whether there are no problems; the command's exit code is 0 exactly then.
        tested: whether tpuport's tests run with these versions of torch, torchax and jax; None: unknown.
        note: what is known about these versions, or which ones are tested.
        problems: what cannot work, each with what, where and fix (where and fix may be None).
        python: version, executable and platform.
        versions: installed version by package name, None where it is not installed.
        shims: why, by the name of each shim that the installed versions needed.
        operators: operator and reason of each replacement in torchax; None when torchax did not import.
        devices: index, platform, kind, process, memory_bytes of each JAX device; None when JAX said nothing.
        libtpu: its version, and the device files of TPU chips on this host.
        memory: the host's total_bytes and available_bytes, and limit_bytes of this process's control group.
        cache: directory of the persistent compilation cache (None: off), its files and bytes; None: unknown.
        schema: grows when a field changes its meaning.
    """

    works: bool
    tested: bool | None
    note: str | None
    problems: list[Problem]
    python: dict[str, str]
    versions: dict[str, str | None]
    shims: dict[str, str]
    operators: list[dict[str, str]] | None
    devices: list[dict[str, Any]] | None
    libtpu: dict[str, Any]
    memory: dict[str, int | None]
    cache: dict[str, str | int | None] | None
    schema: int = 1


def diagnose(timeout: float) -> Diagnosis:
    """Look at everything; `timeout` is in seconds, for each of the two probes."""
    versions = {name: installed_version(name) for name in (*_NEEDED, *_WITH)}
    problems = [
        Problem(f"{name} is not installed", fix="pip install . in a clone of tpuport")
        for name in _NEEDED
        if versions[name] is None
    ]
    libtpu = {"version": installed_version("libtpu"), "chips": tpu_chips()}
    problems += _libtpu_problems(libtpu)
    # Without these nothing can answer, and the missing package has been named.
    foundation = ("torch", "torchax", "jax", "jaxlib")
    compat = _ask("compat", foundation, versions, timeout, problems)
    devices = _ask("devices", ("jax", "jaxlib"), versions, timeout, problems)
    return Diagnosis(
        works=not problems,
        tested=compat.get("tested"),
        note=compat.get("note"),
        problems=problems,
        python={
            "version": platform.python_version(),
            "executable": sys.executable,
            "platform": platform.platform(),
        },
        versions={"tpuport": tpuport.__version__, **versions},
        shims=compat.get("shims", {}),
        operators=compat.get("operators"),
        devices=devices.get("devices"),
        libtpu=libtpu,
        memory=host_memory(),
        cache=cache_size(compat["cache_directory"]) if "cache_directory" in compat else None,
    )


def _ask(
    probe: str,
    needs: tuple[str, ...],
    versions: dict[str, str | None],
    timeout: float,
    problems: list[Problem],
) -> dict[str, Any]:
    if any(versions[name] is None for name in needs):
        return {}
    answer = probes.ask(probe, timeout)
    problem = answer.pop("problem", None)
    if problem:
        problems.append(Problem(**problem))
    return answer


def installed_version(name: str) -> str | None:
    """The installed version of a distribution, None where it is not installed or its metadata is broken."""
    try:
        return metadata.version(name) or None
    except (metadata.PackageNotFoundError, KeyError, ValueError):
        return None


def tpu_chips() -> list[str]:
    """The device files through which this host reaches its TPU chips."""
    accel = sorted(str(path) for path in Path("/dev").glob("accel[0-9]*"))
    google = "0x1ae0"
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    if not accel and any(_read(path) == google for path in vendors):
        return sorted(str(path) for path in Path("/dev/vfio").glob("[0-9]*"))
    return accel


def _libtpu_problems(libtpu: dict[str, Any]) -> list[Problem]:
    wanted = _libtpu_of_jax()
    version = libtpu["version"]
    if version and wanted and not re.fullmatch(re.escape(wanted).replace(r"\*", ".*"), version):
        what = f"libtpu is {version}, and the installed jax is built for {wanted}"
        return [Problem(what, where="libtpu", fix=f"pip install 'libtpu=={wanted}'")]
    if libtpu["chips"] and not version:
        what = "this host has TPU chips, and libtpu is not installed"
        return [
            Problem(what, where=", ".join(libtpu["chips"]), fix="pip install '.[tpu]' in a clone of tpuport")
        ]
    return []


def _libtpu_of_jax() -> str | None:
    """The libtpu versions that jax's own `tpu` extra asks for, such as 0.0.42.*."""
    try:
        requirements = metadata.requires("jax") or []
    except metadata.PackageNotFoundError:
        return None
    found = (re.match(r"libtpu\s*==\s*([\w.*]+)\s*;", line) for line in requirements)
    return next((match.group(1) for match in found if match), None)


def host_memory() -> dict[str, int | None]:
    """Bytes of this host's memory: total, available, and what a container leaves this process (None: all)."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = re.search(r"^MemAvailable:\s*(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE)
    limits = [Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    limit = next((int(text) for path in limits if (text := _read(path)).isdigit()), None)
    return {
        "total_bytes": total,
        "available_bytes": int(available.group(1)) * 1024 if available else None,
        "limit_bytes": limit if limit and limit < total else None,
    }


def cache_size(directory: str | None) -> dict[str, str | int | None]:
    """The cache's directory with the number and the bytes of its files; a directory not made yet is empty."""
    files = size = 0
    for parent, _, names in os.walk(directory) if directory else ():
        for name in names:
            with contextlib.suppress(OSError):  # another process may be cleaning up
                size += Path(parent, name).stat().st_size
                files += 1
    return {"directory": directory, "files": files, "bytes": size}


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
