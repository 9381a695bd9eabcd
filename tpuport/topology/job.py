"""The process behind `tpuport compile`: a line of JSON in, programs compiled for one topology, lines of JSON out.

A request has `target`, `options` (of `targets.resolve`), `topology`, `mesh` (axis sizes), `rules` (regex to axis
names, or None), `attention`, `scan_layers`, `effort`, `suggest`, `save_hlo` (a directory, or None) and `cache`.

Each line out has an `event`: "progress" with the `stage` and the `target`; "log" with a warning; "note" with what was
assumed; "report", "failure" and "split" for a program; "problem" with the parts of a PortError; "crash" with a
traceback; and "done", last.
"""

import functools
import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

from tpuport.errors import PortError

Say = Callable[[dict[str, Any]], None]

# The compiler's effort where many splits are tried: several times sooner, and with somewhat more memory.
HASTE: Final = -1.0


def main() -> None:
    """Read the request, work, and say what happens until it is done."""
    # What libraries print must not come between the events.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        request = json.loads(sys.stdin.readline())
        threading.Thread(target=_end_with_parent, daemon=True).start()
        run(request, functools.partial(_write, out))


def run(request: dict[str, Any], say: Say) -> None:
    """Compile what the request names, and say what comes of it; nothing is raised."""
    handler = _Warnings(say)
    logger = logging.getLogger("tpuport")
    logger.addHandler(handler)
    try:
        _Job(request, say).work()
    except PortError as error:
        say({"event": "problem", "what": error.what, "where": error.where, "fix": error.fix})
    except Exception:  # noqa: BLE001  the other process shows it
        say({"event": "crash", "traceback": traceback.format_exc()})
    finally:
        logger.removeHandler(handler)
    say({"event": "done"})


class _Job:
    """One request."""

    def __init__(self, request: dict[str, Any], say: Say) -> None:
        self.request = request
        self.say = say

    def work(self) -> None:
        self.progress("starting")
        import tpuport
        from tpuport.topology.describe import described
        from tpuport.topology.targets import resolve

        tpuport.enable()  # as `import tpuport.auto` does, before a model's code is imported
        devices = len(described(self.request["topology"]).devices)
        self.progress("building")
        targets = resolve(self.request["target"], **self.request["options"])
        for target in targets:
            for note in target.notes:
                self.say({"event": "note", "target": target.name, "text": note})
            self.compile(target)
            if self.request["suggest"]:
                self.suggest(target, devices)

    def compile(self, target: Any) -> None:
        """One target on the mesh that was asked for."""
        request = self.request
        plain, seconds, cached = self.outcome(target, request["mesh"], request["effort"], request["save_hlo"])
        kind = "report" if "topology" in plain else "failure"
        told = {"seconds": seconds, "cached": cached}
        self.say({"event": kind, "target": target.name, kind: plain, **told})

    def outcome(
        self, target: Any, mesh: dict[str, int], effort: float | None, save_hlo: str | None = None
    ) -> tuple[dict[str, Any], dict[str, float], bool]:
        """(a `Report` or, where the model cannot be traced, a `Failure` as plain values, seconds, from the store)."""
        import dataclasses

        from tpuport.topology import store
        from tpuport.topology.compiling import lower_for
        from tpuport.topology.failures import CannotTrace

        request = self.request
        self.progress("tracing", target.name, mesh)
        try:
            lowered = lower_for(
                target.build, target.inputs, topology=request["topology"], dp=mesh["dp"], sp=mesh["sp"], tp=mesh["tp"],
                rules=_rules(request["rules"]),
                dtype=target.dtype, scan_layers=request["scan_layers"], unit=target.unit,
                attention=request["attention"],
            )  # fmt: skip
        except CannotTrace as error:
            return dataclasses.asdict(error.failure), {}, False
        # Paths in the user's code are part of a report, and two directories can hold one program.
        key = json.dumps([lowered.key, effort, str(Path.cwd())])
        known = store.read(key) if request["cache"] and save_hlo is None else None
        if known is not None:
            return known["report"], known["seconds"], True
        self.progress("compiling", target.name, mesh)
        report = lowered.report(effort=effort)
        plain = json.loads(json.dumps(report.to_dict()))
        if request["cache"]:
            store.write(key, {"report": plain, "seconds": report.seconds})
        if save_hlo is not None:
            _save(Path(save_hlo), f"{target.name}-{report.topology}", lowered, report)
        return plain, report.seconds, False

    def suggest(self, target: Any, devices: int) -> None:
        """The target on every split of the topology that suits the model, compiled in haste."""
        raise NotImplementedError

    def progress(self, stage: str, target: str = "", mesh: dict[str, int] | None = None) -> None:
        self.say({"event": "progress", "stage": stage, "target": target, "mesh": mesh})


def _rules(plain: dict[str, list[Any]] | None) -> Any:
    if plain is None:
        return None
    from jax.sharding import PartitionSpec

    from tpuport.sharding import ShardingRules

    return ShardingRules(
        {
            pattern: PartitionSpec(*(tuple(entry) if isinstance(entry, list) else entry for entry in spec))
            for pattern, spec in plain.items()
        }
    )


def _save(directory: Path, name: str, lowered: Any, report: Any) -> None:
    """The program as it was given to the compiler, and as it came out."""
    stem = re.sub(r"[^\w.=-]+", "-", name)
    (directory / f"{stem}.stablehlo.txt").write_text(lowered.stage.as_text(), encoding="utf-8")
    if report.program is not None:
        (directory / f"{stem}.hlo.txt").write_text(report.program.as_text(), encoding="utf-8")


class _Warnings(logging.Handler):
    """Tells tpuport's warnings as events."""

    def __init__(self, say: Say) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say({"event": "log", "level": record.levelname.lower(), "text": record.getMessage()})


def _write(out: IO[str], event: dict[str, Any]) -> None:
    out.write(json.dumps(event) + "\n")
    out.flush()


def _end_with_parent() -> None:
    """Nobody listens any more when the input ends."""
    sys.stdin.read()
    os._exit(3)
