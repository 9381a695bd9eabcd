"""Tiny models, meshes of virtual devices, and the collectives in a compiled program."""

import re
from collections import Counter
from contextlib import ExitStack

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tpuport import attention, compat
from tpuport.patches import transformers_experts
from tpuport.sharding import ShardingRules, audit

_SIZES = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 8, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_FAMILIES = {
    "llama": {},
    "phi3": {},
    "mixtral": {"num_local_experts": 8},
    "qwen3_moe": {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "head_dim": 16},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 16},
    "gemma3_text": {"head_dim": 16},
    "deepseek_v2": {
        "n_routed_experts": 8, "moe_intermediate_size": 32, "num_experts_per_tok": 2, "n_group": 1,
        "topk_group": 1, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
}  # fmt: skip


def _config(name, options):
    if name == "gpt2":
        sizes = {
            "vocab_size": 256,
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 8,
            "n_positions": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        return transformers.GPT2Config(**{**sizes, **options})
    return transformers.AutoConfig.for_model(name, **{**_SIZES, **_FAMILIES[name], **options})


@pytest.fixture
def tiny():
    """A random causal LM: tiny('llama', num_hidden_layers=4); on='meta' for shapes alone."""

    def make(name, on="cpu", **options):
        torch.manual_seed(0)
        with torch.device(on):
            model = transformers.AutoModelForCausalLM.from_config(_config(name, options), dtype=torch.float32)
        return model.eval().requires_grad_(False)

    return make


@pytest.fixture
def mesh_of():
    """A mesh of virtual devices: mesh_of(tp=4, dp=2)."""

    def make(tp=1, dp=1, axes=("dp", "sp", "tp")):
        shape = {"dp": dp, "sp": 1, "tp": tp}
        sizes = tuple(shape.get(axis, 1) for axis in axes)
        devices = jax.devices()[: int(np.prod(sizes))]
        return jax.make_mesh(sizes, axes, axis_types=(AxisType.Auto,) * len(axes), devices=devices)

    return make


class Compiled:
    """A model's forward compiled for a mesh: its logits, and its collectives by kind and in full."""

    def __init__(self, program, logits):
        self.logits = logits
        self.operands = Counter()
        self.shapes = Counter()
        kinds = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter|collective-broadcast"
        for result, kind in re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", program.as_text()):
            # XLA may combine several all-reduces into one with a tuple: each operand is counted.
            shapes = re.findall(r"\w+\[[\d,]*\]", result)
            self.operands[kind] += len(shapes)
            self.shapes.update((kind, shape) for shape in shapes)


@pytest.fixture
def compiled():
    """Compile and run a model's forward: compiled(model, mesh, tokens, rules=None)."""

    def run(model, mesh, tokens, rules=None):
        rules = rules or ShardingRules.from_model(model)
        parameters = dict(model.named_parameters())
        audit(rules, parameters, mesh).raise_on_errors()
        shardings = rules.shardings(parameters, mesh)
        weights = {
            name: jax.device_put(compat.to_jax(value.detach()), shardings[name])
            for name, value in parameters.items()
        }
        whole = NamedSharding(mesh, PartitionSpec())
        weights |= {
            name: jax.device_put(compat.to_jax(value), whole) for name, value in model.named_buffers()
        }
        rows = NamedSharding(mesh, PartitionSpec("dp" if mesh.shape.get("dp", 1) > 1 else None))
        ids = jax.device_put(jnp.asarray(tokens.numpy(), jnp.int32), rows)

        def forward(weights, ids):
            with ExitStack() as stack:
                for context in (compat.environment(), torch.no_grad(), attention.use_in_model(model)):
                    stack.enter_context(context)
                stack.enter_context(transformers_experts.use(model, mesh))
                arguments = (compat.as_torch(ids),)
                state = compat.as_torch(weights)
                out = torch.func.functional_call(
                    model, state, arguments, {"use_cache": False}, tie_weights=True
                )
            return compat.as_jax(out.logits)

        program = jax.jit(forward).lower(weights, ids).compile()
        return Compiled(program, np.asarray(program(weights, ids)))

    return run
