"""What a patch is: the data by which one names what it replaces, for which versions, and why."""

import dataclasses
import re
from typing import Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from tpuport.errors import PortError

_NAMED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True)
class Patch:
    """One function of a library or model, and what stands in for it.

    Args:
        name: unique; words and dots, such as "hunyuan-video-1.5.forward".
        target: "module:qualified.name" of a function, method, static or class method, or property.
        package: the distribution whose version counts, such as "diffusers"; "" for code that is not installed as one
            (a cloned repository), where the source alone decides.
        versions: the versions it is for, as requirements say it: ">=0.36,<0.43".
        why: one sentence for `tpuport patches`.
        replacement: "module:name" of the function that stands in. It is imported only when the target is, and gets the
            original's arguments; it reaches the original through `registry.original(target)`.
        source: digests of the sources that it was written for, one for each known form (`registry.digest(target)`).
        when: "ported" calls the replacement where an argument, or the first weight of a module among the arguments, is
            on the device or being traced, and the original elsewhere; "always" always calls it.

    Raises:
        PortError: a field that is not as said here.
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
        for field, value in (("target", self.target), ("replacement", self.replacement)):
            if not _NAMED.fullmatch(value):
                raise PortError(f"{field} {value!r} names nothing", where=where, fix='write "module:name"')
        try:
            SpecifierSet(self.versions)
        except InvalidSpecifier:
            raise PortError(
                f"versions {self.versions!r} cannot be read", where=where, fix='write ">=1.0,<2.0"'
            ) from None
        if not self.source or not all(_DIGEST.fullmatch(digest) for digest in self.source):
            raise PortError(
                "it does not say which source it was written for", where=where,
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
        """Whether it is for this version; releases before a final one count as well."""
        return SpecifierSet(self.versions).contains(version, prereleases=True)
