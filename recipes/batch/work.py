"""The work of a batch job: prompts in chunks, which of them are done, and results that appear whole or not at all."""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tpuport

JOB, RESULTS = "job.json", "results.jsonl"
Row = dict[str, Any]


def read_rows(prompts: Path) -> list[Row]:
    """The rows of a file of JSON lines, each of which has a prompt."""
    try:
        lines = prompts.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise tpuport.PortError(f"the prompts cannot be read: {error}", where="--prompts") from error
    rows = [_read_row(line, f"{prompts}:{number}") for number, line in enumerate(lines, 1)]
    if not rows:
        raise tpuport.PortError("there are no prompts", where=str(prompts), fix=_EXAMPLE)
    return rows


_EXAMPLE = 'write a line such as {"prompt": "To port a model"} for each prompt'


def _read_row(line: str, where: str) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise tpuport.PortError(f"this line is no JSON: {error}", where=where, fix=_EXAMPLE) from error
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str) or not row["prompt"]:
        raise tpuport.PortError("this line has no prompt", where=where, fix=_EXAMPLE)
    return row


def fingerprint(checkpoint: Path) -> str:
    """What tells checkpoints apart: the config, and the names and sizes of all files."""
    digest = hashlib.sha256((checkpoint / "config.json").read_bytes())
    for path in sorted(checkpoint.glob("*")):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Job:
    """Rows in chunks of one size, and a folder in which each chunk that is done has a file.

    Attributes:
        settings: what decides the results; the folder takes results of no others.
    """

    rows: list[Row]
    output: Path
    chunk_size: int
    settings: dict[str, Any]

    @property
    def chunks(self) -> range:
        """The number of each chunk."""
        return range(-(-len(self.rows) // self.chunk_size))

    @property
    def batch_size(self) -> int:
        """How many rows run together, also in the last chunk, whose program is then that of the others."""
        return min(self.chunk_size, len(self.rows))

    def rows_of(self, chunk: int) -> list[Row]:
        """The rows of a chunk; the last may have fewer."""
        return self.rows[chunk * self.chunk_size : (chunk + 1) * self.chunk_size]

    def open(self) -> None:
        """Make the folder, or check that it is one of this job."""
        self.output.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.rows, sort_keys=True).encode()
        description = self.settings | {
            "chunk_size": self.chunk_size,
            "prompts": hashlib.sha256(text).hexdigest(),
        }
        path = self.output / JOB
        temporary = self.output / f".{JOB}.{os.uname().nodename}.{os.getpid()}"
        _write_durably(temporary, json.dumps(description, indent=1) + "\n")
        try:
            # Unlike a rename, it fails if another process was first.
            path.hardlink_to(temporary)
        except FileExistsError:
            self._refuse_another_job(json.loads(path.read_text()), description)
        finally:
            temporary.unlink()

    def _refuse_another_job(self, recorded: dict[str, Any], requested: dict[str, Any]) -> None:
        """Compare the description in the folder with that of this job."""
        names = sorted(name for name in recorded | requested if recorded.get(name) != requested.get(name))
        if names:
            changes = ", ".join(f"{name}={recorded.get(name)!r}" for name in names)
            raise tpuport.PortError(
                f"this folder has results of another job, with {changes}",
                where=str(self.output),
                fix="give the options of that job, or another folder as --output",
            )

    @contextlib.contextmanager
    def claimed(self, process: int) -> Iterator[None]:
        """Hold the share of a process, which its end frees, however it ends: no second process works on it."""
        path = self.output / f".process-{process}"
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise tpuport.PortError(
                    f"process {process} of this job is running already",
                    where=str(path),
                    fix="give each process another --process",
                ) from error
            yield

    def is_done(self, chunk: int) -> bool:
        """Whether the results of a chunk are there."""
        return self._part(chunk).exists()

    def pending(self, process: int = 0, processes: int = 1) -> list[int]:
        """The chunks that a process has yet to do: of `processes`, each has every so manyth."""
        return [chunk for chunk in self.chunks[process::processes] if not self.is_done(chunk)]

    def write(self, chunk: int, texts: list[str]) -> None:
        """Add the results of a chunk: its file is there as a whole, also after a power cut, or is not."""
        rows = self.rows_of(chunk)
        results = [row | {"text": text} for row, text in zip(rows, texts, strict=True)]
        lines = "".join(json.dumps(result, ensure_ascii=False) + "\n" for result in results)
        _replace_durably(self._part(chunk), lines)

    def collect(self) -> Path:
        """Write all results into one file, in the order of the prompts."""
        missing = self.pending()
        if missing:
            raise tpuport.PortError(
                f"{len(missing)} of {len(self.chunks)} chunks are not done, the first is {missing[0]}",
                where=str(self.output),
                fix="run the job to its end first",
            )
        path = self.output / RESULTS
        _replace_durably(
            path, "".join(self._part(chunk).read_text(encoding="utf-8") for chunk in self.chunks)
        )
        return path

    def _part(self, chunk: int) -> Path:
        return self.output / f"part-{chunk:06}.jsonl"


def _replace_durably(path: Path, text: str) -> None:
    # What a killed process leaves of this file is written over when its work is done again.
    temporary = path.with_name(f".{path.name}.tmp")
    _write_durably(temporary, text)
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _write_durably(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
