"""Real files with random damage: whether the linter answers, in what time, and with how much memory.

    python -m benchmarks.abuse_lint_mutations [--count 100000] [--jobs 2] [--seed 0] [--keep DIRECTORY]

Files of the installed torch, transformers and diffusers are changed at random: characters, tokens, lines and blocks go
missing, come twice, change places or come from other files. In half of them Python still parses the result. Each is
linted, and its fixes planned. Right is a report within 10 seconds of processor time and 1 GB of memory, without a
finding that the linter itself failed.
"""

import argparse
import ast
import collections
import importlib.util
import multiprocessing
import random
import re
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.abuse_lint import CPU_SECONDS, MEMORY
from tpuport.lint import lint_paths
from tpuport.lint.configuration import Settings
from tpuport.lint.engine import Run
from tpuport.lint.findings import Applicability

_PARTS: Final = (
    "torch/nn/modules",
    "torch/nn/utils",
    "transformers/models",
    "diffusers/models",
    "diffusers/schedulers",
)
# Larger files take longer, and have the same kinds of statements.
_SIZES: Final = (500, 20_000)
_TOKEN: Final = re.compile(r"\w+|\s+|[^\w\s]")
_SNIPPETS: Final = (
    "x[mask]", ".item()", "if x > 0:", "lambda: x", "*args", "**kwargs", "(yield x)", "await x", ":=", "not ", "-",
    "x.cuda()", "[" * 50, "(" * 50, ")", "'", '"""', "\\", "\t", "\0", "\x0c", "é", "\u2028", "\N{PILE OF POO}",
    "# tpuport: ignore[",
    "\r", "\r\n", "0x", "1e999", "10 ** 10 ** 10", "class A(A):\n    pass\n", "def f(x, x):\n    return f\n", "self.",
    "global x", "nonlocal x", "del x", "import torch", "from . import *", "match x:\n    case _: pass\n", "@property\n",
    "while True:", "try:", "finally:", "async ", "return", "break", "continue", "f'{x!r:{x}}'", "b''", "..."
)  # fmt: skip

Mutation = Callable[[random.Random, list[str], Sequence[str]], list[str]]


def _delete(source: random.Random, parts: list[str], _: Sequence[str]) -> list[str]:
    start = source.randrange(len(parts))
    return parts[:start] + parts[start + source.choice((1, 1, 2, 5, 50)) :]


def _repeat(source: random.Random, parts: list[str], _: Sequence[str]) -> list[str]:
    start = source.randrange(len(parts))
    end = start + source.choice((1, 1, 2, 10))
    return parts[:end] + parts[start:end] * source.choice((1, 1, 1, 20)) + parts[end:]


def _swap(source: random.Random, parts: list[str], _: Sequence[str]) -> list[str]:
    first, second = source.randrange(len(parts)), source.randrange(len(parts))
    changed = list(parts)
    changed[first], changed[second] = parts[second], parts[first]
    return changed


def _replace(source: random.Random, parts: list[str], others: Sequence[str]) -> list[str]:
    changed = list(parts)
    changed[source.randrange(len(parts))] = source.choice(others)
    return changed


def _insert(source: random.Random, parts: list[str], others: Sequence[str]) -> list[str]:
    start = source.randrange(len(parts) + 1)
    return [*parts[:start], source.choice(others), *parts[start:]]


_MUTATIONS: Final[tuple[Mutation, ...]] = (_delete, _repeat, _swap, _replace, _insert)
_UNITS: Final[tuple[Callable[[str], list[str]], ...]] = (
    list,
    _TOKEN.findall,
    _TOKEN.findall,
    lambda text: text.splitlines(keepends=True),
    lambda text: re.split(r"(?=\n *(?:def|class|if|for|with) )", text),
)


def mutate(source: random.Random, text: str, other: str) -> str:
    """A text with one to eight random changes, some of them with parts of another text."""
    for _ in range(source.choice((1, 1, 2, 3, 8))):
        unit = source.choice(_UNITS)
        parts = unit(text) or [""]
        others = source.choice((parts, unit(other) or [""], _SNIPPETS))
        text = "".join(source.choice(_MUTATIONS)(source, parts, others))
    return text


def _parses(text: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def mutated_file(number: int, seed: int, files: Sequence[Path]) -> str:
    """The text with this number; every second one parses, if one of twenty attempts does."""
    source = random.Random(f"{seed} {number}")
    changed = ""
    for _ in range(20):
        text, other = (source.choice(files).read_text() for _ in range(2))
        changed = mutate(source, text, other)
        if number % 2 or _parses(changed):
            break
    return changed


def real_files() -> list[Path]:
    """The files to damage, in one order everywhere."""
    files: list[Path] = []
    for part in _PARTS:
        spec = importlib.util.find_spec(part.partition("/")[0])
        assert spec is not None
        assert spec.origin is not None
        candidates = (Path(spec.origin).parents[1] / part).rglob("*.py")
        files += sorted(file for file in candidates if _SIZES[0] <= file.stat().st_size <= _SIZES[1])
    return files


def _interrupt(*_: object) -> None:
    raise TimeoutError


def outcome(file: Path) -> str:
    """What became of a file: "right", or what is wrong."""
    # Processor time, not the clock: other processes may run.
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        run = Run(cache=False, fix=Applicability.UNSAFE, write=False)
        report = lint_paths([file], Settings(jobs=1), run)
    except TimeoutError:
        return f"slow: over {CPU_SECONDS} s"
    except BaseException as error:  # noqa: BLE001 - the point is to see every one
        return f"raw {type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    failures = [finding.reason for finding in report.findings if finding.rule == "TPU006"]
    if failures:
        return f"failed: {failures[0][:200]}"
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return "right" if size < MEMORY else f"large: {size >> 20} MiB"


def _work(arguments: tuple[int, int, int, str]) -> list[tuple[int, str]]:
    """Lint the files of some numbers; the numbers of those that are not right, with what is wrong."""
    seed, start, end, keep = arguments
    signal.signal(signal.SIGPROF, _interrupt)
    files = real_files()
    wrong: list[tuple[int, str]] = []
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "model.py")
        for number in range(start, end):
            changed = mutated_file(number, seed, files)
            file.write_text(changed, newline="")
            result = outcome(file)
            if result != "right":
                wrong.append((number, result))
                if keep:
                    Path(keep, f"{number}.py").write_text(changed, newline="")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--start", type=int, default=0, help="number of the first file")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", default="", help="directory for the files that are not right")
    options = parser.parse_args()
    chunk, end = 200, options.start + options.count
    chunks: list[Any] = [
        (options.seed, start, min(start + chunk, end), options.keep)
        for start in range(options.start, end, chunk)
    ]
    started = time.perf_counter()
    counts: collections.Counter[str] = collections.Counter()
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=20) as pool:
        for wrong in pool.imap_unordered(_work, chunks):
            for number, result in wrong:
                counts[result.split(" ", 1)[0]] += 1
                print(f"{number}: {result}", flush=True)
    bad = sum(counts.values())
    kinds = "".join(f", {count} {kind}" for kind, count in counts.most_common())
    print(f"{options.count} files: {options.count - bad} right{kinds}; {time.perf_counter() - started:.0f} s")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
