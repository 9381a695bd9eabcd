"""GGUF files, written with the gguf package: its own dequantisation, and transformers' models, are what is expected."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from transformers import AutoModel, AutoModelForCausalLM, LlamaConfig

from tpuport import PortError, compat, compile, generate
from tpuport.checkpoint import load
from tpuport.checkpoint.formats.ggml_blocks import BLOCK_TYPES, quantized_tensor
from tpuport.checkpoint.formats.packed_tensors import in_memory, read_whole
from tpuport.checkpoint.lazy_tensors import Reader
from tpuport.quantization import quantized_weights

# Where a block has numbers in sixteen bits, and about how much each multiplies.
HALVES = {
    "Q4_0": {0: 8}, "Q4_1": {0: 8, 2: 1}, "Q5_0": {0: 16}, "Q5_1": {0: 16, 2: 1}, "Q8_0": {0: 127},
    "Q2_K": {80: 30, 82: 15}, "Q3_K": {108: 90}, "Q4_K": {0: 500, 2: 32}, "Q5_K": {0: 1000, 2: 32},
    "Q6_K": {208: 2000}, "IQ4_NL": {0: 64}, "IQ4_XS": {0: 1000},
}  # fmt: skip
VOCABULARY, HIDDEN, FEED_FORWARD, LAYERS, HEADS, KEY_HEADS = 64, 256, 512, 1, 4, 2
IDS = torch.arange(18).reshape(2, 9) % VOCABULARY


def random_blocks(shape, kind, seed=0):
    """Any bytes are numbers; the factors of a block are small."""
    rng = np.random.default_rng(seed)
    inputs, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // inputs, size), dtype=np.uint8)
    for start, factor in HALVES[kind].items():
        numbers = rng.normal(0, 0.02 / factor, (*blocks.shape[:-1], 1)).astype(np.float16)
        blocks[..., start : start + 2] = numbers.view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


@pytest.mark.parametrize("kind", sorted(BLOCK_TYPES))
def test_numbers_are_those_of_the_library(kind):
    inputs, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    assert (BLOCK_TYPES[kind].inputs, BLOCK_TYPES[kind].block_bytes) == (inputs, size)
    blocks = random_blocks((2, 5, 3 * inputs), kind)
    weight = quantized_tensor(in_memory(blocks), kind, np.dtype(np.float32))
    expected = gguf.dequantize(blocks, GGMLQuantizationType[kind])
    np.testing.assert_array_equal(read_whole(weight), expected)
    np.testing.assert_array_equal(read_whole(weight.multiply_out()), expected)
    index = (slice(1, 2), slice(1, 4), slice(inputs // 2 + 3, 2 * inputs - 5))
    with Reader() as reader:
        some = weight.read(reader, index, weight.dtype)
    np.testing.assert_array_equal(some, expected[index])


class Writer:
    """A file of a small model; weights are of the type that `kinds` has for the last word of their name."""

    def __init__(self, path, architecture, kinds, feed_forward=FEED_FORWARD):
        self.kinds = kinds
        self.feed_forward = feed_forward
        self.file = GGUFWriter(path, architecture)
        self.file.add_block_count(LAYERS)
        self.file.add_context_length(128)
        self.file.add_embedding_length(HIDDEN)
        self.file.add_feed_forward_length(feed_forward)
        self.file.add_head_count(HEADS)
        self.file.add_head_count_kv(KEY_HEADS)
        self.file.add_vocab_size(VOCABULARY)
        self.file.add_tokenizer_model("gpt2")
        self.file.add_token_list([f"t{index}" for index in range(VOCABULARY)])
        self.count = 0

    def add(self, name, *shape):
        self.count += 1
        kind = self.kinds.get(name.split(".")[-1], self.kinds.get("others", "F32"))
        if kind in BLOCK_TYPES:
            blocks = random_blocks(shape, kind, seed=self.count)
            self.file.add_tensor(f"{name}.weight", blocks, raw_dtype=GGMLQuantizationType[kind])
        else:
            numbers = np.random.default_rng(self.count).normal(0, 0.05, shape)
            dtype = np.float16 if kind == "F16" else np.float32
            self.file.add_tensor(f"{name}.weight", numbers.astype(dtype))

    def add_vector(self, name, size, mean=0.0):
        self.count += 1
        numbers = np.random.default_rng(self.count).normal(mean, 0.1, size)
        self.file.add_tensor(name, numbers.astype(np.float32))

    def add_attention(self, layer):
        head = HIDDEN // HEADS
        self.add_vector(f"blk.{layer}.attn_norm.weight", HIDDEN, 1)
        self.add_vector(f"blk.{layer}.ffn_norm.weight", HIDDEN, 1)
        self.add(f"blk.{layer}.attn_q", HIDDEN, HIDDEN)
        self.add(f"blk.{layer}.attn_k", KEY_HEADS * head, HIDDEN)
        self.add(f"blk.{layer}.attn_v", KEY_HEADS * head, HIDDEN)
        self.add(f"blk.{layer}.attn_output", HIDDEN, HIDDEN)

    def add_feed_forward(self, layer):
        self.add(f"blk.{layer}.ffn_gate", self.feed_forward, HIDDEN)
        self.add(f"blk.{layer}.ffn_up", self.feed_forward, HIDDEN)
        self.add(f"blk.{layer}.ffn_down", HIDDEN, self.feed_forward)

    def add_ends(self):
        self.add("token_embd", VOCABULARY, HIDDEN)
        self.add("output", VOCABULARY, HIDDEN)
        self.add_vector("output_norm.weight", HIDDEN, 1)

    def close(self):
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()


@pytest.fixture
def write_llama(tmp_path):
    """A function from types of weights to a directory with a file of a Llama."""

    def write(kinds, rotary_factors=None, feed_forward=FEED_FORWARD, splits=None):
        writer = Writer(tmp_path / "model.gguf", "llama", kinds, feed_forward)
        writer.file.add_layer_norm_rms_eps(1e-5)
        writer.file.add_rope_dimension_count(HIDDEN // HEADS)
        writer.file.add_rope_freq_base(10000.0)
        if splits is not None:
            writer.file.add_uint16("split.count", splits)
        writer.add_ends()
        if rotary_factors is not None:
            writer.file.add_tensor("rope_freqs.weight", rotary_factors)
        for layer in range(LAYERS):
            writer.add_attention(layer)
            writer.add_feed_forward(layer)
        writer.close()
        return tmp_path

    return write


def assert_close(model, expected, prepare=compile):
    """Compare the logits of a model on the device, whose call is `prepare(model)`, with those of one on the host.

    One program is compiled in a third of the time that a hundred operators take, one by one.
    """
    with torch.no_grad():
        reference = expected(IDS).logits
        logits = prepare(model)(compat.wrap(compat.to_jax(IDS)), use_cache=False).logits
    largest = float(reference.abs().max())
    assert 0.1 < largest < 50
    torch.testing.assert_close(compat.to_torch(compat.to_jax(logits)), reference, atol=1e-5 * largest, rtol=0)


def assert_as_transformers(directory, model, prepare=compile):
    expected = AutoModelForCausalLM.from_pretrained(directory, gguf_file="model.gguf").eval()
    assert expected.dtype == torch.float32
    assert_close(model, expected, prepare)
    return expected


# As llama.cpp's Q4_K_M has them.
MIXED = {"others": "Q4_K", "attn_v": "Q6_K", "ffn_down": "Q6_K", "output": "Q6_K"}


@pytest.mark.parametrize("tp", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_llama_is_that_of_transformers(tp, write_llama, mesh_of_size):
    directory = write_llama(MIXED)
    model = load(AutoModelForCausalLM, directory, gguf_file="model.gguf", mesh=mesh_of_size(tp=tp))
    assert_as_transformers(directory, model)
    weights = {name: weight for name, _, _, weight in quantized_weights(model)}
    # Everything but the embedding, which no product reads.
    assert len(weights) == 7 * LAYERS + 1
    assert weights["model.layers.0.self_attn.q_proj.weight"].scheme == "GGUF Q4_K"
    assert weights["model.layers.0.mlp.down_proj.weight"].scheme == "GGUF Q6_K"


@pytest.mark.slow  # the logits above, and generation in ../test_quantized_models.py
def test_a_llama_generates_what_it_does_in_transformers(write_llama, mesh_of_size):
    directory = write_llama(MIXED)
    model = load(AutoModelForCausalLM, directory, gguf_file="model.gguf", mesh=mesh_of_size(tp=2))
    expected = assert_as_transformers(directory, model)
    tokens = generate(model, IDS, max_new_tokens=6, do_sample=False, pad_token_id=0)
    reference = expected.generate(IDS, max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(compat.to_torch(compat.to_jax(tokens)), reference)


# Blocks of each type are read by themselves above; here are one with a table, one without scales.
@pytest.mark.parametrize(
    "kind",
    [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("Q4_0", "Q5_1", "Q8_0")), "IQ4_NL", "F16"],
)
def test_types_of_blocks(kind, write_llama, mesh_of_size):
    directory = write_llama({"others": kind})
    assert_as_transformers(
        directory, load(AutoModelForCausalLM, directory, gguf_file="model.gguf", mesh=mesh_of_size(tp=2))
    )


@pytest.mark.slow  # the Llama on two devices above
def test_factors_that_devices_would_have_to_divide_are_multiplied_out(write_llama, mesh_of_size):
    directory = write_llama({"others": "Q4_K"}, feed_forward=768)
    model = load(AutoModelForCausalLM, directory, gguf_file="model.gguf", mesh=mesh_of_size(tp=2))
    assert_as_transformers(directory, model, prepare=lambda model: model)  # operator by operator, this one
    weights = {name: weight for name, _, _, weight in quantized_weights(model)}
    assert weights["model.layers.0.mlp.down_proj.weight"].outer_scale is None
    assert weights["model.layers.0.mlp.up_proj.weight"].outer_scale is not None


def test_rotary_factors_are_those_of_llama_3(write_llama):
    """As the original checkpoint's config would have them; transformers' reader leaves them out."""
    rope = {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    }  # fmt: skip
    config = LlamaConfig(
        hidden_size=HIDDEN, num_attention_heads=HEADS, rope_parameters=rope, num_hidden_layers=1,
        max_position_embeddings=128,
    )  # fmt: skip
    frequencies = AutoModel.from_config(config).rotary_emb.inv_freq
    plain = 1.0 / 10000.0 ** (torch.arange(0, HIDDEN // HEADS, 2) / (HIDDEN // HEADS))
    factors = (plain / frequencies).numpy()
    assert factors.max() > 7
    directory = write_llama({"others": "Q8_0"}, factors)
    model = load(AutoModelForCausalLM, directory, gguf_file="model.gguf")
    expected = AutoModelForCausalLM.from_pretrained(directory, gguf_file="model.gguf", rope_parameters=rope)
    assert_close(model, expected.eval())


@pytest.mark.parametrize(
    "kinds",
    [pytest.param({"others": "Q4_K"}, marks=pytest.mark.slow), {"others": "Q8_0", "ffn_up_exps": "Q4_0"}],
)
def test_experts(kinds, tmp_path, mesh_of_size):
    # The width that transformers takes for every such file.
    experts, width = 4, 768
    writer = Writer(tmp_path / "model.gguf", "qwen3moe", {**kinds, "ffn_gate_inp": "F32"})
    writer.file.add_layer_norm_rms_eps(1e-6)
    writer.file.add_rope_freq_base(10000.0)
    writer.file.add_key_length(HIDDEN // HEADS)
    writer.file.add_value_length(HIDDEN // HEADS)
    writer.file.add_expert_count(experts)
    writer.file.add_expert_used_count(2)
    writer.file.add_expert_feed_forward_length(width)
    writer.add_ends()
    for layer in range(LAYERS):
        writer.add_attention(layer)
        writer.add_vector(f"blk.{layer}.attn_q_norm.weight", HIDDEN // HEADS, 1)
        writer.add_vector(f"blk.{layer}.attn_k_norm.weight", HIDDEN // HEADS, 1)
        writer.add(f"blk.{layer}.ffn_gate_inp", experts, HIDDEN)
        writer.add(f"blk.{layer}.ffn_gate_exps", experts, width, HIDDEN)
        writer.add(f"blk.{layer}.ffn_up_exps", experts, width, HIDDEN)
        writer.add(f"blk.{layer}.ffn_down_exps", experts, HIDDEN, width)
    writer.close()
    model = load(AutoModelForCausalLM, tmp_path, gguf_file="model.gguf", mesh=mesh_of_size(tp=2))
    assert_as_transformers(tmp_path, model)
    names = {name for name, _, _, _ in quantized_weights(model)}
    assert "model.layers.0.mlp.experts.down_proj" in names
    # Gate and up are one weight here, which needs one type.
    assert ("model.layers.0.mlp.experts.gate_up_proj" in names) == (len(kinds) == 1)


def test_a_file_in_another_architecture(tmp_path, mesh_of_size):
    """GPT-2 has transposed weights; its file has no head of its own."""
    writer = Writer(tmp_path / "model.gguf", "gpt2", {"others": "Q8_0", "token_embd": "F16"})
    writer.file.add_layer_norm_eps(1e-5)
    writer.add("token_embd", VOCABULARY, HIDDEN)
    writer.kinds = {"others": "F32"}
    writer.add("position_embd", 1024, HIDDEN)
    writer.kinds = {"others": "Q8_0"}
    writer.add_vector("output_norm.weight", HIDDEN, 1)
    writer.add_vector("output_norm.bias", HIDDEN)
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_vector(f"blk.{layer}.{norm}.weight", HIDDEN, 1)
            writer.add_vector(f"blk.{layer}.{norm}.bias", HIDDEN)
        sizes = {
            "attn_qkv": (3 * HIDDEN, HIDDEN), "attn_output": (HIDDEN, HIDDEN),
            "ffn_up": (FEED_FORWARD, HIDDEN), "ffn_down": (HIDDEN, FEED_FORWARD),
        }  # fmt: skip
        for name, shape in sizes.items():
            writer.add(f"blk.{layer}.{name}", *shape)
            writer.add_vector(f"blk.{layer}.{name}.bias", shape[0])
    writer.close()
    options = {"n_inner": FEED_FORWARD}
    model = load(AutoModelForCausalLM, tmp_path, gguf_file="model.gguf", mesh=mesh_of_size(tp=2), **options)
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", **options).eval()
    assert_close(model, expected)


def test_other_types_are_refused_by_name(write_llama, monkeypatch):
    directory = write_llama(MIXED)
    monkeypatch.delitem(BLOCK_TYPES, "Q6_K")
    with pytest.raises(PortError, match=r"(?s)blk.0.attn_v.weight: the type Q6_K is not supported.*Q4_K"):
        load(AutoModelForCausalLM, directory, gguf_file="model.gguf")


@pytest.mark.parametrize("kind", ["IQ1_S", "IQ2_XXS", "IQ3_S", "TQ1_0", "TQ2_0"])
def test_types_that_are_not_read_are_refused_by_name(kind, tmp_path):
    writer = Writer(tmp_path / "model.gguf", "llama", {})
    _, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = np.zeros((HIDDEN, size), np.uint8)
    writer.file.add_tensor("blk.0.attn_q.weight", blocks, raw_dtype=GGMLQuantizationType[kind])
    writer.close()
    with pytest.raises(PortError, match=rf"(?s)the type {kind} is not supported.*Q4_K_M"):
        load(AutoModelForCausalLM, tmp_path, gguf_file="model.gguf")


@pytest.mark.parametrize("rows", [HIDDEN, 2 * HIDDEN])
def test_a_weight_of_another_shape_than_the_config_is_named(rows, write_llama, monkeypatch):
    monkeypatch.setattr(Writer, "add_feed_forward", _add_feed_forward_of(rows))
    with pytest.raises(PortError, match=r"model\.layers\.0\.mlp\.(up|down|gate)_proj\.weight") as caught:
        load(AutoModelForCausalLM, write_llama(MIXED), gguf_file="model.gguf")
    assert str([rows, HIDDEN]) in str(caught.value) or str((rows, HIDDEN)) in str(caught.value)


def _add_feed_forward_of(rows):
    def add(writer, layer):
        writer.add(f"blk.{layer}.ffn_gate", rows, HIDDEN)
        writer.add(f"blk.{layer}.ffn_up", FEED_FORWARD + HIDDEN, HIDDEN)
        writer.add(f"blk.{layer}.ffn_down", HIDDEN, FEED_FORWARD)

    return add


def test_an_entry_that_its_config_needs_is_named(tmp_path):
    writer = Writer(tmp_path / "model.gguf", "lfm2", {})
    writer.add_ends()
    writer.close()
    with pytest.raises(PortError, match=r"model\.gguf"):
        load(AutoModelForCausalLM, tmp_path, gguf_file="model.gguf")


@pytest.mark.parametrize("architecture", ["qwen35", "qwen35moe", "gpt-oss"])
def test_architectures_that_are_not_read_are_refused_by_name(architecture, tmp_path):
    writer = Writer(tmp_path / "model.gguf", architecture, {})
    writer.add_ends()
    writer.close()
    with pytest.raises(PortError, match=rf"(?s){architecture}.*safetensors"):
        load(AutoModelForCausalLM, tmp_path, gguf_file="model.gguf")


def test_parts_of_a_checkpoint_are_refused(write_llama):
    with pytest.raises(PortError, match=r"(?s)one of 3 parts.*--merge"):
        load(AutoModelForCausalLM, write_llama(MIXED, splits=3), gguf_file="model.gguf")


@pytest.mark.parametrize("length", [0, 3, 100, 4000, -1, -40000])
def test_a_truncated_file_is_refused(length, write_llama):
    directory = write_llama(MIXED)
    file = directory / "model.gguf"
    content = file.read_bytes()
    file.write_bytes(content[:length])
    with pytest.raises(PortError, match=r"model\.gguf"):
        load(AutoModelForCausalLM, directory, gguf_file="model.gguf")


def test_an_unknown_architecture_is_refused(tmp_path):
    writer = Writer(tmp_path / "model.gguf", "wavtokenizer-dec", {})
    writer.add_ends()
    writer.close()
    with pytest.raises(PortError, match="wavtokenizer-dec is not supported"):
        load(AutoModelForCausalLM, tmp_path, gguf_file="model.gguf")


def test_mistakes_of_users(write_llama, monkeypatch):
    directory = write_llama({"others": "Q8_0"})
    with pytest.raises(PortError, match="no such file"):
        load(AutoModelForCausalLM, directory, gguf_file="other.gguf")
    with pytest.raises(PortError, match="not the name of a file"):
        load(AutoModelForCausalLM, directory, gguf_file="../model.gguf")
    with pytest.raises(PortError, match=r"(?s)a directory.*gguf_file='model.gguf'"):
        load(AutoModelForCausalLM, directory / "model.gguf")
    with pytest.raises(PortError, match=r"(?s)quantised already"):
        load(AutoModelForCausalLM, directory, gguf_file="model.gguf", quantize="int8")
    with pytest.raises(PortError, match="no such option: hiddn"):
        load(AutoModelForCausalLM, directory, gguf_file="model.gguf", hiddn=3)
    with pytest.raises(PortError, match=r"(?s)gguf_file='model.gguf'"):
        load(AutoModelForCausalLM, directory)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PortError, match=r"(?s)needs the gguf package.*tpuport\[gguf\]"):
        load(AutoModelForCausalLM, directory, gguf_file="model.gguf")


@pytest.mark.parametrize("feed_forward", [FEED_FORWARD, 768])
def test_a_program_is_compiled_for_the_parts_that_are_loaded(feed_forward, write_llama, mesh_of_size):
    """`tpuport compile model.gguf`; with 768 inputs two devices would divide three factors."""
    from tpuport.topology.abstract_quantization import abstract_parts
    from tpuport.topology.targets import resolve

    directory = write_llama(MIXED | {"ffn_down": "Q4_K"}, feed_forward=feed_forward)
    mesh = mesh_of_size(tp=2)
    loaded = load(AutoModelForCausalLM, directory, gguf_file="model.gguf", mesh=mesh, dtype="bfloat16")
    target = resolve(str(directory / "model.gguf"), task="decode")[0]
    model = target.build()
    weights = {name: weight for name, _, _, weight in quantized_weights(loaded)}
    assert weights.keys() == {name for name, _, _, _ in quantized_weights(model)}
    shardings = {name: _weight_sharding(loaded, weight, mesh) for name, weight in weights.items()}
    parts = abstract_parts(model, shardings)
    actual = {name: compat.to_jax(part) for name, part in loaded.named_buffers() if "_quantized." in name}
    assert parts.keys() == actual.keys()
    for name, array in actual.items():
        assert (parts[name].shape, parts[name].dtype) == (array.shape, array.dtype), name
        assert parts[name].sharding.is_equivalent_to(array.sharding, array.ndim), name


def _weight_sharding(model, weight, mesh):
    """That of the weight as a whole, [O, K], from its values [G, I, O]."""
    from jax.sharding import NamedSharding, PartitionSpec

    groups, _, outputs = (*compat.to_jax(weight.values).sharding.spec, None, None, None)[:3]
    return NamedSharding(mesh, PartitionSpec(outputs, groups))
