"""The cases of `benchmarks.abuse`: changes to a checkpoint, and what the error must name."""

import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

Change = Callable[[Path], None]
WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
CONFIG: Final = "config.json"
GENERATION: Final = "generation_config.json"
NORM: Final = "model.norm.weight"
QUERY: Final = "model.layers.0.self_attn.q_proj.weight"
# The alphabet of what can stand where a size should.
ODD_SIZES: Final = {
    "negative": -1, "zero": 0, "string": "32", "fraction": 1.5, "null": None, "list": [32], "object": {}, "true": True,
    "huge": 10**15,
}  # fmt: skip
SIZES: Final = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim",
)  # fmt: skip


class Case(NamedTuple):
    """A change, and the words that an error about it must have.

    Attributes:
        may_load: whether a model is a right answer too, because nothing is wrong with the weights.
        base: what is changed: the Llama, the same "quantised", a "gguf" file, or a model of "diffusers".
    """

    name: str
    change: Change
    words: tuple[str, ...] = ()
    may_load: bool = False
    base: str = "llama"


def read_file(directory: Path) -> tuple[dict[str, Any], bytes]:
    """The header of the weights, and the numbers behind it."""
    content = (directory / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write_file(directory: Path, header: bytes, numbers: bytes, length: int | None = None) -> None:
    size = len(header) if length is None else length
    (directory / WEIGHTS).write_bytes(struct.pack("<Q", size) + header + numbers)


def in_header(edit: Callable[[dict[str, Any]], Any]) -> Change:
    """A change of the header as an object; what `edit` returns takes its place, unless that is None."""

    def change(directory: Path) -> None:
        header, numbers = read_file(directory)
        result = edit(header)
        write_file(directory, json.dumps(header if result is None else result).encode(), numbers)

    return change


def in_entry(field: str, value: Any, name: str = QUERY) -> Change:
    return in_header(lambda header: header[name].__setitem__(field, value))


def header_text(edit: Callable[[bytes], bytes]) -> Change:
    """A change of the header as it is written."""

    def change(directory: Path) -> None:
        header, numbers = read_file(directory)
        write_file(directory, edit(json.dumps(header).encode()), numbers)

    return change


def replace(name: str, content: bytes) -> Change:
    def change(directory: Path) -> None:
        (directory / name).write_bytes(content)

    return change


def in_json(name: str, **fields: Any) -> Change:
    """A change of fields of an object in a file."""

    def change(directory: Path) -> None:
        path = directory / name
        raw = json.loads(path.read_text())
        path.write_text(json.dumps(raw | fields))

    return change


def in_place_of(name: str, make: Callable[[Path], Any]) -> Change:
    """Something else than a file in the place of one."""

    def change(directory: Path) -> None:
        (directory / name).unlink()
        make(directory / name)

    return change


def sharded(edit: Callable[[dict[str, Any], Path], Any]) -> Change:
    """The weights in two files and an index, which `edit` changes as an object."""

    def change(directory: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(directory / WEIGHTS)
        names = sorted(tensors)
        halves = {"model-00001.safetensors": names[::2], "model-00002.safetensors": names[1::2]}
        for file, part in halves.items():
            save_file({name: tensors[name] for name in part}, directory / file, {"format": "pt"})
        (directory / WEIGHTS).unlink()
        weight_map = {name: file for file, part in halves.items() for name in part}
        index: dict[str, Any] = {"metadata": {}, "weight_map": weight_map}
        result = edit(index, directory)
        (directory / INDEX).write_text(json.dumps(index if result is None else result))

    return change


def recast(name: str, dtype: str) -> Change:
    """A tensor of another type."""

    def change(directory: Path) -> None:
        import torch
        from safetensors.torch import load_file, save_file

        tensors = load_file(directory / WEIGHTS)
        tensors[name] = tensors[name].to(getattr(torch, dtype))
        save_file(tensors, directory / WEIGHTS, {"format": "pt"})

    return change


def copy_to_other(name: str) -> Callable[[dict[str, Any], Path], None]:
    """The tensor also in the other file of two, with other numbers."""

    def edit(index: dict[str, Any], directory: Path) -> None:
        from safetensors.torch import load_file, save_file

        holder = index["weight_map"][name]
        file = next(file for file in index["weight_map"].values() if file != holder)
        tensors = load_file(directory / file)
        tensors[name] = load_file(directory / holder)[name] + 1
        save_file(tensors, directory / file, {"format": "pt"})

    return edit


def _move(header: dict[str, Any], by: int) -> None:
    start, end = header[QUERY]["data_offsets"]
    header[QUERY]["data_offsets"] = [start + by, end + by]


def _header_cases() -> Iterator[Case]:
    words = (WEIGHTS,)
    shapes = {
        "strings": ["32", "32"], "floats": [32.0, 32.0], "fractions": [32.5, 32], "negative": [-32, -32], "null": None,
        "number": 1024, "string": "32x32", "nested": [[32, 32]], "booleans": [True, 1024], "object": {"0": 32},
        "huge": [2**62, 2**62], "transposed size": [16, 64], "nulls": [None, None], "flat": [1024], "empty": [],
    }  # fmt: skip
    for name, value in shapes.items():
        yield Case(
            f"header: shape, {name}",
            in_entry("shape", value),
            words if name not in ("flat", "transposed size") else (),
        )
    types: list[Any] = ["f32", "F33", "", None, 32, ["F32"], {}, "F64", "BF16", True]
    for value in types:
        yield Case(f"header: dtype {value!r}", in_entry("dtype", value), words)
    offsets: dict[str, Any] = {
        "strings": ["0", "4096"], "floats": [0.0, 4096.0], "negative": [-4096, 0], "reversed": [4096, 0], "one": [0],
        "three": [0, 4096, 8192], "null": None, "number": 0, "huge": [2**63, 2**63 + 4096], "booleans": [False, 4096],
        "nulls": [None, None], "infinite": [0, float("inf")], "not a number": [float("nan"), 4096],
    }  # fmt: skip
    for name, value in offsets.items():
        yield Case(f"header: offsets, {name}", in_entry("data_offsets", value), words)
    for by in (4, -4, 4096, -4096, 1):
        yield Case(
            f"header: offsets moved by {by}", in_header(lambda header, by=by: _move(header, by)), words
        )
    yield Case(
        "header: two tensors in the same bytes",
        in_header(lambda header: header[QUERY].update(header["model.layers.0.self_attn.o_proj.weight"])),
        words,
    )
    yield Case("header: a tensor left out", in_header(lambda header: header.pop(QUERY) and None), words)
    yield Case(
        "header: an entry without shape", in_header(lambda header: header[QUERY].pop("shape") and None), words
    )
    yield Case(
        "header: an entry without dtype", in_header(lambda header: header[QUERY].pop("dtype") and None), words
    )
    yield Case(
        "header: an entry without offsets",
        in_header(lambda header: header[QUERY].pop("data_offsets") and None),
        words,
    )
    for value in (None, 3, "x", [], True):
        yield Case(
            f"header: {value!r} for an entry",
            in_header(lambda header, value=value: header.update({QUERY: value})),
            words,
        )
        yield Case(
            f"header: {value!r} for all of it",
            header_text(lambda text, value=value: json.dumps(value).encode()),
            words,
        )
    texts: dict[str, Callable[[bytes], bytes]] = {
        "not UTF-8": lambda text: text.replace(b"q_proj", b"q\xff\xfe"),
        "UTF-16": lambda text: text.decode().encode("utf-16"),
        "nested deeply": lambda text: b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        "objects nested deeply": lambda text: b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        "nothing": lambda text: b"",
        "spaces": lambda text: b" " * 100,
        "infinity": lambda text: text[:-1] + b',"x":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,0]}}',
        "not a number": lambda text: text[:-1] + b',"x":{"dtype":"F32","shape":[NaN],"data_offsets":[0,0]}}',
        "a number of many digits": lambda text: text[:-1] + b',"x":' + b"9" * 10_000 + b"}",
        "half of it": lambda text: text[: len(text) // 2],
        "twice the same name": lambda text: text[:-1] + b"," + text[1:],
        "zero bytes": lambda text: b"\0" * len(text),
        "a shape of a million dimensions": lambda text: text[:-1]
        + b',"x":{"dtype":"F32","shape":[' + b"1," * 999_999 + b'1],"data_offsets":[0,4]}}',
    }  # fmt: skip
    for name, edit in texts.items():
        yield Case(f"header: {name}", header_text(edit), words)
    for length in (0, 1, 2**63, 2**64 - 1, 10**9, 99_999_999):
        yield Case(
            f"header: of {length} bytes",
            lambda directory, length=length: write_file(
                directory,
                *(json.dumps(read_file(directory)[0]).encode(), read_file(directory)[1]),
                length=length,
            ),
            words,
        )
    for value in ("x", 3, [1], {"format": 3}, {"format": None}):
        yield Case(
            f"header: metadata {value!r}",
            in_header(lambda header, value=value: header.update(__metadata__=value)),
            words,
            may_load=True,
        )


def _file_cases() -> Iterator[Case]:
    words = (WEIGHTS,)
    for length in (0, 1, 7, 8, 9, 100, 1000, 5000, -1, -4, -100):
        yield Case(
            f"file: cut to {length}",
            lambda directory, length=length: _cut(directory / WEIGHTS, length),
            words,
        )
    for count in (1, 4, 4096):
        yield Case(
            f"file: {count} bytes more",
            lambda directory, count=count: _append(directory / WEIGHTS, count),
            words,
        )
    replacements: dict[str, Callable[[Path], Any]] = {
        "a directory": lambda path: path.mkdir(),
        "a FIFO": os.mkfifo,
        "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
        "/dev/null": lambda path: path.symlink_to("/dev/null"),
        "a link to nothing": lambda path: path.symlink_to("nothing"),
        "a link to itself": lambda path: path.symlink_to(path.name),
        "nothing": lambda path: None,
    }
    for name, make in replacements.items():
        yield Case(f"file: {name} for weights", in_place_of(WEIGHTS, make))
        yield Case(f"file: {name} for the config", in_place_of(CONFIG, make))
        may_load = name in ("nothing", "a link to nothing")
        yield Case(f"file: {name} for generation_config", in_place_of(GENERATION, make), may_load=may_load)
    for dtype in ("int8", "int32", "int64", "uint8", "bool"):
        yield Case(f"file: {dtype} for a weight", recast(QUERY, dtype), (QUERY,))
        yield Case(f"file: {dtype} for a norm", recast(NORM, dtype), (NORM,))
    rng = random.Random(0)
    for number in range(40):
        positions = [rng.randrange(2000) for _ in range(rng.choice((1, 2, 8)))]
        values = [rng.randrange(256) for _ in positions]
        yield Case(
            f"file: bytes changed, {number}",
            lambda directory, p=positions, v=values: _overwrite(directory / WEIGHTS, p, v),
            may_load=False,
        )


def _cut(path: Path, length: int) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:length])


def _append(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes() + b"\0" * count)


def _overwrite(path: Path, positions: list[int], values: list[int]) -> None:
    content = bytearray(path.read_bytes())
    for position, value in zip(positions, values, strict=True):
        # Never what is there.
        content[position] = value if content[position] != value else value ^ 1
    path.write_bytes(content)


def _index_cases() -> Iterator[Case]:
    def set_map(value: Any) -> Callable[[dict[str, Any], Path], None]:
        return lambda index, directory: index.update(weight_map=value)

    def set_file(value: Any) -> Callable[[dict[str, Any], Path], None]:
        return lambda index, directory: index["weight_map"].update({QUERY: value})

    words = (INDEX,)
    for value in (None, 3, "x", [], [["a", "b"]], True, {}):
        yield Case(f"index: weight_map {value!r}", sharded(set_map(value)), words if value != {} else ())
    for value in (
        None,
        3,
        [],
        {},
        True,
        "",
        "../model.safetensors",
        "/etc/passwd",
        "nothing.safetensors",
        CONFIG,
        ".",
    ):
        yield Case(f"index: file {value!r}", sharded(set_file(value)), ())
    for value in (1.5, 3, "x", [], True):
        yield Case(
            f"index: {value!r} for all of it",
            sharded(lambda index, directory, value=value: value),
            words,
        )
    yield Case(
        "index: an entry left out",
        sharded(lambda index, directory: index["weight_map"].pop(QUERY) and None),
        (QUERY,),
    )
    yield Case(
        "index: without weight_map", sharded(lambda index, directory: index.pop("weight_map") and None), words
    )
    for name in (NORM, QUERY):
        yield Case(f"index: {name} in both files", sharded(copy_to_other(name)), (name,))
    yield Case(
        "index: a tensor in the wrong file",
        sharded(
            lambda index, directory: index["weight_map"].update(
                {
                    QUERY: next(
                        file for file in index["weight_map"].values() if file != index["weight_map"][QUERY]
                    )
                }
            )
        ),
        (QUERY,),
    )
    yield Case(
        "index: deep",
        sharded(lambda index, directory: index.update(metadata=json.loads("[" * 900 + "]" * 900))),
        may_load=True,
    )


def _config_cases() -> Iterator[Case]:
    words = (CONFIG,)
    for field in SIZES:
        for name, value in ODD_SIZES.items():
            # Null stands for the field's default in some.
            may_load = value is None and field in ("head_dim", "num_key_value_heads")
            yield Case(f"config: {field} {name}", in_json(CONFIG, **{field: value}), words, may_load)
    for heads in (3, 5, 7, 64):
        yield Case(f"config: {heads} heads", in_json(CONFIG, num_attention_heads=heads), words)
        yield Case(f"config: {heads} key heads", in_json(CONFIG, num_key_value_heads=heads), words)
    yield Case("config: a million layers", in_json(CONFIG, num_hidden_layers=1_000_000), words)
    fields: dict[str, tuple[Any, ...]] = {
        "hidden_act": ("unknown", None, 3, [], {}),
        "dtype": ("float33", 3, [], {}, "int8", ""),
        "model_type": (None, 3, [], ["llama"], {}, "", "unknown"),
        "quantization_config": (3, "x", [1], True, {"quant_method": 3}, {"quant_method": []}, {"x": 1}),
        "auto_map": (3, "x", [1], True, {"AutoConfig": 3}, {"AutoConfig": None}, {"AutoModelForCausalLM": {}}),
        "rms_norm_eps": ("x", None, [], -1.0, float("nan"), float("inf")),
        "rope_parameters": (
            3, "x", [], {"rope_theta": 0, "rope_type": "default"}, {"rope_theta": -1.0, "rope_type": "default"},
            {"rope_theta": "x", "rope_type": "default"}, {"rope_theta": None, "rope_type": "default"},
            {"rope_theta": float("nan"), "rope_type": "default"}, {"rope_theta": 1e4, "rope_type": "unknown"},
            {"rope_theta": 1e4, "rope_type": 3}, {"rope_theta": 1e4, "rope_type": "linear"},
            {"rope_theta": 1e4, "rope_type": "linear", "factor": "x"},
            {"rope_theta": 1e4, "rope_type": "linear", "factor": 0},
        ),
        "pad_token_id": (64, 10**12, -2, "x", 1.5, [0]),
        "bos_token_id": (64, -2, "x"),
        "eos_token_id": (64, -2, "x", [64], ["x"]),
        "attention_dropout": ("x", -1.0, 2.0, None),
        "attention_bias": ("x", 3, None),
        "mlp_bias": ("x", None),
        "tie_word_embeddings": ("x", 3, None),
        "max_position_embeddings": (-1, 0, "x", None, 1.5),
        "initializer_range": ("x", None),
        "architectures": (3, "x", [3], {}),
        "pretraining_tp": ("x", -1),
    }  # fmt: skip
    # What a forward pass in evaluation does not use, or what has a default.
    harmless = (
        "attention_dropout", "initializer_range", "architectures", "pretraining_tp", "max_position_embeddings",
        # Tokens outside the vocabulary are never met; transformers warns.
        "bos_token_id", "eos_token_id",
    )  # fmt: skip
    for field, values in fields.items():
        for value in values:
            yield Case(
                f"config: {field} {value!r:.60}", in_json(CONFIG, **{field: value}), words, field in harmless
            )
    texts = {
        "empty": b"", "not JSON": b"{", "a list": b"[]", "null": b"null", "a number": b"3", "a string": b'"x"',
        "UTF-16": '{"model_type": "llama"}'.encode("utf-16"), "not UTF-8": b'{"model_type": "\xff"}',
        "deep": b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "zeros": b"\0" * 100,
    }  # fmt: skip
    for name, content in texts.items():
        yield Case(f"config: {name}", replace(CONFIG, content), words)
        yield Case(f"generation_config: {name}", replace(GENERATION, content), (GENERATION,))
    settings: dict[str, tuple[Any, ...]] = {
        "temperature": ("x", -1.0, [], {}),
        "top_k": ("x", -1, 1.5),
        "top_p": ("x", -1.0, 2.0),
        "max_length": ("x", -1, 1.5),
        "max_new_tokens": ("x", -1),
        "eos_token_id": ("x", [["x"]], 1.5, {}),
        "pad_token_id": ("x", [1, 2], {}),
        "num_beams": ("x", 0, -1),
        "do_sample": ("x", 3),
        "cache_implementation": ("unknown", 3),
        "repetition_penalty": ("x", -1.0, 0),
        "early_stopping": ("x",),
    }
    for field, values in settings.items():
        for value in values:
            yield Case(
                f"generation_config: {field} {value!r}", in_json(GENERATION, **{field: value}), (GENERATION,)
            )


CASES: Final = (*_header_cases(), *_file_cases(), *_index_cases(), *_config_cases())
