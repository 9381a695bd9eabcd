"""The calls that several files make alike."""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from tpuport.lint.abstract_values import (
    Function,
    Instance,
    Interpreted,
    Method,
    Partial,
    Value,
    options_of,
)
from tpuport.lint.interpreter.call_record import Record
from tpuport.lint.modules import ModuleInfo
from tpuport.lint.work import meter

# More would only fill the memory: few calls are made again after so many others.
_MOST_RECORDS: Final = 10_000


class _Shared(NamedTuple):
    record: Record
    route_length: int
    units: int


class SharedCalls:
    """The calls that files make of other files' functions with values that are not the
    file's own: what they result in is the same for all of them.

    Attributes:
        file: the one that is being analysed.
        is_running: a shared call is being interpreted; those inside it are not shared,
            since what they result in depends on the calls before them.
    """

    def __init__(self) -> None:
        self.file: ModuleInfo | None = None
        self.is_running = False
        self._records: collections.OrderedDict[Any, _Shared] = collections.OrderedDict()

    def accepts(self, function: Function, values: dict[str, Value]) -> bool:
        """Whether a call may be the same in other files."""
        info = function.info
        return (
            not self.is_running
            and info.closure is None
            and info.module is not self.file
            and all(map(self._is_shared, _options((function.bound, *values.values()))))
        )

    def _is_shared(self, value: Value | None) -> bool:
        match value:
            case Function() | Partial() | Interpreted() | Method():
                return False
            case Instance(info=info):
                return info.module is not self.file
            case _:
                return True

    def keeps(self, record: Record) -> bool:
        """Whether nothing of the file itself has taken part in a call."""
        return self.file is None or str(self.file.path) not in record.consulted

    def put(self, key: Any, record: Record, route: Sequence[str], units: int) -> None:
        """Remember what a call resulted in.

        Args:
            key: of the call.
            record: what it resulted in.
            route: of the functions around it.
            units: the work that it took.
        """
        self._records[key] = _Shared(record, len(route), units)
        if len(self._records) > _MOST_RECORDS:
            self._records.popitem(last=False)

    def get(self, key: Any, route: Sequence[str]) -> Record | None:
        """What a call resulted in, its findings reached by another route; it counts as
        if it had been interpreted.
        """
        shared = self._records.get(key)
        if shared is None:
            return None
        self._records.move_to_end(key)
        meter.units += shared.units
        findings = {
            name: dataclasses.replace(
                finding, route=(*route, *finding.route[shared.route_length :])
            )
            for name, finding in shared.record.findings.items()
        }
        return dataclasses.replace(shared.record, findings=findings)


def _options(values: Iterable[Value | None]) -> Iterable[Value | None]:
    for value in values:
        yield from (value,) if value is None else options_of(value)
