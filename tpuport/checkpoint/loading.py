"""Read a checkpoint from disk straight into sharded arrays.

A tensor's way: files and headers (`safetensors_files`), names of the model
(`name_matching`), the audit of its sharding (`device_layout`), the slices of each
device (`lazy_tensors`), an array.
"""

from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import jax
import torch
from jax.sharding import Mesh
from tqdm import tqdm

from tpuport import compat
from tpuport.base.plurals import count_noun
from tpuport.checkpoint import building, formats, gguf_files, safetensors_files
from tpuport.checkpoint.array_plans import (
    ArrayPlan,
    array_dtypes,
    plan_arrays,
    quantize_sources,
)
from tpuport.checkpoint.device_layout import (
    allowed_names,
    as_torch_dtype,
    check_mesh_and_rules,
    one_device_mesh,
)
from tpuport.checkpoint.generation_defaults import read_generation_config
from tpuport.checkpoint.lazy_tensors import (
    Converted,
    LazyTensor,
    Reader,
    fill_bounds,
    index_shape,
)
from tpuport.checkpoint.moving import move_buffers, record_port
from tpuport.checkpoint.name_matching import (
    find_mismatches,
    initialize_absent,
    match_names,
    untie_differing_weights,
)
from tpuport.checkpoint.sharded_arrays import bounds_key, make_sharded_array
from tpuport.errors import PortError
from tpuport.libraries.config_values import check_heads, check_values, name_wrong_fields
from tpuport.libraries.library_classes import is_diffusers_class
from tpuport.patches import registry
from tpuport.quantization import (
    QuantizationRules,
    as_quantization_rules,
)
from tpuport.sharding import ShardingRules


def load(
    model_class: Any,
    directory: str | Path,
    *,
    mesh: Mesh | None = None,
    rules: ShardingRules | None = None,
    dtype: torch.dtype | str | None = None,
    trust_remote_code: bool = False,
    allow: str | Iterable[str] = (),
    quantize: QuantizationRules | Mapping[str, Any] | str | None = None,
    gguf_file: str | None = None,
    **config_options: Any,
) -> Any:
    """Load a checkpoint from a local directory onto the devices of `mesh`.

    Every parameter is read by slices from safetensors straight to the devices that hold
    it, so that the host never has more than about one; a process reads only what its
    own devices hold.

    Args:
        model_class: a transformers `AutoModel...` or model class, or a diffusers model
            class.
        directory: as `save_pretrained` writes it: config.json, and either one
            safetensors file or an index of several; or one with a GGUF file.
        mesh: None for one device.
        rules: None for the model's own tensor-parallel plan.
        dtype: for floating-point weights; None for the config's, or if it has none, the
            checkpoint's (and float32 for a GGUF file, as in transformers).
        trust_remote_code: whether Python code in the checkpoint may run.
        allow: names whose errors the sharding audit accepts, and names (or patterns
            with `*`) of tensors in the checkpoint that the model does not have; a
            single name may be a plain string.
        quantize: "int8", "int4", "fp8" or "w8a8" for linear layers (but not heads,
            routers and the like), or `QuantizationRules`; None keeps weights as they
            are stored.
        gguf_file: the name of a GGUF file in `directory`, which holds the config too.
        config_options: config fields to override, `attn_implementation` for example.

    Returns:
        The model, in evaluation mode; its parameters and buffers are torchax tensors.

    Raises:
        PortError: the checkpoint, the model and the mesh do not fit; all reasons are
            listed, and nothing was put on a device.
    """
    building.check_class(model_class)
    path = building.as_path(directory)
    allow = allowed_names(allow)
    check_mesh_and_rules(mesh, rules)
    quantization = as_quantization_rules(quantize)
    # Patches of modeling code, before the model is built from it.
    registry.apply_all()
    requested_dtype = as_torch_dtype(dtype)
    model: Any
    if gguf_file is None:
        inventory, config, raw_config = _read_metadata(
            model_class, path, trust_remote_code, config_options
        )
        model_dtype = requested_dtype or _default_dtype(config, inventory)
        tensors = _adapt_quantized(path, raw_config, inventory, model_dtype)
        with name_wrong_fields(
            raw_config, str(path / building.CONFIG), "the model cannot be built"
        ):
            model = building.build_empty(
                model_class, config, model_dtype, trust_remote_code, path
            )
        problems = inventory.problems
    else:
        model, tensors, model_dtype = _open_gguf(
            model_class, path, gguf_file, requested_dtype, config_options
        )
        problems = []
    registry.apply_for(model)
    generation_config = None
    if hasattr(model, "can_generate") and model.can_generate():
        generation_config = read_generation_config(path)
    match = match_names(model, tensors)
    # Before mismatches are looked for: untied weights are two, and each must be in the
    # checkpoint.
    untie_differing_weights(model, match)
    _raise_problems(
        path / (gguf_file or ""), problems + find_mismatches(model, match, allow)
    )
    initialize_absent(model, match)
    mesh = mesh or one_device_mesh()
    array_dtype = array_dtypes(model, model_dtype, requested_dtype)
    quantize_sources(model, match, array_dtype, quantization)
    plans = plan_arrays(model, match, array_dtype, mesh, rules, allow)
    # Nothing has touched a device so far, so that every error above leaves them as they
    # were.
    with compat.environment():
        _read_arrays(model, plans)
        move_buffers(model, mesh, {})
    if generation_config is not None:
        model.generation_config = generation_config
    record_port(model, mesh)
    return model.eval()


def _read_metadata(
    model_class: Any, directory: Path, trust_remote_code: bool, options: dict[str, Any]
) -> tuple[safetensors_files.Inventory, Any, dict[str, Any]]:
    """The tensors in the checkpoint's files, and its config, as an object and as it is
    in its file.

    Raises:
        PortError: there is no config, or the names of the tensors are unknown.
    """
    building.check_directory(directory)
    stem = safetensors_files.TRANSFORMERS_STEM
    if is_diffusers_class(model_class):
        stem = safetensors_files.DIFFUSERS_STEM
    inventory = safetensors_files.take_inventory(directory, stem)
    try:
        raw_config = building.read_raw_config(directory)
        where = str(directory / building.CONFIG)
        with name_wrong_fields(raw_config, where, "transformers refuses the config"):
            config = building.read_config(
                model_class, directory, raw_config, trust_remote_code, options
            )
            check_heads(config, where)
    except PortError as error:
        # Reported together with what is wrong with the files.
        if inventory.problems:
            problem = error.what
            if error.where not in (None, str(directory)):
                problem += f" ({error.where})"
            _raise_problems(directory, [*inventory.problems, problem])
        raise
    if not inventory.is_complete:
        _raise_problems(directory, inventory.problems)
    return inventory, config, raw_config


def _open_gguf(
    model_class: Any,
    directory: Path,
    name: str,
    requested_dtype: torch.dtype | None,
    options: Mapping[str, Any],
) -> tuple[torch.nn.Module, dict[str, LazyTensor | None], torch.dtype]:
    """The empty model that a GGUF file describes, its tensors by the model's names, and
    the dtype of its weights.
    """
    building.check_directory(directory)
    if is_diffusers_class(model_class):
        raise PortError(
            "GGUF files of diffusers' models are not supported",
            where=str(directory / str(name)),
            fix="load the checkpoint in safetensors, with quantize='int4' for weights in four bits",
        )
    file = gguf_files.read_file(directory, name)
    where = str(file.path)
    with name_wrong_fields({}, where, "transformers refuses its config"):
        config = building.read_gguf_config(model_class, directory, name, options)
    # The defaults of a class are those of another vocabulary.
    values = config.to_diff_dict()
    check_values(values, where)
    check_heads(config, where)
    _check_layers(config, file)
    dtype = (
        requested_dtype
        or as_torch_dtype(getattr(config, "dtype", None))
        or torch.float32
    )
    with name_wrong_fields(values, where, "the model cannot be built"):
        model = building.build_empty(
            model_class, config, dtype, trust_remote_code=False, directory=file.path
        )
    with name_wrong_fields(values, where, "its tensors do not fit its config"):
        return model, gguf_files.adapt(file, model, compat.jax_dtype(dtype)), dtype


def _check_layers(config: Any, file: gguf_files.GGUFFile) -> None:
    """PortError where the file has fewer tensors than layers, before modules are built
    for all of these.
    """
    layers = getattr(config, "num_hidden_layers", None) or 0
    if layers > len(file.tensors):
        raise PortError(
            f"its config has {count_noun(layers, 'layer')}, and the file {count_noun(len(file.tensors), 'tensor')}",
            where=str(file.path),
            fix="check that the file was copied whole, and that its block_count is that of the model",
        )


def _adapt_quantized(
    directory: Path,
    raw_config: Mapping[str, Any],
    inventory: safetensors_files.Inventory,
    dtype: torch.dtype,
) -> formats.Adapted:
    """The tensors of the checkpoint; those of quantised weights as one for each
    weight.
    """
    quantization = raw_config.get(building.QUANTIZATION)
    if not quantization:
        return dict(inventory.tensors)
    where = f"{directory / 'config.json'}, {building.QUANTIZATION}"
    return formats.adapt(
        quantization, inventory.tensors, compat.jax_dtype(dtype), where
    )


def _raise_problems(checkpoint: Path, problems: list[str]) -> None:
    """Raise a PortError that lists `problems`, if there are any."""
    if not problems:
        return
    reasons = "one reason" if len(problems) == 1 else f"{len(problems)} reasons"
    raise PortError(
        "\n  - ".join([f"the checkpoint cannot be loaded, for {reasons}:", *problems]),
        where=str(checkpoint),
        fix="check that the model class is the one that was saved, that config.json belongs to these weights, and that "
        "every file was copied whole; "
        "a tensor that may go unused is allowed by its name, allow=('lm_head.weight',)",
    )


def _default_dtype(config: Any, inventory: safetensors_files.Inventory) -> torch.dtype:
    """The dtype that the config names, or else that of the first floating-point
    tensor.
    """
    config_dtype = as_torch_dtype(getattr(config, "dtype", None))
    if config_dtype is not None:
        return config_dtype
    for tensor in filter(None, inventory.tensors.values()):
        dtype = compat.torch_dtype(tensor.dtype)
        # Eight bits are a weight's, and nobody computes in them.
        if dtype.is_floating_point and dtype.itemsize > 1:
            return dtype
    return torch.float32


def _read_arrays(model: Any, plans: list[ArrayPlan]) -> None:
    """Create every array and put it into the model; after a second, a bar shows the
    bytes.
    """
    sizes = list(map(_local_bytes, plans))
    end = 0
    with tqdm(
        total=sum(sizes), desc="Loading weights", unit="B", unit_scale=True, delay=1.0
    ) as bar:

        def advance(count: int) -> None:
            # What packs several parts of a weight is read once for each of them.
            bar.update(min(count, end - bar.n))

        with Reader(advance) as reader:
            previous: jax.Array | None = None
            for plan, size in zip(plans, sizes, strict=True):
                end += size
                try:
                    array = make_sharded_array(
                        reader, plan.source, plan.dtype, plan.sharding
                    )
                except PortError as error:
                    raise PortError(
                        error.what, where=error.where or plan.names[0], fix=error.fix
                    ) from error
                plan.put(model, plan.names, compat.wrap(array))
                # Otherwise host copies of many parameters would wait for the device at
                # once.
                jax.block_until_ready(previous)
                previous = array
                advance(size)


def _local_bytes(plan: ArrayPlan) -> int:
    """The stored bytes of the slices that this process reads for an array."""
    source = plan.source
    # A conversion on the host reads all of its inputs, whatever slice is needed.
    if isinstance(source, Converted):
        return source.stored_bytes
    indices = plan.sharding.addressable_devices_indices_map(source.shape).values()
    bounds = [fill_bounds(index, source.shape) for index in indices]
    distinct = {bounds_key(index): prod(index_shape(index)) for index in bounds}
    return sum(distinct.values()) * source.dtype.itemsize
