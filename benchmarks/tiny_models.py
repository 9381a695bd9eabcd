"""Tiny models with random weights, and inputs for them: what `benchmarks.agreement` runs.

A name is "library:class"; "schedulers", and "strangers" (models of packages that this project does not use), are
libraries of their own here. Nothing is downloaded; sizes are a few units, so that a model builds and runs in a second.
"""

import contextlib
import copy
import importlib
import inspect
import os
import runpy
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch


class Tiny(NamedTuple):
    """A model that can be called.

    Attributes:
        inputs: each is one call's keyword arguments.
        roots: where its code is.
        prompts: by modality ("image", "video", "audio") what makes a batch of so many rows, for a model that generates
            from more than text.
    """

    call: Callable[..., Any]
    inputs: list[dict[str, Any]]
    roots: list[Path]
    prompts: Mapping[str, Callable[[int], dict[str, Any]]] = types.MappingProxyType({})


def names(library: str) -> list[str]:
    """The names of a library's models; of a Python file, one that defines tiny(), its path."""
    if library.endswith(".py"):
        return [f"file:{Path(library).resolve()}"]
    return [f"{library}:{name}" for name in importlib.import_module(f"benchmarks.tiny_{library}").names()]


def build(name: str) -> Tiny:
    """Build a model, in evaluation mode, with its inputs.

    Raises:
        Exception: Whatever the library raises when the sizes do not suit the class.
    """
    library, _, which = name.partition(":")
    torch.manual_seed(0)
    if library == "file":
        call, inputs = runpy.run_path(which)["tiny"]()
        return Tiny(call, inputs, [Path(which).parent])
    if library == "transformers":
        multimodal = _multimodal(which)
        if multimodal is not None:
            return multimodal
    outermost = which.partition(".")[0]
    package = {"schedulers": "diffusers", "strangers": outermost, "guessed": outermost}.get(library, library)
    # Of the strangers, it prepares what their packages import.
    builder = importlib.import_module(f"benchmarks.tiny_{library}")
    root = Path(str(importlib.import_module(package).__file__)).parent
    try:
        model, inputs = builder.build(which)
    except RuntimeError:
        part = _part_of_another(which) if library == "transformers" else None
        if part is None:
            raise
        model, inputs = part
    if isinstance(model, torch.nn.Module):
        model.eval()
    roots = [root]
    if library in ("strangers", "guessed"):
        roots += _installed_apart()
    # A class of the benchmark may call a package's functions.
    if type(model).__module__.startswith("benchmarks."):
        roots.append(Path(inspect.getfile(type(model))))
    return Tiny(model, inputs, roots)


def _installed_apart() -> list[Path]:
    """The packages that were installed for the benchmark: one calls another, whose code the linter follows."""
    from tpuport.lint.modules import NOT_FOLLOWED

    directories = [Path(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    packages = [package for directory in directories for package in directory.iterdir()]
    return [package for package in packages if package.stem not in NOT_FOLLOWED]


def _multimodal(name: str) -> Tiny | None:
    """A model that reads images, videos or audio beside tokens; None for others, and where no prompt is known."""
    from benchmarks import tiny_generating, tiny_multimodal, tiny_transformers

    if name not in tiny_multimodal.names() or tiny_generating.only_generates(name):
        return None
    try:
        model, prompts = tiny_multimodal.build(name, tiny_transformers.construct)
    except RuntimeError:
        return None
    import transformers

    root = Path(str(transformers.__file__)).parent
    return Tiny(model.eval(), [make(2) for make in prompts.values()], [root], prompts)


def _part_of_another(name: str) -> tuple[torch.nn.Module, list[dict[str, Any]]] | None:
    """A model that another class of its type or its module has inside, with the arguments that it gets there."""
    from benchmarks import tiny_transformers

    for other in tiny_transformers.kin(name):
        try:
            whole = _multimodal(other) or Tiny(*tiny_transformers.build(other), [])
        except Exception:  # noqa: BLE001 - the next class may be one that can be built
            continue
        model: Any = whole.call
        parts = [module for module in model.modules() if type(module).__name__ == name]
        calls = _arguments_of(parts[0], model, whole.inputs) if parts else []
        if calls:
            return parts[0], calls
    return None


def _arguments_of(
    part: torch.nn.Module, model: torch.nn.Module, calls: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The arguments of a part's first call in each call of a model, by their names, without those that are None."""
    signature = inspect.signature(part.forward)
    from benchmarks import coverage_generation

    run: Any = model if coverage_generation.has_forward(model) else model.generate
    first_calls: list[dict[str, Any]] = []
    for call in calls:
        arguments: list[inspect.BoundArguments] = []

        def keep(
            module: Any, args: Any, kwargs: Any, arguments: list[inspect.BoundArguments] = arguments
        ) -> None:
            # A cache changes in the call.
            if not arguments:
                arguments.append(copy.deepcopy(signature.bind(*args, **kwargs)))

        with part.register_forward_pre_hook(keep, with_kwargs=True), torch.no_grad():
            run(**copy.deepcopy(call))
        if arguments:
            named = dict(arguments[0].arguments)
            named |= named.pop("kwargs", {})
            first_calls.append({key: value for key, value in named.items() if value is not None})
    return first_calls


@contextlib.contextmanager
def as_traced(on: bool) -> Iterator[None]:
    """Let what asks whether it is traced answer in the block as under jax.jit.

    That is transformers' `is_tracing(tensor)`, and distributions, whose arguments tpuport does not check while tracing.
    """
    from transformers.utils import import_utils

    distribution = torch.distributions.Distribution
    before = import_utils.is_jax_jitting, distribution._validate_args
    if on:
        import_utils.is_jax_jitting = lambda x: isinstance(x, torch.Tensor)
        distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        import_utils.is_jax_jitting, distribution._validate_args = before
