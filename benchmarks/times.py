"""Estimated times of programs beside the times that others published for them, measured on real TPUs.

    python -m benchmarks.times                      every case; hours, as each program takes minutes to compile
    python -m benchmarks.times --only 'wan*'        cases by name
    python -m benchmarks.times --estimate           estimate again, and compile nothing
    python -m benchmarks.times --table              print what is stored

Each case is a program that somebody ran, with its model, shapes, mesh and attention kernel, compiled here for the same
slice. Compiled programs and the schedules of their kernels are kept in `--programs`, and compiled once; delete a
program's directory to have it compiled again. What comes of a case is stored in docs/data/times.json; one that is
stored is not run again without `--again` or `--estimate`, so that an interrupted run continues.
"""

import argparse
import contextlib
import fnmatch
import functools
import json
import os
import pickle
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from rich.console import Console
from rich.table import Table

from benchmarks import workers

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "docs" / "data" / "times.json"
PROGRAMS = ROOT / ".benchmarks" / "times"
LIMIT_SECONDS = 3600  # for one case
# Publications that name no options of libtpu ran without those that tpuport sets.
_NO_OPTIONS = "--xla_tpu_enable_async_all_to_all=false --xla_tpu_enable_dot_strength_reduction=true"
_DEFAULT_FUSIONS = {"v6e": "--xla_tpu_scoped_vmem_limit_kib=32768"}
_TEXT, _KERNELS, _SCHEDULES = "program.hlo.txt", "kernels.pickle", "dump"

Record = dict[str, Any]


def work(name: str, *, directory: Path, compiles: bool) -> Iterator[Record]:
    """The worker's part: what came of a case."""
    from benchmarks.times_cases import CASES

    (case,) = (case for case in CASES if case.name == name)
    record: Record = {
        "name": name,
        "what": case.what,
        "published_seconds": case.seconds,
        "published_range": sorted({case.published, case.highest or case.published}),
        "source": case.source,
        "unknown": list(case.unknown),
        "doubt": case.doubt,
        "generation": case.parts[0][0].topology.partition(":")[0],
    }
    # A process compiles one program only: libtpu reads where to write schedules once.
    missing = [program for program, _ in case.parts if not (directory / program.name / _TEXT).exists()]
    if missing and not compiles:
        return
    if missing:
        compile_program(missing[0], directory / missing[0].name)
    if missing[1:]:
        yield record | {"continue": True}
        return
    parts = []
    for program, times in case.parts:
        parts.append(estimate(program, directory / program.name) | {"times": times})
    yield record | {
        "estimated_seconds": _total(parts, "seconds"),
        "roofline_seconds": _total(parts, "roofline_seconds"),
        "matrix_units_seconds": _total(parts, "matrix_units_seconds"),
        "parts": parts,
    }


def _total(parts: Sequence[Record], name: str) -> float:
    return sum(part[name] * part["times"] for part in parts)


def compile_program(program: Any, directory: Path) -> None:
    """Keep the compiled program, the schedules of its kernels, and what they cost by their traces."""
    from tpuport.hardware.schedules import dump_flags

    with _unfinished(directory) as unfinished:
        schedules = unfinished / _SCHEDULES
        schedules.mkdir()
        fusions = _DEFAULT_FUSIONS.get(program.topology.partition(":")[0], "")
        os.environ["LIBTPU_INIT_ARGS"] = f"{dump_flags(schedules)} {_NO_OPTIONS} {fusions}".strip()
        import jax

        import tpuport
        from benchmarks.times_attention import attention_of
        from tpuport.topology import kernels
        from tpuport.topology.compiling import compile_lowered
        from tpuport.topology.lowering import lower_for

        jax.config.update("jax_use_shardy_partitioner", program.partitioner == "shardy")
        tpuport.enable()
        with attention_of(program.attention):
            lowered = lower_for(program.model, program.inputs(), **program.options())
        report = compile_lowered(lowered, advised=False)
        if report.program is None or not report.fits:
            raise ValueError(f"{program.name} does not fit: {report.failure}")
        (unfinished / _KERNELS).write_bytes(pickle.dumps(kernels.count_work(lowered.jaxpr).calls))
        facts = report.to_dict() | {"attention_kernel": describe_attention(program)}
        (unfinished / "report.json").write_text(json.dumps(facts, indent=1) + "\n")
        (unfinished / _TEXT).write_text(report.program.as_text())


@contextlib.contextmanager
def _unfinished(final: Path) -> Iterator[Path]:
    """A directory that gets its name when what is in it is complete."""
    final.parent.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    try:
        yield path
        shutil.rmtree(final, ignore_errors=True)
        path.rename(final)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def describe_attention(program: Any) -> str:
    return "tpuport's" if program.attention is None else program.attention.describe()


def estimate(program: Any, directory: Path) -> Record:
    """The time of one call, from what `compile_program` kept."""
    from tpuport.hardware import described, parse_slice
    from tpuport.hardware.mesh import create_mesh
    from tpuport.hardware.schedules import read_schedules
    from tpuport.topology import hlo, timing

    parsed = hlo.parse((directory / _TEXT).read_text())
    hlo.apply_kernel_costs(parsed, pickle.loads((directory / _KERNELS).read_bytes()))
    slice_name = parse_slice(program.topology).name
    mesh = create_mesh(**program.mesh, devices=described(slice_name).devices)
    generation = slice_name.partition(":")[0]
    schedules = read_schedules(directory / _SCHEDULES)
    profile = timing.time_program(parsed, schedules, generation, slice_name, mesh).profile
    report = json.loads((directory / "report.json").read_text())
    return {
        "program": program.name,
        "topology": slice_name,
        "mesh": program.mesh,
        "attention": report["attention_kernel"] if report["attention"] else None,
        "seconds": profile.seconds,
        "roofline_seconds": report["estimate"]["seconds"],
        "matrix_units_seconds": profile.matrix_units,
        "kinds": profile.kinds,
        "schedule_share": profile.schedule_share,
        "versions": report["versions"],
    }


def error(record: Record, factor: float = 1.0) -> float:
    """The relative error of an estimate."""
    return record["estimated_seconds"] * factor / record["published_seconds"] - 1


def fit(records: Sequence[Record]) -> dict[str, float]:
    """By generation one factor for all estimates, the median of what single cases would need."""
    ratios: dict[str, list[float]] = {}
    for record in records:
        ratio = record["published_seconds"] / record["estimated_seconds"]
        ratios.setdefault(record["generation"], []).append(ratio)
    return {generation: statistics.median(values) for generation, values in ratios.items()}


def summarize(records: Sequence[Record]) -> Record:
    """Median and largest error, and what factors change that are fitted on other cases than are judged."""
    counted = sorted((record for record in records if not record["doubt"]), key=lambda record: record["name"])
    fitted, judged = counted[::2], counted[1::2]
    factors = fit(fitted)
    return {
        "cases": len(counted),
        "all": _errors(counted, {}),
        "judged half, without factors": _errors(judged, {}),
        "judged half, with factors": _errors(judged, factors),
        "factors": factors,
    }


def _errors(records: Sequence[Record], factors: Mapping[str, float]) -> Record:
    errors = [abs(error(record, factors.get(record["generation"], 1.0))) for record in records]
    if not errors:
        return {}
    return {"median": statistics.median(errors), "worst": max(errors)}


def show(records: Sequence[Record]) -> None:
    """Print the cases, those in doubt apart, and the summary."""
    console = Console(width=140)
    for doubted in (False, True):
        chosen = [record for record in records if bool(record["doubt"]) == doubted]
        if not chosen:
            continue
        table = Table(title="configuration in doubt, not counted" if doubted else "", title_justify="left")
        for column in ("case", "published", "estimated", "error", "roofline", "matrix units", "of"):
            table.add_column(column, justify="left" if column in ("case", "of") else "right")
        for record in sorted(chosen, key=lambda record: record["name"]):
            table.add_row(
                record["name"], _published(record), _seconds(record["estimated_seconds"]),
                f"{error(record):+.1%}", _seconds(record["roofline_seconds"]),
                _seconds(record.get("matrix_units_seconds")), record["what"],
            )  # fmt: skip
        console.print(table)
    for name, value in summarize(records).items():
        console.print(f"{name}: {_describe(value)}")


def _published(record: Record) -> str:
    return " to ".join(map(_seconds, record["published_range"]))


def _seconds(value: float | None) -> str:
    # Of a program that was estimated before this figure was.
    if value is None:
        return ""
    return f"{value * 1e3:,.2f} ms" if value < 1 else f"{value:,.2f} s"


def _describe(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(
        f"{name} {number:.3f}" if number > 0.9 else f"{name} {number:.1%}" for name, number in value.items()
    )


def load() -> dict[str, Record]:
    if not STORED.exists():
        return {}
    return {record["name"]: record for record in json.loads(STORED.read_text())["cases"]}


def store(records: Mapping[str, Record]) -> None:
    ordered = [records[name] for name in sorted(records)]
    STORED.write_text(json.dumps({"summary": summarize(ordered), "cases": ordered}, indent=1) + "\n")


def run(names: Sequence[str], options: argparse.Namespace) -> Iterator[Record]:
    """The records of cases, as far as there are any; why there is none is printed."""
    task = functools.partial(work, directory=options.programs, compiles=not options.estimate)
    # Only one program can be compiled in a process, which writes its schedules where libtpu was told to.
    batch = len(names) if options.estimate else 1
    pending = list(names)
    while pending:
        unfinished = []
        for outcome in workers.run(task, pending, seconds=LIMIT_SECONDS, batch=batch):
            record = outcome.record
            if outcome.failure:
                print(f"{outcome.item}: {outcome.failure}", flush=True)
            elif record is not None and "continue" in record:
                unfinished.append(outcome.item)
            elif record is not None:
                yield record
        pending = unfinished


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", metavar="PATTERN", help="cases of this name; repeatable")
    parser.add_argument("--again", action="store_true", help="those that are stored, too")
    parser.add_argument(
        "--estimate", action="store_true", help="estimate what is compiled again; compile nothing"
    )
    parser.add_argument("--table", action="store_true", help="print what is stored, and do nothing else")
    parser.add_argument("--programs", type=Path, default=PROGRAMS, help="where compiled programs are kept")
    return parser.parse_args()


def main() -> None:
    """Run the cases that the command line asks for, and print all that are stored."""
    from benchmarks.times_cases import CASES

    options = arguments()
    records = load()
    patterns = options.only or ["*"]
    names = [case.name for case in CASES if any(fnmatch.fnmatch(case.name, pattern) for pattern in patterns)]
    if options.table:
        names = []
    if not (options.again or options.estimate):
        names = [name for name in names if name not in records]
    for record in run(names, options):
        records[record["name"]] = record
        store(records)
        print(f"{record['name']}: {error(record):+.1%}", flush=True)
    show(list(records.values()))


if __name__ == "__main__":
    main()
