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

RECOMMENDED = {
    "torch": "2.13.0",
    "torchax": "0.0.13",
    "jax": "0.10.2",
    "jaxlib": "0.10.2",
}
# The nightly build of torchax that the tests also run with.
NIGHTLY = "0.0.14.dev20261026"


@dataclasses.dataclass(frozen=True)
class Combination:
    """What is known about a set of versions.

    Args:
        packages: package to version specifier; the combination applies where every one
            of them matches.
        works: whether it was seen to work.
        note: why not, or what it takes.
        install: the versions to install instead, where it does not.
    """

    packages: dict[str, str]
    works: bool
    note: str
    install: dict[str, str] = dataclasses.field(default_factory=dict)


# First match decides. A combination that matches none is untested: it is logged and
# given its chance.
KNOWN = (
    Combination(
        {"torchax": "<0.0.12"},
        works=False,
        note="torchax before 0.0.12 imports flax and lacks what tpuport builds on",
        install=RECOMMENDED,
    ),
    Combination(
        {"torch": "<2.9"},
        works=False,
        note="torch before 2.9 has no grouped matrix product on the CPU, and torchax names dtypes it lacks",
        install=RECOMMENDED,
    ),
    Combination(
        {"jax": "<0.8"},
        works=False,
        note="jax before 0.8 has no jax.shard_map, which torchax and tpuport import",
        install={"jax": "0.10.2", "jaxlib": "0.10.2"},
    ),
    Combination(
        {"torch": "==2.13.*", "torchax": "==0.0.13", "jax": "==0.10.*"},
        works=True,
        note="with an import shim for the named-tensor overloads that torch 2.13 removed",
    ),
    Combination(
        {"torch": "==2.13.*", "torchax": f"=={NIGHTLY}", "jax": "==0.10.*"},
        works=True,
        note="without a shim",
    ),
)


def checked_versions() -> dict[str, str | None]:
    """Installed version of each package that has to agree, None where it is not
    installed.
    """
    return {name: _installed(name) for name in PACKAGES}


def verdict(versions: dict[str, str | None]) -> Combination | None:
    """The first known combination that these versions match; None when they are
    untested.
    """
    for known in KNOWN:
        if all(
            _matches(versions.get(name), specifier)
            for name, specifier in known.packages.items()
        ):
            return known
    return None


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
    if _release(versions["jaxlib"]) > _release(versions["jax"]):
        fix = pip_line(dict.fromkeys(("jax", "jaxlib"), str(versions["jax"])))
        raise PortError(
            "jaxlib is newer than jax, which jax refuses", where=listed, fix=fix
        )
    known = verdict(versions)
    if known is None:
        logger.warning(
            "%s: an untested combination; tested is %s", listed, pip_line(RECOMMENDED)
        )
    elif not known.works:
        raise PortError(
            f"these versions cannot work together: {known.note}",
            where=listed,
            fix=pip_line(known.install),
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


def _release(version: str | None) -> tuple[int, ...]:
    return Version(version or "0").release


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
