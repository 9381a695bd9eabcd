"""Build the empty model that a checkpoint's config describes: parameters without memory, buffers real."""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights

from tpuport.errors import PortError
from tpuport.library_classes import is_diffusers_class


def check_class(model_class: Any) -> None:
    """PortError unless `model_class` is a class that its library can build from a config."""
    builders = ("_model_mapping", "_from_config", "from_config")
    if isinstance(model_class, type) and any(hasattr(model_class, name) for name in builders):
        return
    fix = "give AutoModelForCausalLM, or another class of transformers or diffusers"
    if isinstance(model_class, str | Path):
        fix = "the class comes first, then the directory: load(AutoModelForCausalLM, directory)"
    elif isinstance(model_class, torch.nn.Module):
        fix = "give its class; a model that is in memory already is moved by tpuport.port(model, mesh=mesh)"
    # A module's repr is all of its layers.
    module = isinstance(model_class, torch.nn.Module)
    given = f"a {type(model_class).__name__}" if module else f"{model_class!r:.60}"
    raise PortError(f"{given} is not a model class", where="the first argument of load", fix=fix)


def checked_path(directory: Any) -> Path:
    """The directory as a path; PortError for what no path can be made of."""
    if not isinstance(directory, str | os.PathLike):
        raise PortError(
            f"{directory!r:.60} is not a directory",
            where="the second argument of load",
            fix="give the path of a checkpoint on this host",
        )
    return Path(directory)


def brief(error: PortError, directory: Path) -> str:
    """One line of an error that is listed among others: what, and where unless that is `directory` itself."""
    elsewhere = error.where not in (None, str(directory))
    return f"{error.what} ({error.where})" if elsewhere else error.what


def check_directory(directory: Path) -> None:
    """PortError unless `directory` is a directory with a config.json."""
    if not directory.exists():
        hub = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(directory))
        fix = f"nothing is downloaded here; `hf download {directory} --local-dir DIR`, then give DIR"
        raise PortError(
            "there is no such directory", where=str(directory), fix=fix if hub else "check the path"
        )
    if not directory.is_dir():
        raise PortError(
            "a checkpoint is a directory, this is a file", where=str(directory), fix="give its directory"
        )


def read_config(
    model_class: type, directory: Path, trust_remote_code: bool, options: Mapping[str, Any]
) -> Any:
    """The config of the checkpoint: a transformers config object, or diffusers' dict.

    Raises:
        PortError: no config, an unreadable one, a quantised checkpoint, or one that needs its own code.
    """
    path = directory / "config.json"
    if not path.is_file():
        raise PortError("there is no config.json", where=str(directory), fix="save it with save_pretrained")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        quantised = raw.get("quantization_config")
    except (ValueError, AttributeError) as error:
        raise PortError(f"the config cannot be read: {error!r}", where=str(path)) from error
    if quantised:
        method = quantised.get("quant_method") or quantised.get("quant_type") or "unknown method"
        raise PortError(
            f"the checkpoint is quantised ({method}), which is not supported",
            where=f"{path}, quantization_config",
            fix="load an unquantised checkpoint, or dequantise this one with transformers and save it again",
        )
    if is_diffusers_class(model_class):
        return {**raw, **options}
    return _transformers_config(model_class, directory, raw, trust_remote_code, options)


def _transformers_config(
    model_class: Any, directory: Path, raw: dict, trust_remote_code: bool, options: Mapping[str, Any]
) -> Any:
    from transformers import AutoConfig

    hub_code = [ref for ref in code_references(raw) if "--" in ref]
    if trust_remote_code and hub_code:
        raise PortError(
            f"the checkpoint's code is in another repository ({hub_code[0]}), and nothing is downloaded here",
            where=f"{directory / 'config.json'}, auto_map",
            fix="put the code into the checkpoint's directory and name it without '--'",
        )
    config_class = getattr(model_class, "config_class", None)
    fixed = {"local_files_only": True, "return_unused_kwargs": True}
    with _library_errors(directory):
        if config_class is not None:
            made: Any = config_class.from_pretrained(directory, **fixed, **options)
        else:
            made = AutoConfig.from_pretrained(
                directory, trust_remote_code=trust_remote_code, **fixed, **options
            )
    config, unused = made
    if stray := sorted(options.keys() & unused.keys()):
        raise PortError(
            f"the config of this model has no such option: {', '.join(stray)}",
            where=type(config).__name__,
            fix="check the spelling; beside its own arguments, load takes fields of the config",
        )
    return config


def code_references(raw: dict) -> list[str]:
    """The classes that a config's `auto_map` names, as `file.Class` or `repository--file.Class`."""
    values = raw.get("auto_map", {}).values()
    return [ref for value in values for ref in (value if isinstance(value, list) else [value]) if ref]


@contextlib.contextmanager
def _library_errors(directory: Path) -> Iterator[None]:
    """Turn transformers' complaint about untrusted code, or about an unknown model, into a PortError."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        fix = (
            "if you trust the code in it, pass trust_remote_code=True"
            if "remote_code" in str(error)
            else None
        )
        first = str(error).strip().splitlines()[0]
        raise PortError(
            f"transformers cannot build this model: {first}", where=str(directory), fix=fix
        ) from error


def build_empty(
    model_class: Any, config: Any, dtype: torch.dtype, trust_remote_code: bool, directory: Path
) -> torch.nn.Module:
    """The module in evaluation mode: parameters on the meta device, ties made, buffers real.

    Buffers are what the constructor computes: some, such as rotary frequencies, are in no file, so they must
    be real already.
    """
    if not dtype.is_floating_point:
        raise PortError(
            f"a model cannot be built in {dtype}", where="dtype", fix="give a floating dtype, or none"
        )
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with init_empty_weights(include_buffers=False), _library_errors(directory):
            if is_diffusers_class(model_class):
                model = _concrete_diffusers(model_class, config).from_config(config)
            elif hasattr(model_class, "_model_mapping"):
                model = model_class.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)
            else:
                model = model_class._from_config(config, dtype=dtype)
    finally:
        torch.set_default_dtype(default)
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    return model.eval().requires_grad_(False)


def _concrete_diffusers(model_class: Any, config: Mapping[str, Any]) -> Any:
    """The class that the config names, where the given one only stands for it."""
    import diffusers

    if model_class is not getattr(diffusers, "AutoModel", None):
        return model_class
    name = config.get("_class_name")
    if not isinstance(name, str) or not hasattr(diffusers, name):
        raise ValueError(f"the config names the class {name!r}, which diffusers does not have")
    return getattr(diffusers, name)


def add_generation_config(model: Any, directory: Path) -> None:
    """Give a generating model the generation defaults that were saved beside its weights."""
    if not (directory / "generation_config.json").is_file() or not getattr(model, "can_generate", bool)():
        return
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig.from_pretrained(directory, local_files_only=True)
