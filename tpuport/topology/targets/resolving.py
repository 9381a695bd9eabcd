"""From a target's name to its programs."""

from typing import Any

from tpuport.errors import PortError
from tpuport.topology.targets import diffusers_targets, transformers_targets, user_code
from tpuport.topology.targets.config_files import ConfigFile, find_config
from tpuport.topology.targets.early_checks import is_user_code
from tpuport.topology.targets.gguf_configs import is_gguf
from tpuport.topology.targets.gguf_configs import read_config as read_gguf_config
from tpuport.topology.targets.target import Options, Target, parse_image_size


def resolve(
    target: str,
    *,
    task: str | None = None,
    batch: int | None = None,
    length: int | None = None,
    max_cache_len: int | None = None,
    kv_cache: str | None = None,
    image_size: int | str | tuple[int, int] | None = None,
    frames: int | None = None,
    dtype: str | None = None,
    inputs: str | None = None,
    component: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[Target, ...]:
    """The programs of `target`. Nothing is downloaded, and nothing large is allocated.

    Args:
        target: a directory or file with the config of a transformers or diffusers
            model; a diffusers pipeline's directory; a name of `known`; or
            "module:function" that returns (model, inputs).
        task: "prefill", "decode", "generate" for both, or "forward"; None is "generate"
            for a causal language model, and "forward" for anything else.
        batch: rows of a call, 1 by default.
        length: of the prompt, or of an encoder's text; max_cache_len: positions of the
            cache, `length` by default.
        kv_cache: "int8" for keys and values in eight bits, as in `generate`.
        image_size: in pixels: a number for a square, "720x1280" or (720, 1280) for
            height and width.
        frames: of a video.
        dtype: of floating-point weights; None is the config's, or bfloat16 if it has
            none.
        inputs: "module:function" that makes the inputs, called with the config if it
            takes an argument.
        component: one component of a pipeline; None is all that have weights and can be
            called.
        trust_remote_code: whether Python code in the directory may run.

    Returns:
        A target for each program, at least one; its `notes` say what was chosen here.

    Raises:
        PortError: anything about it is impossible, before any work starts.
    """
    options = Options(
        task=task, batch=batch, length=length, max_cache_len=max_cache_len, kv_cache=kv_cache,
        image_size=parse_image_size(image_size), frames=frames, dtype=dtype, inputs=inputs,
        component=component, trust_remote_code=trust_remote_code,
    )  # fmt: skip
    if is_user_code(target):
        _check_no_component(options, target)
        return (user_code.user_target(target, options),)
    return _config_targets(find_config(target), options)


def _config_targets(config_file: ConfigFile, options: Options) -> tuple[Target, ...]:
    if is_gguf(config_file):
        config_file = read_gguf_config(config_file)
    raw: dict[str, Any] = config_file.raw
    # Only a pipeline has components; its index names no class of a model.
    if config_file.path.endswith("model_index.json"):
        return diffusers_targets.pipeline_targets(config_file, options)
    _check_no_component(options, config_file.path)
    # diffusers writes the class into a config; of transformers' configs, some name code
    # of their own instead of a type.
    if "_class_name" in raw:
        return (diffusers_targets.component_target(config_file, options),)
    if "model_type" in raw or "auto_map" in raw:
        return transformers_targets.transformers_targets(config_file, options)
    raise PortError(
        "this is the config of neither library", where=config_file.path,
        fix="transformers' has a model_type, diffusers' a _class_name",
    )  # fmt: skip


def _check_no_component(options: Options, where: str) -> None:
    if options.component is not None:
        raise PortError(
            "this is not a pipeline, and has no components",
            where=where,
            fix="leave component out",
        )
