"""Compiled programs: weights are arguments, flags are static, caches are donated, recompilations are counted."""

import contextlib
import functools
import inspect
import logging
import os
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import torch
from jax.core import Tracer
from torch.nn.utils.stateless import _reparametrize_module

from tpuport import attention, compat, layers, pytrees, rotary, trace_errors
from tpuport.checkpoint import model_mesh, port_count, ported_models
from tpuport.compilation.reachable import ReachableModules
from tpuport.errors import PortError
from tpuport.patches import registry, transformers_experts, transformers_rotary
from tpuport.sharding.sequence import sequence_sharded
from tpuport.static_values import StaticValue, exact_key
from tpuport.tracing import exclusive_trace, trace_lock

logger = logging.getLogger("tpuport")

# Fewer compilations than this are the normal life of a program: a prompt, a step, a second length.
_MANY = 4
# An array of this many bytes or more does not belong into a program.
_LARGE = 1 << 20
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def use_persistent_cache() -> None:
    """Keep compiled programs on disk between runs, in the user's cache directory.

    A directory that the user has set (JAX_COMPILATION_CACHE_DIR or jax.config) is left alone;
    TPUPORT_COMPILATION_CACHE names another one, or is "off".
    """
    wanted = os.environ.get("TPUPORT_COMPILATION_CACHE", "")
    settings: Any = jax.config
    if wanted == "off" or settings.jax_compilation_cache_dir:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", wanted or str(home / "tpuport" / "xla"))


def collect_weights(model: torch.nn.Module) -> dict[str, jax.Array]:
    """Every parameter and buffer of a ported model by name, an array that several names share under the first only.

    Beside them, tables over positions that `precompute_rotary` has given it. Weights that `layers.stack_layers` has
    stacked are one array, under the name that `layers.stack_weights` gives it.
    """
    with trace_lock:  # while another thread traces the model, it holds traced values
        transformers_rotary.prepare(model)
        stacked, named = layers.split_stacked(dict(model.named_parameters()) | dict(model.named_buffers()))
    strangers = [name for name, tensor in named.items() if not compat.is_ported(tensor)]
    if strangers:
        raise PortError(
            f"{len(strangers)} tensors of the model are not on the device",
            where=", ".join(strangers[:5]),
            fix="model = tpuport.port(model, mesh=mesh), or load it with tpuport.load",
        )
    own = {name: compat.as_jax(tensor) for name, tensor in named.items()}
    return own | stacked | rotary.position_tables(model)


@contextlib.contextmanager
def use_weights(
    modules: Sequence[torch.nn.Module], weights: Sequence[dict[str, jax.Array]]
) -> Iterator[None]:
    """Traced. Let the modules hold these arrays instead of their own, and use tpuport's attention and experts.

    Arrays may be stacked (`layers.stack_weights`): each block then holds a slice.

    One thread at a time, because the modules are changed while they are traced; compiled programs run side by side.
    """
    with exclusive_trace(), contextlib.ExitStack() as stack:
        stack.enter_context(compat.environment())
        stack.enter_context(attention.use_on_meshes([model_mesh(module) for module in modules]))
        for module, arrays in zip(modules, weights, strict=True):
            stack.enter_context(attention.use_in_model(module))
            stack.enter_context(sequence_sharded(module, model_mesh(module)))
            stack.enter_context(transformers_experts.use(module, model_mesh(module)))
            stack.enter_context(transformers_rotary.by_length(module))
            own, tables = rotary.split_tables(arrays)
            stack.enter_context(layers.mark_blocks(module, own))
            own = layers.unstack_weights(own)
            stack.enter_context(rotary.use_tables(module, tables))
            stack.enter_context(_reparametrize_module(module, compat.as_torch(own), tie_weights=True))
        yield


def prepare_arguments(function: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments with what a model's patches decide outside of the trace; for a module, or its bound forward."""
    owner = (
        getattr(function, "__self__", None) if getattr(function, "__name__", "") == "forward" else function
    )
    return registry.prepared(owner, args, kwargs) if isinstance(owner, torch.nn.Module) else (args, kwargs)


def settings_key(model: torch.nn.Module) -> Hashable:
    """A key of what a program takes from a model beside its weights: how often it was ported, its mode, its config,
    and how attention is registered.

    Attributes of single modules, such as a layer's scaling factor, are not in it: they are many, and this is computed
    in every call. `tpuport.port` again makes new programs.
    """
    config = getattr(model, "config", None)
    return port_count(model), model.training, exact_key(config), attention.registered_settings()


class _Shape(str):
    """The description of a tensor, where a description of anything else is a plain string."""

    __slots__ = ()


class Program:
    """A jitted function that counts its compilations and warns, ever more rarely, when one argument keeps changing.

    Args:
        describe: from the function's arguments to what decides on a recompilation, by name; None leaves the
            counting to the caller and warns of nothing.
        era: from the function's arguments to a key. Another key than before means that all earlier programs were
            dropped on purpose, and what is warned of counts anew.

    Attributes:
        compilations: how often the function has been traced and compiled.
    """

    def __init__(
        self,
        function: Callable,
        name: str,
        describe: Callable[..., dict[str, str]] | None = None,
        era: Callable[..., Hashable] | None = None,
        **jit_options: Any,
    ) -> None:
        self.name = name
        self.compilations = 0
        self._describe = describe
        self._era = era
        self._now: Hashable = None
        self._seen: list[dict[str, str]] = []

        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            self._count(args, kwargs)
            return function(*args, **kwargs)

        self._jitted = jax.jit(traced, **jit_options)
        use_persistent_cache()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._jitted(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """jax.stages.Lowered for these arguments (arrays or jax.ShapeDtypeStruct)."""
        return self._jitted.lower(*args, **kwargs)

    def constants(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The arrays that the program for these arguments holds in itself; traces it where a call would."""
        return list(self._jitted.trace(*args, **kwargs).jaxpr.consts)

    def _count(self, args: tuple, kwargs: dict) -> None:
        self.compilations += 1
        logger.debug("compiling %s, time %d", self.name, self.compilations)
        if self._describe is None:
            return
        if self._era is not None and (now := self._era(*args, **kwargs)) != self._now:
            self._now = now
            self._seen.clear()
        self._seen.append(self._describe(*args, **kwargs))
        count = len(self._seen)
        if count >= _MANY and not count & (count - 1):
            # Said at 4, 8, 16, ...: whoever knows it and goes on is not told each time.
            logger.warning("%s has been compiled %d times%s.", self.name, count, _changing(self._seen))


def _changing(seen: list[dict[str, str]]) -> str:
    """Which argument has had the most values, and what to do about it."""
    values = {name: {one.get(name, "absent") for one in seen} for name in seen[-1]}
    name, found = max(values.items(), key=lambda item: len(item[1]), default=("", set()))
    if len(found) < 2:
        return " for the same arguments: its models' mode, config, attention or placement keeps changing"
    if not any(isinstance(x, _Shape) for x in found):
        advice = "Pass it as a tensor"
    elif len({x.partition("(")[2] for x in found}) == 1:
        advice = "Give it one dtype"
    else:
        advice = "Pad it to a few fixed lengths"
    return f": {name} keeps changing ({', '.join(sorted(found)[:_MANY])}). {advice}"


def is_transformers_cache(value: Any) -> bool:
    """Whether it is a cache of transformers, which compiled functions donate."""
    return any(
        base.__name__ == "Cache" and base.__module__.startswith("transformers.")
        for base in type(value).__mro__
    )


def claim_cache(cache: Any) -> None:
    """A cache allocated on the host makes its positions there too; from now on its tensors are on the device."""
    for layer in getattr(cache, "layers", ()):
        if getattr(layer, "device", None) is not None:
            layer.device = torch.device("jax")


def _as_array(value: Any) -> jax.Array:
    if isinstance(value, torch.Tensor):
        return compat.as_jax(value) if compat.is_ported(value) else compat.to_jax(value)
    return value


def _living(arrays: list[Any], name: str) -> list[Any]:
    """The arrays as they are; PortError where one has been donated, which kills the process on several devices."""
    if any(isinstance(x, jax.Array) and not isinstance(x, Tracer) and x.is_deleted() for x in arrays):
        raise PortError(
            "this cache, or a tensor of it, was donated to an earlier call, whose output has its memory now",
            where=name,
            fix="go on with the cache in that call's output, `token, cache = step(token, cache)`",
        )
    return arrays


def _is_dynamic(value: Any) -> bool:
    return isinstance(value, torch.Tensor | jax.Array) or hasattr(value, "__array__")


class CompiledFunction:
    """What `tpuport.compile` returns: called like the original, with torch tensors on the host or on the device.

    Args:
        modules: the ported models that the function uses; None to look for them.

    Attributes:
        program: the `Program` underneath; `program.compilations` counts.
        scan_layers: as in `compile`; counts for programs that are made from then on.
        scanned, declined: lists of blocks in the program made last, that run in a loop and that do not.
    """

    def __init__(
        self,
        function: Callable,
        name: str | None = None,
        modules: Sequence[torch.nn.Module] | None = None,
        scan_layers: bool | None = None,
    ) -> None:
        if isinstance(function, CompiledFunction) or not callable(function):
            raise PortError(
                f"this is a {type(function).__name__}, which cannot be compiled",
                where="the first argument of compile",
                fix="give a ported model, a method of it, or a function that calls it",
            )
        pytrees.register()
        self._function = function
        self._known = None if modules is None else list(modules)
        self.scan_layers = scan_layers
        self.scanned: tuple[layers.ScannedBlocks, ...] = ()
        self.declined: tuple[layers.DeclinedBlocks, ...] = ()
        self._reach: ReachableModules | None = None
        self._checked: set[Hashable] = set()
        self._tables = rotary.ProgramTables()
        name = name or str(getattr(function, "__qualname__", type(function).__name__))
        called = function.forward if isinstance(function, torch.nn.Module) else function
        self._parameters = inspect.signature(called).parameters
        self.program = Program(
            self._looped, name, self._described, self._era, static_argnums=(3,), donate_argnums=(2,)
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled program. Tensors are arguments, caches are donated, anything else is static.

        Raises:
            PortError: an argument is neither a tensor nor hashable, a module's weights are not on the device, or the
                function reaches a model in a way that leaves its weights constants of the program.
            trace_errors.CannotTrace: the function's code cannot be traced; says where, and what to do.
        """
        args, kwargs = prepare_arguments(self._function, args, kwargs)
        with trace_errors.explained(self._function):
            return compat.as_torch(self.program(*self._ready(args, kwargs)))

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """jax.stages.Lowered for these arguments."""
        args, kwargs = prepare_arguments(self._function, args, kwargs)
        with trace_errors.explained(self._function):
            return self.program.lower(*self._ready(args, kwargs))

    def _ready(self, args: tuple, kwargs: dict) -> tuple[list, list, list, tuple]:
        """The program's arguments; those of a new program are traced, and its constants looked at."""
        weights, tensors, donated, static = self._split(args, kwargs)
        shapes = [(x.shape, x.dtype) for group in (tensors, *donated) for x in group if hasattr(x, "dtype")]
        key = (static, tuple(shapes))
        traced = functools.partial(self._traced, static=static)
        weights = self._tables.add_to(weights, key, self._modules(), traced, tensors, donated)
        parts = weights, tensors, donated, static
        if key not in self._checked:
            check_constants(self.program.name, self.program.constants(*parts))
            self._checked.add(key)
        return parts

    def parts(self, args: tuple, kwargs: dict) -> tuple[Callable, tuple]:
        """(the function as it is traced, the arrays it is traced with but for rotary tables) of a call."""
        weights, tensors, donated, static = self._split(args, kwargs)
        return functools.partial(self._traced, static=static), (weights, tensors, donated)

    def _modules(self) -> list[torch.nn.Module]:
        if self._known is not None:
            return self._known
        if self._reach is None or not self._reach.is_current():
            self._reach = ReachableModules(self._function)
        return self._reach.modules

    def _split(self, args: tuple, kwargs: dict) -> tuple[list, list, list, tuple]:
        """(weights of each module, tensors, donated tensors, static part)."""
        pytrees.register_used(args, kwargs)
        leaves, tree = jax.tree_util.tree_flatten_with_path(
            self._named(args, kwargs), is_leaf=is_transformers_cache
        )
        tensors: list[Any] = []
        donated: list[Any] = []
        static: list[tuple[str, str, Hashable]] = []
        for path, leaf in leaves:
            name = jax.tree_util.keystr(path[1:], simple=True, separator=".")
            if is_transformers_cache(leaf):
                claim_cache(leaf)
                arrays, structure = jax.tree_util.tree_flatten(leaf)
                donated.append(_living([_as_array(x) for x in arrays], name))
                static.append((name, "cache", structure))
            elif _is_dynamic(leaf):
                tensors += _living([_as_array(leaf)], name)
                static.append((name, "tensor", None))
            else:
                static.append((name, "static", _hashable(leaf, name)))
        modules = self._modules()
        for module in modules if self.scan_layers else ():
            layers.stack_layers(module)
        weights = [collect_weights(module) for module in modules]
        # Weakly: jax keeps the static part of every program, and with it a model that has long been replaced.
        held = tuple((weakref.ref(module), settings_key(module)) for module in modules)
        return weights, tensors, donated, (tree, tuple(static), held, attention.registered_settings())

    def _named(self, args: tuple, kwargs: dict) -> tuple[dict[str, Any], dict[str, Any]]:
        """Positional arguments by the name that the function gives them, in order, then those by name."""
        names = [name for name, kind in self._parameters.items() if kind.kind in _POSITIONAL]
        names += [f"argument {n}" for n in range(len(names), len(args))]
        return dict(zip(names, args, strict=False)), kwargs

    def _traced(self, weights: list, tensors: list, donated: list, static: tuple) -> Any:
        """Traced. Put the arguments together again and call the function with the weights in place."""
        tree, kinds, held, _ = static
        plain, caches = iter(compat.as_torch(tensors)), iter(compat.as_torch(donated))
        read = {
            "cache": lambda structure: jax.tree_util.tree_unflatten(structure, next(caches)),
            "tensor": lambda _: next(plain),
            "static": lambda static: static.value,
        }
        values = [read[kind](content) for _, kind, content in kinds]
        positional, named = jax.tree_util.tree_unflatten(tree, values)
        # jax sorts the keys of a dict; the signature has their order.
        order = {name: place for place, name in enumerate(self._parameters)}
        args = [
            positional[name]
            for name in sorted(positional, key=lambda n: (order.get(n, len(order)), len(n), n))
        ]
        with use_weights([module() for module, _ in held], weights):
            out = self._function(*args, **named)
            pytrees.register_used(out)
            return compat.as_jax(out)

    def _looped(self, weights: list, tensors: list, donated: list, static: tuple) -> Any:
        """Traced. As `_traced`, with blocks whose weights are stacked in a loop."""
        if self.scan_layers is False or not any(map(layers.stacked_lists, weights)):
            return self._traced(weights, tensors, donated, static)
        function = layers.scan_blocks(functools.partial(self._traced, static=static))
        out = function(weights, tensors, donated)
        self.scanned, self.declined = function.scanned, function.declined
        return out

    @staticmethod
    def _era(weights: list, tensors: list, donated: list, static: tuple) -> Hashable:
        """How often each model was ported: once more drops its programs."""
        return tuple(port_count(module()) for module, _ in static[2])

    @staticmethod
    def _described(weights: list, tensors: list, donated: list, static: tuple) -> dict[str, str]:
        """What a program is compiled for: shapes of tensors, values of the rest, by argument."""
        shapes, caches = iter(tensors), iter(donated)
        told = {
            "cache": lambda _: _Shape([tuple(x.shape) for x in next(caches)]),
            "tensor": lambda _: _Shape(f"{(x := next(shapes)).dtype}{tuple(x.shape)}"),
            "static": repr,
        }
        return {name: told[kind](content) for name, kind, content in static[1]}


def _hashable(value: Any, name: str) -> StaticValue:
    try:
        hash(value)
    except TypeError as error:
        raise PortError(
            "an argument of a compiled function is neither a tensor nor hashable",
            where=f"{name}: {type(value).__name__} {value!r:.60}",
            fix="pass tensors, or Python values that can be dictionary keys",
        ) from error
    return StaticValue(value)


def check_constants(name: str, constants: list[Any]) -> None:
    """PortError for a weight among a program's constants; a warning for any other array that is large.

    A program that holds a weight goes on with it when the model has another one.
    """
    arrays = {id(x): x for x in constants if isinstance(x, jax.Array)}
    for model in ported_models() if arrays else []:
        with trace_lock:
            named = dict(model.named_parameters()) | dict(model.named_buffers())
        found = [n for n, x in named.items() if compat.is_ported(x) and id(compat.as_jax(x)) in arrays]
        if found:
            raise PortError(
                f"{len(found)} weights of a {type(model).__name__} would be constants of {name}: the function reaches "
                "the model in a way that is not seen from outside",
                where=", ".join(found[:5]),
                fix="name the model in the function, or give it with functools.partial(function, model)",
            )
    if large := [x for x in arrays.values() if x.nbytes >= _LARGE]:
        logger.warning(
            "%s holds %d large arrays as constants, and goes on with them when you change them (%s). Pass them "
            "as arguments.",
            name, len(large), ", ".join(f"{x.dtype}{x.shape}" for x in large[:_MANY]),
        )  # fmt: skip


def compile(
    model_or_function: Callable, *, name: str | None = None, scan_layers: bool | None = None
) -> CompiledFunction:
    """Compile a ported model, one of its methods, or a function that uses ported models.

    Weights of every module the function reaches become arguments of the program, never constants in it: by its closure
    and globals, through functions, containers and objects. Tensors among the arguments (torch on the host, torchax,
    NumPy, jax) are traced; Python values are static, one program each; transformers caches are donated: use the one in
    the output. The result's tensors are torchax tensors on the device.

    Another model under the same name, another weight, another value in a model's config or another mode is noticed,
    and so is `tpuport.port` again. Other Python values that the function reads from outside of its arguments, such as
    attributes of a model's modules, are as they were when the program was made.

    Args:
        model_or_function: an nn.Module on the device, a bound method, or a function.
        name: what logs call it.
        scan_layers: True stacks the weights of identical blocks of the models, in place (`layers.stack_layers`: other
            code cannot read them then, and `layers.unstack_layers` undoes it), and runs the blocks in one loop where
            they allow it: the same results from a program that is compiled sooner. None does so for models whose
            weights are stacked already.
    """
    return CompiledFunction(model_or_function, name, scan_layers=scan_layers)
