"""Models of transformers: causal language models, and encoders of text, images and
sound.
"""

import copy
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from tpuport.base.mappings import without
from tpuport.checkpoint import building
from tpuport.checkpoint.device_layout import as_torch_dtype
from tpuport.errors import PortError
from tpuport.libraries.config_values import check_heads, name_wrong_fields
from tpuport.topology.generation_tasks import Decode, Prefill
from tpuport.topology.targets import encoder_inputs, user_code
from tpuport.topology.targets.config_files import ConfigFile
from tpuport.topology.targets.quantized_configs import (
    quantization_note,
    quantize_as_file,
)
from tpuport.topology.targets.target import Options, Target, empty

# A prompt whose length the user does not give: what most reports of serving speed take.
_PROMPT_LENGTH: Final = 4096
_APPLICABLE: Final = {
    "prefill": ("batch", "length", "max_cache_len", "kv_cache"),
    "decode": ("batch", "length", "max_cache_len", "kv_cache"),
    "forward": ("batch", "length"),
}
# Fields that say how many positions a model has.
_POSITION_FIELDS: Final = (
    "max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length",
)  # fmt: skip
_NO_FLOAT16: Final = "in which no TPU multiplies"


class _Model(NamedTuple):
    """A model to build: its class, its config, and whether it is a causal language
    model.

    Attributes:
        name: of the class, or of the config's type if that determines the class.
    """

    model_class: Any
    config: Any
    name: str
    is_causal: bool

    @property
    def kind(self) -> str:
        """As in `Target`."""
        return "causal-lm" if self.is_causal else "encoder"


def transformers_targets(
    config_file: ConfigFile, options: Options, class_name: str | None = None
) -> tuple[Target, ...]:
    """The programs of a transformers config.

    Args:
        class_name: what a pipeline says that the model is.

    Raises:
        PortError: transformers does not know the model, its code was not trusted, or an
            option does not apply.
    """
    config, is_remote = _read_config(config_file, options.trust_remote_code)
    dtype, notes = choose_dtype(config_file.raw, options.dtype)
    notes += quantization_note(config_file)
    architectures = getattr(config, "architectures", None) or (None,)
    name = class_name or architectures[0]
    text_config = _text_model_config(config, class_name, options)
    if text_config is not None:
        config, name = text_config, None
        notes += (
            f"the text model alone, {type(config).__name__}: no tower for images or sound is in it",
        )
    # Left to the trace, it would be an error about shapes.
    check_heads(config, config_file.path)
    model = _choose_model(
        config, name, class_name, is_remote, config_file, options.task
    )
    build = _make_builder(model, dtype, is_remote, config_file)
    target = Target(config_file.name, build, {}, None, dtype, model.kind, notes)
    if options.inputs is not None:
        options.check_apply((), model.name)
        inputs = user_code.call_inputs_function(
            options.inputs, model.config, options.task
        )
        notes += (f"inputs are those of {options.inputs}",)
        return (dataclasses.replace(target, inputs=inputs, notes=notes),)
    if model.is_causal:
        return tuple(_generation_targets(target, model.config, options))
    options.check_apply(
        encoder_inputs.applicable(model.model_class, model.config), model.name
    )
    call = encoder_inputs.plan_call(model.model_class, model.config, dtype, options)
    notes += call.notes
    return (
        dataclasses.replace(target, inputs=call.inputs, unit=call.unit, notes=notes),
    )


def _choose_model(
    config: Any,
    name: str | None,
    class_name: str | None,
    is_remote: bool,
    config_file: ConfigFile,
    task: str | None,
) -> _Model:
    """The class of the model, by what its config and the pipeline say, and by the
    task.
    """
    has_own_class = is_remote and "AutoModelForCausalLM" in config_file.raw["auto_map"]
    # A pipeline's encoder does not generate, whatever its class could do.
    is_causal = class_name is None and (has_own_class or _is_causal(config, name))
    display_name = name or config.model_type
    # A model that fills in masked words by default may have a class that generates: the
    # user asks for that.
    if task in ("prefill", "decode", "generate") and not is_causal:
        known = _model_mappings().MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        if class_name is not None or config.model_type not in known:
            raise PortError(
                f"{display_name} does not generate text token by token, so there is no {task}",
                where="task", fix="--task forward",
            )  # fmt: skip
        is_causal, name = True, None
    model_class = _find_class(name, is_causal, is_remote, config_file)
    return _Model(model_class, config, display_name, is_causal)


def _read_config(config_file: ConfigFile, trust_remote_code: bool) -> tuple[Any, bool]:
    """The config as transformers' object, and whether the directory's own code is what
    reads it.
    """
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    raw = without(config_file.raw, {building.QUANTIZATION})
    model_type = str(config_file.raw.get("model_type"))
    is_known = model_type in CONFIG_MAPPING
    # The code of a type that transformers knows too is run only if the user says so.
    if config_file.raw.get("auto_map") and (trust_remote_code or not is_known):
        _check_remote_code(config_file, trust_remote_code)
        # Only the directory's own code knows the fields of such a config.
        return building.read_config(
            AutoModelForCausalLM, config_file.directory, config_file.raw, True, {}
        ), True
    if not is_known:
        raise PortError(
            f"transformers has no model_type {model_type!r}", where=f"{config_file.path}, model_type",
            fix="check the spelling, or install the transformers that has it",
        )  # fmt: skip
    with name_wrong_fields(
        config_file.raw, config_file.path, "transformers refuses the config"
    ):
        return CONFIG_MAPPING[model_type].from_dict(copy.deepcopy(raw)), False


def _check_remote_code(config_file: ConfigFile, is_trusted: bool) -> None:
    """PortError unless the user trusts the code that the config names, and its files
    exist.
    """
    references = building.code_references(config_file.raw)
    # "--" is between a repository's name and the rest: that code is not in this
    # directory.
    modules = sorted(
        {
            reference.rpartition(".")[0]
            for reference in references
            if "--" not in reference
        }
    )
    files = [config_file.directory / f"{module}.py" for module in modules]
    if not is_trusted:
        raise PortError(
            f"the model needs Python code of its own: {', '.join(map(str, files or references))}",
            where=f"{config_file.path}, auto_map", fix="if you trust it, --trust-remote-code runs it",
        )  # fmt: skip
    for file in itertools.filterfalse(Path.is_file, files):
        fix = f"{config_file.path} names it under auto_map"
        raise PortError("there is no such file", where=str(file), fix=fix)


def choose_dtype(
    raw: Mapping[str, Any], requested: str | None
) -> tuple[str, tuple[str, ...]]:
    """The name of the dtype of floating-point weights, and a note if it is not the
    user's choice.
    """
    if requested is not None:
        name = _plain_name(as_torch_dtype(requested))
        if name == "float16":
            return "bfloat16", (
                f"weights are bfloat16 instead of float16, {_NO_FLOAT16}",
            )
        return name, ()
    name = _plain_name(_stated_dtype(raw))
    if name == "float16":
        return "bfloat16", (
            f"weights are bfloat16 instead of the config's float16, {_NO_FLOAT16}",
        )
    if isinstance(getattr(torch, name, None), torch.dtype):
        return name, (f"weights are {name}, as the config says",)
    return "bfloat16", ("weights are bfloat16: the config names no dtype",)


def _plain_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _stated_dtype(raw: Mapping[str, Any]) -> Any:
    """The dtype that a config names, of its own or of its text part; "" if it names
    none.
    """
    parts = (raw, raw.get("text_config") or {})
    # The older name of the field is the second.
    stated = (part.get(field) for part in parts for field in ("dtype", "torch_dtype"))
    return next(filter(None, stated), "")


def _make_builder(
    model: _Model, dtype: str, is_remote: bool, config_file: ConfigFile
) -> Callable[[], torch.nn.Module]:
    """A function that makes the model without memory for parameters."""
    torch_dtype: Any = as_torch_dtype(dtype)
    model_class = model.model_class

    def build() -> torch.nn.Module:
        # Building may change the config.
        config = copy.deepcopy(model.config)
        with name_wrong_fields(
            config_file.raw, config_file.path, f"{model_class.__name__} cannot be built"
        ):
            built = building.build_empty(
                model_class, config, torch_dtype, is_remote, Path(config_file.path)
            )
        quantize_as_file(built, config_file, torch_dtype)
        return built

    return build


def _model_mappings() -> Any:
    from transformers.models.auto import modeling_auto

    return modeling_auto


def _is_causal(config: Any, name: str | None) -> bool:
    """Whether this is a decoder that makes text, by the class that the config names or
    else by its type.
    """
    mappings = _model_mappings()
    model_type = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        return False
    if name in mappings.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values():
        return True
    # BERT and its like have a class for either; by default they fill in masked words.
    fills_masks = model_type in mappings.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if fills_masks and not getattr(config, "is_decoder", False):
        return False
    causal_classes = mappings.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if name is None:
        return model_type in causal_classes
    return name in causal_classes.values() or name.endswith(
        ("ForCausalLM", "LMHeadModel")
    )


def _text_model_config(config: Any, class_name: str | None, options: Options) -> Any:
    """The config of the text part of a model with several kinds of input, if that is a
    causal language model.
    """
    # A pipeline, a forward call and inputs of the user's own are for the whole model.
    if (
        class_name is not None
        or options.task == "forward"
        or options.inputs is not None
    ):
        return None
    text_config = getattr(config, "text_config", None)
    model_type = getattr(text_config, "model_type", None)
    if model_type in _model_mappings().MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return text_config
    return None


def _find_class(
    name: str | None, is_causal: bool, is_remote: bool, config_file: ConfigFile
) -> Any:
    import transformers

    if is_remote:
        return _find_remote_class(is_causal, config_file)
    # Without a name, the type of the config determines the class.
    if name is None and is_causal:
        return transformers.AutoModelForCausalLM
    if name is None:
        return transformers.AutoModel
    model_class = getattr(transformers, name, None)
    if not (isinstance(model_class, type) and issubclass(model_class, torch.nn.Module)):
        raise PortError(
            f"transformers has no model called {name}", where=f"{config_file.path}, architectures",
            fix="install the transformers that has it, or take architectures out of the config",
        )  # fmt: skip
    return model_class


def _find_remote_class(is_causal: bool, config_file: ConfigFile) -> Any:
    """The class in the directory's own code that replaces the automatic one."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    names = ["AutoModel", "AutoModelForCausalLM"]
    if is_causal:
        names.reverse()
    # The config that the code has read may have dropped this field.
    references = [
        reference
        for name in names
        if (reference := config_file.raw["auto_map"].get(name))
    ]
    if not references:
        where = f"{config_file.path}, auto_map: AutoModel"
        raise PortError("no class of the code is named for the model", where=where)
    return get_class_from_dynamic_module(
        references[0], str(config_file.directory), local_files_only=True
    )


def _generation_targets(
    target: Target, config: Any, options: Options
) -> Iterator[Target]:
    """The programs of a causal language model; `target` has what they share."""
    tasks = (
        ["prefill", "decode"] if options.task in (None, "generate") else [options.task]
    )
    options.check_apply(
        (*_APPLICABLE[tasks[0]], "task"),
        f"a causal language model's {' and '.join(tasks)}",
    )
    batch = options.rows
    length, remark = _prompt_length(config, options)
    # Unless the user says more, the cache has room for the prompt.
    slots = options.max_cache_len or length
    if slots < length:
        raise PortError(
            f"a prompt of {length} tokens is longer than the cache", where=f"max_cache_len={slots}",
            fix=f"--max-cache-len {length} at least",
        )  # fmt: skip
    prompt_note = f"batch {batch}, {length} tokens{remark}"
    for task in tasks:
        name = f"{target.name} {task}" if len(tasks) > 1 else target.name
        note, tokens = prompt_note, batch * length
        inputs: Any
        match task:
            case "prefill":
                inputs = Prefill(batch, length, options.max_cache_len, options.kv_cache)
            case "decode":
                inputs, tokens = Decode(batch, slots, options.kv_cache), batch
                note = f"batch {batch}, a cache of {slots} positions{remark}"
            case _:
                inputs = {
                    "input_ids": empty(batch, length, dtype=torch.int64),
                    "use_cache": False,
                }
        unit = ("tokens", float(tokens))
        yield dataclasses.replace(
            target, name=name, inputs=inputs, unit=unit, notes=(*target.notes, note)
        )


def _prompt_length(config: Any, options: Options) -> tuple[int, str]:
    """Tokens of the prompt, and a remark about them for a note.

    Raises:
        PortError: the model has a table of positions, and it is shorter.
    """
    values = (getattr(config, field, None) for field in _POSITION_FIELDS)
    # A model whose config has none of the fields, or 0 there, has no table of
    # positions.
    positions = (
        next((value for value in values if isinstance(value, int)), 0) or sys.maxsize
    )
    sizes = {"length": options.length or 0, "max_cache_len": options.max_cache_len or 0}
    largest = max(sizes, key=lambda name: sizes[name])
    requested = sizes[largest]
    if not requested:
        if positions <= _PROMPT_LENGTH:
            return positions, ", as many as the model has positions for"
        return _PROMPT_LENGTH, ", the default length"
    length = options.length or min(_PROMPT_LENGTH, requested)
    if requested <= positions:
        return length, ""
    # Rotary embeddings have no table of positions, and work beyond what the model was
    # made for.
    if getattr(config, "rope_parameters", None) is None:
        raise PortError(
            f"the model has positions for {positions} tokens, not for {requested}",
            where=largest, fix=f"at most {positions}",
        )  # fmt: skip
    return length, f" (the model was made for {positions})"
