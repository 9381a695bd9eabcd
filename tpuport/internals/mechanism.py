"""Mechanisms that rest on private names of a library, each with a probe.

A probe takes a few milliseconds, and runs before the mechanism is used for the first
time, which for some is in `tpuport.enable`. If it fails, because a release of the
library has changed what the mechanism reads, this one mechanism is off, a warning says
what that means, and `tpuport doctor` lists it.
"""

import importlib.metadata
import importlib.util
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tpuport.errors import PortError

logger = logging.getLogger("tpuport")

# By name, in the order in which their modules are imported.
registered: Final[dict[str, "Mechanism"]] = {}


@dataclass(eq=False)
class Mechanism:
    """What works only as long as a library has the private names that it rests on.

    Attributes:
        name: says what the mechanism does.
        library: whose names it rests on.
        rests_on: these names, for whoever has to repair it.
        without: what happens while it is off.
        probe: tries the mechanism; False or an exception means that it does not work.
        fix: what a user can do about it; only for a mechanism without which work stops.
        reason: why it is off; "" if it works, None as long as the probe has not run.
    """

    name: str
    library: str
    rests_on: str
    without: str
    probe: Callable[[], bool]
    fix: str | None = None
    reason: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._is_probing = False
        registered[self.name] = self

    @property
    def is_installed(self) -> bool:
        """Whether the library is there."""
        return importlib.util.find_spec(self.library) is not None

    def works(self) -> bool:
        """Whether the mechanism can be used; the first call runs the probe."""
        if self.reason is None:
            with self._lock:
                # The probe itself uses the mechanism.
                if self._is_probing:
                    return True
                if self.reason is None:
                    self._run_probe()
        return not self.reason

    def require(self) -> None:
        """PortError if the mechanism does not work, for one that nothing replaces."""
        if not self.works():
            raise PortError(
                f"{self.name} does not work: {self.reason}",
                where=self._library_and_version(),
                fix=self.fix,
            )

    def _run_probe(self) -> None:
        self._is_probing = True
        try:
            self.reason = self._failure()
        finally:
            self._is_probing = False
        if self.reason:
            logger.warning(
                "%s is off with %s (%s): %s",
                self.name,
                self._library_and_version(),
                self.reason,
                self.without,
            )

    def _failure(self) -> str:
        """Why the mechanism does not work; "" if it does."""
        try:
            if self.probe():
                return ""
        except Exception as error:  # noqa: BLE001  whatever a changed library raises
            first_line = str(error).strip().partition("\n")[0]
            return f"{type(error).__name__}: {first_line}"
        return f"private names have changed: {self.rests_on}"

    def _library_and_version(self) -> str:
        try:
            return f"{self.library} {importlib.metadata.version(self.library)}"
        except importlib.metadata.PackageNotFoundError:
            return self.library


def report() -> list[dict[str, Any]]:
    """Each loaded mechanism whose library is installed, tried: for `tpuport doctor`."""
    return [
        {
            "mechanism": mechanism.name,
            "library": mechanism.library,
            "works": mechanism.works(),
            "reason": mechanism.reason or None,
            "without": mechanism.without,
            "rests_on": mechanism.rests_on,
        }
        for mechanism in tuple(registered.values())
        if mechanism.is_installed
    ]
