"""Checkpoints as they must not be: what `tpuport.load` makes of files that are damaged, contradictory or hostile.

    python -m benchmarks.abuse [--only NAME]

Each case changes a checkpoint, mostly of a tiny Llama, and loads it. Right is a single PortError in bounded time and
memory, which has the words that the case asks for: mostly the name of the file. Where the weights are sound, a model
may be right too. Everything else is listed: raw exceptions, errors that name no file, checkpoints that load, and cases
that take too long. The exit status is 1 if there is any.
"""

import argparse
import collections
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.abuse_cases import CASES, Case
from benchmarks.abuse_formats import FORMAT_CASES, load, quantise, write_diffusers, write_gguf
from tpuport.errors import PortError

ALL_CASES = (*CASES, *FORMAT_CASES)
SECONDS = 20
# Beyond what the libraries take; a case that wants more fails with MemoryError.
ADDRESS_SPACE = 16 << 30


def write_checkpoint(directory: Path) -> None:
    """A Llama with two layers, in one file of safetensors."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model: Any = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(directory)


def write_base(base: str, directory: Path) -> None:
    """The checkpoint that a case changes."""
    if base == "gguf":
        write_gguf(directory)
    elif base == "diffusers":
        write_diffusers(directory)
    else:
        write_checkpoint(directory)
        if base == "quantised":
            quantise(directory)


def outcome(case: Case, directory: Path) -> str:
    """What became of a case: "right", or what is wrong with it."""
    write_base(case.base, directory)
    case.change(directory)
    started = time.perf_counter()
    signal.alarm(SECONDS)
    try:
        load(case.base, directory)
    except PortError as error:
        message = f"{error.what} {error.where} {error.fix}"
        result = (
            "right" if all(word in message for word in case.words) else f"names no {case.words}: {message}"
        )
    except TimeoutError:
        result = "too slow"
    except BaseException as error:  # noqa: BLE001 - the point is to see every one
        frame = traceback.extract_tb(error.__traceback__)[-1]
        result = (
            f"raw {type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {str(error)[:100]}"
        )
    else:
        result = "right" if case.may_load else "loaded"
    finally:
        signal.alarm(0)
    if time.perf_counter() - started > SECONDS / 2:
        result += ", slowly"
    return result


def _interrupt(*_: object) -> None:
    raise TimeoutError


def run(description: str | None, cases: Iterable[Any], outcome: Callable[[Any], str]) -> None:
    """Print what is wrong with each case that the command line names, and counts; exits with 1 if anything is.

    Args:
        description: of the command.
        cases: each with a name.
        outcome: of a case, "right" or a description of what is not.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    for case in cases:
        if options.only not in case.name:
            continue
        result = outcome(case)
        counts[result.split(" ", 1)[0]] += 1
        if result != "right":
            print(f"{case.name}: {result}", flush=True)
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    print(f"{sum(counts.values())} cases: {kinds}")
    sys.exit(0 if set(counts) <= {"right"} else 1)


def _outcome_in_a_directory(case: Case) -> str:
    with tempfile.TemporaryDirectory() as directory:
        return outcome(case, Path(directory))


def main() -> None:
    signal.signal(signal.SIGALRM, _interrupt)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    run(__doc__, ALL_CASES, _outcome_in_a_directory)


if __name__ == "__main__":
    main()
