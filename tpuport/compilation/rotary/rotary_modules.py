"""The modules of a model that make rotary tables, the arguments of their calls, and
their forward on the host.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import torch

from tpuport import compat
from tpuport.internals.torch_internals import make_wrapper, with_tensors
from tpuport.objects.static_values import exact_key

# Names that diffusers, transformers and research code give to such modules.
_CLASS_NAMES = re.compile(r"Rotary|Rope|RoPE|ROPE|PosEmbed|EmbedND")
# These read nothing but the dtype and the device of the tensor that they are methods
# of.
_FACTORIES = frozenset({"new_zeros", "new_ones", "new_full", "new_empty"})


def find_rotary_modules(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Modules with the name of a rotary embedding and nothing learned in them, by name;
    the outermost of each.
    """
    modules: dict[str, torch.nn.Module] = {}
    for name, module in model.named_modules():
        is_inside_another = any(name.startswith(f"{outer}.") for outer in modules)
        has_rotary_name = _CLASS_NAMES.search(type(module).__name__) is not None
        is_learned = next(module.parameters(), None) is not None
        if has_rotary_name and not is_inside_another and not is_learned:
            modules[name] = module
    return modules


def takes_positions(module: torch.nn.Module) -> bool:
    """Whether a module is given transformers' `position_ids`, whose values only the
    program knows.
    """
    return "position_ids" in inspect.signature(type(module).forward).parameters


def find_table_modules(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The rotary modules whose output may be a table for each shape, by name."""
    modules = find_rotary_modules(model)
    return {
        name: module for name, module in modules.items() if not takes_positions(module)
    }


@dataclasses.dataclass(frozen=True)
class TensorShape:
    """In place of a tensor whose values are not known."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclasses.dataclass(frozen=True)
class CallArguments:
    """The arguments of one call of a rotary module, flat.

    Attributes:
        tree: their structure.
        leaves: tensors or their shapes, and plain values as they were given; devices
            are all the host's.
    """

    tree: Any
    leaves: tuple[Any, ...]

    @classmethod
    def flatten(cls, args: tuple, kwargs: dict[str, Any]) -> "CallArguments":
        """The arguments `*args, **kwargs`."""
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        return cls(tree, tuple(leaves)).map(torch.device, lambda _: torch.device("cpu"))

    def unflatten(self) -> tuple[tuple, dict[str, Any]]:
        """(args, kwargs)."""
        return jax.tree_util.tree_unflatten(self.tree, self.leaves)

    @property
    def tensors(self) -> dict[int, torch.Tensor]:
        """The tensors among the leaves, by index."""
        return {
            index: leaf
            for index, leaf in enumerate(self.leaves)
            if isinstance(leaf, torch.Tensor)
        }

    def map(self, kind: type, function: Callable[[Any], Any]) -> "CallArguments":
        """These arguments with `function` applied to the leaves of one type."""
        leaves = tuple(
            function(leaf) if isinstance(leaf, kind) else leaf for leaf in self.leaves
        )
        return dataclasses.replace(self, leaves=leaves)

    def replace(self, values: Mapping[int, Any]) -> "CallArguments":
        """These arguments with other leaves at some indices."""
        leaves = tuple(
            values.get(index, leaf) for index, leaf in enumerate(self.leaves)
        )
        return dataclasses.replace(self, leaves=leaves)

    def without_values(self) -> "CallArguments":
        """These arguments with a `TensorShape` for each tensor."""
        return self.map(
            torch.Tensor, lambda tensor: TensorShape(tuple(tensor.shape), tensor.dtype)
        )

    def signature(self) -> Hashable:
        """Equal for two calls whose tensors differ in nothing but values."""
        return self.tree, tuple(map(_leaf_signature, self.leaves))

    def key(self) -> Hashable:
        """Equal for two calls with equal outputs: tensors by their values, and by their
        shapes if those are unknown.
        """
        values = tuple(
            (index, _tensor_bytes(tensor)) for index, tensor in self.tensors.items()
        )
        return self.signature(), values


def _leaf_signature(leaf: Any) -> Hashable:
    if isinstance(leaf, torch.Tensor | TensorShape):
        # By the dtype that it has on the device: a host tensor of 64 bits is one of 32
        # bits there.
        return "tensor", tuple(leaf.shape), str(compat.jax_dtype(leaf.dtype))
    return exact_key(leaf)


def _tensor_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class ValuesRead(Exception):
    """A module looked at the values of a tensor that has none."""


class _ShapeOnly(torch.Tensor):
    """A tensor on the host without memory: to ask for more than its shape, dtype and
    device raises ValuesRead.
    """

    @staticmethod
    def __new__(cls: Any, shape: TensorShape) -> "_ShapeOnly":
        return make_wrapper(
            cls, shape.shape, dtype=shape.dtype, device=torch.device("cpu")
        )

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        operator = func.overloadpacket.__name__
        if operator not in _FACTORIES:
            raise ValuesRead(operator)
        return func(torch.empty(0, dtype=args[0].dtype), *args[1:], **(kwargs or {}))

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"_ShapeOnly({tuple(self.shape)})"


class HostModule:
    """A rotary module with what it needs to run on the host.

    Args:
        module: its buffers may be on the device; they are copied now.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._forward = module.forward
        self._buffers = {
            name: _on_host(buffer) for name, buffer in module.named_buffers()
        }

    def __call__(self, arguments: CallArguments) -> Any:
        """The output of the module's own forward, on the host.

        Args:
            arguments: `TensorShape` or a torch tensor on the host for each tensor.

        Raises:
            ValuesRead: the output depends on the values of a tensor given by its shape.
        """
        args, kwargs = arguments.map(TensorShape, _ShapeOnly).unflatten()

        @torch.no_grad()
        def run() -> Any:
            with with_tensors(self._module, self._buffers):
                return self._forward(*args, **kwargs)

        # The modes of this thread send torch's operators to the device; another thread
        # has none.
        with ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="tpuport-rotary"
        ) as thread:
            return thread.submit(run).result()


def _on_host(buffer: torch.Tensor) -> torch.Tensor:
    if not compat.is_ported(buffer):
        return buffer
    return compat.to_torch(buffer)
