"""Every model class of transformers and diffusers through tpuport, beside torch on the CPU.

    python -m benchmarks.coverage                                 all classes; hours
    python -m benchmarks.coverage --only 'transformers:Llama*'    some of them
    python -m benchmarks.coverage --library diffusers --every 5   each fifth
    python -m benchmarks.coverage --topology v5e:2x2              also compile each for a TPU
    python -m benchmarks.coverage --only '*Blip*' --check 'generate*' --again    only some checks
    python -m benchmarks.coverage --table                         write docs/coverage.md from what is stored
    PYTHONPATH=DIRECTORY python -m benchmarks.coverage --only '*FastVlm*' --again    with timm, which is there

A tiny model with random weights of each class runs in a process of its own (`benchmarks.coverage_checks` says what is
tried), so that one that crashes, hangs or needs too much memory costs only itself. What is stored in
docs/data/coverage.json is not run again without --again, so that an interrupted run continues.
"""

import argparse
import fnmatch
import functools
import importlib
import json
import multiprocessing
import os
import subprocess
import time
from collections.abc import Sequence
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# Before anything imports jax, here and in the processes that are started from here.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
)
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # functions under torch.compile run as they are written

from benchmarks import stand_ins, tiny_models
from benchmarks.coverage_checks import NEW_TOKENS
from benchmarks.coverage_lint import expectations
from benchmarks.coverage_table import page, results

stand_ins.allow_torchvision_of_gpus()
ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "docs" / "data" / "coverage.json"
PAGE = ROOT / "docs" / "coverage.md"
RESULTS = ROOT / "tpuport" / "libraries" / "model_results.json"
LIBRARIES = ("transformers", "diffusers")
LIMIT_SECONDS = 300  # for one model
MEMORY = 12 * 1024**3  # bytes for one model
# Imported once; each model's process is forked from the one that has them.
PRELOADED = ["torch", "transformers", "diffusers", "tpuport.compilation", "benchmarks.coverage_checks"]


def run(name: str, topology: str | None, checks: Sequence[str], limit: float) -> dict[str, Any]:
    """The record of a model, made in a process of its own, within so many seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(name, topology, checks, sender))
    started = time.monotonic()
    process.start()
    sender.close()
    record = _receive(receiver, limit)
    process.kill()
    process.join()
    seconds = round(time.monotonic() - started, 1)
    if record is None:
        record = {"status": "crashed", "reason": f"the process ended after {seconds} s"}
    return {"name": name, **record, "seconds": seconds, "made_with": made_with(name.partition(":")[0])}


def _receive(receiver: Connection, limit: float) -> dict[str, Any] | None:
    """The last record that a process sends, which sends one after each check, so that a crash says how far it came."""
    record = None
    deadline = time.monotonic() + limit
    while True:
        if not receiver.poll(max(0.0, deadline - time.monotonic())):
            reason = f"took longer than {limit:.0f} s"
            return {**(record or {}), "status": "crashed", "reason": reason}
        try:
            record = receiver.recv()
        except EOFError:
            return record


def _work(name: str, topology: str | None, checks: Sequence[str], sender: Connection) -> None:
    """The part of a model's process."""
    import resource

    from benchmarks.coverage_checks import checked

    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    for record in checked(name, topology, checks):
        sender.send(record)
    sender.close()


def load(path: Path) -> dict[str, dict[str, Any]]:
    """What is stored, by model."""
    if not path.exists():
        return {}
    return {record["name"]: record for record in json.loads(path.read_text(encoding="utf-8"))["models"]}


def store(path: Path, records: dict[str, dict[str, Any]]) -> None:
    """Write the records, a model a line, so that a change of one is a change of one line."""
    lines = ",\n".join(json.dumps(records[name], sort_keys=True) for name in sorted(records))
    text = f'{{"versions": {json.dumps(versions())},\n"models": [\n{lines}\n]}}\n'
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def versions() -> dict[str, str]:
    """Of the libraries that a record depends on."""
    return {name: metadata.version(name) for name in ("torch", "torchax", "jax", *LIBRARIES)}


def made_with(*libraries: str) -> dict[str, str]:
    """What a record is made with: the date of tpuport's last commit, and the versions of torch and of libraries."""
    return {"tpuport": _commit_date(), **{name: versions()[name] for name in ("torch", *libraries)}}


@functools.cache
def _commit_date() -> str:
    """Of the last commit that changed the package; "" outside a repository."""
    command = ["git", "log", "-1", "--format=%cs", "--", "tpuport"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return process.stdout.strip()


def chosen(libraries: Sequence[str], patterns: Sequence[str], every: int) -> list[str]:
    """Names of models, "library:class"."""
    names = [name for library in libraries for name in tiny_models.names(library)]
    if patterns:
        names = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    return names[::every]


def arguments() -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--library", action="append", choices=LIBRARIES, help="may be repeated")
    parser.add_argument(
        "--only", action="append", default=[], help="a pattern of library:class; may be repeated"
    )
    parser.add_argument("--every", type=int, default=1, help="take each Nth model")
    parser.add_argument("--again", action="store_true", help="run what is stored, too")
    parser.add_argument(
        "--check",
        action="append",
        default=[],
        help="a pattern of checks, which replace what is stored of them",
    )
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds for one model")
    parser.add_argument("--topology", help="compile for this slice, too")
    parser.add_argument("--stored", type=Path, default=STORED, help="the file with the records")
    parser.add_argument("--table", action="store_true", help="only write the page")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    records = load(options.stored)
    if not options.table:
        for name in chosen(options.library or LIBRARIES, options.only, options.every):
            if name in records and not options.again:
                continue
            record = run(name, options.topology, options.check, options.limit)
            if options.check and record["status"] == "ran":
                record = update(records.get(name, {}), record)
            records[name] = record
            store(options.stored, records)
            print(json.dumps(records[name]), flush=True)
    if options.stored == STORED:
        publish(records)


def update(stored: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """A stored record with some checks made again; it is as old as the checks that were not."""
    updated = stored | record
    if stored:
        updated["made_with"] = stored.get("made_with", {})
    return updated


def publish(records: dict[str, dict[str, Any]]) -> None:
    """Write the page, and the results that tpuport itself reads, with what lint expects of each class."""
    for library in LIBRARIES:
        expected = expectations(library)
        for record in records.values():
            record_library, _, class_name = record["name"].partition(":")
            if record_library == library and class_name in expected:
                record["lint"] = expected[class_name]
    store(STORED, records)
    records = load(STORED)
    ordered = [records[name] for name in sorted(records)]
    waiting = [name for name in chosen(LIBRARIES, (), 1) if name not in records]
    PAGE.write_text(page(ordered, versions(), NEW_TOKENS, waiting), encoding="utf-8")
    modules = {name: module for library in LIBRARIES for name, module in defining_modules(library).items()}
    shipped = results(ordered, versions(), modules)
    lines = ",\n".join(json.dumps(model) for model in shipped["models"])
    text = f'{{"versions": {json.dumps(shipped["versions"])},\n"models": [\n{lines}\n]}}\n'
    RESULTS.write_text(text, encoding="utf-8")


def defining_modules(library: str) -> dict[str, str]:
    """By class the module that defines it, without importing them all."""
    return importlib.import_module(library)._class_to_module


if __name__ == "__main__":
    main()
