"""Models of transformers: causal language models, and encoders of text, images and sound."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from tpuport.checkpoint import building
from tpuport.checkpoint.device_layout import as_torch_dtype
from tpuport.errors import PortError
from tpuport.topology.generation_tasks import Decode, Prefill
from tpuport.topology.targets import code, encoders, fields
from tpuport.topology.targets.configs import Found
from tpuport.topology.targets.target import Options, Target, empty

# A prompt that no one says the length of: what most reports of serving speed take.
LENGTH: Final = 4096


def transformers_targets(found: Found, options: Options, class_name: str | None = None) -> tuple[Target, ...]:
    """The programs of a transformers config; `class_name` is what a pipeline says that it is.

    Raises:
        PortError: a model that transformers does not know, code that was not trusted, or options that do not apply.
    """
    config, remote = read_config(found, options.trust_remote_code)
    dtype, notes = chosen_dtype(found.raw, options.dtype)
    name = class_name or next(iter(getattr(config, "architectures", None) or ()), None)
    if class_name is None and (text := _text_model(config, options)) is not None:
        config, name = text, None
        notes = (
            *notes,
            f"the text model alone, {type(text).__name__}: no tower for images or sound is in it",
        )
    own = remote and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    causal = class_name is None and (own or is_causal(config, name))
    fields.check_heads(config, found)
    if options.task in ("prefill", "decode") and not causal:
        _check_generates(config, name, class_name, options.task)
        causal, name = True, None
    model_class = _class_of(name, config, causal, remote, found)
    build = builder(model_class, config, dtype, remote, found)
    if options.inputs is not None:
        options.check_apply((), name or config.model_type)
        given = code.made_inputs(options.inputs, config, options.task)
        kind = "causal-lm" if causal else "encoder"
        return (
            Target(
                found.name, build, given, None, dtype, kind, (*notes, f"inputs are those of {options.inputs}")
            ),
        )
    if causal:
        return _causal_targets(found, config, build, dtype, notes, options)
    options.check_apply(encoders.applicable(model_class, config), f"{name or config.model_type}")
    inputs, unit, said = encoders.inputs_of(model_class, config, dtype, options)
    return (Target(found.name, build, inputs, unit, dtype, "encoder", (*notes, *said)),)


def _check_generates(config: Any, name: str | None, class_name: str | None, task: str) -> None:
    """PortError unless transformers has a causal language model of this type; a pipeline's encoder is none."""
    if class_name is not None or config.model_type not in _auto().MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise PortError(
            f"{name or config.model_type} generates no text a token at a time, so there is no {task}",
            where="task", fix="--task forward",
        )  # fmt: skip


def read_config(found: Found, trust_remote_code: bool) -> tuple[Any, bool]:
    """The config as transformers' object, and whether the directory's own code is what reads it."""
    from transformers import CONFIG_MAPPING

    raw, model_type = found.raw, str(found.raw.get("model_type"))
    _refuse_quantised(found)
    native, has_code = model_type in CONFIG_MAPPING, bool(raw.get("auto_map"))
    if has_code and (trust_remote_code or not native):
        _check_trusted(found, trust_remote_code)
        from transformers import AutoModelForCausalLM

        directory = found.directory or Path()
        return building.read_config(AutoModelForCausalLM, directory, True, {}), True
    if not native:
        raise PortError(
            f"transformers has no model_type {model_type!r}", where=f"{found.path}, model_type",
            fix="check the spelling, or install the transformers that has it",
        )  # fmt: skip
    with fields.told(found, "transformers refuses the config"):
        return CONFIG_MAPPING[model_type].from_dict(copy.deepcopy(raw)), False


def _refuse_quantised(found: Found) -> None:
    quantised = found.raw.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else None
        raise PortError(
            f"the checkpoint is quantised ({method or 'unknown method'}), which is not supported",
            where=f"{found.path}, quantization_config",
            fix="take that entry out of a copy of the config, to compile the model unquantised",
        )


def _check_trusted(found: Found, trusted: bool) -> None:
    references = building.code_references(found.raw)
    directory = found.directory or Path()
    files = sorted({str(directory / f"{ref.rpartition('.')[0]}.py") for ref in references if "--" not in ref})
    if not trusted:
        raise PortError(
            f"the model needs Python code of its own: {', '.join(files or references)}",
            where=f"{found.path}, auto_map", fix="if you trust it, --trust-remote-code runs it",
        )  # fmt: skip
    if missing := [file for file in files if not Path(file).is_file()]:
        raise PortError(
            "there is no such file", where=missing[0], fix=f"{found.path} names it under auto_map"
        )


def chosen_dtype(raw: Mapping[str, Any], given: str | None) -> tuple[str, tuple[str, ...]]:
    """The dtype of floating-point weights, by name, and a note where it is not the user's."""
    if as_torch_dtype(given) is torch.float16:
        return "bfloat16", ("weights are bfloat16 in place of float16, which no TPU multiplies in",)
    if given is not None:
        return str(as_torch_dtype(given)).removeprefix("torch."), ()
    text = raw.get("text_config")
    nested = text if isinstance(text, Mapping) else {}
    named = next(
        (part[key] for part in (raw, nested) for key in ("dtype", "torch_dtype") if part.get(key)), None
    )
    if isinstance(named, str) and named.removeprefix("torch.") == "float16":
        return "bfloat16", (
            "weights are bfloat16 in place of the config's float16, which no TPU multiplies in",
        )
    if isinstance(named, str) and isinstance(getattr(torch, named.removeprefix("torch."), None), torch.dtype):
        plain = named.removeprefix("torch.")
        return plain, (f"weights are {plain}, as the config says",)
    return "bfloat16", ("weights are bfloat16: the config names no dtype",)


def builder(
    model_class: Any, config: Any, dtype: str, remote: bool, found: Found
) -> Callable[[], torch.nn.Module]:
    """A function that makes the model without memory for parameters, from a copy of the config."""
    kind = as_torch_dtype(dtype) or torch.bfloat16

    def build() -> torch.nn.Module:
        with fields.told(found, f"{model_class.__name__} cannot be built"):
            return building.build_empty(model_class, copy.deepcopy(config), kind, remote, Path(found.path))

    return build


def _auto() -> Any:
    from transformers.models.auto import modeling_auto

    return modeling_auto


def is_causal(config: Any, name: str | None) -> bool:
    """Whether this is a decoder that makes text, by the class that the config names or else by its type."""
    auto, model_type = _auto(), config.model_type
    if getattr(config, "is_encoder_decoder", False):
        return False
    # BERT and its like have a class for either; what they are by default fills in masked words.
    masked = model_type in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False)
    known = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if name is None:
        return model_type in known and not masked
    several = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    if name in several.values():
        return True
    return (name in known.values() or name.endswith(("ForCausalLM", "LMHeadModel"))) and not masked


def _text_model(config: Any, options: Options) -> Any:
    """The text part of a model of several kinds of input, where it is a causal language model by itself."""
    text = getattr(config, "text_config", None)
    if text is None or options.task == "forward" or options.inputs is not None:
        return None
    return text if getattr(text, "model_type", None) in _auto().MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else None


def _class_of(name: str | None, config: Any, causal: bool, remote: bool, found: Found) -> Any:
    import transformers

    if remote:
        return _own_class(config, causal, found)
    if name is not None:
        named = getattr(transformers, name, None)
        if not (isinstance(named, type) and issubclass(named, torch.nn.Module)):
            raise PortError(
                f"transformers has no model called {name}", where=f"{found.path}, architectures",
                fix="install the transformers that has it, or take architectures out of the config",
            )  # fmt: skip
        return named
    return transformers.AutoModelForCausalLM if causal else transformers.AutoModel


def _own_class(config: Any, causal: bool, found: Found) -> Any:
    """The class in the directory's own code that stands for the automatic one."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    automatic = getattr(config, "auto_map", None) or {}
    wanted = ("AutoModelForCausalLM", "AutoModel") if causal else ("AutoModel", "AutoModelForCausalLM")
    reference = next((automatic[name] for name in wanted if name in automatic), None)
    if reference is None:
        raise PortError(
            "no class of the code is named for the model", where=f"{found.path}, auto_map: AutoModel"
        )
    return get_class_from_dynamic_module(reference, str(found.directory), local_files_only=True)


def _causal_targets(
    found: Found, config: Any, build: Any, dtype: str, notes: tuple[str, ...], options: Options
) -> tuple[Target, ...]:
    tasks = (options.task,) if options.task else ("prefill", "decode")
    applicable = {
        "prefill": ("batch", "length", "max_cache_len"), "decode": ("batch", "length", "max_cache_len"),
        "forward": ("batch", "length"),
    }  # fmt: skip
    options.check_apply((*applicable[tasks[0]], "task"), f"a causal language model's {' and '.join(tasks)}")
    batch = options.batch or 1
    length, said = _length(config, options)
    room = options.max_cache_len or length
    if room < length:
        raise PortError(
            f"a prompt of {length} tokens is longer than the cache", where=f"max_cache_len={room}",
            fix=f"--max-cache-len {length} at least",
        )  # fmt: skip
    made: dict[str, tuple[Any, float]] = {
        "prefill": (Prefill(batch, length, options.max_cache_len), batch * length),
        "decode": (Decode(batch, room), batch),
        "forward": (
            {"input_ids": empty(batch, length, dtype=torch.int64), "use_cache": False}, batch * length,
        ),
    }  # fmt: skip
    targets = []
    for task in tasks:
        inputs, tokens = made[task]
        size = {"decode": f"batch {batch}, a cache of {room} positions"}.get(
            task, f"batch {batch}, {length} tokens"
        )
        name = f"{found.name} {task}" if len(tasks) > 1 else found.name
        targets.append(
            Target(
                name, build, inputs, ("tokens", float(tokens)), dtype, "causal-lm", (*notes, f"{size}{said}")
            )
        )
    return tuple(targets)


def _length(config: Any, options: Options) -> tuple[int, str]:
    """Tokens of the prompt, and what to say of it; a bound that the model has is kept."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
    most = next((value for name in names if isinstance(value := getattr(config, name, None), int)), None)
    wanted = max(filter(None, (options.length, options.max_cache_len)), default=None)
    rotary = getattr(config, "rope_parameters", None) is not None
    if most and wanted and wanted > most and not rotary:
        raise PortError(
            f"the model has positions for {most} tokens, not for {wanted}",
            where="length" if options.length == wanted else "max_cache_len", fix=f"at most {most}",
        )  # fmt: skip
    if options.length or options.max_cache_len:
        beyond = most and wanted and wanted > most
        said = f" (the model was made for {most})" if beyond else ""
        return options.length or min(LENGTH, options.max_cache_len or LENGTH), said
    chosen = min(LENGTH, most or LENGTH)
    return chosen, ", as many as the model has positions for" if chosen == most else ", the default length"
