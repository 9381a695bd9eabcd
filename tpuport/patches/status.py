"""What can become of a patch."""

import dataclasses
import importlib.metadata
from typing import Literal

from tpuport.errors import PortError
from tpuport.patches.patch import Patch

State = Literal[
    "applied", "waiting for import", "version outside range", "not installed", "source differs", "target missing",
    "failed", "off",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Status:
    """What has become of a patch.

    Args:
        installed: the version of its package; None where that is not installed, or the patch names none.
        origin: the distribution that registered it.
        detail: what is wrong, and what to do; "" otherwise.
    """

    patch: Patch
    state: State
    installed: str | None
    origin: str
    detail: str = ""


class Refusal(Exception):
    """Why a patch cannot be applied: the error to tell the user of, and the state that this is."""

    def __init__(self, state: State, error: PortError) -> None:
        super().__init__(str(error))
        self.state: State = state
        self.error = error


def installed_version(patch: Patch) -> str | None:
    """The version of a patch's package here; None where there is none."""
    if not patch.package:
        return None
    try:
        return importlib.metadata.version(patch.package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_version(patch: Patch) -> None:
    """Refusal for a package that is not installed, or of a version that the patch is not for."""
    if not patch.package:
        return
    version = installed_version(patch)
    if version is None:
        raise Refusal("not installed", PortError(f"{patch.package} is not installed", where=patch.target))
    if not patch.fits(version):
        what = f"{patch.package} {version} is installed, the patch is for {patch.versions}"
        raise Refusal("version outside range", PortError(what, where=patch.target))
