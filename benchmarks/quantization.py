"""Weights in few bits: what a chip holds and moves, and what the rounding costs in quality, by scheme.

python -m benchmarks.quantization [--topology v5e:2x4] [--tp 8] [--layers 32] [--scheme int4]
python -m benchmarks.quantization --quality

The first compiles a decoding step with the sizes of Llama-2-7B. Nothing runs: the time of the memory is a bound from
public peak figures, and that of a step is the report's estimate, from the compiler's schedules. The second computes
logits of the llama recipe's trained model, for stories that it was trained on, with the numbers that quantised weights,
or keys and values, stand for: perplexity, and the Kullback-Leibler divergence from the predictions of the unquantised
model.
"""

import argparse
import functools
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicLayer

import tpuport
from tpuport.compat.few_bits import round_rows
from tpuport.generation.cache_arguments import cache_argument
from tpuport.generation.rounded_states import dequantize_states, quantize_states
from tpuport.quantization import quantized_weights
from tpuport.topology import Decode, compile_for
from tpuport.topology.compile_report import Report

SCHEMES: tuple[str | None, ...] = (None, "int8", "fp8", "w8a8", "int4", "int4:32")
# By default the small model of the recipe gets groups of 32.
QUALITY_SCHEMES: tuple[str | None, ...] = (None, "int8", "fp8", "w8a8", "int4", "int4:128")
MIB = 1 << 20
CHECKPOINT = Path(__file__).parents[1] / "recipes" / "llama" / "checkpoint"
CORPUS = CHECKPOINT.with_name("corpus")
# Enough for three digits of the divergence.
STORIES = 60


def build(layers: int) -> LlamaForCausalLM:
    """A model with the sizes of Llama-2-7B, and as many layers."""
    config = LlamaConfig(
        hidden_size=4096, intermediate_size=11008, num_hidden_layers=layers, num_attention_heads=32
    )
    return LlamaForCausalLM(config)


def report_of(scheme: str | None, topology: str, tp: int, layers: int, batch: int) -> Report:
    """The report of a decoding step."""
    step = Decode(batch=batch, max_cache_len=1024)
    return compile_for(
        functools.partial(build, layers), step, topology=topology, tp=tp, quantize=scheme, dtype="bfloat16"
    )


def row(scheme: str | None, report: Report, baseline: Report) -> str:
    """A line of the table."""
    assert report.costs is not None
    assert baseline.costs is not None
    assert report.estimate is not None
    assert baseline.estimate is not None
    stored = report.memory.weights + report.memory.cache
    cells = [
        scheme or "bfloat16",
        f"{report.memory.weights / MIB:.0f}",
        f"{report.costs.hbm_bytes / MIB:.0f}",
        f"{report.costs.hbm_bytes / stored:.3f}",
        f"{report.estimate.memory * 1e6:.0f}",
        f"{baseline.estimate.memory / report.estimate.memory:.2f}",
        f"{step_seconds(report) * 1e6:.0f}",
        f"{step_seconds(baseline) / step_seconds(report):.2f}",
        f"{sum(item.count for item in report.collectives)}",
    ]
    return f"| {' | '.join(cells)} |"


def step_seconds(report: Report) -> float:
    """The estimated time of a step, by the compiler's schedules."""
    assert report.profile is not None
    return report.profile.seconds


def measure_quality() -> None:
    """Print perplexity and divergence for each scheme."""
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    stories = "\n".join(path.read_text() for path in sorted(CORPUS.glob("*.txt"))).split("\n\n")
    rows = [tokenizer(story, return_tensors="pt")["input_ids"] for story in stories[:STORIES]]
    baseline = log_probabilities(AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32), rows)
    print(f"{sum(row.shape[1] for row in rows)} tokens of {len(rows)} stories")
    print("| weights | perplexity | KL, nats a token | most likely token is the same |")
    print("| --- | --- | --- | --- |")
    for scheme in QUALITY_SCHEMES:
        predictions = baseline
        if scheme is not None:
            model = tpuport.load(AutoModelForCausalLM, CHECKPOINT, dtype="float32", quantize=scheme)
            # Before it is dense.
            rounding = [name for name, _, _, weight in quantized_weights(model) if weight.rounds_activations]
            dense = tpuport.to_cpu(model)
            for name in rounding:
                dense.get_submodule(name.removesuffix(".weight")).register_forward_pre_hook(round_activations)
            predictions = log_probabilities(dense, rows)
        print(quality_row(scheme or "float32", rows, predictions, baseline), flush=True)
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    predictions = log_probabilities(model, rows, RoundingLayer)
    print(quality_row('float32, kv_cache="int8"', rows, predictions, baseline), flush=True)


def round_activations(module: Any, arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """What a product of integers makes of activations [..., K]."""
    values, scales = round_rows(jnp.asarray(arguments[0].numpy()), jnp.float32)
    return torch.from_numpy(np.array(values * scales))


class RoundingLayer(DynamicLayer):
    """A layer of transformers' cache with the keys and values that one in int8 gives to attention."""

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
        states = (round_states(states) for states in (key_states, value_states))
        return super().update(*states, *args, **kwargs)


def round_states(states: torch.Tensor) -> torch.Tensor:
    """Keys or values [B, K, Q, D] as a cache in int8 keeps them."""
    values, scales = quantize_states(jnp.asarray(states.numpy()))
    return torch.from_numpy(np.array(dequantize_states(values, scales, jnp.float32)))


def log_probabilities(
    model: Any, rows: Sequence[torch.Tensor], layer_class: type[DynamicLayer] = DynamicLayer
) -> list[torch.Tensor]:
    """For each row of tokens [1, T], logarithms of the probabilities [T, V] of the next token."""
    predictions = []
    for row in rows:
        cache: Any = DynamicCache()
        name = cache_argument(inspect.signature(model.forward).parameters)
        assert name is not None
        cache.layers = [layer_class() for _ in range(model.config.num_hidden_layers)]
        with torch.no_grad():
            logits = model.eval()(row, **{name: cache}).logits
        predictions.append(logits[0].double().log_softmax(-1))
    return predictions


def quality_row(
    name: str,
    rows: Sequence[torch.Tensor],
    predictions: Sequence[torch.Tensor],
    baseline: Sequence[torch.Tensor],
) -> str:
    """A line of the table of quality."""
    expected, actual = torch.cat(list(baseline)), torch.cat(list(predictions))
    likelihoods = [log[:-1].gather(1, row[0, 1:, None]) for log, row in zip(predictions, rows, strict=True)]
    perplexity = torch.cat(likelihoods).mean().neg().exp()
    divergence = (expected.exp() * (expected - actual)).sum(-1).mean()
    same = (expected.argmax(-1) == actual.argmax(-1)).double().mean()
    return f"| {name} | {perplexity:.4f} | {divergence:.2e} | {same:.2%} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--topology", default="v5e:2x4")
    parser.add_argument("--tp", type=int, default=8)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--scheme", action="append", help="beside bfloat16, instead of all; may be repeated")
    parser.add_argument("--quality", action="store_true", help="of the recipe's model")
    options = parser.parse_args(arguments)
    if options.quality:
        measure_quality()
        return
    print(
        f"a decoding step, {options.layers} layers, batch {options.batch}, {options.topology}, tp={options.tp}"
    )
    print(
        "| weights | MiB a chip | HBM traffic, MiB | of weights and cache | memory time, us | faster | "
        "a step, us | faster | collectives |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    reports: dict[str | None, Report] = {}
    schemes = SCHEMES if options.scheme is None else (None, *options.scheme)
    for scheme in schemes:
        reports[scheme] = report_of(scheme, options.topology, options.tp, options.layers, options.batch)
        print(row(scheme, reports[scheme], reports[None]), flush=True)


if __name__ == "__main__":
    main()
