"""Calls of compiled models beside torchax jitted by hand, in one run, as ratios.

    python -m benchmarks.calls           the tables of docs/benchmarks.md (about six minutes on two cores)
    python -m benchmarks.calls --warm    calls of programs that exist
    python -m benchmarks.calls --first   the first call as far as XLA: the model's code, passes, lowering

By hand means `jax.jit` of `torch.func.functional_call` with the weights as an argument, in torchax's environment. Warm
calls of all rivals alternate in one process. Each first call has a process of its own, and the rival's knows nothing of
tpuport but what lets a released torchax be imported beside torch 2.13.
"""

import argparse
import functools
import importlib
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from rich.console import Console
from rich.table import Table

LAYERS = (4, 32, 80)
TOKENS = 16
HUNYUAN, LLAMA_70B = "HunyuanVideo-1.5", "Llama-3-70B"
_ROUNDS = 3  # of each first call; the least time counts
_RIVAL, _OURS = "torchax by hand", "tpuport"


def small_llama(layers: int) -> Any:
    """A Llama of width 32 with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def large_model(name: str) -> tuple[Any, dict[str, Any]]:
    """A model without weights, and the arguments of a call on the meta device."""
    import torch

    with torch.device("meta"):
        if name == HUNYUAN:
            from diffusers.models.transformers.transformer_hunyuan_video15 import (
                HunyuanVideo15Transformer3DModel,
            )

            from benchmarks.hunyuan_compile import inputs

            model = HunyuanVideo15Transformer3DModel()
            return model.bfloat16().eval(), inputs(model.config)
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=128_256, hidden_size=8192, intermediate_size=28_672, num_hidden_layers=80,
            num_attention_heads=64, num_key_value_heads=8, rope_theta=500_000.0,
        )  # fmt: skip
        model = LlamaForCausalLM(config).bfloat16().eval()
        return model, {"input_ids": torch.empty(1, 1024, dtype=torch.int64), "use_cache": False}


def by_hand(model: Any, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A jitted function of weights and arguments, and both as arrays, or their forms on the meta device."""
    import jax
    import torch
    import torchax
    from torchax import interop
    from torchax.ops import mappings

    environment = torchax.default_env()
    static = {name: value for name, value in arguments.items() if not isinstance(value, torch.Tensor)}

    def place(tensor: torch.Tensor) -> Any:
        if tensor.is_meta:
            dtype = mappings.t2j_dtype(tensor.dtype)
            return jax.ShapeDtypeStruct(tensor.shape, jax.dtypes.canonicalize_dtype(dtype))
        with environment:
            return tensor.to("jax").jax()

    def call(weights: dict[str, Any], inputs: dict[str, Any]) -> Any:
        with environment:
            output = torch.func.functional_call(model, weights, kwargs=inputs | static)
        return getattr(output, "logits", output)

    named = dict(model.named_parameters()) | dict(model.named_buffers())
    weights = {name: place(tensor.detach()) for name, tensor in named.items()}
    inputs = {name: place(value) for name, value in arguments.items() if name not in static}
    return jax.jit(interop.jax_view(call)), weights, inputs


def warm_calls(layers: int) -> dict[str, float]:
    """The median seconds of a call by each way."""
    import jax
    import torch

    import tpuport

    tpuport.enable()
    interop = importlib.import_module("torchax.interop")  # a released torchax needs what tpuport adds before

    model = small_llama(layers)
    ids = torch.arange(TOKENS)[None]
    jitted, weights, inputs = by_hand(model, {"input_ids": ids, "use_cache": False})
    weights, inputs = interop.torch_view((weights, inputs))
    hand = interop.torch_view(jitted)
    ported = tpuport.port(small_llama(layers))
    compiled = tpuport.compile(ported)
    ids = ids.to("jax")
    ways: dict[str, Callable[[], Any]] = {
        _RIVAL: lambda: hand(weights, inputs),
        "tpuport.compile(model)": lambda: compiled(input_ids=ids, use_cache=False).logits,
        "a ported model's own call": lambda: ported(input_ids=ids, use_cache=False).logits,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways.items())
    for _ in range(max(60, 4000 // layers)):
        # What runs before decides what is in the caches of the processor.
        random.shuffle(order)
        for name, call in order:
            start = time.perf_counter()
            jax.block_until_ready(call().jax())
            seconds[name].append(time.perf_counter() - start)
    # The first calls compile.
    return {name: statistics.median(times[5:]) for name, times in seconds.items()}


def first_call(way: str, model_name: str) -> dict[str, float]:
    """Seconds until a program is lowered, and how often the model's code ran."""
    import torch

    if way == _OURS:
        import tpuport.auto
    else:
        from tpuport.compat.shim import removed_operators

        with removed_operators():
            import torchax

            torchax.default_env()
    is_large = not model_name.isdigit()
    model, arguments = (
        large_model(model_name)
        if is_large
        else (small_llama(int(model_name)), {"input_ids": torch.arange(TOKENS)[None], "use_cache": False})
    )
    runs = itertools.count()  # not a list, which compiled code would find as it was
    forward = type(model).forward

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        next(runs)
        return forward(self, *args, **kwargs)

    type(model).forward = functools.wraps(forward)(counted)
    if way == _RIVAL:
        jitted, *parts = by_hand(model, arguments)
        start = time.perf_counter()
        jitted.lower(*parts)
    elif is_large:
        from tpuport.topology.lowering import lower_for

        start = time.perf_counter()
        lower_for(model, arguments, topology="v6e:1x1", scan_layers=False)
    else:
        compiled = tpuport.compile(tpuport.port(model))
        start = time.perf_counter()
        compiled.lower(**arguments)
    return {"seconds": time.perf_counter() - start, "runs": next(runs)}


def _in_child(way: str, model: str) -> dict[str, float] | str:
    """What `first_call` gives in a process of its own, or the last line of its error."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.calls", "--child", way, model]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it ended"])[-1]
    return json.loads(done.stdout.strip().splitlines()[-1])


def _print_warm(console: Console) -> None:
    table = Table("layers", "way", "median", "beside torchax by hand", title="a warm call")
    for layers in LAYERS:
        seconds = warm_calls(layers)
        for name, time_of_call in seconds.items():
            ratio = time_of_call / seconds[_RIVAL]
            table.add_row(str(layers), name, f"{time_of_call * 1e3:.2f} ms", f"{ratio:.2f}")
    console.print(table)


def _print_first(console: Console) -> None:
    table = Table(
        "model", "way", "seconds", "runs of the code", "beside torchax by hand", title="the first call"
    )
    for model in (*map(str, LAYERS), HUNYUAN, LLAMA_70B):
        least: dict[str, float] = {}
        for way in (_RIVAL, _OURS):
            rounds = 1 if not model.isdigit() else _ROUNDS
            answers = [_in_child(way, model) for _ in range(rounds)]
            failed = [answer for answer in answers if isinstance(answer, str)]
            if failed:
                table.add_row(model, way, "none", "", failed[0])
                continue
            best: Any = min(answers, key=lambda answer: answer["seconds"])  # type: ignore[index]
            least[way] = best["seconds"]
            ratio = f"{least[way] / least[_RIVAL]:.2f}" if _RIVAL in least else ""
            table.add_row(model, way, f"{least[way]:.2f}", str(best["runs"]), ratio)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(first_call(*options.child)))
        return
    console = Console(width=120)
    if options.warm or not options.first:
        _print_warm(console)
    if options.first or not options.warm:
        _print_first(console)


if __name__ == "__main__":
    main()
