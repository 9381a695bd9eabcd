"""Plans that are inferred from structure beside the published ones: collectives of a block, and bytes on a device.

    python -m benchmarks.inferred_plans            # every model, half an hour; writes the table in docs/sharding.md
    python -m benchmarks.inferred_plans --only wan # those with this in their name; prints the table

Models are tiny, with random weights that are never allocated on a device. Each is compiled for CPU devices with one
block and with two: the difference is what a block costs. "Published" is what `ShardingRules.from_model` reads from the
class or derives for it; a model of one's own has nothing published, and its weights are whole.
"""

import argparse
import collections
import dataclasses
import itertools
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# Before jax: programs that are only read need no optimization.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
)

import jax
import torch
import transformers

import tpuport
from benchmarks import own_models, tiny_diffusers, tiny_transformers
from tpuport.sharding import ShardingRules
from tpuport.topology import abstract_steps, hlo
from tpuport.topology.abstract_weights import abstract_weights, local_nbytes
from tpuport.topology.hlo.collectives import sent_bytes

PAGE = Path(__file__).parents[1] / "docs" / "sharding.md"
_BLOCK = re.compile(r"(<!-- inferred_plans -->\n).*(<!-- /inferred_plans -->\n)", re.DOTALL)
_BATCH, _LENGTH = 2, 16
_SIZES = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 8,
    "num_key_value_heads": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_ROUTED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
}
_LATENT = {
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "num_key_value_heads": 8,
}  # fmt: skip
# Configurations of transformers with a plan, and what they need beside the sizes above, for four devices.
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "gemma": {"head_dim": 16, "num_key_value_heads": 1},
    "gemma2": {"head_dim": 8},
    "gemma3_text": {"head_dim": 8},
    "granite": {},
    "olmo2": {},
    "cohere2": {},
    "glm4": {"head_dim": 8, "partial_rotary_factor": 0.5},
    "starcoder2": {},
    "phi3": {},
    "smollm3": {},
    "mixtral": {"num_local_experts": 8},
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 64},
    "qwen3_moe": {**_EXPERTS, "head_dim": 8},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 8},
    "deepseek_v2": {**_ROUTED, **_LATENT, "first_k_dense_replace": 0},
    "deepseek_v3": {**_ROUTED, **_LATENT, "first_k_dense_replace": 0, "n_shared_experts": 1},
    "gpt2": {},
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64, "max_position_embeddings": 64},
}
# An indexer has a smaller part of attention's weights, as in the published models; each layer has keys of its own.
_ADJUSTED = {"index_n_heads": 2, "num_kv_shared_layers": 0}
# Lists that have as many items as the tiny models have layers, and nothing to do with layers.
_OTHER_LISTS = ("time_step_limit",)
# Classes of diffusers, and the arguments that are numbers of blocks.
DIFFUSERS: dict[str, tuple[str, ...]] = {
    "FluxTransformer2DModel": ("num_layers", "num_single_layers"),
    "QwenImageTransformer2DModel": ("num_layers",),
    "WanTransformer3DModel": ("num_layers",),
    "HunyuanVideoTransformer3DModel": ("num_layers", "num_single_layers"),
    "HunyuanVideo15Transformer3DModel": ("num_layers",),
    "SD3Transformer2DModel": ("num_layers",),
    "LTXVideoTransformer3DModel": ("num_layers",),
    "CogVideoXTransformer3DModel": ("num_layers",),
    "PixArtTransformer2DModel": ("num_layers",),
    "MochiTransformer3DModel": ("num_layers",),
    "ZImageTransformer2DModel": ("n_layers",),
    "AuraFlowTransformer2DModel": ("num_mmdit_layers", "num_single_dit_layers"),
}


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a plan costs: collectives of the program by kind, and bytes of weights on a device."""

    collectives: collections.Counter[str]
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A row of the table: of each plan, collectives of a block, those of one block's program, and bytes."""

    name: str
    published_block: dict[str, int]
    inferred_block: dict[str, int]
    published: Cost
    inferred: Cost

    @property
    def is_as_good(self) -> bool:
        """Whether a block has no more collectives of any kind, and no device more bytes."""
        more = collections.Counter(self.inferred_block) - collections.Counter(self.published_block)
        return not more and self.inferred.nbytes <= self.published.nbytes


Build = Callable[[int], tuple[torch.nn.Module, dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model of the table: what builds it, with a number of blocks, and over how many devices it is divided."""

    name: str
    build: Build
    tp: int


def language_model(name: str) -> Build:
    """A builder of a tiny causal language model with some number of layers, and its inputs."""

    def build(layers: int) -> tuple[torch.nn.Module, dict[str, Any]]:
        options = {**_SIZES, "num_hidden_layers": layers, **TRANSFORMERS[name]}
        config: Any = transformers.AutoConfig.for_model(name, **options)
        # Names of an older form.
        for old, value in (("n_layer", layers), ("n_embd", 64), ("n_head", 8)):
            if hasattr(config, old):
                setattr(config, old, value)
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        tokens = torch.randint(3, 256, (_BATCH, _LENGTH))
        return model.eval().requires_grad_(False), {"input_ids": tokens, "use_cache": False}

    return build


def planned_types() -> dict[str, str]:
    """The causal language models of transformers whose configuration has a plan: from model type to class name."""
    planned = {}
    for model_type, classes in tiny_transformers.mapping("CAUSAL_LM").items():
        # `get` of this lazy mapping knows no type that nobody has asked for before.
        if model_type not in transformers.CONFIG_MAPPING:
            continue
        if getattr(transformers.CONFIG_MAPPING[model_type], "base_model_tp_plan", None):
            planned[model_type] = classes if isinstance(classes, str) else classes[0]
    return planned


def planned_model(class_name: str) -> Build:
    """A builder of the coverage table's tiny model of a class, with each of its kinds of layers once or more often."""

    def build(repetitions: int) -> tuple[torch.nn.Module, dict[str, Any]]:
        config: Any = tiny_transformers.construct(class_name, "narrow").config
        text = config.get_text_config()
        depth = text.num_hidden_layers
        layers = repetitions * len(set(getattr(text, "layer_types", None) or [None]))
        fields: dict[str, Any] = {"num_hidden_layers": layers}
        for name, value in text.to_dict().items():
            # Some classes compute the list from other fields.
            is_field = not isinstance(getattr(type(text), name, None), property)
            if is_field and isinstance(value, list) and len(value) == depth and name not in _OTHER_LISTS:
                fields[name] = list(itertools.islice(itertools.cycle(dict.fromkeys(value)), layers))
        fields |= {name: value for name, value in _ADJUSTED.items() if hasattr(text, name)}
        torch.manual_seed(0)
        model = tiny_transformers.construct(class_name, "narrow", fields)
        tokens = torch.randint(5, 200, (_BATCH, _LENGTH))
        return model.requires_grad_(False), {"input_ids": tokens, "use_cache": False}

    return build


def diffusion_model(name: str) -> Build:
    """A builder of a tiny diffusion transformer with some number of blocks of each kind, and its inputs."""

    def build(layers: int) -> tuple[torch.nn.Module, dict[str, Any]]:
        depths = dict.fromkeys(DIFFUSERS[name], layers)
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, calls = tiny_diffusers.build(name, **depths)
        return model.requires_grad_(False), {**calls[0], "return_dict": False}

    return build


def subjects() -> list[Subject]:
    """All models of the table."""
    return [
        *(Subject(name, language_model(name), 4) for name in TRANSFORMERS),
        # Tiny models of the coverage table have two key heads, and diffusion transformers two heads.
        *(
            Subject(model_type, planned_model(class_name), 2)
            for model_type, class_name in planned_types().items()
            if model_type not in TRANSFORMERS
        ),
        *(Subject(name, diffusion_model(name), 2) for name in DIFFUSERS),
        *(Subject(name, build, 4) for name, build in own_models.BUILDERS.items()),
    ]


def measure(model: torch.nn.Module, inputs: Mapping[str, Any], rules: ShardingRules, **axes: int) -> Cost:
    """What a call of a model costs on a mesh of CPU devices with these axes."""
    count = 1
    for size in axes.values():
        count *= size
    mesh = tpuport.create_mesh(**axes, devices=jax.devices()[:count])
    weights = abstract_weights(model, mesh, rules, None, ())
    step = abstract_steps.forward(model, inputs, weights, mesh)
    with abstract_steps.on_mesh(model, mesh):
        compiled = jax.jit(step.function, keep_unused=True).lower(*step.arguments).compile()
    program = hlo.parse(compiled.as_text())
    collectives: collections.Counter[str] = collections.Counter()
    for instruction in program.executed_instructions(lambda item: sent_bytes(program, item)):
        if sent_bytes(program, instruction):
            # One that combines several arrays counts for each.
            collectives[instruction.kind] += len(instruction.results) * instruction.times
    return Cost(collectives, sum(map(local_nbytes, weights.values())))


def compare(subject: Subject) -> Comparison:
    """Both plans of a model, measured with one block and with two."""
    tpuport.enable()
    costs: dict[str, list[Cost]] = {"published": [], "inferred": []}
    for layers in (1, 2):
        model, inputs = subject.build(layers)
        costs["published"].append(measure(model, inputs, ShardingRules.from_model(model), tp=subject.tp))
        costs["inferred"].append(measure(model, inputs, ShardingRules.infer(model, inputs), tp=subject.tp))
    blocks = {plan: _difference(*measured) for plan, measured in costs.items()}
    (_, published), (_, inferred) = costs.values()
    return Comparison(subject.name, blocks["published"], blocks["inferred"], published, inferred)


def _difference(one: Cost, two: Cost) -> dict[str, int]:
    kinds = sorted({*one.collectives, *two.collectives})
    counts = {kind: two.collectives[kind] - one.collectives[kind] for kind in kinds}
    return {kind: count for kind, count in counts.items() if count}


def table(comparisons: list[Comparison]) -> str:
    """Markdown."""
    lines = [
        "| model | a block, published | a block, inferred | kB, published | kB, inferred | |",
        "| --- | --- | --- | ---: | ---: | --- |",
    ]
    for row in comparisons:
        cells = [
            f"`{row.name}`", _in_words(row.published_block), _in_words(row.inferred_block),
            f"{row.published.nbytes / 1000:.0f}", f"{row.inferred.nbytes / 1000:.0f}", _verdict(row),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _in_words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"


def _verdict(row: Comparison) -> str:
    if not row.is_as_good:
        if row.inferred.nbytes < row.published.nbytes:
            return "divides more, sends more"
        fewer = sum(row.inferred_block.values()) < sum(row.published_block.values())
        return "divides less, sends less" if fewer else "worse"
    if row.inferred.nbytes < row.published.nbytes or row.inferred_block != row.published_block:
        return "better"
    return "same"


def main() -> None:
    """Measure and print; write the page if everything was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="NAME", nargs="*", help="models with this in their name")
    options = parser.parse_args()
    comparisons: list[Comparison] = []
    failures: list[str] = []
    for subject in subjects():
        if options.only and not any(name.lower() in subject.name.lower() for name in options.only):
            continue
        try:
            comparisons.append(compare(subject))
        except Exception as error:  # noqa: BLE001 - the models after it are measured all the same
            failures.append(subject.name)
            sys.stderr.write(f"{subject.name}: {type(error).__name__}: {error}\n")
            continue
        sys.stderr.write(table(comparisons[-1:]).splitlines()[-1] + "\n")
    text = table(comparisons)
    if failures:
        sys.stderr.write(f"not measured: {', '.join(failures)}; the page stays as it is\n")
    elif not options.only:
        PAGE.write_text(_BLOCK.sub(lambda match: f"{match[1]}{text}{match[2]}", PAGE.read_text()))
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
