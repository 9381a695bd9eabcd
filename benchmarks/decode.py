"""Decoding speed of `tpuport.generate` against its rivals, in one run, as ratios of medians.

    python benchmarks/decode.py            the tables (about seven minutes on two cores)
    python benchmarks/decode.py --quick    fewer rounds, and only what the main line needs

Every rival decodes the same greedy tokens with the same weights, float32, batch 1; rounds are interleaved so that a
noisy machine is noisy for all. Times are of whole calls, prompt included, compilation excluded.
"""

import argparse
import contextlib
import functools
import inspect
import logging
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import tpuport
from benchmarks import decode_kinds, jax_llama
from tpuport import compat
from tpuport.generation.cache_arguments import cache_argument

KV_HEADS, HEAD_DIM = 4, 64
CONFIG = LlamaConfig(
    vocab_size=32_000, hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8,
    num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, max_position_embeddings=2048, tie_word_embeddings=False,
    pad_token_id=0, bos_token_id=1, eos_token_id=None,
)  # fmt: skip
PROMPT, NEW = 32, 96


class CopyBandwidth:
    """Bytes a second that a copy of half a gigabyte moves, each byte counted once, all cores: the best of every round.

    Measured in the rounds of the rivals, so that a machine which others use is as busy for it as for them.
    """

    def __init__(self) -> None:
        self._source = torch.ones(128 * 1024**2)
        self._target = torch.empty_like(self._source)
        self.rates: list[float] = []

    def measure(self, copies: int = 3) -> None:
        """One round."""
        size = self._source.numel() * self._source.element_size()
        for _ in range(copies):
            start = time.perf_counter()
            self._target.copy_(self._source)
            self.rates.append(size / (time.perf_counter() - start))

    @property
    def best(self) -> float:
        return max(self.rates)


def doubts(bandwidth: CopyBandwidth, reached: float) -> str | None:
    """Why the share of the bandwidth is not to be trusted, or None. Reading alone passes a copy by little."""
    spread = bandwidth.best / statistics.median(bandwidth.rates)
    if reached > 1.1:
        return f"{reached:.2f} is impossible; something else on this machine slowed down the copies"
    if spread > 1.5:
        return f"the best copy was {spread:.1f} times as fast as the median one: something else uses this machine"
    return None


def weight_bytes(model: Any) -> int:
    """Bytes of weights that one decoding step reads: all but the embedding table, of which it reads one row."""
    table = model.get_input_embeddings().weight
    return sum(p.numel() * p.element_size() for p in model.parameters() if p is not table)


def model_and_prompt() -> tuple[Any, torch.Tensor]:
    """The same random model and prompt [1, PROMPT] in every process."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).eval()
    return model, torch.randint(3, CONFIG.vocab_size, (1, PROMPT))


def torch_dynamic(model: Any, ids: torch.Tensor) -> Callable[[], np.ndarray]:
    """transformers' generate, dynamic cache."""
    return lambda: model.generate(ids, max_new_tokens=NEW, do_sample=False).numpy()


def serve_torch_static(connection: Connection) -> None:
    """In a process of its own: transformers' generate with a static cache and a torch.compiled forward, on demand.

    torch.compile fails in a process where torchax has told torch of its device.
    """
    try:
        model, ids = model_and_prompt()
        model.forward = torch.compile(model.forward, dynamic=False)
        options = {"max_new_tokens": NEW, "do_sample": False, "disable_compile": True}
        while connection.recv():
            connection.send(model.generate(ids, cache_implementation="static", **options).numpy())
    except EOFError:
        return  # the benchmark has ended
    except Exception as error:  # noqa: BLE001  whatever it is, the table is made without this rival
        connection.send(f"{type(error).__name__}: {str(error)[:200]}")


def torch_static() -> Callable[[], np.ndarray]:
    """The rival that `serve_torch_static` serves."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=serve_torch_static, args=(theirs,), daemon=True).start()

    def call() -> np.ndarray:
        ours.send(True)
        answer = ours.recv()
        if isinstance(answer, np.ndarray):
            return answer
        raise RuntimeError(answer)

    return call


def step_by_step(ported: Any, ids: torch.Tensor) -> Callable[[], np.ndarray]:
    """One jitted step a token over transformers' static cache, the token read by the host each time.

    As published recipes for torchax do it: weights as an argument through functional_call, torchax's own attention.
    """
    weights = compat.as_jax(dict(ported.named_parameters()) | dict(ported.named_buffers()))
    name: Any = cache_argument(inspect.signature(ported.forward).parameters)

    @functools.partial(jax.jit, donate_argnames="cache")
    def step(weights: dict, tokens: jax.Array, positions: jax.Array, cache: StaticCache) -> tuple:
        with compat.environment():
            tensors, tokens, positions, cache = compat.as_torch((weights, tokens, positions, cache))
            options = {"position_ids": positions, name: cache, "use_cache": True}
            out = torch.func.functional_call(ported, tensors, tokens, options)
            return compat.as_jax((out.logits[:, -1].argmax(-1), out[name]))

    def run() -> np.ndarray:
        cache = StaticCache(config=CONFIG, max_cache_len=PROMPT + NEW)
        with compat.environment():
            cache.early_initialization(1, KV_HEADS, HEAD_DIM, torch.float32, torch.device("jax"))
        cache = compat.as_jax(cache)
        tokens, out = jnp.asarray(ids.numpy(), jnp.int32), ids.tolist()[0]
        positions = jnp.arange(PROMPT, dtype=jnp.int32)[None]
        for _ in range(NEW):
            token, cache = step(weights, tokens, positions, cache)
            out.append(int(token[0]))
            tokens, positions = token[:, None], jnp.full((1, 1), len(out) - 1, jnp.int32)
        return np.asarray([out])

    return run


def whole_loop(ported: Any, ids: torch.Tensor, **options: Any) -> Callable[[], np.ndarray]:
    """tpuport.generate."""

    def call() -> np.ndarray:
        tokens: Any = tpuport.generate(ported, ids, max_new_tokens=NEW, do_sample=False, **options)
        return tokens.numpy()

    return call


def hand_written(model: Any, ids: torch.Tensor) -> Callable[[], np.ndarray]:
    """The Llama of jax_llama.py."""
    weights = jax_llama.weights_of(model)
    shape = jax_llama.shape_of(CONFIG, PROMPT + NEW)
    prompt = jnp.asarray(ids.numpy(), jnp.int32)
    return lambda: np.asarray(jax_llama.generate(weights, prompt, shape=shape, new_tokens=NEW))


def measure(
    rivals: dict[str, Callable[[], np.ndarray]],
    rounds: int,
    bandwidth: CopyBandwidth,
    *,
    gives_same_tokens: bool = True,
) -> dict[str, list[float]]:
    """Seconds a call in interleaved rounds with the copies, after one call that compiles.

    All must give the same tokens, unless `gives_same_tokens` is False.
    """
    tokens = {name: call() for name, call in rivals.items()}
    first = next(iter(tokens.values()))
    for name, got in tokens.items():
        if gives_same_tokens and not np.array_equal(got, first):
            raise SystemExit(f"{name} does not give the tokens that the others give")
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        bandwidth.measure()
        for name, call in rivals.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def build(quick: bool) -> tuple[dict[str, Callable[[], np.ndarray]], int, list[str]]:
    """The rivals by name, the weight bytes a token reads, and remarks on rivals that could not run."""
    model, ids = model_and_prompt()
    ported = LlamaForCausalLM(CONFIG).eval()
    ported.load_state_dict(model.state_dict())
    tpuport.port(ported)
    rivals = {"torch generate, dynamic cache": torch_dynamic(model, ids)}
    remarks = []
    if not quick:
        static = torch_static()
        try:
            static()
            rivals["torch generate, static cache, torch.compile"] = static
        except RuntimeError as error:  # no C++ compiler on this machine, say
            remarks.append(f"torch.compile did not run: {error}")
    rivals["one jitted step per token, the host reads each"] = step_by_step(ported, ids)
    rivals["tpuport.generate"] = whole_loop(ported, ids)
    rivals["hand-written JAX"] = hand_written(model, ids)
    return rivals, weight_bytes(model), remarks


def report(
    times: dict[str, list[float]], read: int, bandwidth: CopyBandwidth, remarks: list[str], console: Console
) -> None:
    """Print the table, the main line and the fraction of the bandwidth limit."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    ours = medians["tpuport.generate"]
    table = Table(title=f"Greedy decoding, {NEW} tokens after {PROMPT}, float32, {os.cpu_count()} cores")
    for heading in ("", "tokens/s", "tpuport is faster, times"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, value in medians.items():
        table.add_row(name, f"{NEW / value:.1f}", f"{value / ours:.2f} x")
    console.print(table)
    for remark in remarks:
        console.print(remark)
    limit = bandwidth.best / read
    hand = medians["hand-written JAX"]
    console.print(
        f"A token reads {read / 1e6:.0f} MB of weights, and a copy moves {bandwidth.best / 1e9:.1f} GB/s here "
        f"(a copy also writes, so reading alone may be faster): {limit:.0f} tokens/s by that measure. "
        f"tpuport reaches {NEW / ours / limit:.2f} of it, hand-written JAX {NEW / hand / limit:.2f}."
    )
    if doubt := doubts(bandwidth, max(NEW / ours / limit, NEW / hand / limit)):
        console.print(f"Ignore this share: {doubt}.")
    console.print(
        f"In short: tpuport.generate is {medians['torch generate, dynamic cache'] / ours:.2f} x torch generate, "
        f"{medians['one jitted step per token, the host reads each'] / ours:.2f} x one jitted step per token, "
        f"{medians['hand-written JAX'] / ours:.2f} x hand-written JAX."
    )


def measure_kinds(rounds: int, bandwidth: CopyBandwidth, console: Console) -> None:
    """Print how fast models of other kinds decode beside transformers."""
    table = Table(title=f"Other models, greedy, {NEW} tokens, prompt included")
    for heading in ("", "torch, tokens/s", "tpuport, tokens/s", "tpuport is faster, times"):
        table.add_column(heading, justify="left" if not heading else "right")
    for kind in decode_kinds.KINDS:
        times = measure(decode_kinds.rivals(kind, PROMPT, NEW), rounds, bandwidth)
        theirs, ours = (statistics.median(times[name]) for name in ("torch", "tpuport"))
        table.add_row(kind, f"{NEW / theirs:.1f}", f"{NEW / ours:.1f}", f"{theirs / ours:.2f} x")
    console.print(table)


def measure_formats(rounds: int, bandwidth: CopyBandwidth, console: Console) -> None:
    """Print how fast the first table's model decodes with weights, or keys and values, in other formats."""
    formats: dict[str, dict[str, Any]] = {
        "float32": {},
        "bfloat16": {"dtype": "bfloat16"},
        "float32, weights in int8": {"quantize": "int8"},
        "float32, weights and activations in int8": {"quantize": "w8a8"},
    }
    calls = {}
    for name, options in formats.items():
        model, ids = model_and_prompt()
        calls[name] = whole_loop(tpuport.port(model, **options), ids)
    model, ids = model_and_prompt()
    calls["float32, keys and values in int8"] = whole_loop(tpuport.port(model), ids, kv_cache="int8")
    times = measure(calls, rounds, bandwidth, gives_same_tokens=False)
    medians = {name: statistics.median(values) for name, values in times.items()}
    table = Table(title=f"Formats, {NEW} tokens after {PROMPT}")
    for heading in ("", "tokens/s", "faster than float32, times"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, value in medians.items():
        table.add_row(name, f"{NEW / value:.1f}", f"{medians['float32'] / value:.2f} x")
    console.print(table)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three rounds, without torch.compile")
    parser.add_argument("--rounds", type=int, default=None, help="interleaved rounds (default 9, quick 3)")
    args = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    with contextlib.ExitStack() as stack:
        tpuport.enable()
        stack.callback(tpuport.disable)
        rivals, read, remarks = build(args.quick)
        bandwidth = CopyBandwidth()
        rounds = args.rounds or (3 if args.quick else 9)
        times = measure(rivals, rounds, bandwidth)
        console = Console()
        report(times, read, bandwidth, remarks, console)
        if not args.quick:
            measure_kinds(rounds, bandwidth, console)
            measure_formats(rounds, bandwidth, console)


if __name__ == "__main__":
    main()
