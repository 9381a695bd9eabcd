"""Checkpoints in a GGUF file, as llama.cpp has them: config, names and blocks of
numbers in one file.

The config is what transformers reads from the file, and the names and the orders of
rows are those of its reader; the numbers stay in the file until a device needs them,
and on the device in few bits. Letters as in `checkpoint.quantized_tensors`.
"""

import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import jax.numpy as jnp
import numpy as np
import torch

from tpuport.base.plurals import list_some
from tpuport.checkpoint.formats.ggml_blocks import BLOCK_TYPES, quantized_tensor
from tpuport.checkpoint.formats.packed_tensors import permute
from tpuport.checkpoint.lazy_tensors import (
    Converted,
    LazyTensor,
    Reader,
    StoredTensor,
    full_index,
    transpose,
)
from tpuport.errors import PortError

_FLOATS: Final = {
    "BF16": jnp.dtype(jnp.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}
# What the classes of transformers that undo llama.cpp's changes do is known of these.
_KNOWN_PROCESSORS: Final = frozenset({
    "BloomTensorProcessor", "GPT2TensorProcessor", "Gemma2TensorProcessor", "Lfm2TensorProcessor",
    "LlamaTensorProcessor", "MambaTensorProcessor", "MiniMaxM2TensorProcessor", "NemotronTensorProcessor",
    "Qwen2MoeTensorProcessor", "T5TensorProcessor", "TensorProcessor",
})  # fmt: skip
# What the tensors of these need is in other places of transformers, or not reached by
# its reader.
_UNREAD: Final = frozenset({"gpt-oss", "qwen35", "qwen35moe"})
_EXPERTS: Final = re.compile(
    r"(?P<layer>.*)\.ffn_(?P<projection>gate|up|down)_exps\.weight"
)
# Of GPT-2, whose layers multiply by transposed weights.
_TRANSPOSED: Final = re.compile(r".*\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight")
# The factors by which a model with longer contexts divides its rotary frequencies.
_ROTARY_FACTORS: Final = "rope_freqs.weight"
_INSTALL: Final = "pip install 'tpuport[gguf]'"


@dataclass(frozen=True)
class GGUFFile:
    """What a file says about its tensors.

    Attributes:
        tensors: each by its name in the file, as it is stored: [..., O, bytes] for a
            type of blocks.
        types: the type of each, in GGUF's words.
    """

    path: Path
    architecture: str
    tensors: Mapping[str, StoredTensor]
    types: Mapping[str, str]


def read_file(directory: Path, name: Any) -> GGUFFile:
    """The tensors of the file `name` in `directory`, without reading their numbers.

    Raises:
        PortError: the file or the library that reads it is missing, or the file is not
            one that can be read.
    """
    if not isinstance(name, str) or Path(name).name != name:
        raise PortError(
            f"{name!r:.60} is not the name of a file in the checkpoint's directory",
            where="gguf_file",
        )
    path = directory / name
    if not path.is_file():
        raise PortError("there is no such file", where=str(path), fix="check gguf_file")
    if importlib.util.find_spec("gguf") is None:
        raise PortError(
            "reading GGUF files needs the gguf package", where=str(path), fix=_INSTALL
        )
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        architecture = reader.fields["general.architecture"].contents()
        splits = (
            reader.fields["split.count"].contents()
            if "split.count" in reader.fields
            else 1
        )
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise PortError(
            f"it is not a GGUF file, or is damaged: {error!r:.200}", where=str(path)
        ) from error
    if reader.byte_order != "I":
        raise PortError("its byte order is not that of this machine", where=str(path))
    if architecture in _UNREAD:
        raise _unsupported(path, architecture)
    if splits > 1:
        raise PortError(
            f"it is one of {splits} parts of a checkpoint",
            where=str(path),
            fix="merge them: llama-gguf-split --merge FIRST-PART OUTPUT",
        )
    return _describe(path, architecture, reader.tensors)


def _describe(path: Path, architecture: str, entries: list[Any]) -> GGUFFile:
    size = path.stat().st_size
    tensors: dict[str, StoredTensor] = {}
    types: dict[str, str] = {}
    problems: list[str] = []
    for entry in entries:
        # ggml names the dimension first along which numbers follow one another.
        shape = tuple(map(int, reversed(entry.shape.tolist())))
        kind = entry.tensor_type.name
        try:
            dtype, stored_shape = _stored_form(kind, shape)
        except ValueError as error:
            problems.append(f"{entry.name}: {error}")
            continue
        tensor = StoredTensor(
            stored_shape, dtype, entry.name, path, int(entry.data_offset)
        )
        if tensor.offset + tensor.stored_bytes > size:
            problems.append(
                f"{entry.name}: it would end at byte {tensor.offset + tensor.stored_bytes} of {size}"
            )
        tensors[entry.name] = tensor
        types[entry.name] = kind
    if problems:
        supported = ", ".join(sorted([*BLOCK_TYPES, *_FLOATS]))
        raise PortError(
            list_some("tensors of the file cannot be read:", problems),
            where=str(path),
            fix=f"take a file in other types, Q4_K_M for example (supported are {supported}), and check that it was "
            "copied whole",
        )
    return GGUFFile(path, architecture, tensors, types)


def _stored_form(kind: str, shape: tuple[int, ...]) -> tuple[np.dtype, tuple[int, ...]]:
    """The dtype and the shape of what a file has for a tensor of this type; ValueError
    if it cannot have it.
    """
    if kind in _FLOATS:
        return _FLOATS[kind], shape
    if kind not in BLOCK_TYPES:
        raise ValueError(f"the type {kind} is not supported")
    block = BLOCK_TYPES[kind]
    if len(shape) < 2 or shape[-1] % block.inputs:
        raise ValueError(
            f"the shape {list(shape)} does not consist of blocks of {block.inputs}"
        )
    return np.dtype(np.uint8), (
        *shape[:-1],
        shape[-1] // block.inputs * block.block_bytes,
    )


def adapt(file: GGUFFile, model: Any, dtype: np.dtype) -> dict[str, LazyTensor | None]:
    """The tensors of a file by the names of `model`; those that transformers has no
    name for keep theirs.

    Args:
        model: empty, built from the file's config. Its rotary frequencies are divided
            by the file's factors.
        dtype: of the weights.

    Raises:
        PortError: transformers does not know this architecture, or what its reader does
            to it is not known here.
    """
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    processor = TENSOR_PROCESSORS.get(file.architecture, TensorProcessor)(
        config=model.config.to_dict()
    )
    if type(processor).__name__ not in _KNOWN_PROCESSORS:
        raise _unsupported(file.path, file.architecture)
    try:
        names = get_gguf_hf_weights_map(model, processor)
    except NotImplementedError as error:
        raise _unsupported(file.path, file.architecture) from error
    adapted: dict[str, LazyTensor | None] = {}
    pairs: dict[str, dict[str, LazyTensor]] = {}
    for name, tensor in _tensors(file, processor, dtype):
        experts = _EXPERTS.fullmatch(name)
        target = names.get(name.removesuffix(".weight") if experts else name, name)
        if experts and experts["projection"] != "down":
            pairs.setdefault(target, {})[experts["projection"]] = tensor
        else:
            adapted[target] = tensor
    for target, halves in pairs.items():
        adapted[target] = (
            None if len(halves) < 2 else _join(halves["gate"], halves["up"])
        )
    if adapted.pop(_ROTARY_FACTORS, None) is not None:
        _divide_frequencies(model, file)
    return adapted


def _unsupported(path: Path, architecture: str) -> PortError:
    return PortError(
        f"the architecture {architecture} is not supported",
        where=str(path),
        fix="load the model's checkpoint in safetensors, quantised as it is published, or with quantize='int4'",
    )


def _tensors(
    file: GGUFFile, processor: Any, dtype: np.dtype
) -> Iterator[tuple[str, LazyTensor]]:
    """Every tensor of a file as the model has it, by its name in the file."""
    is_gpt2 = type(processor).__name__ == "GPT2TensorProcessor"
    for name, stored in file.tensors.items():
        if _is_small(stored):
            yield name, _processed(stored, processor)
            continue
        tensor: LazyTensor = stored
        order = _row_order(processor, name, stored.shape[0])
        if order is not None:
            tensor = permute(stored, 0, order)
        kind = file.types[name]
        if kind not in _FLOATS:
            tensor = quantized_tensor(tensor, kind, dtype)
        yield (
            name,
            transpose(tensor, 0, 1)
            if is_gpt2 and _TRANSPOSED.fullmatch(name)
            else tensor,
        )


def _is_small(stored: StoredTensor) -> bool:
    """Whether a tensor has a number for each channel, or some of them: what
    transformers may compute with.
    """
    narrow = 64
    return stored.dtype != np.uint8 and (
        len(stored.shape) < 2 or stored.shape[-1] <= narrow
    )


def _processed(stored: StoredTensor, processor: Any) -> LazyTensor:
    """A tensor in float32 as transformers' reader changes it, such as a norm's weight,
    which files have plus one.
    """

    def process(values: np.ndarray) -> np.ndarray:
        return processor.process(weights=values, name=stored.name).weights

    def compute(reader: Reader) -> np.ndarray:
        return process(
            stored.read(reader, full_index(stored.shape), np.dtype(np.float32))
        )

    # Of values without memory, of which logarithms may be taken too.
    shape = process(np.broadcast_to(np.float32(-1), stored.shape)).shape
    return Converted(shape, np.dtype(np.float32), compute)


def _row_order(processor: Any, name: str, rows: int) -> np.ndarray | None:
    """Which row of the file each row of a weight is; None if they are the same.

    llama.cpp has the rows of some weights in another order, and the bias of such a
    layer in the same one.
    """
    numbers = np.arange(rows)
    order = processor.process(
        weights=numbers, name=name.replace(".weight", ".bias")
    ).weights
    return None if np.array_equal(order, numbers) else order


def _join(gate: LazyTensor, up: LazyTensor) -> LazyTensor:
    joined: Any = torch.cat([gate, up], dim=1)  # type: ignore[list-item]
    return joined


def _divide_frequencies(model: torch.nn.Module, file: GGUFFile) -> None:
    """Give the model the rotary frequencies of its file, whose config has nothing about
    them.
    """
    stored = file.tensors[_ROTARY_FACTORS]
    with Reader() as reader:
        factors = torch.from_numpy(
            stored.read(reader, full_index(stored.shape), np.dtype(np.float32))
        )
    buffers = [
        (name, buffer)
        for name, buffer in model.named_buffers()
        if name.endswith("inv_freq") and buffer.shape == factors.shape
    ]
    if not buffers:
        raise PortError(
            f"the model has no rotary frequencies for the {prod(stored.shape)} factors in {_ROTARY_FACTORS}",
            where=str(file.path),
        )
    for _, buffer in buffers:
        buffer.div_(factors)
