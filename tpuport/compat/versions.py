"""Which versions are installed, and whether they can work together. Reads metadata
only: imports none of them.
"""

import dataclasses
import functools
import logging
from importlib import metadata

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from tpuport.errors import PortError

logger = logging.getLogger("tpuport")

PACKAGES = ("torch", "torchax", "jax", "jaxlib", "libtpu", "transformers", "diffusers")

# The pins of constraints.txt: what `make test` runs with, and what an error tells to
# install.
RECOMMENDED = {
    "torch": "2.13.0",
    "torchax": "0.0.13",
    "jax": "0.10.2",
    "jaxlib": "0.10.2",
}


@dataclasses.dataclass(frozen=True)
class Combination:
    """Versions that were tried together and cannot work.

    Args:
        packages: package to version specifier; the combination applies where every one
            of them matches.
        reason: what breaks.
    """

    packages: dict[str, str]
    reason: str


# Only what was seen to break: everything else is given its chance.
BROKEN = (
    Combination(
        {"torchax": "<0.0.12"},
        "torchax before 0.0.12 imports flax and lacks what tpuport builds on",
    ),
    Combination(
        {"torch": "<2.9"},
        "torch before 2.9 has no grouped matrix product on the CPU, and torchax names dtypes it lacks",
    ),
    Combination(
        {"jax": "<0.10"},
        "jax before 0.10 has no jax.extend.core.get_opaque_trace_state, by which tpuport tells traces apart",
    ),
)


def checked_versions() -> dict[str, str | None]:
    """Installed version of each package that has to agree, None where it is not
    installed.
    """
    return {name: _installed(name) for name in PACKAGES}


def broken_combination(versions: dict[str, str | None]) -> Combination | None:
    """The first combination that cannot work and that these versions match."""
    for combination in BROKEN:
        if all(
            _matches(versions.get(name), specifier)
            for name, specifier in combination.packages.items()
        ):
            return combination
    return None


def are_recommended(versions: dict[str, str | None]) -> bool:
    """Whether these are the pinned versions, in whatever build."""
    return all(
        _matches(versions.get(name), f"=={version}")
        for name, version in RECOMMENDED.items()
    )


def check() -> None:
    """Make sure that the installed versions can work together, before any of them is
    imported.

    Raises:
        PortError: a package is missing, or the combination is known not to work; names
            the versions to install.
    """
    _check(tuple(checked_versions().items()))


@functools.cache
def _check(installed: tuple[tuple[str, str | None], ...]) -> None:
    versions = dict(installed)
    missing = [name for name in RECOMMENDED if versions[name] is None]
    if missing:
        raise PortError(
            f"{' and '.join(missing)} cannot be found",
            fix=pip_line({name: RECOMMENDED[name] for name in missing}),
        )
    listed = ", ".join(f"{name} {versions[name]}" for name in RECOMMENDED)
    if _is_newer(versions["jaxlib"], versions["jax"]):
        fix = pip_line(dict.fromkeys(("jax", "jaxlib"), str(versions["jax"])))
        raise PortError(
            "jaxlib is newer than jax, which jax refuses", where=listed, fix=fix
        )
    broken = broken_combination(versions)
    if broken is not None:
        raise PortError(
            f"these versions cannot work together: {broken.reason}",
            where=listed,
            fix=pip_line(RECOMMENDED),
        )
    if not are_recommended(versions):
        logger.info(
            "%s: tpuport's tests are pinned to %s", listed, pip_line(RECOMMENDED)
        )


def pip_line(packages: dict[str, str]) -> str:
    """The command that installs exactly these versions."""
    return "pip install " + " ".join(
        f"{name}=={version}" for name, version in packages.items()
    )


def _matches(version: str | None, specifier: str) -> bool:
    if version is None:
        return False
    try:
        return SpecifierSet(specifier, prereleases=True).contains(version)
    except InvalidVersion:
        # A build with a name of its own is a combination that nobody has tested.
        return False


def _is_newer(version: str | None, other: str | None) -> bool:
    try:
        return Version(version or "0").release > Version(other or "0").release
    except InvalidVersion:
        return False


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
