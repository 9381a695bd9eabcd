"""Build the empty model that a checkpoint's config describes: parameters without
memory, buffers with values.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights

from tpuport.base.mappings import without
from tpuport.checkpoint import formats
from tpuport.errors import PortError
from tpuport.internals.transformers_internals import builder, classes_by_config
from tpuport.libraries.config_values import check_values, read_json
from tpuport.libraries.library_classes import is_diffusers_class

QUANTIZATION = "quantization_config"
"""The field of a config that describes weights in few bits."""

# The file, and the fields in it for the dtype of weights, of which the second is the
# older.
CONFIG = "config.json"
_DTYPES = ("dtype", "torch_dtype")


def check_class(model_class: Any) -> None:
    """PortError unless `model_class` is a class that its library can build from a
    config.
    """
    # A model of transformers, an auto class, or a class of diffusers.
    if isinstance(model_class, type) and (
        builder(model_class) is not None or hasattr(model_class, "from_config")
    ):
        return
    description = f"{model_class!r:.60}"
    fix = "give AutoModelForCausalLM, or another class of transformers or diffusers"
    if isinstance(model_class, str | Path):
        fix = "the class comes first, then the directory: load(AutoModelForCausalLM, directory)"
    elif isinstance(model_class, torch.nn.Module):
        # A module's repr lists all of its layers.
        description = f"a {type(model_class).__name__}"
        fix = "give its class; a model that is in memory already is moved by tpuport.port(model, mesh=mesh)"
    raise PortError(
        f"{description} is not a model class",
        where="the first argument of load",
        fix=fix,
    )


def as_path(directory: Any) -> Path:
    """The directory as a path; PortError for anything but a string or a path."""
    if not isinstance(directory, str | os.PathLike):
        raise PortError(
            f"{directory!r:.60} is not a directory",
            where="the second argument of load",
            fix="give the path of a checkpoint on this host",
        )
    return Path(directory)


def check_directory(directory: Path) -> None:
    """PortError unless `directory` exists and is a directory."""
    if directory.is_dir():
        return
    if directory.exists():
        fix = "give its directory"
        if directory.suffix == ".gguf":
            fix += f", and gguf_file={directory.name!r}"
        raise PortError(
            "a checkpoint is a directory, this is a file", where=str(directory), fix=fix
        )
    fix = "check the path"
    # What looks like a repository of the Hugging Face Hub.
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(directory)):
        fix = f"tpuport downloads nothing; `hf download {directory} --local-dir DIR`, then give DIR"
    raise PortError("there is no such directory", where=str(directory), fix=fix)


def read_raw_config(directory: Path) -> dict[str, Any]:
    """The contents of a checkpoint's config.json.

    Raises:
        PortError: there is none, it is unreadable, it describes weights in few bits of
            an unknown format, or it has values that no model can have.
    """
    path = directory / CONFIG
    if not path.exists():
        raise PortError(
            "there is no config.json",
            where=str(directory),
            fix="save it with save_pretrained",
        )
    raw = read_json(path)
    quantization = raw.get(QUANTIZATION)
    if quantization:
        formats.check_method(quantization, f"{path}, {QUANTIZATION}")
    _check_kinds(raw, path)
    check_values(raw, str(path))
    return raw


def _check_kinds(raw: Mapping[str, Any], path: Path) -> None:
    """PortError for fields that say how a config is to be read, and are not of their
    kind.
    """
    for name in ("model_type", "_class_name", *_DTYPES):
        if not isinstance(raw.get(name), str | None):
            raise PortError(
                f"{name} is {raw[name]!r:.60}, and not a name", where=f"{path}, {name}"
            )
    for name in filter(raw.get, _DTYPES):
        dtype = getattr(torch, str(raw[name]).removeprefix("torch."), None)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise PortError(
                f"{name} is {raw[name]!r:.60}, and not a floating dtype of torch",
                where=f"{path}, {name}",
            )
    code = raw.get("auto_map")
    references = code.values() if isinstance(code, Mapping) else ()
    is_right = all(map(_is_reference, references))
    if code is not None and not (isinstance(code, Mapping) and is_right):
        raise PortError(
            f"auto_map is {code!r:.60}, and not an object of names of classes",
            where=f"{path}, auto_map",
        )


def _is_reference(value: Any) -> bool:
    """Whether this names a class of a checkpoint's code, or as a tokenizer's entry
    does, one or two or none.
    """
    if isinstance(value, list):
        return all(isinstance(name, str | None) for name in value)
    return isinstance(value, str)


def read_config(
    model_class: type,
    directory: Path,
    raw: Mapping[str, Any],
    trust_remote_code: bool,
    options: Mapping[str, Any],
) -> Any:
    """The config that the model is built from, as for weights that are not quantised.

    Args:
        raw: as `read_raw_config` returned it.

    Returns:
        A transformers config object, or diffusers' dict.

    Raises:
        PortError: an option that the config does not have, or a checkpoint that needs
            its own code.
    """
    if is_diffusers_class(model_class):
        return without(raw, {QUANTIZATION}) | dict(options)
    config = _read_transformers_config(
        model_class, directory, raw, trust_remote_code, options
    )
    # Models save it with their weights, which will not be in this form.
    vars(config).pop(QUANTIZATION, None)
    return config


def read_gguf_config(
    model_class: Any, directory: Path, name: str, options: Mapping[str, Any]
) -> Any:
    """The config in the GGUF file `name`; PortError if transformers cannot read it, or
    for an unknown option.
    """
    from transformers import AutoConfig

    config_class: Any = getattr(model_class, "config_class", None) or AutoConfig
    try:
        config = _load_config(config_class, directory, options, gguf_file=name)
    except (KeyError, TypeError) as error:
        # What an architecture needs is looked up by name, and used as it is.
        raise PortError(
            f"its config cannot be read: {error!r:.200}",
            where=str(directory / name),
            fix="check that the file was copied whole, or make it again with a newer llama.cpp",
        ) from error
    vars(config).pop(QUANTIZATION, None)
    return config


def _read_transformers_config(
    model_class: Any,
    directory: Path,
    raw: Mapping[str, Any],
    trust_remote_code: bool,
    options: Mapping[str, Any],
) -> Any:
    from transformers import AutoConfig

    hub_code = [reference for reference in code_references(raw) if "--" in reference]
    # Code in the directory itself runs, if it is trusted.
    if trust_remote_code and hub_code:
        raise PortError(
            f"the checkpoint's code is in another repository ({hub_code[0]}), and tpuport downloads nothing",
            where=f"{directory / 'config.json'}, auto_map",
            fix="put the code into the checkpoint's directory and name it without '--'",
        )
    config_class: Any = getattr(model_class, "config_class", None)
    if config_class is not None:
        return _load_config(config_class, directory, options)
    # AutoModel classes have none: the checkpoint itself says which it is.
    return _load_config(
        AutoConfig, directory, options, trust_remote_code=trust_remote_code
    )


def _load_config(
    config_class: Any, directory: Path, options: Mapping[str, Any], **loading: Any
) -> Any:
    """The config in `directory` with `options` in it; `loading` says how transformers
    reads it.
    """
    with _library_errors(directory / loading.get("gguf_file", "")):
        loaded: Any = config_class.from_pretrained(
            directory,
            local_files_only=True,
            return_unused_kwargs=True,
            **loading,
            **options,
        )
    config, unused = loaded
    unknown = sorted(options.keys() & unused.keys())
    if unknown:
        raise PortError(
            f"the config of this model has no such option: {', '.join(unknown)}",
            where=type(config).__name__,
            fix="check the spelling; besides its own arguments, load takes fields of the config",
        )
    return config


def code_references(raw: Mapping[str, Any]) -> list[str]:
    """The classes that a config's `auto_map` names, as `file.Class` or
    `repository--file.Class`.
    """
    references: list[str] = []
    for value in raw.get("auto_map", {}).values():
        # A tokenizer's entry is a list of the slow and the fast class, either of which
        # may be None.
        references += filter(None, value if isinstance(value, list) else [value])
    return references


@contextlib.contextmanager
def _library_errors(directory: Path) -> Iterator[None]:
    """Turn transformers' complaint about untrusted code, or about an unknown model,
    into a PortError.
    """
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        fix = None
        if isinstance(error, ImportError):
            fix = "install what the model needs"
        if "remote_code" in str(error):
            fix = "if you trust the code in it, pass trust_remote_code=True"
        first_line = str(error).strip().splitlines()[0]
        raise PortError(
            f"transformers cannot build this model: {first_line}",
            where=str(_config_of(directory)),
            fix=fix,
        ) from error


def _config_of(directory: Path) -> Path:
    path = directory / CONFIG
    return path if path.is_file() else directory


def build_empty(
    model_class: Any,
    config: Any,
    dtype: torch.dtype,
    trust_remote_code: bool,
    directory: Path,
) -> torch.nn.Module:
    """The module in evaluation mode: parameters on the meta device, weights tied,
    buffers with values.

    Buffers keep what the constructor computes: some, such as rotary frequencies, are in
    no file.

    Raises:
        PortError: `dtype` is not a floating one, or the library cannot build the model.
    """
    if not dtype.is_floating_point:
        raise PortError(
            f"a model cannot be built in {dtype}",
            where="dtype",
            fix="give a floating dtype, or none",
        )
    # Modules that create buffers without a dtype take the default, as in
    # from_pretrained.
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with init_empty_weights(include_buffers=False), _library_errors(directory):
            if is_diffusers_class(model_class):
                model = _resolve_diffusers_class(model_class, config).from_config(
                    config
                )
            elif classes_by_config(model_class) is not None:
                model = model_class.from_config(
                    config, dtype=dtype, trust_remote_code=trust_remote_code
                )
            else:
                model = builder(model_class)(config, dtype=dtype)
    finally:
        torch.set_default_dtype(default)
    if hasattr(model, "tie_weights"):
        # Parameters on the meta device were replaced one by one, which parts tied ones.
        model.tie_weights()
    return model.eval().requires_grad_(False)


def _resolve_diffusers_class(model_class: Any, config: Mapping[str, Any]) -> Any:
    """The model class itself, or for diffusers' AutoModel the class that the config
    names.
    """
    import diffusers

    if model_class is not getattr(diffusers, "AutoModel", None):
        return model_class
    name = config.get("_class_name")
    if not hasattr(diffusers, str(name)):
        raise ValueError(
            f"the config names the class {name!r}, which diffusers does not have"
        )
    return getattr(diffusers, str(name))
