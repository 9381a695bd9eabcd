"""`tpuport.generate` under load: interrupted at random moments, called 10,000 times, and by eight threads at once.

    python -m benchmarks.abuse_generate_load [--interrupts 200] [--calls 10000] [--rounds 25] [--seed 0]

A tiny Llama continues prompts of mixed lengths. Right is that every answer has transformers' tokens: that of the call
after an interrupt, of each of the many calls, and of each thread's. An interrupt ends a call as an interrupt, and
leaves the model decoding with its cache. After the first calls, which compile a program for each bucket of lengths,
nothing may be compiled again, no array may stay behind and memory may not grow.
"""

import argparse
import collections
import random
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jax
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import tpuport
from tpuport.generation import decoder_for
from tpuport.generation.recomputing_decoder import RecomputingDecoder

_LENGTHS: Final = (3, 5, 9, 11, 17, 30, 40, 63, 64, 65, 100)
_NEW_TOKENS: Final = 12
# What Python's allocator takes and gives back between two looks.
_MEMORY_NOISE: Final = 16 << 20
_THREADS: Final = 8


def host_model() -> Any:
    """A tiny Llama that never ends a text."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, pad_token_id=0, bos_token_id=1,
        eos_token_id=None,
    )  # fmt: skip
    model: Any = AutoModelForCausalLM.from_config(config)
    return model.eval()


class Load:
    """A model, prompts, and the tokens that transformers gives for each.

    Attributes:
        compilations: programs that XLA has compiled so far.
    """

    def __init__(self, lengths: Sequence[int] = _LENGTHS) -> None:
        self.host = host_model()
        self.prompts = [torch.randint(3, 64, (1, length)) for length in lengths]
        self.expected = [
            self.host.generate(prompt, max_new_tokens=_NEW_TOKENS, do_sample=False) for prompt in self.prompts
        ]
        self.model = tpuport.port(self.host)
        self.compilations = 0
        jax.monitoring.register_event_duration_secs_listener(self._count)

    def _count(self, event: str, *_: object, **__: object) -> None:
        self.compilations += event == "/jax/core/compile/backend_compile_duration"

    def is_right(self, number: int, model: Any = None) -> bool:
        """Whether a prompt gets transformers' tokens."""
        tokens: Any = tpuport.generate(model or self.model, self.prompts[number], max_new_tokens=_NEW_TOKENS)
        return torch.equal(tokens.cpu(), self.expected[number])


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def interrupted_calls(load: Load, count: int, source: random.Random) -> int:
    """The number of problems with `count` calls that an interrupt ends, and with the call after each.

    A problem is a call that ends with anything but the interrupt or the right answer, a next answer that is wrong, and
    a model that decodes without its cache from then on.
    """
    signal.signal(signal.SIGALRM, _interrupt)
    outcomes: collections.Counter[str] = collections.Counter()
    right_afterwards = attempts = 0
    model = load.model
    while outcomes["interrupted"] < count:
        # A new model compiles anew: every tenth interrupt may fall into that.
        is_new = attempts % 10 == 0
        attempts += 1
        if is_new:
            model = tpuport.port(load.host)
        prompt = source.randrange(len(load.prompts))
        outcomes[
            _outcome_with_alarm(load, prompt, model, source.uniform(0.0001, 1.0 if is_new else 0.02))
        ] += 1
        is_right = load.is_right(prompt, model)
        right_afterwards += is_right and not isinstance(decoder_for(model), RecomputingDecoder)
    print(
        f"{attempts} calls with an alarm: {dict(outcomes)}; {right_afterwards} right afterwards", flush=True
    )
    return attempts - right_afterwards + attempts - outcomes["interrupted"] - outcomes["right"]


def _outcome_with_alarm(load: Load, prompt: int, model: Any, seconds: float) -> str:
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        is_right = load.is_right(prompt, model)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return "interrupted"
    except Exception as error:  # noqa: BLE001 - the point is to see every one
        signal.setitimer(signal.ITIMER_REAL, 0)
        return repr(error)
    return "right" if is_right else "wrong"


def many_calls(load: Load, count: int, source: random.Random) -> int:
    """The number of wrong answers, and of kinds of growth."""
    for number in range(len(load.prompts)):
        load.is_right(number)
    wrong = sum(not load.is_right(source.randrange(len(load.prompts))) for _ in range(min(500, count // 10)))
    programs, arrays, memory = load.compilations, len(jax.live_arrays()), _resident_bytes()
    wrong += sum(not load.is_right(source.randrange(len(load.prompts))) for _ in range(count))
    growth = (
        load.compilations - programs,
        len(jax.live_arrays()) - arrays,
        max(0, _resident_bytes() - memory - _MEMORY_NOISE),
    )
    print(
        f"{count} calls: {wrong} wrong; {growth[0]} more programs than {programs}, {growth[1]} more arrays, "
        f"{(_resident_bytes() - memory) / 2**20:+.1f} MiB",
        flush=True,
    )
    # Programs that nobody counts would never grow.
    return wrong + sum(amount > 0 for amount in growth) + (programs == 0)


def _resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


def threads(load: Load, rounds: int) -> int:
    """The number of answers to eight threads that are not right; the first calls compile."""
    model = tpuport.port(load.host)
    results: list[bool | BaseException] = []

    def call(first: int) -> None:
        for number in range(rounds):
            try:
                results.append(load.is_right((first + number) % len(load.prompts), model))
            except BaseException as error:  # noqa: BLE001 - the point is to see every one
                results.append(error)

    workers = [threading.Thread(target=call, args=(first,)) for first in range(_THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    errors = sorted({repr(result) for result in results if isinstance(result, BaseException)})
    wrong = sum(result is not True for result in results)
    print(f"{len(results)} calls of {_THREADS} threads: {wrong} not right", *errors, sep="\n", flush=True)
    return wrong + abs(len(results) - _THREADS * rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--interrupts", type=int, default=200)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=25, help="calls of each thread")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    source = random.Random(options.seed)
    load = Load()
    problems = interrupted_calls(load, options.interrupts, source)
    problems += threads(load, options.rounds)
    problems += many_calls(load, options.calls, source)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
