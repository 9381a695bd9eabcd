"""What a patch is: what it replaces and why; and the states that it can be in."""

import dataclasses
import functools
import importlib.metadata
import re
from typing import Literal, get_args

from tpuport.errors import PortError

# In the environment: what happens if a patch does not fit.
VARIABLE = "TPUPORT_PATCHES"
_QUALIFIED_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_DIGEST = re.compile(r"[0-9a-f]{8}-[0-9a-f]{32}")

When = Literal["ported", "always"]


@dataclasses.dataclass(frozen=True)
class Patch:
    """A function of a library or model, known by its source, and the function that
    replaces it.

    The source decides where a patch applies: at its target, in whatever version of the
    library, and at every other function with the same source.

    Args:
        name: unique; words and dots, such as "hunyuan-video-1.5.forward".
        target: "module:qualified.name" of a function, method, static or class method,
            or property: a place where the source is known to stand.
        why: one sentence for `tpuport patches`.
        replacement: "module:name" of the new function. It is imported only when a
            function with this source is, and receives the original's arguments (see
            `with_original`).
        source: digests of the supported sources of the target, one for each known form
            (`tpuport.patches.digest(target)`).
        when: "ported" calls the replacement if an argument, or the first weight of a
            module among the arguments, is on the device or being traced, and the
            original otherwise; "always" always calls the replacement.

    Raises:
        PortError: a field is malformed.
    """

    name: str
    target: str
    why: str
    replacement: str
    source: tuple[str, ...]
    when: When = "ported"

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
        if self.when not in get_args(When):
            raise PortError(
                f"when={self.when!r} is neither of {', '.join(get_args(When))}",
                where=where,
            )
        sources = self.source
        if isinstance(sources, str) or not all(map(_DIGEST.fullmatch, sources or [""])):
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

    @property
    def package(self) -> str:
        """The top-level package of the target, such as "diffusers"."""
        return self.module.partition(".")[0]


State = Literal[
    "applied", "waiting for import", "not installed", "source differs", "target missing", "failed", "off",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Status:
    """The state of a registered patch.

    Args:
        installed: the installed version of the target's package; None if it is not
            installed as a distribution of that name.
        origin: the distribution that registered the patch.
        places: "module:qualified.name" of each function that it replaces now.
        detail: what is wrong and what to do about it; "" if nothing is.
    """

    patch: Patch
    state: State
    installed: str | None
    origin: str
    places: tuple[str, ...] = ()
    detail: str = ""


class Refusal(Exception):
    """Why a patch cannot be applied at its target: the resulting state, and the error
    to show to a user who wants one.
    """

    def __init__(self, state: State, error: PortError) -> None:
        super().__init__(str(error))
        self.state: State = state
        self.error = error


@functools.cache
def installed_version(package: str) -> str | None:
    """The installed version of a distribution; None if there is none of this name."""
    # Cached because reading metadata takes milliseconds, and every error that is
    # explained asks for the state of all patches.
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
