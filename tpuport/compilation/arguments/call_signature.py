"""Calls that mean the same share a program: by position or by name, with a default that
is given or left out.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tpuport.compilation.arguments.call_layout import is_inside
from tpuport.internals.torch_internals import global_forward_hooks
from tpuport.objects.object_parts import PLAIN
from tpuport.objects.static_values import exact_key


class CallSignature:
    """The parameters of a function, for its calls.

    Args:
        function: what is called. That of a decorator says nothing, as it sees how its
            arguments are given.
        named: patterns of the names of arguments, or of parts of them, that stay.
    """

    def __init__(self, function: Callable, named: Sequence[str]) -> None:
        self._function = function
        self._named = [pattern.partition(".")[0] for pattern in named]
        # By what they were read from, which may be assigned anew.
        self._read: tuple[Any, Any] | None = None

    def simplified(
        self, args: tuple, kwargs: dict[str, Any], keep: Callable[[str], bool]
    ) -> tuple[tuple, dict[str, Any]]:
        """The arguments of a call without those that equal their defaults, by position
        as far as possible.

        Args:
            keep: whether an argument stays, by its name.
        """
        signature = self._current()
        if signature is None:
            return args, kwargs
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # the call itself says what is wrong
            return args, kwargs
        kinds = {name: part.kind for name, part in signature.parameters.items()}
        if any(
            kinds[name] is inspect.Parameter.VAR_POSITIONAL and values
            for name, values in bound.arguments.items()
        ):
            # They have their places behind all others.
            return args, kwargs
        for name, value in list(bound.arguments.items()):
            default = signature.parameters[name].default
            is_default = (
                isinstance(value, PLAIN)
                and type(value) is type(default)
                and exact_key(value) == exact_key(default)
            )
            if is_default and not keep(name) and not is_inside(name, self._named):
                del bound.arguments[name]
        return bound.args, bound.kwargs

    def _current(self) -> inspect.Signature | None:
        """The signature; None if something else sees how arguments are given."""
        target = self._function
        if isinstance(target, torch.nn.Module):
            hooks = (target._forward_hooks, target._forward_pre_hooks)
            if any(hooks) or global_forward_hooks():
                return None
            # Of a ported model, the forward that its own call compiles.
            target = getattr(target.forward, "original", target.forward)
        function = getattr(target, "__func__", target)
        if not inspect.isfunction(function):
            return None
        source = (function, function.__defaults__, function.__kwdefaults__)
        if self._read is None or self._read[0] != source:
            self._read = source, inspect.signature(target, follow_wrapped=False)
        return self._read[1]
