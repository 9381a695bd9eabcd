"""What a patch is: what it replaces, for which versions and why; and the states that it
can be in.
"""

import dataclasses
import functools
import importlib.metadata
import re
from typing import Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from tpuport.errors import PortError

# In the environment: what happens if a patch does not fit.
VARIABLE = "TPUPORT_PATCHES"
_QUALIFIED_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True)
class Patch:
    """One function of a library or model, and the function that replaces it.

    Args:
        name: unique; words and dots, such as "hunyuan-video-1.5.forward".
        target: "module:qualified.name" of a function, method, static or class method,
            or property.
        package: the distribution whose version decides, such as "diffusers"; "" for
            code that is not installed as a distribution (a cloned repository), where
            the source alone decides.
        versions: the versions that it supports, as a requirement specifier:
            ">=0.36,<0.43".
        why: one sentence for `tpuport patches`.
        replacement: "module:name" of the new function. It is imported only when the
            target is, and receives the original's arguments; it reaches the original
            through `registry.original(target)`.
        source: digests of the supported sources of the target, one for each known form
            (`registry.digest(target)`).
        when: "ported" calls the replacement if an argument, or the first weight of a
            module among the arguments, is on the device or being traced, and the
            original otherwise; "always" always calls the replacement.

    Raises:
        PortError: a field is malformed.
    """

    name: str
    target: str
    package: str
    versions: str
    why: str
    replacement: str
    source: tuple[str, ...]
    when: Literal["ported", "always"] = "ported"

    def __post_init__(self) -> None:
        where = f"patch {self.name!r}"
        for field, value in (
            ("target", self.target),
            ("replacement", self.replacement),
        ):
            if not _QUALIFIED_NAME.fullmatch(value):
                raise PortError(
                    f"{field} {value!r} is not a qualified name",
                    where=where,
                    fix='write "module:name"',
                )
        try:
            SpecifierSet(self.versions)
        except InvalidSpecifier:
            raise PortError(
                f"versions {self.versions!r} cannot be read",
                where=where,
                fix='write ">=1.0,<2.0"',
            ) from None
        if not self.source or not all(map(_DIGEST.fullmatch, self.source)):
            raise PortError(
                "the patch does not say which source it was written for", where=where,
                fix=f'give source=(tpuport.patches.digest("{self.target}"),), computed once and written down',
            )  # fmt: skip

    @property
    def module(self) -> str:
        """The module of the target."""
        return self.target.partition(":")[0]

    @property
    def qualname(self) -> str:
        """The target's qualified name in its module."""
        return self.target.partition(":")[2]

    def fits(self, version: str) -> bool:
        """Whether the patch supports this version; pre-releases count as well."""
        return SpecifierSet(self.versions).contains(version, prereleases=True)


State = Literal[
    "applied", "waiting for import", "version outside range", "not installed", "source differs", "target missing",
    "failed", "off",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Status:
    """The state of a registered patch.

    Args:
        installed: the installed version of its package; None if it is not installed, or
            the patch names no package.
        origin: the distribution that registered the patch.
        detail: what is wrong and what to do about it; "" if nothing is.
    """

    patch: Patch
    state: State
    installed: str | None
    origin: str
    detail: str = ""


class Refusal(Exception):
    """Why a patch cannot be applied: the error to show to the user, and the resulting
    state.
    """

    def __init__(self, state: State, error: PortError) -> None:
        super().__init__(str(error))
        self.state: State = state
        self.error = error


def installed_version(patch: Patch) -> str | None:
    """The installed version of a patch's package; None if there is none."""
    return _version_of(patch.package) if patch.package else None


@functools.cache
def _version_of(package: str) -> str | None:
    # To read the metadata takes milliseconds, and every error that is explained asks
    # for the state of all patches.
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_version(patch: Patch) -> None:
    """Raise a Refusal if the patch's package is not installed, or its version is not
    supported.
    """
    if not patch.package:
        return
    version = installed_version(patch)
    if version is None:
        raise Refusal(
            "not installed",
            PortError(f"{patch.package} is not installed", where=patch.target),
        )
    if not patch.fits(version):
        what = (
            f"{patch.package} {version} is installed, the patch is for {patch.versions}"
        )
        raise Refusal("version outside range", PortError(what, where=patch.target))
