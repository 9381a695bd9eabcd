"""The way from a target's name to its programs."""

from typing import Any

from tpuport.errors import PortError
from tpuport.topology.targets import code, components, configs, naming, pipelines, text
from tpuport.topology.targets.configs import Found
from tpuport.topology.targets.target import Options, Target, parsed_image_size


def resolve(
    target: str,
    *,
    task: str | None = None,
    batch: int | None = None,
    length: int | None = None,
    max_cache_len: int | None = None,
    image_size: int | str | tuple[int, int] | None = None,
    frames: int | None = None,
    dtype: str | None = None,
    inputs: str | None = None,
    component: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[Target, ...]:
    """The programs that `target` stands for. Nothing is downloaded and nothing of any size is made.

    Args:
        target: a directory or file with the config of a transformers or diffusers model; a diffusers pipeline's
            directory; a name of `known`; or "module:function" that returns (model, inputs).
        task: "prefill", "decode" or "forward"; None is both of the first for a causal language model, and "forward"
            for anything else.
        batch: rows of a call, 1 by default.
        length: of the prompt, or of an encoder's text; max_cache_len: positions of the cache, `length` by default.
        image_size: in pixels: a number for a square, "720x1280" or (720, 1280) for height and width.
        frames: of a video.
        dtype: of floating-point weights; None is the config's, and bfloat16 where it has none.
        inputs: "module:function" that makes the inputs, called with the config if it takes an argument.
        component: of a pipeline, one; None is all that have weights and can be called.
        trust_remote_code: whether Python code in the directory may run.

    Returns:
        A target for each program, at least one; each `notes` says what was chosen here.

    Raises:
        PortError: whatever of it cannot be, before any work.
    """
    options = Options(
        task=task, batch=batch, length=length, max_cache_len=max_cache_len,
        image_size=parsed_image_size(image_size), frames=frames, dtype=dtype, inputs=inputs,
        component=component, trust_remote_code=trust_remote_code,
    )  # fmt: skip
    if naming.is_code(target):
        _no_component(options, target)
        return (code.own_target(target, options),)
    return _of_config(configs.find(target), options)


def _of_config(found: Found, options: Options) -> tuple[Target, ...]:
    raw: dict[str, Any] = found.raw
    if found.path.endswith("model_index.json"):
        return pipelines.pipeline_targets(found, options)
    _no_component(options, found.path)
    if "_class_name" in raw:
        return (components.component_target(found, options),)
    if "model_type" in raw or "auto_map" in raw:
        return text.transformers_targets(found, options)
    raise PortError(
        "this is the config of neither library", where=found.path,
        fix="transformers' has a model_type, diffusers' a _class_name",
    )  # fmt: skip


def _no_component(options: Options, where: str) -> None:
    if options.component is not None:
        raise PortError("this is no pipeline, and has no components", where=where, fix="leave component out")
