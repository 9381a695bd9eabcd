"""Further cases of `benchmarks.abuse`: weights in few bits, GGUF files, and models of diffusers."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import torch
from diffusers import LTXVideoTransformer3DModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import tpuport
from benchmarks.abuse_cases import CONFIG, ODD_SIZES, QUERY, WEIGHTS, Case, Change, in_json, replace

FILE: Final = "model.gguf"
DIFFUSERS_WEIGHTS: Final = "diffusion_pytorch_model.safetensors"
SCALE: Final = QUERY + "_scale"
_SCHEME: Final = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}


def quantise(directory: Path) -> None:
    """Make the linear layers of the Llama eight bits, as compressed-tensors stores them."""
    tensors = load_file(directory / WEIGHTS)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        scale = tensors[name].abs().amax(1, keepdim=True) / 127
        tensors[name] = (tensors[name] / scale).round().to(torch.int8)
        tensors[f"{name}_scale"] = scale
    save_file(tensors, directory / WEIGHTS, {"format": "pt"})
    _set_quantisation(directory, {})


def _set_quantisation(directory: Path, scheme: dict[str, Any], **fields: Any) -> None:
    group = {"targets": ["Linear"], "weights": _SCHEME | scheme}
    quantisation = {
        "quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }  # fmt: skip
    in_json(CONFIG, quantization_config=quantisation | fields)(directory)


def _in_tensors(edit: Callable[[dict[str, torch.Tensor]], Any]) -> Change:
    def change(directory: Path) -> None:
        tensors = load_file(directory / WEIGHTS)
        edit(tensors)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / WEIGHTS)

    return change


def _quantised_cases() -> Iterator[Case]:
    case = functools.partial(Case, base="quantised")
    odd = (None, -1, 0, 1.5, "8", [], {}, 10**15, True)
    schemes: dict[str, tuple[Any, ...]] = {
        "num_bits": (*odd, 9, 64),
        "type": (*odd, "unknown", "float"),
        "strategy": (*odd, "unknown", "group", "block", "tensor"),
        "symmetric": ("x", [], 3),
    }
    # What they say when they are absent, or true.
    harmless = {
        ("num_bits", None),
        ("type", None),
        ("strategy", None),
        ("strategy", "group"),
        ("symmetric", "x"),
        ("symmetric", 3),
    }
    for field, values in schemes.items():
        for value in values:
            may_load = isinstance(value, str | int | None) and (field, value) in harmless
            change = functools.partial(_set_quantisation, scheme={field: value})
            yield case(f"quantised: weights' {field} {value!r}", change, (CONFIG,), may_load)
    fields: dict[str, tuple[Any, ...]] = {
        "quant_method": (*odd, "unknown", "gptq", "awq", "fp8", "bitsandbytes", "torchao", "mxfp4"),
        "format": (*odd, "unknown", "pack-quantized", "float-quantized"),
        "config_groups": (
            *odd,
            "x",
            {"group_0": None},
            {"group_0": 3},
            {"group_0": {}},
            {"group_0": {"weights": 3}},
        ),
        "ignore": (3, 1.5, {"x": 1}, [3]),
        "sparsity_config": (3, "x", [1]),
        "kv_cache_scheme": (3, "x"),
    }
    # Names of layers that are kept, and what concerns other things than these weights.
    others = {"ignore", "sparsity_config", "kv_cache_scheme", "format"}
    for field, values in fields.items():
        for value in values:
            change = functools.partial(_set_quantisation, scheme={}, **{field: value})
            yield case(f"quantised: {field} {value!r:.60}", change, (CONFIG,), field in others)
    tensors: dict[str, Callable[[dict[str, torch.Tensor]], Any]] = {
        "no scale": lambda tensors: tensors.pop(SCALE),
        "no values": lambda tensors: tensors.pop(QUERY),
        "a scale for nothing": lambda tensors: tensors.update({"model.norm.weight_scale": torch.ones(32)}),
        "integer scales": lambda tensors: tensors.update({SCALE: tensors[SCALE].to(torch.int32)}),
        "scales in five bytes": lambda tensors: tensors.update({SCALE: torch.ones(5, dtype=torch.uint8)}),
        "fewer scales": lambda tensors: tensors.update({SCALE: tensors[SCALE][:-1]}),
        "no scales at all": lambda tensors: tensors.update({SCALE: torch.ones(0, 1)}),
        "scales of inputs": lambda tensors: tensors.update({SCALE: tensors[SCALE].T}),
        "values of three dimensions": lambda tensors: tensors.update({QUERY: tensors[QUERY][None]}),
        "fewer outputs": lambda tensors: tensors.update({QUERY: tensors[QUERY][:-1]}),
        "fewer inputs": lambda tensors: tensors.update({QUERY: tensors[QUERY][:, :-1]}),
        "values as int16": lambda tensors: tensors.update({QUERY: tensors[QUERY].to(torch.int16)}),
        "values as bool": lambda tensors: tensors.update({QUERY: tensors[QUERY].to(torch.bool)}),
        "values as uint8": lambda tensors: tensors.update({QUERY: tensors[QUERY].to(torch.uint8)}),
        "values as complex": lambda tensors: tensors.update({QUERY: tensors[QUERY].to(torch.complex64)}),
        "a zero point of another shape": lambda tensors: tensors.update(
            {QUERY + "_zero_point": torch.zeros(3, dtype=torch.int8)}
        ),
        "an order of inputs": lambda tensors: tensors.update({QUERY + "_g_idx": torch.full((32,), 7)}),
    }
    for name, edit in tensors.items():
        words = ("model.norm",) if name == "a scale for nothing" else ("self_attn.q_proj",)
        yield case(f"quantised: {name}", _in_tensors(edit), words)


def write_gguf(directory: Path, changes: dict[str, Any] | None = None, skip: str = "") -> None:
    """A Llama with one layer, whose metadata `changes` replaces; `skip` is a key that is left out."""
    hidden, heads, vocabulary = 32, 4, 64
    metadata: dict[str, Any] = {
        "llama.block_count": 1, "llama.context_length": 64, "llama.embedding_length": hidden,
        "llama.feed_forward_length": 64, "llama.attention.head_count": heads, "llama.attention.head_count_kv": heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.dimension_count": hidden // heads,
        "llama.rope.freq_base": 1e4, "llama.vocab_size": vocabulary, "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [f"t{number}" for number in range(vocabulary)],
    }  # fmt: skip
    metadata |= changes or {}
    metadata.pop(skip, None)
    architecture = metadata.pop("general.architecture", "llama")
    writer = gguf.GGUFWriter(directory / FILE, architecture)
    for key, value in metadata.items():
        writer.add_key_value(key, value, _kind(value))
    shapes = {"attn_q": (hidden, hidden), "attn_k": (hidden, hidden), "attn_v": (hidden, hidden)}
    shapes |= {"attn_output": (hidden, hidden), "ffn_gate": (64, hidden), "ffn_up": (64, hidden)}
    shapes |= {"ffn_down": (hidden, 64), "attn_norm": (hidden,), "ffn_norm": (hidden,)}
    names = {f"blk.0.{name}.weight": shape for name, shape in shapes.items()}
    names |= {"token_embd.weight": (vocabulary, hidden), "output.weight": (vocabulary, hidden)}
    names["output_norm.weight"] = (hidden,)
    for name, shape in names.items():
        writer.add_tensor(name, np.full(shape, 0.01, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _kind(value: Any) -> gguf.GGUFValueType:
    if isinstance(value, bool):
        return gguf.GGUFValueType.BOOL
    if isinstance(value, int):
        return gguf.GGUFValueType.INT64 if value < 0 or value >= 1 << 32 else gguf.GGUFValueType.UINT32
    return gguf.GGUFValueType.get_type(value)


def _rewritten(**options: Any) -> Change:
    def change(directory: Path) -> None:
        (directory / FILE).unlink()
        write_gguf(directory, **options)

    return change


def _in_bytes(edit: Callable[[bytes], bytes]) -> Change:
    def change(directory: Path) -> None:
        path = directory / FILE
        path.write_bytes(edit(path.read_bytes()))

    return change


def _gguf_cases() -> Iterator[Case]:
    case = functools.partial(Case, words=(FILE,), base="gguf")
    odd: tuple[Any, ...] = (-1, 0, 3, 10**15, 1.5, "32", True, [32], ["x"])
    sizes = ("block_count", "embedding_length", "feed_forward_length", "attention.head_count")
    # How many tokens a model is meant for changes nothing in a forward pass; a vocabulary is that of the tokens.
    harmless = ("context_length", "vocab_size")
    for key in (*sizes, "attention.head_count_kv", *harmless, "rope.dimension_count"):
        for value in odd:
            # A list of one number is that number.
            may_load = key in harmless or (key, value) == ("embedding_length", [32])
            name = f"GGUF: {key} {value!r}"
            yield case(name, _rewritten(changes={f"llama.{key}": value}), may_load=may_load)
        may_load = key not in sizes
        yield case(f"GGUF: no {key}", _rewritten(skip=f"llama.{key}"), may_load=may_load)
    numbers = {"attention.layer_norm_rms_epsilon": True, "rope.freq_base": False}
    for key, may_be_zero in numbers.items():
        for value in (-1.0, 0.0, float("nan"), float("inf"), "x", [1.0], True):
            # A list of one number is that number, and true is one.
            may_load = (may_be_zero and value == 0) or value in ([1.0], True)
            yield case(
                f"GGUF: {key} {value!r}", _rewritten(changes={f"llama.{key}": value}), may_load=may_load
            )
    for value in (3, "", "unknown", "gpt2", "clip", "mamba", "l" * 10_000):
        yield case(
            f"GGUF: architecture {value!r:.30}", _rewritten(changes={"general.architecture": str(value)})
        )
    tokens: tuple[Any, ...] = (3, "x", [1, 2], ["one"])
    for value in tokens:
        # The tokenizer is another file's matter where the vocabulary has its own size.
        yield case(
            f"GGUF: tokens {value!r}", _rewritten(changes={"tokenizer.ggml.tokens": value}), may_load=True
        )
    edits: dict[str, Callable[[bytes], bytes]] = {
        "empty": lambda _: b"",
        "only the magic": lambda file: file[:4],
        "another magic": lambda file: b"GGML" + file[4:],
        "version 0": lambda file: file[:4] + bytes(4) + file[8:],
        "version 99": lambda file: file[:4] + b"\x63\0\0\0" + file[8:],
        "of the other byte order": lambda file: file[:4] + file[4:8][::-1] + file[8:],
        "no tensors": lambda file: file[:8] + bytes(8) + file[16:],
        "2^60 tensors": lambda file: file[:8] + (1 << 60).to_bytes(8, "little") + file[16:],
        "2^60 keys": lambda file: file[:16] + (1 << 60).to_bytes(8, "little") + file[24:],
        "a key of 2^60 bytes": lambda file: file[:24] + (1 << 60).to_bytes(8, "little") + file[32:],
        "a key that is not UTF-8": lambda file: file[:32] + b"\xff\xfe" + file[34:],
        "an unknown kind of value": lambda file: _replace_once(file, b"block_count\x04", b"block_count\x63"),
        "2^56 tokens": lambda file: _replace_once(
            file, b"\x08\0\0\0\x40" + bytes(7), b"\x08\0\0\0" + bytes(7) + b"\1"
        ),
        "cut in the header": lambda file: file[:200],
        "cut in the tensors": lambda file: file[:-1000],
        "a tensor twice": lambda file: _replace_once(file, b"blk.0.attn_k.weight", b"blk.0.attn_q.weight"),
        "a tensor of another name": lambda file: _replace_once(
            file, b"blk.0.attn_k.weight", b"blk.0.attn_x.weight"
        ),
        "a tensor of a further layer": lambda file: _replace_once(
            file, b"blk.0.attn_k.weight", b"blk.7.attn_k.weight"
        ),
        "zeros": lambda file: bytes(len(file)),
    }
    for name, edit in edits.items():
        yield case(f"GGUF: {name}", _in_bytes(edit))


def _replace_once(file: bytes, old: bytes, new: bytes) -> bytes:
    assert old in file
    return file.replace(old, new, 1)


def write_diffusers(directory: Path) -> None:
    """A video transformer with one block."""
    model: Any = LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, num_attention_heads=2, attention_head_dim=16, cross_attention_dim=32,
        num_layers=1, caption_channels=6,
    )  # fmt: skip
    model.save_pretrained(directory)


def _diffusers_cases() -> Iterator[Case]:
    case = functools.partial(Case, words=(CONFIG,), base="diffusers")
    sizes = (
        "in_channels", "out_channels", "num_attention_heads", "attention_head_dim", "cross_attention_dim", "num_layers",
        "caption_channels",
    )  # fmt: skip
    for field in sizes:
        for name, value in ODD_SIZES.items():
            # What is nothing stands for a default in these; true is one layer.
            may_load = field in ("out_channels", "cross_attention_dim") and not value
            may_load |= (field, value) == ("num_layers", True)
            yield case(f"diffusers: {field} {name}", in_json(CONFIG, **{field: value}), may_load=may_load)
    fields: dict[str, tuple[Any, ...]] = {
        "_class_name": (None, 3, [], "", "unknown", "FluxTransformer2DModel", "AutoencoderKL"),
        "activation_fn": (None, 3, "unknown", []),
        "qk_norm": (3, "unknown", []),
        "norm_eps": ("x", None, [], -1.0, float("nan")),
        "patch_size": (0, -1, "x", 3, None),
        "attention_bias": ("x", None, 3),
        "quantization_config": (3, "x", [1], {"quant_method": "unknown"}, {"x": 1}),
        "unknown_field": (3,),
        "_diffusers_version": (None, 3, []),
    }
    # An epsilon of null is torch's default.
    harmless = ("_class_name", "unknown_field", "_diffusers_version", "patch_size", "attention_bias")
    for field, values in fields.items():
        for value in values:
            name = f"diffusers: {field} {value!r:.60}"
            yield case(
                name,
                in_json(CONFIG, **{field: value}),
                may_load=field in harmless or (field, value) == ("norm_eps", None),
            )
    texts = {
        "empty": b"", "not JSON": b"{", "a list": b"[]", "null": b"null", "not UTF-8": b'{"_class_name": "\xff"}',
        "deep": b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    }  # fmt: skip
    for name, content in texts.items():
        yield case(f"diffusers: config {name}", replace(CONFIG, content))
    for name, content in {"empty": b"", "zeros": bytes(1000), "not a header": b"\xff" * 100}.items():
        yield case(
            f"diffusers: weights {name}", replace(DIFFUSERS_WEIGHTS, content), words=(DIFFUSERS_WEIGHTS,)
        )
    yield case("diffusers: weights of another model", _write_others, words=("proj_in",))


def _write_others(directory: Path) -> None:
    save_file({"x": torch.ones(3)}, directory / DIFFUSERS_WEIGHTS)


def load(base: str, directory: Path) -> Any:
    """Load the checkpoint of a case, as its kind is loaded."""
    match base:
        case "gguf":
            return tpuport.load(AutoModelForCausalLM, directory, gguf_file=FILE)
        case "diffusers":
            return tpuport.load(LTXVideoTransformer3DModel, directory)
    return tpuport.load(AutoModelForCausalLM, directory)


FORMAT_CASES: Final = (*_quantised_cases(), *_gguf_cases(), *_diffusers_cases())
