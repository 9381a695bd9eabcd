"""`tpuport lint --fix` killed at random moments: whether every file is the old one or the fixed one.

    python -m benchmarks.abuse_fix [--count 500] [--seed 0]

The files differ in their modes, line ends, encodings and names: some are read through symbolic links, some have a
second hard link. Each run is a process of its own, killed by SIGKILL at a random moment of the whole run or, in every
second run, of its writing. Right is a tree in which each name leads to the old text or the fixed one, byte by byte,
with its mode, and each link still leads where it led; a run after that fixes what the killed one did not.
"""

import argparse
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tpuport.lint import lint_paths
from tpuport.lint.configuration import Settings
from tpuport.lint.engine import Run
from tpuport.lint.findings import Applicability

_MODEL: Final = '''"""{name}: naïve."""
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor):
        x = x.masked_fill(mask, float("-inf"))
        torch.cuda.synchronize()
        x[mask.bool()] = 0
        return x
'''
_MODES: Final = (0o644, 0o600, 0o755, 0o664)
_LINE_ENDS: Final = ("\n", "\r\n", "\r")
_ENCODINGS: Final = ("utf-8", "utf-8-sig", "latin-1")
_COUNT: Final = 24


def write_tree(root: Path) -> None:
    """Files to fix in `root/code`, and what links lead to in `root/elsewhere`."""
    code, elsewhere = root / "code", root / "elsewhere"
    code.mkdir()
    elsewhere.mkdir()
    for number in range(_COUNT):
        encoding = _ENCODINGS[number // 3 % 3]
        text = _MODEL.format(name=f"model {number}").replace("\n", _LINE_ENDS[number % 3])
        if encoding == "latin-1":
            text = f"# -*- coding: latin-1 -*-{_LINE_ENDS[number % 3]}{text}"
        file = code / f"m{number}.py"
        data = text.encode(encoding)
        if number % 8 == 6:
            (elsewhere / f"t{number}.py").write_bytes(data)
            (elsewhere / f"t{number}.py").chmod(_MODES[number % 4])
            file.symlink_to(Path("..", "elsewhere", f"t{number}.py"))
            continue
        file.write_bytes(data)
        file.chmod(_MODES[number % 4])
        if number % 8 == 7:
            (elsewhere / f"h{number}.py").hardlink_to(file)


def fix(root: Path) -> None:
    """What `tpuport lint --fix --unsafe-fixes` does."""
    lint_paths([root / "code"], Settings(jobs=1), Run(cache=False, fix=Applicability.UNSAFE))


def contents(root: Path) -> dict[str, tuple[int, str, bytes]]:
    """Mode, target of a link, and bytes of each file, by its name; without what a killed process has left behind."""
    files: dict[str, tuple[int, str, bytes]] = {}
    for path in sorted(root.rglob("*")):
        is_left_behind = path.name.startswith(".") and path.suffix == ".tmp"
        if path.is_dir() or is_left_behind:
            continue
        target = str(path.readlink()) if path.is_symlink() else ""
        files[str(path.relative_to(root))] = (path.stat().st_mode, target, path.read_bytes())
    return files


def _run_and_kill(root: Path, delay: float, waits_for_writing: bool) -> None:
    child = os.fork()
    if child == 0:
        try:
            fix(root)
        finally:
            os._exit(0)
    started = time.perf_counter()
    if waits_for_writing:
        while time.perf_counter() - started < 10 and not _is_writing(root):
            pass
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _is_writing(root: Path) -> bool:
    return any(file.suffix == ".tmp" for file in (root / "code").iterdir())


def _timed_fix(root: Path) -> tuple[float, float]:
    """How long a run takes, and how much of that it writes, in seconds."""
    started = time.perf_counter()
    child = os.fork()
    if child == 0:
        fix(root)
        os._exit(0)
    while not _is_writing(root):
        pass
    writing = time.perf_counter()
    os.waitpid(child, 0)
    return time.perf_counter() - started, time.perf_counter() - writing


def outcome(
    old: dict[str, tuple[int, str, bytes]], new: dict[str, tuple[int, str, bytes]], root: Path
) -> str:
    """What became of a tree: "right", or what is wrong."""
    files = contents(root)
    if files.keys() != old.keys():
        return f"other files: {sorted(files.keys() ^ old.keys())}"
    wrong = [name for name, state in files.items() if state not in (old[name], new[name])]
    if wrong:
        return f"neither old nor new: {wrong}"
    fix(root)
    wrong = [name for name, state in contents(root).items() if state != new[name]]
    return f"not fixed afterwards: {wrong}" if wrong else "right"


def _check_fixed_tree(old: dict[str, tuple[int, str, bytes]], new: dict[str, tuple[int, str, bytes]]) -> None:
    """A run that nobody kills fixes every file in `code`, and keeps modes, links and line ends."""
    for name, (mode, target, data) in old.items():
        is_second_name = Path(name).name.startswith("h")
        if new[name][:2] != (mode, target) or (new[name][2] == data) != is_second_name:
            sys.exit(f"{name}: not fixed, or with another mode or link")
        if not is_second_name and _line_ends(new[name][2]) != _line_ends(data):
            sys.exit(f"{name}: with other line ends")


def _line_ends(data: bytes) -> set[bytes]:
    return set(re.findall(rb"\r\n|\r|\n", data))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    source = random.Random(options.seed)
    right, midway = 0, 0
    with tempfile.TemporaryDirectory() as directory:
        pristine, root = Path(directory, "pristine"), Path(directory, "root")
        pristine.mkdir()
        write_tree(pristine)
        old = contents(pristine)
        _copy(pristine, root)
        duration, writing = _timed_fix(root)
        new = contents(root)
        _check_fixed_tree(old, new)
        for number in range(options.count):
            _copy(pristine, root)
            is_late = bool(number % 2)
            _run_and_kill(root, source.uniform(0, writing if is_late else duration), is_late)
            changed = sum(contents(root)[name] != old[name] for name in old)
            midway += 0 < changed < sum(old[name] != new[name] for name in old)
            result = outcome(old, new, root)
            right += result == "right"
            if result != "right":
                print(f"{number}: {result}", flush=True)
    print(f"{options.count} runs killed, {midway} of them between two files: {right} right")
    sys.exit(right != options.count)


def _copy(source: Path, target: Path) -> None:
    """Copy a tree with its links, hard ones too."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
    for file in (target / "elsewhere").glob("h*.py"):
        file.unlink()
        file.hardlink_to(target / "code" / file.name.replace("h", "m", 1))


if __name__ == "__main__":
    main()
