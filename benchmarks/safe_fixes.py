"""Whether safe fixes leave whole libraries as they are: their models before and after `tpuport lint --fix`, bit by bit.

    python -m benchmarks.safe_fixes                                       transformers and diffusers
    python -m benchmarks.safe_fixes --package timm --library strangers    with PYTHONPATH where timm is installed

The packages are copied, the copies fixed by the command itself, and the tiny models of the libraries are built and
called with each: the same weights, inputs and draws. Models run whose class is in a file that was changed. Equal are
outputs with the same bits and dtypes, and errors with the same text; a model tells most if it runs a changed line.
"""

import argparse
import contextlib
import difflib
import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks import workers

# By the end of a file's path, numbers of its lines.
Lines = dict[str, list[int]]

LIMIT_SECONDS = 300
BATCH = 40
# What files have in which a safe fix can rewrite anything. To lint all others takes most of the time.
_FIXABLE = re.compile(
    r"inference_mode|torch\.cuda\.|pin_memory|non_blocking=True|nonzero|\w\[(torch\.)?where|torch\.where\("
    r"|\w\[[^]:]*\] *(\*|/|-|\+|%)+=|\w\[[^]:]*(mask|==|>|<|is_)[^]]*\] = "
)
# They hold no models.
_OTHER_FILES = re.compile(
    r"convert_|image_process|video_process|/processing|configuration_|tokeniz|feature_extr|/modular_"
)


def copy_packages(packages: list[str], directory: Path) -> None:
    """Copy installed packages, without what Python compiled of them."""
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            sys.exit(f"{package} is not installed")
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(spec.origin).parent, directory / package, ignore=ignore, dirs_exist_ok=True)


def fixable_files(directory: Path) -> list[Path]:
    """Files of models in which a safe fix may rewrite something."""
    files = [path for path in directory.rglob("*.py") if not _OTHER_FILES.search(path.as_posix())]
    return [path for path in files if _FIXABLE.search(path.read_text(encoding="utf-8", errors="replace"))]


def fix(files: list[Path], directory: Path) -> Lines:
    """Apply the safe fixes to files; the new lines of each that this changes, by its path in the directory."""
    before = {path: path.read_text(encoding="utf-8") for path in files}
    command = [
        sys.executable,
        "-m",
        "tpuport",
        "lint",
        "--isolated",
        "--no-cache",
        "--fix",
        "--exit-zero",
        "-q",
    ]
    command += ["--format", "concise", *map(str, files)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return changed_lines(before, directory)


def changed_lines(before: dict[Path, str], directory: Path) -> Lines:
    """The numbers of the lines that files have now and had not before."""
    changed: Lines = {}
    for path, text in before.items():
        new = path.read_text(encoding="utf-8").splitlines()
        matcher = difflib.SequenceMatcher(None, text.splitlines(), new, autojunk=False)
        numbers = [
            number
            for kind, _, _, start, end in matcher.get_opcodes()
            if kind != "equal"
            for number in range(start + 1, max(end, start + 1) + 1)
        ]
        if numbers:
            changed[f"/{path.relative_to(directory).as_posix()}"] = numbers
    return changed


def models_of(files: list[Path], names: list[str]) -> list[str]:
    """The models whose class is defined in one of the files."""
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in files)
    defined = {name for text in texts for name in re.findall(r"^class (\w+)", text, re.MULTILINE)}
    return [name for name in names if re.split("[:.]", name)[-1] in defined]


@contextlib.contextmanager
def noting_lines(changed: Lines, noted: set[str]) -> Iterator[None]:
    """Note which of the changed files have changed lines that run in the block."""
    known: dict[str, str | None] = {}

    def trace(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        path = frame.f_code.co_filename
        if path not in known:
            known[path] = next((ending for ending in changed if path.endswith(ending)), None)
        return None if known[path] is None else follow

    def follow(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        ending = known[frame.f_code.co_filename]
        if ending is not None and frame.f_lineno in changed[ending]:
            noted.add(ending)
        return follow

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def work(name: str, *, changed: Lines) -> Iterator[dict[str, Any]]:
    """The worker's part: what a model's calls give, and which changed files' lines they run."""
    import torch

    from benchmarks import tiny_models

    torch.set_num_threads(1)
    try:
        tiny = tiny_models.build(name)
    except Exception as error:  # noqa: BLE001 - whatever a constructor raises is the reason to report
        yield {"failure": f"not built: {type(error).__name__}: {error}"[:200]}
        return
    outputs: list[str] = []
    noted: set[str] = set()
    for inputs in tiny.inputs:
        torch.manual_seed(0)
        with torch.no_grad(), noting_lines(changed, noted):
            try:
                outputs += describe(tiny.call(**inputs))
            except Exception as error:  # noqa: BLE001 - the same errors are the same result
                outputs.append(f"{type(error).__name__}: {error}")
    yield {"outputs": outputs, "files": sorted(noted)}


def describe(output: Any) -> list[str]:
    """Each tensor of an output by its dtype, shape and bits, anything else by its text."""
    import torch
    from torch.utils import _pytree as pytree

    described = []
    for leaf in pytree.tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            data = leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            described.append(f"{leaf.dtype} {tuple(leaf.shape)} {hashlib.sha256(data).hexdigest()}")
        elif isinstance(leaf, bool | int | float | str | type(None)):
            described.append(repr(leaf))
        else:
            described.append(type(leaf).__name__)
    return described


def run(names: list[str], changed: Lines, first: Path | None) -> dict[str, dict[str, Any]]:
    """Each model's record, in processes that look for packages in the directory `first`."""
    paths = os.environ.get("PYTHONPATH", "")
    if first is not None:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(first), *filter(None, [paths])])
    task = functools.partial(work, changed=changed)
    records = {}
    try:
        for outcome in workers.run(task, names, seconds=LIMIT_SECONDS, batch=BATCH):
            records[outcome.item] = outcome.record or {"failure": outcome.failure}
    finally:
        os.environ["PYTHONPATH"] = paths
    return records


def compare(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What became of a model: equal, different, or why it tells nothing."""
    if "failure" in before and "failure" in after:
        return "not run"
    if before.get("outputs") != after.get("outputs"):
        return "different"
    return "equal" if after["files"] else "equal, without a changed line"


def measure(names: list[str], changed: Lines, directory: Path) -> dict[str, str]:
    """Run the models of the changed files before and after, and print what came of them."""
    print(f"{len(changed)} files were changed", *changed, sep="\n  ", flush=True)
    names = models_of([directory / path.lstrip("/") for path in changed], names)
    after = run(names, changed, directory)
    before = run(names, {}, None)
    outcomes = {name: compare(before[name], after[name]) for name in names}
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome} {after[name].get('failure', '')}")
    for outcome in ("equal", "equal, without a changed line", "different", "not run"):
        print(f"{outcome}: {list(outcomes.values()).count(outcome)}")
    files = {path for name in names if outcomes[name] == "equal" for path in after[name]["files"]}
    print(f"changed files in which changed lines ran: {len(files)}", flush=True)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--package", action="append", help="a package to fix, instead of transformers and diffusers"
    )
    parser.add_argument(
        "--library", action="append", help="whose tiny models run, instead of those of these two"
    )
    parser.add_argument("--output", type=Path, help="where the outcome of each model is written, as JSON")
    options = parser.parse_args()
    from benchmarks import tiny_models

    libraries = options.library or ["transformers", "diffusers", "schedulers"]
    names = [name for library in libraries for name in tiny_models.names(library)]
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "site-packages"
        copy_packages(options.package or ["transformers", "diffusers"], directory)
        outcomes = measure(names, fix(fixable_files(directory), directory), directory)
    if options.output is not None:
        options.output.write_text(json.dumps(outcomes, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
