"""`tpuport.port(pipeline)`: the user's own pipeline object, its models on the devices, called as before.

The pipeline's class becomes a subclass of itself, of the same name, whose `__call__` runs the user's code under
`mixed_devices.mixed()`. Its `device` is the host: what the pipeline makes out of nothing is made there, as torch makes
it. Latents and predictions are on the device from the first call of the denoiser to the end.
"""

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from jax.sharding import Mesh

from tpuport import checkpoint
from tpuport.checkpoint import model_mesh
from tpuport.checkpoint.device_layout import check_mesh_and_rules, one_device_mesh
from tpuport.diffusion import pipeline_checks, schedulers, unported
from tpuport.diffusion.compiled_components import CompiledForward, compile_forward, restore_forward
from tpuport.diffusion.pipeline_calls import original_class, ported_class
from tpuport.diffusion.step_bar import StepBar
from tpuport.diffusion.vae import compile_parts, is_autoencoder, restore_parts
from tpuport.errors import PortError
from tpuport.sharding import ShardingRules

logger = logging.getLogger("tpuport")

# Names of the components that denoise, which is what one set of rules is for.
_DENOISERS = ("transformer", "transformer_2", "unet", "prior", "decoder")
# Filters of finished pictures, which turn their inputs into NumPy arrays inside of the forward.
_LEFT_OUT = ("safety_checker",)


@dataclasses.dataclass
class Ported:
    """What `port_pipeline` did to one pipeline.

    Attributes:
        mesh: where its models are.
        components: the models by the name that the pipeline has for them.
        scheduler: "device" for tpuport's step, "host" for the scheduler's own.
        batch_guidance: whether conditions are batched; None where that shares them over dp.
        bar: the progress bar of the call that is running.
    """

    mesh: Mesh
    components: dict[str, torch.nn.Module]
    scheduler: Literal["device", "host"]
    batch_guidance: bool | None
    bar: StepBar | None = None


def port_pipeline(
    pipe: Any,
    *,
    mesh: Mesh | None = None,
    rules: ShardingRules | Mapping[str, ShardingRules] | None = None,
    dtype: torch.dtype | str | Mapping[str, torch.dtype | str] | None = None,
    allow: str | Iterable[str] = (),
    components: Iterable[str] | None = None,
    scheduler: Literal["device", "host"] = "device",
    batch_guidance: bool | None = None,
    scan_layers: bool = False,
) -> Any:
    """Move the models of a diffusers pipeline to the devices of a mesh, in place, and compile their forwards.

    The pipeline is called as before, with tensors of the host, and what it gives, and what its callbacks see, are
    tensors of the host. Each model's forward is compiled once for each shape; of a VAE its encoder and its decoder are,
    so that tiling and slicing bound the memory they take. A model that another ported pipeline shares is left as it is
    where no option asks for anything else. A ported pipeline may be ported again, to another mesh too.

    Args:
        pipe: a `DiffusionPipeline` with its models on the host, or a ported one.
        mesh: None for one device (or, for a ported pipeline, the mesh that it is on).
        rules: by component's name; or one for those that denoise. None for each model's own plan; VAEs are replicated.
        dtype: for all models, or by component's name; None keeps theirs.
        allow: names of rules and parameters that the sharding audits let pass.
        components: names of the models to move, which leaves the others on the host; None for all, without a safety
            checker.
        scheduler: "device", or "host" for one whose step tpuport cannot do.
        batch_guidance: whether the conditions of a guider (positive and negative prompt) are one call of the model of
            several times the batch. None: where the mesh's dp divides that and not the batch alone.
        scan_layers: whether the identical blocks of the models that denoise run in one loop, their weights stacked: a
            program that does the same and is compiled several times sooner. Until `tpuport.to_cpu`, other code cannot
            read those weights.

    Returns:
        The same pipeline.

    Raises:
        PortError: a model that cannot be moved, rules that do not fit, a scheduler that is not supported. The pipeline
            is as it was then.
    """
    check_mesh_and_rules(mesh, None)
    pipeline_checks.check_portable(pipe)
    if scheduler not in ("device", "host"):
        raise PortError(f"scheduler={scheduler!r}", where="port", fix='scheduler="device" or "host"')
    _check_guidance(pipe, batch_guidance)
    state: Ported | None = vars(pipe).get("_tpuport")
    modules = _chosen(pipe, components)
    mesh = mesh or (state.mesh if state else None) or _shared_mesh(modules.values()) or one_device_mesh()
    options = _options(modules, rules, dtype)
    if scheduler == "device" and getattr(pipe, "scheduler", None) is not None:
        pipeline_checks.check_scheduler(pipe.scheduler)
    _port_all(modules, mesh, options, allow, again=state is not None)
    denoisers = [module for name, module in modules.items() if name in _DENOISERS]
    for module in _distinct(modules.values()):
        if is_autoencoder(module):
            compile_parts(module)
        else:
            compile_forward(module).scan_layers = scan_layers and any(module is one for one in denoisers)
    if scheduler == "device" and getattr(pipe, "scheduler", None) is not None:
        schedulers.install(pipe.scheduler)
    unported.explain_makings()
    pipe.__class__ = ported_class(original_class(type(pipe)))
    vars(pipe)["_tpuport"] = Ported(mesh, modules, scheduler, batch_guidance)
    return pipe


def take_back(pipe: Any) -> Any:
    """Make a ported pipeline what it was before, in place, its models on the host.

    They stay in evaluation mode, without gradients.

    Models that it shares with another ported pipeline are taken from that one too, which then asks to be ported again.
    """
    state: Ported | None = vars(pipe).pop("_tpuport", None)
    pipe.__class__ = original_class(type(pipe))
    modules = pipeline_checks.models_of(pipe)
    for module in _distinct({**(state.components if state else {}), **modules}.values()):
        restore(module)
        checkpoint.to_cpu(module)
    if getattr(pipe, "scheduler", None) is not None:
        schedulers.uninstall(pipe.scheduler)
    return pipe


def restore(module: torch.nn.Module) -> None:
    """Give a model, and the parts of an autoencoder, the forwards back that they had."""
    if is_autoencoder(module):
        restore_parts(module)
    restore_forward(module)


def _check_guidance(pipe: Any, batch_guidance: bool | None) -> None:
    if batch_guidance and getattr(pipe, "guider", None) is None:
        name = type(pipe).__name__
        raise PortError(
            f"a {name} has no guider, whose conditions could be batched",
            where="batch_guidance",
            fix="leave it out: such a pipeline has its prompts in one batch, or calls its model once for each",
        )


def _chosen(pipe: Any, names: Iterable[str] | None) -> dict[str, torch.nn.Module]:
    """The models to move, by name."""
    modules = pipeline_checks.models_of(pipe)
    if names is None:
        for name in _LEFT_OUT:
            if modules.pop(name, None) is not None:
                logger.info("the %s stays on the host: its forward cannot be a program", name)
        return modules
    wanted = [names] if isinstance(names, str) else list(names)
    _check_names(wanted, modules, "components")
    return {name: modules[name] for name in wanted}


def _check_names(names: Iterable[str], modules: Mapping[str, torch.nn.Module], where: str) -> None:
    if strangers := [str(name) for name in names if name not in modules]:
        raise PortError(
            f"{', '.join(strangers)}: no such model is to be moved",
            where=where,
            fix=f"one of {', '.join(modules)}",
        )


def _options(modules: dict[str, torch.nn.Module], rules: Any, dtype: Any) -> dict[str, dict[str, Any]]:
    """By component's name, `rules` and `dtype` as `checkpoint.port` takes them."""
    by_rules: dict[str, Any] = {}
    if isinstance(rules, Mapping) and not isinstance(rules, ShardingRules):
        by_rules = dict(rules)
    elif rules is not None:
        by_rules = {name: rules for name in modules if name in _DENOISERS}
        if not by_rules:
            raise PortError(
                "this pipeline has no model of a known denoiser's name, which one set of rules would be for",
                where="rules",
                fix="rules={component name: ShardingRules}",
            )
    by_dtype = dict(dtype) if isinstance(dtype, Mapping) else dict.fromkeys(modules, dtype)
    _check_names(by_rules, modules, "rules")
    _check_names(by_dtype, modules, "dtype")
    for name, module in modules.items():
        check_mesh_and_rules(None, by_rules.get(name))
        if is_autoencoder(module):
            by_rules.setdefault(name, ShardingRules({}))
    given = {name for name in modules if rules is not None and name in by_rules}
    return {
        name: {
            "rules": by_rules.get(name),
            "dtype": by_dtype.get(name),
            "own": name in given or by_dtype.get(name),
        }
        for name in modules
    }


def _port_all(
    modules: dict[str, torch.nn.Module],
    mesh: Mesh,
    options: dict[str, dict[str, Any]],
    allow: str | Iterable[str],
    again: bool,
) -> None:
    """Port every model once; where one cannot be, those that were on the host go back."""
    done: set[int] = set()
    moved: list[torch.nn.Module] = []
    try:
        for name, module in modules.items():
            wanted, before = options[name], model_mesh(module)
            if id(module) in done or (before == mesh and not again and not wanted["own"]):
                continue
            done.add(id(module))
            checkpoint.port(module, mesh=mesh, rules=wanted["rules"], dtype=wanted["dtype"], allow=allow)
            if before is None:
                moved.append(module)
    except BaseException:
        for module in moved:
            checkpoint.to_cpu(module)
        raise


def _shared_mesh(modules: Iterable[torch.nn.Module]) -> Mesh | None:
    """The mesh of models that another pipeline has brought there."""
    return next((mesh for module in modules if (mesh := model_mesh(module)) is not None), None)


def _distinct(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    return list({id(module): module for module in modules}.values())


__all__ = ["CompiledForward", "Ported", "port_pipeline", "restore", "take_back"]
