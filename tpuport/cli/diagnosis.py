"""What `tpuport doctor` finds out. torch and jax are not imported here: `probes` asks
them.
"""

import contextlib
import dataclasses
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from packaging.specifiers import SpecifierSet

from tpuport.cli import probes
from tpuport.hardware import tpu_chips
from tpuport.version import __version__

# tpuport does not work without these.
_REQUIRED: Final = ("torch", "torchax", "jax", "jaxlib", "transformers")
_OPTIONAL: Final = ("diffusers", "safetensors", "accelerate", "numpy")


@dataclasses.dataclass(frozen=True)
class Problem:
    """Something that cannot work: what, where, and what to do."""

    what: str
    where: str | None = None
    fix: str | None = None


@dataclasses.dataclass
class Diagnosis:
    """The report, which `tpuport doctor --json` prints field by field.

    Attributes:
        works: whether there are no problems; the command's exit code is 0 exactly then.
        tested: whether tpuport's tests are pinned to these versions of torch, torchax
            and jax; None: unknown.
        note: which versions the tests are pinned to.
        problems: what cannot work, each with what, where and fix (where and fix may be
            None).
        python: version, executable and platform.
        versions: installed version by package name, None if it is not installed.
        shims: why, by the name of each shim that the installed versions needed.
        operators: operator and reason of each replacement in torchax; None if torchax
            could not be imported.
        mechanisms: what rests on private names of a library, and whether it works with
            the installed one: mechanism, library, works, reason (None if it works),
            without (what happens while it is off), rests_on; None if torchax could not
            be imported.
        devices: index, platform, kind, process, memory_bytes of each JAX device; None
            if JAX did not answer.
        libtpu: its version, and the device files of TPU chips on this host.
        memory: the host's total_bytes and available_bytes, and limit_bytes of this
            process's control group.
        cache: directory of the persistent compilation cache (None: off), its files and
            bytes; None: unknown.
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
    mechanisms: list[dict[str, Any]] | None
    devices: list[dict[str, Any]] | None
    libtpu: dict[str, Any]
    memory: dict[str, int | None]
    cache: dict[str, str | int | None] | None
    schema: int = 1


def diagnose(timeout: float) -> Diagnosis:
    """Look at everything; `timeout` is in seconds, for each of the two probes."""
    versions = {name: installed_version(name) for name in (*_REQUIRED, *_OPTIONAL)}
    libtpu = {"version": installed_version("libtpu"), "chips": tpu_chips()}
    missing = [name for name in _REQUIRED if versions[name] is None]
    problems = [
        Problem(f"{name} is not installed", fix=f"pip install {name}")
        for name in missing
    ]
    problems += _libtpu_problems(libtpu["version"], libtpu["chips"])
    compat: dict[str, Any] = {}
    devices: dict[str, Any] = {}
    # A probe that lacks a package cannot answer, and the package has been named.
    if {"torch", "torchax", "jax", "jaxlib"}.isdisjoint(missing):
        compat = _ask("compat", timeout, problems)
    if {"jax", "jaxlib"}.isdisjoint(missing):
        devices = _ask("devices", timeout, problems)
    cache = None
    if "cache_directory" in compat:
        cache = cache_size(compat["cache_directory"])
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
        versions={"tpuport": __version__, **versions},
        shims=compat.get("shims", {}),
        operators=compat.get("operators"),
        mechanisms=compat.get("mechanisms"),
        devices=devices.get("devices"),
        libtpu=libtpu,
        memory=host_memory(),
        cache=cache,
    )


def _ask(probe: str, timeout: float, problems: list[Problem]) -> dict[str, Any]:
    """The answer of a probe; its problem joins the others."""
    answer = probes.ask(probe, timeout)
    if "problem" in answer:
        problems.append(Problem(**answer.pop("problem")))
    return answer


def installed_version(name: str) -> str | None:
    """The installed version of a distribution; None if it is not installed or its
    metadata is broken.
    """
    try:
        return metadata.version(name) or None
    except (metadata.PackageNotFoundError, KeyError, ValueError):
        return None


def _libtpu_problems(version: str | None, chips: list[str]) -> list[Problem]:
    required = _libtpu_of_jax()
    if version is None:
        if not chips:
            return []
        what = "this host has TPU chips, and libtpu is not installed"
        return [Problem(what, where=", ".join(chips), fix="pip install 'jax[tpu]'")]
    # A newer libtpu serves older programs; how far an older one does, nobody says.
    if required is None or SpecifierSet(f">={required.rstrip('.*')}").contains(
        version, prereleases=True
    ):
        return []
    what = f"libtpu is {version}, and the installed jax is built for {required}"
    return [Problem(what, where="libtpu", fix=f"pip install 'libtpu=={required}'")]


def _libtpu_of_jax() -> str | None:
    """The libtpu versions that jax's own `tpu` extra requires, such as 0.0.42.*."""
    try:
        requirements = metadata.requires("jax") or []
    except metadata.PackageNotFoundError:
        return None
    versions = re.findall(
        r"^libtpu\s*==\s*([\w.*]+)\s*;", "\n".join(requirements), re.MULTILINE
    )
    return next(iter(versions), None)


def host_memory() -> dict[str, int | None]:
    """Bytes of this host's memory: total, available, and what a container leaves this
    process (None: all).
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Not the free pages of sysconf, which leave out caches that give way.
    available = re.search(
        r"^MemAvailable:\s*(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE
    )
    memory = {
        "total_bytes": total,
        "available_bytes": None,
        "limit_bytes": _memory_limit(total),
    }
    if available is not None:
        memory["available_bytes"] = int(available[1]) * 1024
    return memory


def _memory_limit(total: int) -> int | None:
    """The limit of this process's control group; None if it is not below the host's
    memory.
    """
    # Of version 2 and of version 1.
    for file in (
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ):
        text = _read(Path(file))
        # "max" is not a limit; version 1 writes a number beyond any memory.
        if text.isdigit() and 0 < int(text) < total:
            return int(text)
    return None


def cache_size(directory: str | None) -> dict[str, str | int | None]:
    """The cache's directory with the number and bytes of its files; a directory that
    does not exist is empty.
    """
    if directory is None:
        return {"directory": None, "files": 0, "bytes": 0}
    files = nbytes = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            # Another process may be cleaning up.
            with contextlib.suppress(OSError):
                nbytes += Path(parent, name).stat().st_size
                files += 1
    return {"directory": directory, "files": files, "bytes": nbytes}


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
