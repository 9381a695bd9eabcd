"""Small models and programs, compiled for the four devices of the smallest v6e, and what the rules say of them."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec
from transformers import LlamaConfig, LlamaForCausalLM, PretrainedConfig

import tpuport
from tpuport.sharding import ShardingRules
from tpuport.topology import compile_for, described
from tpuport.topology.abstract_steps import Step
from tpuport.topology.advice import CacheArray, Evidence, advise
from tpuport.topology.compiling import compile_lowered
from tpuport.topology.hlo import parse
from tpuport.topology.lowering import Lowered

VOCABULARY, WIDTH, INNER = 8192, 512, 2048


class Block(torch.nn.Module):
    """A norm and two products, added to what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, INNER, bias=False)
        self.down = torch.nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))


class Blocks(torch.nn.Module):
    """Tokens [B, L] to the likeliest next token of the last position, or of all of them."""

    def __init__(self, layers: int = 2, rows: int = VOCABULARY) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(rows, WIDTH)
        self.layers = torch.nn.ModuleList(Block() for _ in range(layers))
        self.head = torch.nn.Linear(WIDTH, rows, bias=False)

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head

    def forward(self, tokens: torch.Tensor, **scales: Any) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        for scale in scales.values():
            x = x * scale
        return self.head(x[:, -1:]).argmax(-1)


class Attending(torch.nn.Module):
    """Attention of `heads` over x [B, L, heads * dim] with projections of its own; `kv` heads of keys and values."""

    def __init__(self, heads: int = 4, dim: int = 128, kv: int | None = None) -> None:
        super().__init__()
        self.heads, self.kv, self.dim = heads, kv or heads, dim
        width = heads * dim
        self.q = torch.nn.Linear(width, heads * dim, bias=False)
        self.k = torch.nn.Linear(width, self.kv * dim, bias=False)
        self.v = torch.nn.Linear(width, self.kv * dim, bias=False)
        self.o = torch.nn.Linear(heads * dim, width, bias=False)

    def heads_of(self, x: torch.Tensor, count: int) -> torch.Tensor:
        return x.unflatten(2, (count, self.dim)).transpose(1, 2)

    def attend(self, q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, enable_gqa=self.kv < self.heads
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (
            self.heads_of(w(x), n) for w, n in ((self.q, self.heads), (self.k, self.kv), (self.v, self.kv))
        )
        return self.o(self.attend(q, k, v, mask).transpose(1, 2).flatten(2))


# Megatron's sharding of both.
BLOCKS = {
    r"(embed|head)\.weight": PartitionSpec("tp", None),
    r"layers\.\d+\.up\.weight": PartitionSpec("tp", None),
    r"layers\.\d+\.down\.weight": PartitionSpec(None, "tp"),
}
ATTENDING = {r"[qkv]\.weight": PartitionSpec("tp", None), r"o\.weight": PartitionSpec(None, "tp")}


def rules(base: dict[str, PartitionSpec], **changes: PartitionSpec) -> ShardingRules:
    """Rules in which the weight called `name.weight` has another spec."""
    return ShardingRules({rf".*{name}\.weight": spec for name, spec in changes.items()} | base)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def tokens(*shape: int) -> torch.Tensor:
    return meta(*shape, dtype=torch.int32)


@pytest.fixture(scope="session")
def advice() -> Callable[..., tuple[Any, ...]]:
    """Compile a model as `compile_for` does, in bfloat16 with tp=4 unless told otherwise; what the rules found."""

    def found(model: Any, inputs: Any, **options: Any) -> tuple[Any, ...]:
        if not options.keys() & {"dp", "sp", "tp"}:
            options["tp"] = 4
        return compile_for(model, inputs, topology="v6e", **{"dtype": "bfloat16"} | options).advice

    return found


@pytest.fixture(scope="session")
def llama_config() -> PretrainedConfig:
    """A Llama of two layers, large enough for the rules to look at its weights."""
    return LlamaConfig(
        hidden_size=512, intermediate_size=2048, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=8192, max_position_embeddings=1024,
    )  # fmt: skip


@pytest.fixture(scope="session")
def llama(llama_config: PretrainedConfig) -> Callable[[], torch.nn.Module]:
    """Builds that Llama."""
    return lambda: LlamaForCausalLM(llama_config)


class Programs:
    """Compiles functions of weights and arguments for the mesh, and says what the rules find."""

    def __init__(self, **axes: int) -> None:
        self.mesh = tpuport.create_mesh(devices=described("v6e").devices, **axes)

    def array(self, shape: Sequence[int], *spec: Any, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            tuple(shape), dtype, sharding=NamedSharding(self.mesh, PartitionSpec(*spec))
        )

    def evidence(
        self,
        function: Callable,
        *arguments: Any,
        cache: tuple[jax.ShapeDtypeStruct, ...] = (),
        donated: tuple[int, ...] = (),
        task: str = "forward",
        inputs: dict[str, Any] | None = None,
        model: torch.nn.Module | None = None,
        compiled: bool = True,
    ) -> Evidence:
        """Evidence for a function whose first argument is its weights by name."""
        traced = jax.jit(function, donate_argnums=donated).trace(*arguments)
        lowered = Lowered(
            topology="v6e:2x2", generation="v6e", mesh=self.mesh, model=model or torch.nn.Module(), task=task,
            inputs=inputs or {}, step=Step(function, arguments, donated, cache, bool(cache)),
            weights=arguments[0], jaxpr=traced.jaxpr, stage=traced.lower(lowering_platforms=("tpu",)),
            attention=(), scanned=(), unit=("steps", 1.0), seconds=0.0,
        )  # fmt: skip
        made = compile_lowered(lowered)
        held = tuple(CacheArray(tuple(x.shape), str(x.dtype), x.sharding, bool(donated)) for x in cache)
        return Evidence(
            report=made, program=parse(made.program.as_text()) if compiled else None, weights=lowered.weights,
            mesh=self.mesh, model=lowered.model, jaxpr=lowered.jaxpr, cache=held, inputs=lowered.inputs,
        )  # fmt: skip

    def found(self, *arguments: Any, **options: Any) -> list[str]:
        """Ids of the findings."""
        return ids(advise(self.evidence(*arguments, **options)))


@pytest.fixture(scope="session")
def programs() -> type[Programs]:
    return Programs


@pytest.fixture(scope="session")
def models() -> SimpleNamespace:
    """The models, their rules, and what makes their inputs."""
    return SimpleNamespace(
        Block=Block, Blocks=Blocks, Attending=Attending, BLOCKS=BLOCKS, ATTENDING=ATTENDING, WIDTH=WIDTH,
        rules=rules, meta=meta, tokens=tokens,
    )  # fmt: skip


def ids(findings: Sequence[Any]) -> list[str]:
    return [finding.rule for finding in findings]
