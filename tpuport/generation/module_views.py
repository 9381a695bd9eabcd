"""A ported model as code of the host sees it, so that a `generate` written in Python
runs over it as in torch.

A view shares everything with its module but the class, which is derived from the
module's. A call of it runs a compiled program and gives tensors of the host, but leaves
caches on the device. Its modules are views too, and the weights that code reads from it
are on the host. A module whose code decides by what it computes, such as a vocoder that
repeats each unit as long as it predicts, runs as code of the host itself, over the
compiled calls of its own modules.
"""

import contextlib
import copy
import functools
import logging
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import jax
import torch
from transformers import GenerationMixin
from transformers.cache_utils import Cache

from tpuport import checkpoint, compat, trace_errors
from tpuport.compilation import CompiledFunction, resume_cache
from tpuport.errors import PortError
from tpuport.generation.cache_arguments import CACHE_NAMES
from tpuport.generation.class_loops import has_class_loop
from tpuport.generation.decoding_cache import has_class_layers
from tpuport.internals.transformers_internals import compiles_whole
from tpuport.objects import pytrees
from tpuport.trace_errors import CannotTrace

logger = logging.getLogger("tpuport")
_OF_HOOKS: Final = frozenset({"forward", "_hf_hook", "_old_forward"})
# Options that the loop on the device refuses.
_STATES: Final = ("output_hidden_states", "output_attentions")
_PROMPTS: Final = frozenset({"inputs", "input_ids", "inputs_embeds"})
# Its own types ask for a model.
_general: Any = GenerationMixin


class ModuleCalls:
    """The compiled calls of a ported model's modules, as code of the host makes them.

    Args:
        model: the ported model, whose own call is compiled already.
        run_loop: generates where code of the model's class calls `super().generate`,
            from the model, the positional and the named arguments; None for
            transformers' general `generate`.

    Attributes:
        functions: those of its modules, by the module's id.
        on_host: modules whose own code runs on the host, by their ids.
    """

    def __init__(
        self, model: torch.nn.Module, run_loop: Callable | None = None
    ) -> None:
        self._model = weakref.ref(model)
        self.run_loop = run_loop
        self.functions: dict[int, CompiledFunction] = {}
        self.on_host: dict[int, torch.nn.Module] = {}
        self._keeps_caches = True

    @property
    def model(self) -> torch.nn.Module:
        """The ported model."""
        return self._model()  # type: ignore[return-value]

    def call(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call a module with tensors of the host; what it gives is there as well, but
        for caches.
        """
        args, kwargs = _without_views((args, kwargs))
        with warnings.catch_warnings():
            # Of a cache that grows, no array fits into the one before.
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            output = self._function(module)(*args, **kwargs)
        pytrees.register()
        pytrees.register_used(output)
        if not self._keeps_caches:
            return checkpoint.to_cpu(output)
        passed = _caches_passed(args, kwargs, output)
        return jax.tree.map(
            functools.partial(_fetch, passed=passed), output, is_leaf=_is_cache
        )

    def leave_to_host(self, module: torch.nn.Module, error: CannotTrace) -> None:
        """Run a module's own code on the host from now on; the error if that would not
        help.
        """
        # The model's own call has tried it already.
        if module is self.model:
            raise error
        check_host(module, error)
        warn_of_host(module, error)
        self.on_host[id(module)] = module

    @contextlib.contextmanager
    def caches_on_host(self) -> Iterator[None]:
        """In the block caches come to the host too, for code that selects rows of
        them.
        """
        self._keeps_caches = False
        try:
            yield
        finally:
            self._keeps_caches = True

    def _function(self, module: torch.nn.Module) -> Callable:
        model = self.model
        if module is model:
            return model
        if id(module) not in self.functions:
            # The port has noted it of the whole model alone.
            module.tpuport_mesh = checkpoint.model_mesh(model)  # type: ignore[assignment]
            # It keeps the module, so that no other one gets its id.
            self.functions[id(module)] = CompiledFunction(
                module.forward, type(module).__name__, [module]
            )
        return self.functions[id(module)]


def check_host(module: torch.nn.Module, error: CannotTrace) -> None:
    """The error unless a module that cannot be traced can run as code of the host: if
    it asks for values, and has modules, whose calls are compiled.
    """
    has_modules = next(module.children(), None) is not None
    has_hooks = bool(module._forward_hooks or module._forward_pre_hooks)
    cause = error.__cause__
    asks_for_values = isinstance(cause, Exception) and trace_errors.asks_for_values(
        cause
    )
    if not asks_for_values or not has_modules or has_hooks:
        raise error


def warn_of_host(module: torch.nn.Module, error: CannotTrace) -> None:
    """Tell the user that a module's code runs on the host."""
    logger.warning(
        "%s runs on the host, over compiled calls of its modules: %s",
        type(module).__name__,
        error.what,
    )


def _without_views(value: Any) -> Any:
    """Arguments with modules in place of views of them."""
    if type(value) is dict:
        return {key: _without_views(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_without_views, value))
    return module_of(value) if is_view(value) else value


def _is_cache(value: Any) -> bool:
    return isinstance(value, Cache)


def _caches_passed(
    args: tuple, kwargs: Mapping[str, Any], output: Any
) -> dict[int, Cache]:
    """By the id of a cache in the result the caller's own one: that of the same name,
    or the only one.
    """
    named = dict(output) if isinstance(output, Mapping) else {}
    by_name = {
        id(named[name]): value
        for name, value in kwargs.items()
        if _is_cache(value) and name in named
    }
    given = [value for value in (*args, *kwargs.values()) if _is_cache(value)]
    leaves = jax.tree.leaves(output, is_leaf=_is_cache)
    returned = [leaf for leaf in leaves if _is_cache(leaf)]
    is_one = len(given) == len(returned) == 1
    return by_name or ({id(returned[0]): given[0]} if is_one else {})


def _fetch(value: Any, passed: Mapping[int, Cache]) -> Any:
    """A result on the host; of a cache the caller's own object, which code goes on
    with, in the state it has now.
    """
    if not _is_cache(value):
        return checkpoint.fetch(value)
    own = passed.get(id(value))
    if type(own) is not type(value):
        return value
    vars(own).update(vars(value))
    resume_cache(own)
    return own


class InnerGenerate(GenerationMixin):
    """What a view finds behind its own class's `generate`, and behind its loops."""

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Run tpuport's loop of a ported model, with the arguments of transformers'
        `generate`.

        The modules of one run transformers' loop, and so do models whose class has a
        loop of its own, or asks for what the loop on the device does not give.
        """
        calls = calls_of_model(module_of(self))
        is_general = has_class_loop(type(self)) or _asks_for_more(self, args, kwargs)
        if calls is None or calls.run_loop is None or is_general:
            return run_general_generate(self, *args, **kwargs)
        return calls.run_loop(calls.model, args, kwargs)

    def _supports_mm_encoder_outputs(self) -> bool:
        """Whether images are encoded by themselves: here a part of the model's own
        program, which knows their sizes.
        """
        return False

    def _beam_search(self, *args: Any, **kwargs: Any) -> Any:
        with _calls_of(self).caches_on_host():
            return _general._beam_search(self, *args, **kwargs)


def _asks_for_more(view: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a class's own `generate` asks for states of each step, or begins a text
    with nothing but sound.
    """
    if any(kwargs.get(name) for name in _STATES):
        return True
    has_prompt = bool(args) or not _PROMPTS.isdisjoint(kwargs)
    return not (has_prompt or view.config.is_encoder_decoder)


def run_general_generate(
    view: Any, *args: Any, seed: int | None = None, **kwargs: Any
) -> Any:
    """Run transformers' general `generate` on a view, a call for each token.

    With a cache of fixed shape all steps share a program; of some classes transformers
    says that they can take one.

    Args:
        seed: of all draws; None draws from torch's generator, as torch does.
    """
    settings = kwargs.get("generation_config") or view.generation_config
    chosen = kwargs.get("cache_implementation") or settings.cache_implementation
    has_layers = has_class_layers(view.config)
    if has_layers and "static" in (chosen or ""):
        name = type(module_of(view)).__name__
        raise PortError(
            f"a cache of fixed shape of {name} has layers that share a buffer, which programs cannot",
            where=f"cache_implementation={chosen!r}",
            fix="leave it out: its cache grows",
        )
    is_chosen = chosen is not None or has_layers
    is_chosen |= "cache_implementation" in kwargs or not CACHE_NAMES.isdisjoint(kwargs)
    if compiles_whole(type(view)) and not is_chosen:
        if kwargs.get("generation_config") is None:
            kwargs["cache_implementation"] = "static"
        else:
            # transformers takes no field beside the object, which is the caller's.
            settings = copy.copy(settings)
            settings.cache_implementation = "static"
            kwargs["generation_config"] = settings
    with contextlib.ExitStack() as stack:
        if seed is not None:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            torch.manual_seed(seed)
        return _general.generate(view, *args, **kwargs)


class _Viewing:
    """Methods of views, in front of those of the module's class."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        calls, module = _calls_of(self), module_of(self)
        if id(module) not in calls.on_host:
            try:
                return calls.call(module, args, kwargs)
            except CannotTrace as error:
                calls.leave_to_host(module, error)
        forward: Callable = type(module).forward
        return forward(self, *args, **kwargs)

    def __getattribute__(self, name: str) -> Any:
        if name == "forward":
            return functools.wraps(module_of(self).forward)(
                functools.partial(_Viewing.__call__, self)
            )
        value = object.__getattribute__(self, name)
        if name == "_modules":
            return {key: _beside(self, module) for key, module in value.items()}
        return checkpoint.fetch(value) if compat.is_ported(value) else value

    def __getattr__(self, name: str) -> Any:
        # Parameters, buffers and modules, which are in dictionaries of their own.
        return _beside(self, super().__getattr__(name))  # type: ignore[misc]

    def __setattr__(self, name: str, value: Any) -> None:
        # accelerate's hook, which transformers adds to an encoder, would put the view's
        # forward into the module.
        if name not in _OF_HOOKS:
            super().__setattr__(name, value)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        """As of a module; weights of devices are on the host."""
        for name, parameter in super().named_parameters(*args, **kwargs):  # type: ignore[misc]
            yield name, _beside(self, parameter)

    @property
    def device(self) -> torch.device:
        """Where code is to put the tensors that it makes."""
        return torch.device("cpu")


class _ListViewing(_Viewing):
    """Methods of views of lists of modules."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        modules: Any = module_of(self)
        part = modules[index]
        if not isinstance(index, slice):
            return _beside(self, part)
        # torch makes a new list of the same class, which a view of no module cannot be.
        for name, module in part._modules.items():
            part._modules[name] = _beside(self, module)
        return part


def _beside(view: Any, value: Any) -> Any:
    """A module as a view beside another one; a tensor on the host."""
    if isinstance(value, torch.nn.Module):
        return make_view(value, _calls_of(view))
    return checkpoint.fetch(value) if compat.is_ported(value) else value


@functools.cache
def _view_class(cls: type) -> type:
    """The class of views of modules of a class."""
    is_list = issubclass(cls, torch.nn.ModuleList | torch.nn.Sequential)
    viewing = _ListViewing if is_list else _Viewing
    loops = (InnerGenerate,) if issubclass(cls, GenerationMixin) else ()
    namespace = {
        "__module__": cls.__module__,
        "__slots__": ("viewed_module", "module_calls"),
    }
    return type(cls.__name__, (viewing, cls, *loops), namespace)


def make_view(module: torch.nn.Module, calls: ModuleCalls) -> Any:
    """A view of a ported model or of one of its modules."""
    view = object.__new__(_view_class(type(module)))
    object.__setattr__(view, "__dict__", vars(module))
    object.__setattr__(view, "viewed_module", module)
    object.__setattr__(view, "module_calls", calls)
    return view


def calls_of_model(model: Any) -> ModuleCalls | None:
    """The calls of a ported model of transformers; None for any other."""
    return getattr(vars(model).get("generate"), "module_calls", None)


def is_view(value: Any) -> bool:
    """Whether a value is a view."""
    return isinstance(value, _Viewing)


def module_of(view: Any) -> torch.nn.Module:
    """The module of a view."""
    return object.__getattribute__(view, "viewed_module")


def _calls_of(view: Any) -> ModuleCalls:
    return object.__getattribute__(view, "module_calls")
