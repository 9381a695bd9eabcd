"""Find a checkpoint's safetensors files and check them by their headers, before any
weight is read.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from tpuport.base.plurals import count_noun
from tpuport.checkpoint.lazy_tensors import StoredTensor

# safetensors' names for the types that a weight can have here.
DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "BF16": jnp.dtype(jnp.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "F8_E4M3": jnp.dtype(jnp.float8_e4m3fn),
    "F8_E5M2": jnp.dtype(jnp.float8_e5m2),
}

# The names under which transformers and diffusers save weights.
TRANSFORMERS_STEM = "model"
DIFFUSERS_STEM = "diffusion_pytorch_model"
# The limit of the safetensors library itself.
_HEADER_LIMIT = 100_000_000
# NumPy's limit.
_MOST_DIMENSIONS = 64
_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})


@dataclass
class Inventory:
    """What a checkpoint's files hold.

    Args:
        tensors: each by its name in the files; None if an index promises it and its
            file cannot be read.
        problems: one line for each thing wrong with the files.
        is_complete: False if not even the names of all tensors are known.
    """

    tensors: dict[str, StoredTensor | None] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    is_complete: bool = True


def take_inventory(directory: Path, stem: str) -> Inventory:
    """List the tensors of `directory`'s `STEM.safetensors`, or of the files that its
    index names.
    """
    inventory = Inventory()
    single = directory / f"{stem}.safetensors"
    index = directory / f"{stem}.safetensors.index.json"
    # As in the libraries, a single file comes before an index.
    if single.is_file():
        # No index promises names, so those in an unreadable file are unknown.
        inventory.is_complete = _add_file(inventory, single, set())
    elif index.is_file():
        for file, promised_names in _read_index(inventory, index).items():
            _add_file(inventory, directory / file, promised_names)
    else:
        inventory.problems.append(_describe_missing_weights(directory, stem))
        inventory.is_complete = False
    return inventory


def _describe_missing_weights(directory: Path, stem: str) -> str:
    pickled = sorted(
        path.name for path in directory.iterdir() if path.suffix in _PICKLE_SUFFIXES
    )
    if pickled:
        return (
            f"only pickled weights ({', '.join(pickled)}), refused because unpickling runs whatever code is "
            "in the file; on a machine that may run it, load the model with from_pretrained and call "
            "save_pretrained(directory), which writes safetensors"
        )
    gguf = sorted(path.name for path in directory.glob("*.gguf"))
    if gguf:
        return f"no safetensors; it holds GGUF, which is loaded by its name: gguf_file={gguf[0]!r}"
    text = f"no weights: neither {stem}.safetensors nor {stem}.safetensors.index.json is there"
    others = sorted(path.name for path in directory.glob("*.safetensors"))
    return f"{text}; it holds {', '.join(others)}" if others else text


def _read_index(inventory: Inventory, index: Path) -> dict[str, set[str]]:
    """The tensor names that the index promises, by file."""
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        pairs = [(str(name), str(file)) for name, file in weight_map.items()]
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OSError,
        RecursionError,
    ) as error:
        inventory.problems.append(f"{index.name} is not a weight index: {error!r}")
        inventory.is_complete = False
        return {}
    names_by_file: dict[str, set[str]] = {}
    for name, file in pairs:
        # A path could lead out of the checkpoint's directory.
        if Path(file).name != file:
            inventory.problems.append(
                f"{index.name} names {file!r}, which is not a file of this directory"
            )
            inventory.tensors[name] = None
        else:
            names_by_file.setdefault(file, set()).add(name)
    return dict(sorted(names_by_file.items()))


def _add_file(inventory: Inventory, path: Path, promised_names: set[str]) -> bool:
    """Add a file's tensors to the inventory; returns whether the file can be read."""
    try:
        tensors = read_header(path)
    except FileNotFoundError:
        problem = f"the index names {path.name}, which is not there"
    except (ValueError, OSError) as error:
        problem = f"{path.name}: {error}"
    else:
        absent = sorted(promised_names - tensors.keys())
        if absent:
            inventory.problems.append(
                f"the index promises tensors that {path.name} does not hold: {', '.join(absent)}"
            )
        # Those of the index and those of the files are the same in any checkpoint that
        # a library wrote.
        unnamed = sorted(tensors.keys() - promised_names) if promised_names else []
        if unnamed:
            inventory.problems.append(
                f"{path.name} holds tensors that the index does not promise there: {', '.join(unnamed)}"
            )
        inventory.tensors.update(tensors)
        inventory.tensors.update(dict.fromkeys(absent))
        return True
    inventory.problems.append(problem)
    inventory.tensors.update(dict.fromkeys(sorted(promised_names)))
    return False


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors that a safetensors file describes; ValueError, which says how, for a
    truncated or corrupt one.
    """
    tensors, _ = _parse_header(path)
    return tensors


def read_metadata(path: Path) -> dict[str, str]:
    """What whoever saved a safetensors file has written beside its tensors; ValueError
    as `read_header`.
    """
    _, metadata = _parse_header(path)
    return metadata


def _parse_header(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    size = path.stat().st_size
    with path.open("rb") as file:
        # Eight bytes say how long the JSON header is that follows them.
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _HEADER_LIMIT):
            raise ValueError(
                f"truncated or not safetensors: {size} bytes, of which the header should take {length}"
            )
        header_bytes = file.read(length)
    data_start = 8 + length
    try:
        header = json.loads(
            header_bytes.decode("utf-8"), object_pairs_hook=_unique_names
        )
        metadata = header.pop("__metadata__", None) or {}
        tensors = {
            name: _parse_entry(path, name, entry, data_start)
            for name, entry in header.items()
        }
    except (
        AttributeError,
        KeyError,
        OverflowError,
        RecursionError,
        TypeError,
        UnicodeDecodeError,
    ) as error:
        raise ValueError(f"its header is corrupt: {error!r:.200}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"its header is corrupt: {error!r:.200}") from error
    _check_places(tensors, data_start, size)
    return tensors, metadata


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("its header is corrupt: two entries have the same name")
    return entries


def _parse_entry(path: Path, name: str, entry: dict, data_start: int) -> StoredTensor:
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in DTYPES:
        raise ValueError(
            f"tensor {name} has the type {entry['dtype']!r:.60}, which is not supported"
        )
    dtype = DTYPES[entry["dtype"]]
    shape, offsets = (
        _read_numbers(entry[field], name, field) for field in ("shape", "data_offsets")
    )
    if len(offsets) != 2 or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(
            f"its header is corrupt: tensor {name} has {count_noun(len(shape), 'dimension')} and "
            f"{count_noun(len(offsets), 'offset')}"
        )
    start, end = offsets
    if end - start != prod(shape) * dtype.itemsize:
        raise ValueError(
            f"its header is corrupt: tensor {name} of shape {shape} does not fill bytes {start} to {end}"
        )
    return StoredTensor(shape, dtype, name, path, data_start + start)


def _read_numbers(values: Any, name: str, field: str) -> tuple[int, ...]:
    """Whole numbers from 0 up, and nothing that could be converted to them."""
    is_right = isinstance(values, list) and all(
        type(value) is int and value >= 0 for value in values
    )
    if not is_right:
        raise ValueError(
            f"its header is corrupt: tensor {name} has {field} {values!r:.60}"
        )
    return tuple(values)


def _check_places(
    tensors: Mapping[str, StoredTensor], data_start: int, size: int
) -> None:
    """ValueError unless the tensors fill the file behind the header, each in bytes of
    its own.
    """
    end = data_start
    for tensor in sorted(
        tensors.values(), key=lambda tensor: (tensor.offset, tensor.stored_bytes)
    ):
        if tensor.offset != end:
            kind = (
                "shares bytes with another"
                if tensor.offset < end
                else "has unused bytes before it"
            )
            raise ValueError(f"its header is corrupt: tensor {tensor.name} {kind}")
        end += tensor.stored_bytes
    if end > size:
        raise ValueError(f"truncated: {size} bytes, the header describes {end}")
    if end < size:
        raise ValueError(f"corrupt: {size} bytes, the header describes {end}")
