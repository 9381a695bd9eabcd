"""Every operator of torch's own database through tpuport, eager and compiled, beside torch on the CPU.

    python -m benchmarks.operators                      all operators, all dtypes; hours
    python -m benchmarks.operators --eager              without the compiled programs
    python -m benchmarks.operators --dtype float32 --only softmax --only 'nn.functional.*'
    python -m benchmarks.operators --models --before 2026-11-22     operators of models, whose results are older
    python -m benchmarks.operators --hostile --samples 4   NaN, infinities, signed zeros, denormals and empty sizes
    python -m benchmarks.operators --table              write docs/operators.md from what is stored

Every sample of the database runs in each form that the operator has (function, method, in place). Values, dtypes,
shapes and kinds of results are compared, and errors. Workers run the operators; one that crashes or hangs costs the
operator that was running, which is recorded, and the next worker goes on. What is stored in docs/data/operators.json
is not run again without --again or --before, so that an interrupted run continues.
"""

import argparse
import fnmatch
import functools
import json
import os
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Each program runs once.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

from benchmarks import operator_usage, workers
from benchmarks.operator_table import page

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "docs" / "data" / "operators.json"
HOSTILE = ROOT / "docs" / "data" / "operators-hostile.json"
PAGE = ROOT / "docs" / "operators.md"
DTYPES = ("float32", "int64", "bfloat16", "float16", "bool", "complex64")
LIMIT_SECONDS = 600  # for one operator in one dtype
BATCH = 40  # operators to a process, which keeps its compiled programs

Unit = tuple[str, str]  # operator, dtype


def work(unit: Unit, **options: Any) -> Iterator[dict[str, Any]]:
    """The worker's part: what came of an operator in a dtype."""
    import torch

    from benchmarks.operator_samples import record

    torch.set_num_threads(1)
    name, dtype = unit
    yield record(name, dtype, **options)


def run(units: Sequence[Unit], **options: Any) -> Iterator[dict[str, Any]]:
    """Run units in workers, with these options of `record`.

    Yields:
        A record for each, in order; one that ended its worker has "crashed" with the reason.
    """
    task = functools.partial(work, **options)
    for outcome in workers.run(task, units, seconds=LIMIT_SECONDS, batch=BATCH):
        if outcome.failure is None and outcome.record is not None:
            yield outcome.record
        else:
            name, dtype = outcome.item
            yield {"operator": name, "dtype": dtype, "forms": {}, "crashed": outcome.failure}


def load(path: Path) -> dict[Unit, dict[str, Any]]:
    """What is stored, by operator and dtype, of the dtypes in their order."""
    if not path.exists():
        return {}
    entries = json.loads(path.read_text(encoding="utf-8"))["operators"]
    entries.sort(key=lambda entry: DTYPES.index(entry["dtype"]))
    return {(entry["operator"], entry["dtype"]): entry for entry in entries}


def store(path: Path, entries: dict[Unit, dict[str, Any]]) -> None:
    """Write the records, an operator a line, so that a change of one is a change of one line."""
    lines = ",\n".join(json.dumps(entries[unit], sort_keys=True) for unit in sorted(entries))
    text = f'{{"versions": {json.dumps(versions())},\n"operators": [\n{lines}\n]}}\n'
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def versions() -> dict[str, str]:
    """The versions that records are of."""
    return {name: metadata.version(name).split("+")[0] for name in ("torch", "torchax", "jax")}


def units(only: Sequence[str], dtypes: Sequence[str]) -> list[Unit]:
    """Operators that match one of the patterns, by dtype: those that torch supports it for."""
    from benchmarks.operator_samples import database, supports

    names = [
        name
        for name in sorted(database())
        if not only or any(name == pattern or fnmatch.fnmatch(name, pattern) for pattern in only)
    ]
    return [(name, dtype) for dtype in dtypes for name in names if supports(database()[name], dtype)]


def _is_due(entry: dict[str, Any] | None, before: str | None, *, compiled: bool) -> bool:
    """Whether an operator is to be run that was not, not compiled, or not since a day."""
    if entry is None or (before is not None and entry.get("date", "") < before):
        return True
    forms = entry["forms"]
    return compiled and bool(forms) and not any(form.endswith("traced") for form in forms)


def _verdict(entry: dict[str, Any]) -> str:
    if "crashed" in entry:
        return f"crashed: {entry['crashed']}"
    totals: dict[str, int] = {}
    for form in entry["forms"].values():
        for verdict, count in form["counts"].items():
            totals[verdict] = totals.get(verdict, 0) + count
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(totals.items())) or "no samples"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="operators, or a pattern")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="default: all")
    parser.add_argument("--eager", action="store_true", help="no compiled programs")
    parser.add_argument("--samples", type=int, metavar="N", help="at most so many of each operator")
    parser.add_argument("--again", action="store_true", help="also what is stored already")
    parser.add_argument(
        "--before", metavar="DATE", help="also what is stored and of no day, or an earlier one"
    )
    parser.add_argument("--models", action="store_true", help="only operators that occur in models")
    parser.add_argument(
        "--hostile", action="store_true", help="NaN, infinities, zeros, denormals, empty and single rows"
    )
    parser.add_argument("--output", type=Path, help="where records are stored")
    parser.add_argument("--table", action="store_true", help="only write the page")
    options = parser.parse_args(arguments)
    output = options.output or (HOSTILE if options.hostile else STORED)
    entries = load(output)
    if not options.table:
        chosen = units(options.only, options.dtype or DTYPES)
        if options.models:
            used = operator_usage.occurring(name for name, _ in chosen)
            chosen = [unit for unit in chosen if unit[0] in used]
        waiting = [
            unit
            for unit in chosen
            if options.again or _is_due(entries.get(unit), options.before, compiled=not options.eager)
        ]
        print(f"{len(chosen)} operators and dtypes, {len(waiting)} to run", flush=True)
        today = {"date": time.strftime("%Y-%m-%d", time.gmtime())}
        choice = {"compiled": not options.eager, "limit": options.samples, "hostile": options.hostile}
        for number, entry in enumerate(run(waiting, **choice), 1):
            entries[entry["operator"], entry["dtype"]] = entry | today
            print(
                f"{number}/{len(waiting)} {entry['operator']} {entry['dtype']}: {_verdict(entry)}", flush=True
            )
            if number % 20 == 0:
                store(output, entries)
        store(output, entries)
    if options.output is None:
        of_samples, of_hostile = (list(load(path).values()) for path in (STORED, HOSTILE))
        PAGE.write_text(page(of_samples, versions(), of_hostile), encoding="utf-8")


if __name__ == "__main__":
    main()
