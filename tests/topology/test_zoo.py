"""Bytes a device and collectives of well-known models, by the arithmetic of their configs' own numbers.

Nothing here asks a model: each weight is written down with its shape, and with the axis that Megatron's way of
sharing out gives it. V vocabulary, E width, H query heads, K key/value heads, D head dimension, F feed-forward width,
X experts.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tpuport
from benchmarks import topology
from tpuport.hardware.mesh import create_mesh
from tpuport.topology import abstract_steps, compile_for, described, lower_for
from tpuport.topology.abstract_weights import abstract_weights, build_model, local_nbytes
from tpuport.topology.generation_tasks import Decode, Prefill
from tpuport.topology.reports.known_models import KNOWN
from tpuport.topology.targets import resolve

pytestmark = pytest.mark.filterwarnings("ignore")
RECORDED = json.loads(topology.OUT.read_text())["zoo"]
BF16, F32 = 2, 4


@pytest.fixture(autouse=True, scope="module")
def enabled():
    tpuport.enable()
    yield
    tpuport.disable()


class Bytes(NamedTuple):
    """Of one device."""

    weights: int
    cache: int


class Weights(NamedTuple):
    """Numbers of a model: those that tp shares out, and those that every device has."""

    shared: int
    whole: int


@cache
def config(name: str) -> dict[str, Any]:
    return json.loads((KNOWN / f"{name}.json").read_text())


def attention(raw: Mapping[str, Any]) -> int:
    """q, k, v and o of a layer: [H D, E], twice [K D, E], and [E, H D]; none has a bias."""
    width, heads, shared = raw["hidden_size"], raw["num_attention_heads"], raw["num_key_value_heads"]
    dim = raw.get("head_dim", width // heads)
    return width * dim * (heads + 2 * shared + heads)


def llama(raw: Mapping[str, Any]) -> Weights:
    """Three of [E, F] beside attention; two norms a layer and one at the end; tables before and after."""
    width, layers = raw["hidden_size"], raw["num_hidden_layers"]
    layer = attention(raw) + 3 * width * raw["intermediate_size"]
    return Weights(layers * layer + 2 * raw["vocab_size"] * width, (2 * layers + 1) * width)


def mixtral(raw: Mapping[str, Any]) -> Weights:
    """X experts of three [E, F]; the router [X, E] is whole."""
    width, layers, experts = raw["hidden_size"], raw["num_hidden_layers"], raw["num_local_experts"]
    layer = attention(raw) + experts * 3 * width * raw["intermediate_size"]
    router = experts * width
    return Weights(layers * layer + 2 * raw["vocab_size"] * width, layers * (router + 2 * width) + width)


def qwen3_moe(raw: Mapping[str, Any]) -> Weights:
    """As Mixtral with an expert's own width; queries and keys have a norm of D each, and no layer is dense."""
    assert raw["decoder_sparse_step"] == 1
    assert raw["mlp_only_layers"] == []
    width, layers, experts = raw["hidden_size"], raw["num_hidden_layers"], raw["num_experts"]
    layer = attention(raw) + experts * 3 * width * raw["moe_intermediate_size"]
    small = experts * width + 2 * width + 2 * raw["head_dim"]
    return Weights(layers * layer + 2 * raw["vocab_size"] * width, layers * small + width)


def gemma_3(raw: Mapping[str, Any]) -> Weights:
    """One table for both ends, four norms of E and two of D a layer."""
    assert raw["tie_word_embeddings"]
    width, layers = raw["hidden_size"], raw["num_hidden_layers"]
    layer = attention(raw) + 3 * width * raw["intermediate_size"]
    small = 4 * width + 2 * raw["head_dim"]
    return Weights(layers * layer + raw["vocab_size"] * width, layers * small + width)


FORMULAS = {"llama": llama, "mixtral": mixtral, "qwen3_moe": qwen3_moe, "gemma3_text": gemma_3}
# Rotary frequencies [D / 2] in float32 that transformers keeps twice, Gemma's for either kind of layer, and the number
# that Gemma's embedding is scaled by: buffers, which no checkpoint has.
TABLES = {"llama": 2, "mixtral": 2, "qwen3_moe": 2, "gemma3_text": 4}
NUMBERS = {"gemma3_text": 1}


def positions(raw: Mapping[str, Any], length: int) -> int:
    """Cache positions of all layers: of a layer with a window, no more than that; each `pattern`th has none."""
    layers, window = raw["num_hidden_layers"], raw.get("sliding_window")
    if not window:
        return layers * length
    full = layers // raw["sliding_window_pattern"]
    return full * length + (layers - full) * min(window, length)


def by_hand(raw: Mapping[str, Any], batch: int, length: int, *, dp: int = 1, tp: int = 1) -> Bytes:
    """What a device has of weights, and of keys and values, where everything that tp shares out comes out even."""
    kind, dim = raw["model_type"], raw.get("head_dim", raw["hidden_size"] // raw["num_attention_heads"])
    shared, whole = FORMULAS[kind](raw)
    buffers = TABLES[kind] * dim // 2 * F32 + NUMBERS.get(kind, 0) * BF16
    row = 2 * raw["num_key_value_heads"] // tp * dim * BF16
    kept = batch // dp * row * positions(raw, length)
    assert shared % tp == raw["num_key_value_heads"] % tp == batch % dp == 0
    return Bytes(BF16 * (shared // tp + whole) + buffers, kept)


def entry_by_hand(name: str) -> Bytes:
    """Of an entry of the benchmark's zoo."""
    entry = topology.ZOO[name]
    length = entry.task.length if isinstance(entry.task, Prefill) else entry.task.max_cache_len
    return by_hand(config(entry.model), entry.task.batch, length, **entry.mesh)


# Of a chip, from the same formulas on paper: a change of a formula above does not go unseen.
ON_PAPER = {
    "Mixtral 8x7B decode": Bytes(11_677_999_616, 536_870_912),
    "Qwen3-30B-A3B decode": Bytes(15_285_252_608, 402_653_184),
    "Gemma 3 27B decode": Bytes(6_754_707_970, 771_751_936),
    "Llama-3-70B decode, v5p": Bytes(17_640_735_232, 671_088_640),
}


@pytest.mark.parametrize("name", ON_PAPER)
def test_the_formulas_are_those_on_paper(name: str) -> None:
    assert entry_by_hand(name) == ON_PAPER[name]


@pytest.mark.parametrize("model", sorted({entry.model for entry in topology.ZOO.values()}))
def test_the_formulas_have_every_parameter_that_is_published(model: str) -> None:
    assert sum(FORMULAS[config(model)["model_type"]](config(model))) == config(model)["_parameters"]


def test_every_recorded_figure_is_of_the_zoo() -> None:
    assert set(RECORDED) == set(topology.ZOO)


@pytest.mark.parametrize("name", topology.ZOO)
def test_recorded_bytes_a_chip_equal_the_arithmetic(name: str) -> None:
    memory = RECORDED[name]["memory"]
    assert (memory["weights"], memory["cache"]) == entry_by_hand(name)
    assert RECORDED[name]["parameters"] == config(topology.ZOO[name].model)["_parameters"]


def collectives_by_hand(
    raw: Mapping[str, Any], rows: int, tokens: int, tp: int
) -> dict[str, tuple[int, int]]:
    """How many times, and bytes of their results: two of [B, Q, E] a layer and one for the embedding; and of each row
    the best logit of each device, and its place.

    Args:
        rows: of a device; tokens: of a row.
    """
    layers, hidden = raw["num_hidden_layers"], rows * tokens * raw["hidden_size"] * BF16
    each = (layers, layers * hidden)
    choice = (2, 2 * rows * tp * F32)
    return {"attention": each, "feed-forward": each, "embedding": (1, hidden), "choice": choice}


# By the function that needs the result.
PARTS = (
    (r"\w+Attention\.forward", "attention"),
    (r"\w+(MLP|SparseMoeBlock)\.forward", "feed-forward"),
    (r"\w+(Model|WordEmbedding)\.forward", "embedding"),
    (r"choose(_tokens)?\..*", "choice"),
)


def part(function: str) -> str:
    [found] = [name for pattern, name in PARTS if re.fullmatch(pattern, function)]
    return found


@pytest.mark.parametrize("name", topology.ZOO)
def test_recorded_collectives_are_those_of_megatron(name: str) -> None:
    entry, found = topology.ZOO[name], RECORDED[name]["collectives"]
    rows = entry.task.batch // entry.mesh.get("dp", 1)
    tokens = entry.task.length if isinstance(entry.task, Prefill) else 1
    counted = {part(function): (count, nbytes) for _, _, count, nbytes, function in found}
    assert len(found) == len(counted)
    assert all(axes == ["tp"] for _, axes, *_ in found)
    assert counted == collectives_by_hand(config(entry.model), rows, tokens, entry.mesh["tp"])


# Meshes that divide the heads, the experts and the vocabulary of each.
MESHES = {
    "llama-2-7b": ({"tp": 8}, {"dp": 2, "tp": 4}),
    "llama-3-8b": ({"tp": 8}, {"dp": 4, "tp": 2}),
    "llama-3-70b": ({"tp": 8},),
    "mixtral-8x7b": ({"tp": 8}, {"dp": 2, "tp": 4}),
    "qwen3-30b-a3b": ({"dp": 2, "tp": 4}, {"dp": 4, "tp": 2}),
    "gemma-3-27b": ({"tp": 8}, {"dp": 2, "tp": 4}),
}


# Of the models whose weights are a Llama's, one; its largest mesh is that of the others too.
LIKE_ANOTHER = ("llama-2-7b", "llama-3-70b")


@pytest.mark.parametrize(
    "model",
    [pytest.param(name, marks=[pytest.mark.slow] if name in LIKE_ANOTHER else []) for name in MESHES],
)
def test_weights_of_the_whole_model_equal_the_arithmetic(model: str) -> None:
    [target] = resolve(model, task="decode", dtype="bfloat16")
    owner, devices = build_model(target.build), described("v6e:2x4").devices
    for sizes in MESHES[model]:
        mesh = create_mesh(**{"dp": 1, "sp": 1, **sizes}, devices=devices)
        found = abstract_weights(owner, mesh, None, None, ())
        assert sum(map(local_nbytes, found.values())) == by_hand(config(model), 8, 64, **sizes).weights


def shortened(model: str, layers: int, directory: Path) -> dict[str, Any]:
    """The config with fewer layers, written into the directory."""
    raw = {key: value for key, value in config(model).items() if not key.startswith("_")}
    raw["num_hidden_layers"] = layers
    (directory / "config.json").write_text(json.dumps(raw))
    return raw


@pytest.mark.parametrize(
    ("model", "layers", "length"),
    [
        ("llama-3-8b", 2, 512), ("mixtral-8x7b", 2, 512), ("qwen3-30b-a3b", 2, 512),
        # Of seven layers one attends to everything and six to a window, longer than the cache or shorter.
        *(pytest.param("gemma-3-27b", 7, length, marks=pytest.mark.slow) for length in (512, 4096)),
    ],
)  # fmt: skip
def test_the_cache_of_a_few_layers_equals_the_arithmetic(
    model: str, layers: int, length: int, tmp_path: Path
) -> None:
    raw = shortened(model, layers, tmp_path)
    mesh = create_mesh(2, 1, 4, devices=described("v6e:2x4").devices)
    [target] = resolve(str(tmp_path), task="decode", batch=4, max_cache_len=length)
    owner = build_model(target.build)
    assert isinstance(target.inputs, Decode)
    weights = abstract_weights(owner, mesh, None, None, ())
    kept = abstract_steps.decode(owner, target.inputs, weights, mesh).cache
    assert sum(map(local_nbytes, kept)) == by_hand(raw, 4, length, dp=2, tp=4).cache


@pytest.mark.slow
@pytest.mark.parametrize("name", topology.ZOO)
def test_lowered_bytes_a_chip_equal_the_arithmetic(name: str) -> None:
    entry = topology.ZOO[name]
    task = "prefill" if isinstance(entry.task, Prefill) else "decode"
    [target] = resolve(entry.model, task=task, dtype="bfloat16")
    lowered = lower_for(target.build, entry.task, topology=entry.topology, **entry.mesh)
    weights = sum(map(local_nbytes, lowered.weights.values()))
    assert Bytes(weights, sum(map(local_nbytes, lowered.step.cache))) == entry_by_hand(name)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "layers"), [("mixtral-8x7b", 2), ("qwen3-30b-a3b", 2), ("gemma-3-27b", 7)])
def test_compiled_layers_have_the_bytes_and_collectives_of_the_arithmetic(
    model: str, layers: int, tmp_path: Path
) -> None:
    raw = shortened(model, layers, tmp_path)
    [target] = resolve(str(tmp_path), task="decode", batch=8, max_cache_len=2048)
    report = compile_for(target.build, target.inputs, topology="v6e:2x4", dp=2, tp=4, effort=-1.0)
    assert Bytes(report.memory.weights, report.memory.cache) == by_hand(raw, 8, 2048, dp=2, tp=4)
    counted = {
        part(collective.source.function): (collective.count, collective.nbytes)
        for collective in report.collectives
        if collective.source
    }
    assert len(counted) == len(report.collectives)
    assert counted == collectives_by_hand(raw, 4, 1, 4)
