"""The process behind `tpuport compile`: a line of JSON in, programs compiled for one topology, lines of JSON out.

A request has `target`, `options` (of `targets.resolve`), `topology`, `mesh` (axis sizes), `rules` (regex to axis
names, or None), `rules_from` (who gave them), `allow` (names whose errors are accepted), `attention`, `scan_layers`,
`effort`, `suggest` (axis sizes that stay as they are; None where no split is suggested), `save_hlo` (a directory, or
None) and `cache`.

Each line out has an `event`: "progress" with the `stage` and the `target`; "log" with a warning; "note" with what was
assumed; "report", "failure" and "split" for a program; "problem" with the parts of a PortError; "crash" with a
traceback; and "done", last.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import math
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
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
        _Job(request, say, handler).work()
    except PortError as error:
        say({"event": "problem", "what": error.what, "where": error.where, "fix": error.fix})
    except Exception:  # noqa: BLE001  the other process shows it
        say({"event": "crash", "traceback": traceback.format_exc()})
    finally:
        logger.removeHandler(handler)
    say({"event": "done"})


class _Job:
    """One request."""

    def __init__(self, request: dict[str, Any], say: Say, warnings: "_Warnings") -> None:
        self.request = request
        self.say = say
        self.warnings = warnings
        # What this run has compiled, by what it is kept by: it is no earlier run's.
        self.made: dict[str, tuple[dict[str, Any], dict[str, float]]] = {}

    def work(self) -> None:
        """All targets of the request, one after another."""
        self.progress("starting")
        from tpuport.hardware import described

        described(self.request["topology"])  # what is wrong with it is said before a model is read
        self.progress("building")
        import tpuport
        from tpuport.topology.targets import resolve

        tpuport.enable()  # as `import tpuport.auto` does, before a model's code is imported
        for target in resolve(self.request["target"], **self.request["options"]):
            for note in target.notes:
                self.say({"event": "note", "target": target.name, "text": note})
            self.compile(target)

    def compile(self, target: Any) -> None:
        """One target on the mesh that was asked for, or on the best of those that are tried."""
        from tpuport.topology.compile_report import Failure
        from tpuport.trace_errors import CannotTrace

        request = self.request
        try:
            asked = request["mesh"] if request["suggest"] is None else None
            lowered = self.lowered(target, asked) if asked else self.suggest(target)
        except CannotTrace as error:
            failure = dataclasses.asdict(Failure(**vars(error.failure)))
            told = {"failure": failure, "seconds": {}, "cached": False}
            self.say({"event": "failure", "target": target.name, **told})
            return
        report, seconds, cached = self.reported(target, lowered, request["effort"], request["save_hlo"])
        told = {"report": report, "seconds": seconds, "cached": cached}
        self.say({"event": "report", "target": target.name, **told})

    def lowered(self, target: Any, mesh: dict[str, int]) -> Any:
        """The target's program before it is compiled."""
        from tpuport.topology.compiling import lower_for

        request = self.request
        self.progress("tracing", target.name, mesh)
        try:
            return lower_for(
                self.built(target), target.inputs, topology=request["topology"], dp=mesh["dp"], sp=mesh["sp"],
                tp=mesh["tp"], rules=_rules(request["rules"]),
                dtype=target.dtype, scan_layers=request["scan_layers"], unit=target.unit,
                attention=request["attention"], allow=tuple(request["allow"]),
            )  # fmt: skip
        except PortError as error:
            raise _of_options(error, request["rules_from"]) from error

    def built(self, target: Any) -> Any:
        """The model, or what builds it; inputs of the user's own are compared with what its forward takes."""
        own = self.request["options"].get("inputs")
        if own is None and target.kind != "code":
            return target.build
        from tpuport.topology.abstract_weights import built
        from tpuport.topology.targets.user_code import check_arguments

        model = built(target.build)
        check_arguments(
            model, target.inputs, f"--inputs {own}" if own else f"the inputs of {self.request['target']}"
        )
        return model

    def reported(
        self, target: Any, lowered: Any, effort: float | None, save_hlo: str | None = None
    ) -> tuple[dict[str, Any], dict[str, float], bool]:
        """(the plain values of a report, the seconds that it took, whether it was kept from an earlier run)."""
        from tpuport.topology import report_cache

        cache = self.request["cache"]
        # Paths in the user's code are told from here.
        key = json.dumps([lowered.key, effort, str(Path.cwd())])
        if save_hlo is None and key in self.made:
            return *self.made[key], False
        known = report_cache.read(key) if cache and save_hlo is None else None
        if known is not None:
            return known["report"], known["seconds"], True
        self.progress("compiling", target.name, dict(lowered.mesh.shape))
        report = lowered.report(effort=effort)
        plain = json.loads(json.dumps(report.to_dict()))
        self.made[key] = plain, report.seconds
        if cache:
            report_cache.write(key, {"report": plain, "seconds": report.seconds})
        if save_hlo is not None:
            _save(Path(save_hlo), f"{target.name}-{report.task}-{report.topology}", lowered, report)
        return plain, report.seconds, False

    def suggest(self, target: Any) -> Any:
        """Rank the target on every split of the topology that suits it, compiled in haste; the best one's program.

        One that is alone is compiled as it would be without being suggested. Of the splits that are only tried no
        warning is told. Where a split is refused, that is what comes of it; where all are, it is raised.
        """
        from tpuport.topology import mesh_splits

        first, held, refused = self.first(target)
        facts = mesh_splits.facts_of(first)
        every = _kept(mesh_splits.considered(first.mesh.size, facts), self.request)
        fitting = _kept(mesh_splits.splits(first.mesh.size, facts), self.request)
        # What cannot be is told as well, with its reason.
        chosen = [one for one in every if one in fitting or one[:3] in refused]
        effort = HASTE if len(chosen) - len(refused) > 1 else self.request["effort"]
        reports = {one: self.tried(target, one, first, refused, effort) for one in chosen}
        if not any(reports.values()) and _axes(first.mesh.shape) not in {one[:3] for one in chosen}:
            chosen.append(mesh_splits.Split(**first.mesh.shape))
            reports[chosen[-1]] = self.tried(target, chosen[-1], first, refused, self.request["effort"])
        if not any(reports.values()):
            raise refused.get(_axes(self.request["mesh"])) or next(iter(refused.values()))
        outcomes = {
            mesh_splits.outcome(one, made, _said(refused, one)): made for one, made in reports.items()
        }
        told = [
            _split(target.name, first.topology, one, outcomes[one]) for one in mesh_splits.ranked(outcomes)
        ]
        rest = [one for one in every if one[:3] not in {mine[:3] for mine in chosen}]
        left = [_left_out(target.name, first.topology, one) for one in rest]
        self.say({"event": "splits", "target": target.name, "splits": [*told, *left]})
        # Where none fits, the nearest to it of those that could be compiled is first.
        best = next(one["mesh"] for one in told if one["capacity"])
        if best != dict(first.mesh.shape):
            return self.lowered(target, best)
        for event in held:
            self.say(event)
        return first

    def first(self, target: Any) -> tuple[Any, list[dict[str, Any]], dict[tuple[int, ...], PortError]]:
        """(a program of some split, the warnings of it, why splits before it were refused by their sizes).

        Raises:
            PortError: no split has one, or two are refused in the same words, which are of none of them then.
            CannotTrace: the model's code cannot be traced.
        """
        from tpuport.topology import mesh_splits
        from tpuport.trace_errors import CannotTrace

        asked, refused = self.request["mesh"], {}
        every = _kept(mesh_splits.considered(math.prod(asked.values()), mesh_splits.Facts()), self.request)
        for one in sorted(every, key=lambda one: one[:3] != _axes(asked)):
            try:
                with self.warnings.held() as held:
                    return self.lowered(target, _mesh(one)), held, refused
            except CannotTrace:
                raise
            except PortError as error:
                if str(error) in map(str, refused.values()):
                    raise
                refused[one[:3]] = error
        raise next(iter(refused.values()))

    def tried(
        self,
        target: Any,
        split: Any,
        first: Any,
        refused: dict[tuple[int, ...], PortError],
        effort: float | None,
    ) -> dict[str, Any] | None:
        """The report of a split, compiled with this effort; None where it is refused, which is noted."""
        mesh = _mesh(split)
        if split[:3] in refused:
            return None
        try:
            with self.warnings.held():
                program = first if mesh == dict(first.mesh.shape) else self.lowered(target, mesh)
                return self.reported(target, program, effort)[0]
        except PortError as error:  # such as rules that name an axis for what it does not divide
            refused[split[:3]] = error
            return None

    def progress(self, stage: str, target: str = "", mesh: dict[str, int] | None = None) -> None:
        self.say({"event": "progress", "stage": stage, "target": target, "mesh": mesh})


def _axes(mesh: dict[str, int]) -> tuple[int, ...]:
    return mesh["dp"], mesh["sp"], mesh["tp"]


def _mesh(split: Any) -> dict[str, int]:
    return {"dp": split.dp, "sp": split.sp, "tp": split.tp}


def _kept(splits: Iterable[Any], request: dict[str, Any]) -> list[Any]:
    """Those that have the axes that were given."""
    given = request["suggest"].items()
    return [one for one in splits if all(getattr(one, axis) == size for axis, size in given)]


def _said(refused: dict[tuple[int, ...], PortError], split: Any) -> str:
    return refused[split[:3]].what if split[:3] in refused else ""


def _of_options(error: PortError, rules_from: str | None) -> PortError:
    """An error of sharding rules in the words of the command line; others as they are."""
    if "allow=" in (error.fix or ""):
        fix = (
            f"correct {'the rules' if rules_from else 'them with --rules FILE'}, change the mesh, or accept an error: "
            "--allow NAME, several times for several, with the parameter's name or the rule's pattern; what is allowed "
            "is whole on every device"
        )
        return PortError(_single(error.what), where=rules_from or error.where, fix=fix)
    if rules_from and "sharding rule" in f"{error.what} {error.where}":
        where = f"{rules_from}: {_single(error.where)}" if error.where else rules_from
        return PortError(_single(error.what), where=where, fix=error.fix)
    return error


def _single(text: str) -> str:
    """Patterns as they were written: a repr has each backslash twice."""
    return text.replace("\\\\", "\\")


def _split(target: str, topology: str, one: Any, report: dict[str, Any] | None) -> dict[str, Any]:
    """What a ranking shows of a split."""
    estimate = report["estimate"] if report else None
    return {
        "target": target,
        "topology": topology,
        "mesh": _mesh(one.split),
        "tried": True,
        "fits": one.fits,
        "used": one.used,
        "capacity": report["memory"]["capacity"] if report else None,
        "seconds": one.seconds,
        "unit": estimate["unit"] if estimate else None,
        "units_per_second": estimate["units"] / one.seconds if estimate and one.seconds else None,
        "binds": one.binds or None,
        "why": one.why,
    }


def _left_out(target: str, topology: str, split: Any) -> dict[str, Any]:
    """The same of a split that was not tried, with the reason."""
    from tpuport.topology import mesh_splits

    nothing = _split(target, topology, mesh_splits.Outcome(split, False, why=split.why_not), None)
    return nothing | {"tried": False}


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
        self._say({"event": "log", "level": record.levelname.lower(), "text": _single(record.getMessage())})

    @contextlib.contextmanager
    def held(self, wanted: bool = True) -> Iterator[list[dict[str, Any]]]:
        """Collect the warnings inside in place of telling them; not where that is not wanted."""
        found: list[dict[str, Any]] = []
        told, self._say = self._say, found.append if wanted else self._say
        try:
            yield found
        finally:
            self._say = told


def _write(out: IO[str], event: dict[str, Any]) -> None:
    out.write(json.dumps(event) + "\n")
    out.flush()


def _end_with_parent() -> None:
    """Nobody listens any more when the input ends."""
    sys.stdin.read()
    os._exit(3)
