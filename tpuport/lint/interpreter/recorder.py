"""The interpreter's records of calls, and what it remembers of them."""

import collections
from collections.abc import Callable
from typing import Any

from tpuport.lint.abstract_values import Value, class_of
from tpuport.lint.interpreter.call_record import Record
from tpuport.lint.interpreter.frame import Interpreter
from tpuport.lint.interpreter.shared_calls import SharedCalls
from tpuport.lint.joins import losses
from tpuport.lint.modules import ClassInfo, FunctionInfo, ModuleInfo


class CallMemory:
    """What is remembered of the calls of a file.

    Attributes:
        calls: what each call resulted in, by function and arguments.
        parts: the same of what is not a call, by keys of their own.
        running: the calls that are being interpreted.
        variants: the different calls of each function.
    """

    def __init__(self) -> None:
        self.calls: dict[tuple[Any, ...], Record] = {}
        self.parts: dict[Any, Record] = {}
        self.running: set[tuple[Any, ...]] = set()
        self.variants: dict[FunctionInfo, set[Any]] = collections.defaultdict(set)


class Recorder(Interpreter):
    """An interpreter that records what each call results in.

    Attributes:
        records: what has been found in the calls that are being interpreted, the
            innermost last. The first is that of no call, so that there always is one.
    """

    def __init__(self) -> None:
        self.records = [Record()]
        self._memory = CallMemory()
        self._shared = SharedCalls()

    def start_file(self, module: ModuleInfo) -> Record:
        """Record what the analysis of a file results in from now on."""
        self._shared.file = module
        return self.start_recording()

    def start_recording(self) -> Record:
        """Record findings, traced functions and consulted files from now on."""
        self.records.append(Record())
        return self.records[-1]

    def stop_recording(self) -> None:
        """Stop the innermost record, and add it to the one around it."""
        record = self.records.pop()
        self.records[-1].absorb(record)

    def stop_recording_calls(self) -> None:
        """Stop all records but the file's, when the interpretation of the file is cut
        off.
        """
        # The first is that of no call, the second the file's.
        while len(self.records) > 2:
            self.stop_recording()

    def calls_of(
        self, info: FunctionInfo, owner: ClassInfo | None
    ) -> dict[tuple[tuple[str, Value], ...], Record]:
        """What all remembered calls of a function on objects of a class resulted in, by
        their arguments.
        """
        calls = self._memory.calls.items()
        return {
            values: remembered
            for (function, emitting, _, _, values, *_), remembered in calls
            if emitting and function.info is info and class_of(function.bound) is owner
        }

    def forget_calls(self) -> None:
        """Drop what is remembered of calls.

        To be called after each file: how exactly a function is interpreted depends on
        how often it was called before, and a file's findings must not depend on the
        files before it.
        """
        self._memory = CallMemory()
        self.records = [Record()]

    def remembered(self, key: Any, run: Callable[[], Value]) -> Value:
        key = (key, self.trusts_all)
        known = self._memory.parts.get(key)
        if known is not None:
            self.records[-1].absorb(known)
            return known.result
        record = self.start_recording()
        losses_before = losses.count
        try:
            record.result = run()
        finally:
            record.lost |= losses.count > losses_before
            self.stop_recording()
        self._memory.parts[key] = record
        return record.result
