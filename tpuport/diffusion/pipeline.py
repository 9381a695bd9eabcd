"""`tpuport.port(pipeline)`: the user's own pipeline object, its models on the devices,
called as before.

The pipeline's class becomes a subclass of itself, of the same name, whose `__call__`
runs the user's code under `mixed_devices.allow_mixed()`. Its `device` is the host: what
the pipeline creates from nothing is created there, as torch does it. Latents and
predictions are on the device from the first call of the denoiser to the end.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from jax.sharding import Mesh

from tpuport import checkpoint
from tpuport.checkpoint import model_mesh
from tpuport.checkpoint.device_layout import check_mesh_and_rules, one_device_mesh
from tpuport.compilation import keep_shared, layers
from tpuport.compilation.model_calls import compile_call, restore_call
from tpuport.diffusion import pipeline_checks, schedulers
from tpuport.diffusion.compiled_components import (
    ComponentCall,
    compile_parts,
    is_autoencoder,
    restore_parts,
)
from tpuport.diffusion.pipeline_calls import original_class, ported_class
from tpuport.diffusion.step_bar import StepBar
from tpuport.errors import PortError
from tpuport.quantization import (
    QuantizationRules,
    as_quantization_rules,
    quantized_weights,
)
from tpuport.sharding import ShardingRules

__all__ = ["ComponentCall", "PortedState", "port_pipeline", "restore", "take_back"]

logger = logging.getLogger("tpuport")

# Names of the components that denoise. A single set of rules is meant for them.
_DENOISER_NAMES = ("transformer", "transformer_2", "unet", "prior", "decoder")
# The filter of finished pictures, which converts its inputs to NumPy arrays inside the
# forward.
_SAFETY_CHECKER = "safety_checker"


@dataclasses.dataclass
class PortedState:
    """What `port_pipeline` did to a pipeline.

    Attributes:
        mesh: where its models are.
        components: the models by the name that the pipeline has for them.
        scheduler: "device" for tpuport's step, "host" for the scheduler's own.
        batch_guidance: whether conditions are batched; None if only where that divides
            them over dp.
        options: the arguments of the port, of those that are not above.
        bar: the progress bar of the call that is running.
    """

    mesh: Mesh
    components: dict[str, torch.nn.Module]
    scheduler: Literal["device", "host"]
    batch_guidance: bool | None
    options: dict[str, Any]
    bar: StepBar | None = None

    def take_back(self, pipe: Any, names: Iterable[str]) -> None:
        """Move these components of the pipeline to the host, until `port_again`.

        Raises:
            PortError: one has quantised weights, and the pipeline was not told to
                quantise it.
        """
        quantized = _by_name(self.components, self.options["quantize"], "quantize")
        for name in names:
            if name not in quantized and any(quantized_weights(self.components[name])):
                raise PortError(
                    f"weights of {name} are quantised, and this method would leave them wide",
                    where=type(pipe).__name__,
                    fix="call it before the port; or let the pipeline quantise them, tpuport.port(pipe, quantize=...), "
                    "which does so again after each change",
                )
        del vars(pipe)["_tpuport"]
        pipe.__class__ = original_class(type(pipe))
        for module in _distinct(self.components[name] for name in names):
            layers.unstack_layers(module)
            restore(module)
            checkpoint.to_cpu(module)

    def port_again(self, pipe: Any) -> None:
        """Port the pipeline with the options of the first time: components on the host,
        and new ones.
        """
        options = dict(self.options)
        modules = _select_models(pipe, options["components"])
        moved = {
            name: module
            for name, module in modules.items()
            if model_mesh(module) is None
        }
        # Only for those, because an option that is given for a component ports it
        # again.
        for option in ("rules", "dtype", "quantize"):
            by_name = _by_name(modules, options[option], option)
            options[option] = {name: by_name[name] for name in moved if name in by_name}
        port_pipeline(
            pipe,
            mesh=self.mesh,
            scheduler=self.scheduler,
            batch_guidance=self.batch_guidance,
            **options,
        )
        vars(pipe)["_tpuport"].options = self.options


@dataclasses.dataclass(frozen=True)
class _ModelOptions:
    """How to port a component; `is_explicit` if the user named rules, a dtype or a
    scheme for it.
    """

    rules: ShardingRules | None
    dtype: Any
    quantize: QuantizationRules | None
    is_explicit: bool


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
    quantize: QuantizationRules | str | Mapping[str, Any] | None = None,
) -> Any:
    """Move the models of a diffusers pipeline to the devices of a mesh, in place, and
    compile their forwards.

    The pipeline is called as before, with tensors of the host, and its results, and the
    tensors that its callbacks receive, are on the host. Each model's forward is
    compiled once for each shape; of a VAE the encoder and the decoder are, so that
    tiling and slicing bound the memory they take. A model that another ported pipeline
    shares is left alone unless an option asks for something else. A ported pipeline may
    be ported again, to another mesh too.

    Args:
        pipe: a `DiffusionPipeline` with its models on the host, or a ported one.
        mesh: None for one device (or, for a ported pipeline, the mesh that it is on).
        rules: by component's name; or a single set for those that denoise. None for
            each model's own plan; VAEs are replicated.
        dtype: for all models, or by component's name; None keeps theirs.
        allow: names of rules and parameters whose errors the sharding audits accept.
        components: names of the models to move, which leaves the others on the host;
            None for all but a safety checker.
        scheduler: "device", or "host" for a scheduler whose step tpuport cannot do.
        batch_guidance: whether the conditions of a guider (positive and negative
            prompt) are a single call of the model with several times the batch. None:
            if the mesh's dp divides that and not the batch alone.
        scan_layers: whether the identical blocks of the models that denoise run in a
            loop, their weights stacked: a program that does the same and is compiled
            several times sooner. Until `tpuport.to_cpu`, other code cannot read those
            weights.
        quantize: "int8", "int4", "fp8", "w8a8" or `QuantizationRules` for the models
            that denoise, or by component's name. None leaves weights as they are.

    Returns:
        The same pipeline.

    Raises:
        PortError: a model that cannot be moved, rules that do not fit, a scheduler that
            is not supported. The pipeline is unchanged then.
    """
    # Every check comes before the first model moves.
    check_mesh_and_rules(mesh, None)
    components = _component_names(components)
    pipeline_checks.check_portable(pipe)
    if scheduler not in ("device", "host"):
        raise PortError(
            f"scheduler={scheduler!r}", where="port", fix='scheduler="device" or "host"'
        )
    _check_guidance(pipe, batch_guidance)
    state: PortedState | None = vars(pipe).get("_tpuport")
    modules = _select_models(pipe, components)
    options = _model_options(modules, rules, dtype, quantize)
    # The user may have replaced models since, so the pipeline's own mesh comes before
    # theirs.
    own_mesh: Mesh | None = getattr(state, "mesh", None)
    mesh = mesh or own_mesh or _shared_mesh(modules.values())
    has_device_scheduler = (
        scheduler == "device" and getattr(pipe, "scheduler", None) is not None
    )
    # Before any model moves: a scheduler that is not supported leaves the pipeline
    # unchanged.
    if has_device_scheduler:
        pipeline_checks.check_scheduler(pipe.scheduler)
    _port_models(modules, mesh, options, allow, is_first_port=state is None)
    denoisers = [module for name, module in modules.items() if name in _DENOISER_NAMES]
    for module in _distinct(modules.values()):
        if is_autoencoder(module):
            compile_parts(module)
        else:
            call = compile_call(module, call_class=ComponentCall)
            call.scan_layers = scan_layers and module in denoisers
    if has_device_scheduler:
        schedulers.install(pipe.scheduler)
    pipeline_checks.explain_tensor_creation()
    pipe.__class__ = ported_class(original_class(type(pipe)))
    # Past the pipeline's own __setattr__, which looks names up in its configuration.
    requested: dict[str, Any] = {
        "rules": rules, "dtype": dtype, "allow": allow, "components": components, "scan_layers": scan_layers,
        "quantize": quantize,
    }  # fmt: skip
    if state is not None and quantize is None:
        # Weights that are quantised already stay so, and are quantised again after a
        # change of the model.
        requested["quantize"] = state.options["quantize"]
    vars(pipe)["_tpuport"] = PortedState(
        mesh, modules, scheduler, batch_guidance, requested
    )
    return pipe


def take_back(pipe: Any) -> Any:
    """Make a ported pipeline what it was before, in place, its models on the host.

    They stay in evaluation mode, without gradients.

    Models that it shares with another ported pipeline are taken from that pipeline too,
    which then asks to be ported again.
    """
    state: PortedState | None = vars(pipe).pop("_tpuport", None)
    pipe.__class__ = original_class(type(pipe))
    # The user may have replaced a component since.
    modules = {
        **getattr(state, "components", {}),
        **pipeline_checks.pipeline_models(pipe),
    }
    for module in _distinct(modules.values()):
        restore(module)
        checkpoint.to_cpu(module)
    schedulers.uninstall(getattr(pipe, "scheduler", None))
    return pipe


def restore(module: torch.nn.Module) -> None:
    """Give a model, and the parts of an autoencoder, back the forwards that they
    had.
    """
    if is_autoencoder(module):
        restore_parts(module)
    restore_call(module)


def _check_guidance(pipe: Any, batch_guidance: bool | None) -> None:
    if batch_guidance and getattr(pipe, "guider", None) is None:
        raise PortError(
            f"a {type(pipe).__name__} has no guider, whose conditions could be batched",
            where="batch_guidance",
            fix="leave it out: such a pipeline has its prompts in one batch, or calls its model once for each",
        )


def _component_names(names: str | Iterable[str] | None) -> list[str] | None:
    if names is None:
        return None
    return [names] if isinstance(names, str) else list(names)


def _select_models(pipe: Any, names: list[str] | None) -> dict[str, torch.nn.Module]:
    """The models to move, by name."""
    modules = pipeline_checks.pipeline_models(pipe)
    if names is None:
        if modules.pop(_SAFETY_CHECKER, None) is not None:
            logger.info(
                "the %s stays on the host: its forward cannot be a program",
                _SAFETY_CHECKER,
            )
        return modules
    _check_names(names, modules, "components")
    return {name: modules[name] for name in names}


def _check_names(
    names: Iterable[str], modules: Mapping[str, torch.nn.Module], where: str
) -> None:
    unknown = [str(name) for name in names if name not in modules]
    if unknown:
        raise PortError(
            f"{', '.join(unknown)}: no such model is to be moved",
            where=where,
            fix=f"one of {', '.join(modules)}",
        )


def _model_options(
    modules: dict[str, torch.nn.Module], rules: Any, dtype: Any, quantize: Any
) -> dict[str, _ModelOptions]:
    """The options of each component, by name."""
    requested = {"rules": rules, "dtype": dtype, "quantize": quantize}
    by_name = {
        option: _by_name(modules, value, option) for option, value in requested.items()
    }
    for option, values in by_name.items():
        _check_names(values, modules, option)
    options = {}
    for name, module in modules.items():
        # Convolutions have no plan, and an empty set of rules replicates without a
        # warning.
        default_rules = ShardingRules({}) if is_autoencoder(module) else None
        model_rules, model_dtype = (
            by_name["rules"].get(name, default_rules),
            by_name["dtype"].get(name),
        )
        check_mesh_and_rules(None, model_rules)
        quantization = as_quantization_rules(by_name["quantize"].get(name))
        is_explicit = (
            name in by_name["rules"] or bool(model_dtype) or quantization is not None
        )
        options[name] = _ModelOptions(
            model_rules, model_dtype, quantization, is_explicit
        )
    return options


def _by_name(
    modules: Mapping[str, torch.nn.Module], value: Any, option: str
) -> dict[str, Any]:
    """An option's value for each model by name: a single dtype is for all models, rules
    for those that denoise.
    """
    # Rules are mappings too, of patterns and not of names.
    if isinstance(value, Mapping) and not isinstance(
        value, ShardingRules | QuantizationRules
    ):
        return dict(value)
    if option == "dtype":
        return dict.fromkeys(modules, value)
    if value is None:
        return {}
    denoisers = [name for name in modules if name in _DENOISER_NAMES]
    if not denoisers:
        raise PortError(
            f"this pipeline has no model of a known denoiser's name, which a single {option}= would be for",
            where=option,
            fix=f"{option}={{component name: ...}}",
        )
    return dict.fromkeys(denoisers, value)


def _port_models(
    modules: dict[str, torch.nn.Module],
    mesh: Mesh,
    options: dict[str, _ModelOptions],
    allow: str | Iterable[str],
    *,
    is_first_port: bool,
) -> None:
    """Port every model once; if one cannot be, none is."""
    moves: dict[torch.nn.Module, Callable[[], None]] = {}
    for name, module in modules.items():
        option = options[name]
        # By another pipeline, whose programs would be compiled again if the model were
        # ported again.
        is_ported = (
            is_first_port and model_mesh(module) == mesh and not option.is_explicit
        )
        if not is_ported and module not in moves:
            moves[module] = checkpoint.plan_port(
                module,
                mesh=mesh,
                rules=option.rules,
                dtype=option.dtype,
                allow=allow,
                quantize=option.quantize,
            )
    with contextlib.ExitStack() as undo:
        for module, move in moves.items():
            was_on_host = model_mesh(module) is None
            with keep_shared(module):
                move()
            # What a device has no memory for. Numbers of quantised weights would come
            # back rounded.
            if was_on_host and not any(quantized_weights(module)):
                undo.callback(checkpoint.to_cpu, module)
        undo.pop_all()


def _shared_mesh(modules: Iterable[torch.nn.Module]) -> Mesh:
    """The mesh of models that another pipeline has moved, or that of one device."""
    meshes = filter(None, map(model_mesh, modules))
    return next(meshes, None) or one_device_mesh()


def _distinct(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    # Pipelines may use a module under several names; modules compare by identity.
    return list(dict.fromkeys(modules))
