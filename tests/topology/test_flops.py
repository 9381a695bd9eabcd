"""FLOPs that a model has, as it was traced, against those that its program has: nothing is done twice, nor left out.

The two are counted apart: one in the traced function, over all devices, the other in what the compiler made of it for
one. A program has at least what its model has, and not much more where no device repeats another's work.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import DiTTransformer2DModel
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

import tpuport
from tpuport.topology import Prefill, compile_for
from tpuport.topology.targets.target import empty

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SLACK = 1.02
WIDTH, HEADS, LAYERS, VOCABULARY, LENGTH = 512, 8, 2, 1536, 256
SHAPE = {
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048, "intermediate_size": 1024,
}  # fmt: skip
DECODER = SHAPE | {"num_key_value_heads": HEADS}
PROMPT = Prefill(4, LENGTH)


@pytest.fixture(autouse=True, scope="module")
def enabled():
    tpuport.enable()
    yield
    tpuport.disable()


def mixtral() -> torch.nn.Module:
    return MixtralForCausalLM(MixtralConfig(**DECODER, num_local_experts=8, num_experts_per_tok=2))


def qwen() -> torch.nn.Module:
    own = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256, "head_dim": 64}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**DECODER, **own))


def dit() -> torch.nn.Module:
    shape = {"num_attention_heads": 4, "attention_head_dim": 64, "num_layers": 2, "sample_size": 32}
    return DiTTransformer2DModel(**shape)


LATENTS = {
    "hidden_states": empty(4, 4, 32, 32), "timestep": empty(4, dtype=torch.int64),
    "class_labels": empty(4, dtype=torch.int64),
}  # fmt: skip
MODELS: dict[str, tuple[Callable[[], torch.nn.Module], Any]] = {
    "llama": (lambda: LlamaForCausalLM(LlamaConfig(**DECODER)), PROMPT),
    "mistral": (lambda: MistralForCausalLM(MistralConfig(**DECODER, sliding_window=64)), Prefill(2, 1024)),
    "mixtral": (mixtral, PROMPT),
    "qwen3_moe": (qwen, PROMPT),
    "bert": (lambda: BertModel(BertConfig(**SHAPE)), {"input_ids": empty(4, LENGTH, dtype=torch.int64)}),
    "dit": (dit, LATENTS),
}


def layers(experts: int, inner: int) -> int:
    """FLOPs of the layers of a prompt without its attention, and of the last position's logits, on all devices."""
    tokens, router = 4 * LENGTH, {2: 8, 4: 16}[experts]
    attention, own = 4 * WIDTH * WIDTH, experts * 3 * WIDTH * inner + router * WIDTH
    combined = experts * WIDTH  # a token's experts, weighted and added
    return 2 * tokens * LAYERS * (attention + own + combined) + 2 * 4 * WIDTH * VOCABULARY


@pytest.mark.parametrize("name", MODELS)
def test_a_program_on_one_device_does_what_its_model_has(name: str) -> None:
    build, inputs = MODELS[name]
    costs = compile_for(build, inputs, topology="v5e:1x1", dtype="bfloat16").costs
    assert costs.model_flops <= costs.product_flops * SLACK
    assert costs.product_flops <= costs.model_flops * SLACK
    assert costs.expanded_flops == 0


@pytest.mark.parametrize(("dp", "tp"), [(1, 4), (1, 8), (2, 4)])
@pytest.mark.parametrize(("name", "experts", "inner"), [("mixtral", 2, 1024), ("qwen3_moe", 4, 256)])
def test_experts_that_are_shared_out_do_what_tokens_choose(name, experts, inner, dp, tp) -> None:
    """By hand, of a device; but for the router and the sum over a token's experts, which every device of tp has."""
    devices = dp * tp
    topology = {4: "v5e:2x2", 8: "v5e:2x4"}[devices]
    build, inputs = MODELS[name]
    report = compile_for(build, inputs, topology=topology, dp=dp, tp=tp, dtype="bfloat16")
    costs, flash = report.costs, 4 * LAYERS * 4 * LENGTH**2 * WIDTH / devices
    assert costs.model_flops == pytest.approx(layers(experts, inner) / devices + flash, rel=0.02)
    assert costs.model_flops <= costs.product_flops * SLACK
    assert costs.product_flops <= costs.model_flops * 1.03
    [kernel] = [one for one in costs.kernels if one.name == "ragged-dot-none"]
    assert kernel.flops == 2 * 4 * LENGTH * LAYERS * experts * 3 * WIDTH * inner / devices
    assert "TPC015" not in {finding.rule for finding in report.advice}


def test_a_token_is_multiplied_by_all_experts_of_its_device() -> None:
    """The compiler has it so where rows are few; it is no work that sharding has doubled."""
    from tpuport.topology import Decode

    costs = compile_for(mixtral, Decode(1, LENGTH), topology="v5e:2x4", tp=8, dtype="bfloat16").costs
    rows = 2 * LAYERS * 3 * WIDTH * 1024  # of one choice
    assert costs.expanded_flops == 2 * rows * (1 - 1 / 8)
    assert costs.product_flops - costs.expanded_flops <= costs.model_flops * SLACK


def test_attention_that_is_written_out_has_its_products() -> None:
    """The compiler makes softmax and the product after it one kernel; both products are counted once."""

    class Attention(torch.nn.Module):
        def forward(self, q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            scores = torch.einsum("bhqd,bhkd->bhqk", q, q) / 8
            return torch.einsum("bhqk,bhkd->bhqd", scores.masked_fill(~mask, float("-inf")).softmax(-1), q)

    inputs = {"q": empty(8, 8, 1024, 64), "mask": empty(1024, 1024, dtype=torch.bool)}
    costs = compile_for(Attention, inputs, topology="v5e:1x1").costs
    assert [kernel.name for kernel in costs.kernels] == ["online-softmax"]
    assert costs.product_flops == costs.model_flops == 2 * 2 * 8 * 8 * 1024**2 * 64
    assert costs.flops >= costs.model_flops
