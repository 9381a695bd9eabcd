"""Generate for a file of prompts, in as many processes as there are; a job that was killed continues where it was.

Uses only the public API of tpuport; README.md beside this file explains it step by step.
"""

import argparse
import contextlib
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import tpuport
from recipes.batch.work import Job, Row, fingerprint, read_rows
from recipes.checks import check_directory, check_dtype
from recipes.command import at_least, create_mesh, quiet_libraries, run_command, simulate_devices
from recipes.llama.__main__ import DEFAULT_CHECKPOINT, read_prompts, read_tokenizer

console = Console(highlight=False, soft_wrap=True)


class Generator:
    """A language model on the devices, and how it continues prompts."""

    def __init__(self, checkpoint: Path, mesh: Any, dtype: str, options: dict[str, Any]) -> None:
        from transformers import AutoModelForCausalLM

        import tpuport.auto

        quiet_libraries()
        self._tokenizer = read_tokenizer(checkpoint, trust_remote_code=False)
        self._model = tpuport.load(AutoModelForCausalLM, checkpoint, mesh=mesh, dtype=dtype)
        self._options = options

    def continue_rows(self, rows: list[Row], row_count: int, chunk: int) -> list[str]:
        """The text after each prompt, the same whenever the chunk is done."""
        # The last chunk runs in the program of the others.
        prompts = [row["prompt"] for row in rows] + [rows[-1]["prompt"]] * (row_count - len(rows))
        inputs = read_prompts(self._tokenizer, prompts)
        options = dict(self._options)
        if options["do_sample"]:
            options["seed"] += chunk
        tokens: Any = tpuport.generate(
            self._model,
            inputs["input_ids"],
            inputs["attention_mask"],
            pad_token_id=self._tokenizer.pad_token_id,
            **options,
        )
        new_tokens = tokens[: len(rows), inputs["input_ids"].shape[1] :]
        return self._tokenizer.batch_decode(new_tokens, skip_special_tokens=True)


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The options of the recipe; wrong usage exits with 2."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.batch",
        description="Continue every prompt of a file; start it again after any interruption.",
    )
    add_job_options(parser)
    add = parser.add_argument
    add("--process", type=at_least(0), default=0, help="the number of this process, from 0 (default 0)")
    add("--processes", type=at_least(1), default=1, help="how many processes there are (default 1)")
    add(
        "--together",
        action="store_true",
        help="all processes run one model, and process 0 writes; by default each has a model and a share of the chunks",
    )
    add("--coordinator", help="with --together, but not on TPU pods and SLURM: host:port of process 0")
    add("--tp", type=int, default=1, help="devices that shard the weights; -1: all that are left")
    add(
        "--dp",
        type=int,
        help="devices that shard the batch; -1: all that are left, as --together by default; else 1",
    )
    add("--cpu-devices", type=at_least(0), default=0, help="let the CPU simulate this many devices")
    add("--collect", action="store_true", help="only join the results of all chunks in results.jsonl")
    arguments = parser.parse_args(words)
    if arguments.process >= arguments.processes:
        parser.error(
            f"--process {arguments.process}: the last of {arguments.processes} is {arguments.processes - 1}"
        )
    if arguments.coordinator and not arguments.together:
        parser.error("--coordinator: processes meet with --together alone")
    return arguments


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """The options that decide the results, and where they go."""
    add = parser.add_argument
    add("--prompts", type=Path, required=True, help='a file of lines such as {"prompt": "To port a model"}')
    add("--output", type=Path, required=True, help="a folder for the results")
    add("--checkpoint", type=Path, default=DEFAULT_CHECKPOINT, help="a local Hugging Face causal LM")
    add(
        "--chunk",
        type=at_least(1),
        default=32,
        help="prompts of a batch, and of a file of results (default 32)",
    )
    add("--max-new-tokens", type=at_least(1), default=128, help="tokens to generate per prompt (default 128)")
    add("--dtype", default="float32", help="float32 (default) or bfloat16")
    add("--do-sample", action="store_true", help="sample instead of taking the most likely token")
    add("--seed", type=int, default=0, help="with --do-sample; default 0")


def plan_job(arguments: argparse.Namespace) -> tuple[Job, dict[str, Any]]:
    """The job, and the options of `generate`."""
    check_directory(arguments.checkpoint)
    check_dtype(arguments.dtype)
    options: dict[str, Any] = {"max_new_tokens": arguments.max_new_tokens, "do_sample": arguments.do_sample}
    if arguments.do_sample:
        options["seed"] = arguments.seed
    settings = options | {"dtype": arguments.dtype, "checkpoint": fingerprint(arguments.checkpoint)}
    return Job(read_rows(arguments.prompts), arguments.output, arguments.chunk, settings), options


def run_apart(job: Job, options: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Do this process's share of the chunks with a model of its own."""
    job.open()
    with job.claimed(arguments.process):
        pending = job.pending(arguments.process, arguments.processes)
        run_chunks(job, pending, options, arguments, writes=True)


def run_together(job: Job, options: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Do all chunks with one model on the devices of all processes."""
    where = (arguments.coordinator, arguments.processes, arguments.process) if arguments.coordinator else ()
    tpuport.initialize_distributed(*where)
    import jax
    from jax.experimental import multihost_utils

    is_first = jax.process_index() == 0
    if is_first:
        job.open()
    with job.claimed(0) if is_first else contextlib.nullcontext():
        # The others may not see the folder.
        is_done = np.array([is_first and job.is_done(chunk) for chunk in job.chunks])
        is_done = multihost_utils.broadcast_one_to_all(is_done)
        pending = [chunk for chunk in job.chunks if not is_done[chunk]]
        run_chunks(job, pending, options, arguments, writes=is_first)


def run_chunks(
    job: Job, chunks: list[int], options: dict[str, Any], arguments: argparse.Namespace, *, writes: bool
) -> None:
    """Do these chunks, one after the other."""
    console.print(f"chunks to do: {len(chunks)} of {len(job.chunks)}")
    if not chunks:
        return
    if arguments.together:
        # Of all devices: every process has to have some.
        mesh = tpuport.create_mesh(dp=arguments.dp or -1, tp=arguments.tp)
    else:
        mesh = create_mesh({"dp": arguments.dp or 1, "tp": arguments.tp}, console)
    generator = Generator(arguments.checkpoint, mesh, arguments.dtype, options)
    for chunk in chunks:
        texts = generator.continue_rows(job.rows_of(chunk), job.batch_size, chunk)
        if writes:
            job.write(chunk, texts)
            console.print(f"chunk {chunk} is done")


def main() -> None:
    """Run the recipe."""
    arguments = parse_arguments()
    job, options = plan_job(arguments)
    if arguments.collect:
        job.open()
        console.print(f"all results: {job.collect()}")
        return
    if arguments.cpu_devices:
        simulate_devices(arguments.cpu_devices)
    if arguments.together:
        run_together(job, options, arguments)
    else:
        run_apart(job, options, arguments)


if __name__ == "__main__":
    run_command(main)
