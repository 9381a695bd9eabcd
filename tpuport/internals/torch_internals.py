"""Private names of torch: modes of dispatch, schemas of operators, transformations, and
pytrees.
"""

import contextlib
import functools
import gc
import importlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch._compile import _disable_dynamo
from torch._ops import OpOverload, OpOverloadPacket
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as torch_pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from tpuport.internals.mechanism import Mechanism

__all__ = [
    "AsyncCollectiveTensor", "OpOverload", "OpOverloadPacket", "TorchDispatchMode", "no_dispatch",
    "torch_pytree",
]  # fmt: skip

# Gives a module other tensors in a block; the public `torch.func.functional_call` gives
# them for a single call.
with_tensors: Final = _reparametrize_module
# A tensor of a class that has no memory of its own, and one that shares a tensor's.
make_wrapper: Final = torch.Tensor._make_wrapper_subclass
make_subclass: Final = torch.Tensor._make_subclass
# What torch itself does to each mode: code that it compiles calls it, and is not to
# look into it.
not_compiled: Final = _disable_dynamo
without_torch_functions: Final = torch._C.DisableTorchFunction
without_subclass_functions: Final = torch._C.DisableTorchFunctionSubclass


@contextlib.contextmanager
def outside_of_modes() -> Iterator[None]:
    """In the block, tensors of the host are torch's alone, whatever modes are on."""
    # In force as long as the object exists.
    guard = torch._C._DisableTorchDispatch()
    try:
        with torch._C.DisableTorchFunction():
            yield
    finally:
        del guard


# --- operators ---


def schema_of(operator: Any) -> Any:
    """The schema of an overload of an operator: its name, arguments and results, and
    which of them share memory. None for a function.
    """
    return getattr(operator, "_schema", None)


def overload_name(overload: Any) -> str:
    """The name of an overload, such as "Tensor"; "" for the default one."""
    return overload._overloadname


def can_decompose(overload: Any) -> bool:
    """Whether torch composes the operator of others."""
    return overload._can_decompose()


def reference_function(name: str) -> Any:
    """A function of torch in Python, of the same name and results."""
    # As late as torch itself imports it.
    from torch import _refs

    return getattr(_refs, name)


def unravel_index(indices: torch.Tensor, shape: Any) -> torch.Tensor:
    """The coordinates of indices, in the last dimension."""
    return torch.functional._unravel_index(indices, shape)


def meshgrid(tensors: Any, **options: Any) -> Any:
    """`torch.meshgrid` of a list, which does not ask whose tensors they are."""
    return torch._VF.meshgrid(tensors, **options)  # type: ignore[attr-defined]


def return_types() -> Any:
    """The module of named tuples that operators return."""
    return torch._C._return_types  # type: ignore[attr-defined]


def decompositions() -> dict[Any, Any]:
    """Functions of Python for operators that torch's compilers take apart; none if they
    are elsewhere.
    """
    try:
        from torch._decomp import decomposition_table
    except ImportError:
        return {}
    return decomposition_table


def body_of_custom_operator(name: str) -> Any:
    """The function of Python that `torch.library.custom_op` has made an operator of;
    None for others, and for kernels of some devices.
    """
    from torch._library.custom_ops import OPDEFS

    definition = OPDEFS.get(name)
    return None if definition is None else definition._backend_fns.get(None)


def _has_decompositions() -> bool:
    operator = torch.ops.aten.addcmul.default
    # A name that nobody has, for the table of custom operators itself.
    body_of_custom_operator("tpuport::none")
    return operator in decompositions() and not can_decompose(operator)


DECOMPOSITIONS: Final = Mechanism(
    "torch's decompositions",
    "torch",
    rests_on="torch._decomp.decomposition_table, torch._library.custom_ops.OPDEFS, OpOverload._can_decompose",
    without="operators without a lowering that torch could take apart, and custom operators, raise OperatorNotFound",
    probe=_has_decompositions,
)


# --- tensors ---


def version_of(tensor: torch.Tensor) -> Any:
    """A number that each write to a tensor of the host counts up; something new each
    time if torch does not count them.
    """
    return getattr(tensor, "_version", object())


def share_storage(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors have the same storage, also on the meta device, where there
    are no addresses.
    """
    return first.untyped_storage()._cdata == second.untyped_storage()._cdata


# --- autocast ---


@functools.cache
def operators_with_kernel(dispatch_key: str) -> list[str]:
    """The names of torch's own operators, overloads included, that have a kernel for a
    dispatch key.
    """
    return [
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
        and torch._C._dispatch_has_kernel_for_dispatch_key(name, dispatch_key)
    ]


def include_dispatch_key(dispatch_key: str) -> None:
    """Let this thread ask for the kernels of a dispatch key, whatever tensors an
    operator gets.
    """
    torch._C._dispatch_tls_set_dispatch_key_included(_key(dispatch_key), True)


def without_dispatch_key(dispatch_key: str) -> Any:
    """A context in which this thread does not ask for the kernels of a dispatch key."""
    return torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(_key(dispatch_key))
    )


def is_dispatch_key_excluded(dispatch_key: str) -> bool:
    """Whether this thread does not ask for the kernels of a dispatch key."""
    return torch._C._dispatch_tls_is_dispatch_key_excluded(_key(dispatch_key))


def _key(name: str) -> Any:
    return getattr(torch._C.DispatchKey, name)


def _knows_kernels_of_autocast() -> bool:
    names = operators_with_kernel("AutocastCUDA")
    with without_dispatch_key("AutocastPrivateUse1"):
        is_excluded = is_dispatch_key_excluded("AutocastPrivateUse1")
    include = torch._C._dispatch_tls_set_dispatch_key_included
    return "aten::mm" in names and is_excluded and callable(include)


AUTOCAST: Final = Mechanism(
    "autocast on the device",
    "torch",
    rests_on="torch._C._dispatch_get_all_op_names, _dispatch_has_kernel_for_dispatch_key, "
    "_dispatch_tls_set_dispatch_key_included and _ExcludeDispatchKeyGuard",
    without="torch.autocast changes nothing on the device: operators compute in the dtypes of their tensors",
    probe=_knows_kernels_of_autocast,
)


# --- the device ---


def register_device() -> None:
    """Give torch a guard and hooks for the device of torchax, which cannot be taken
    back.
    """
    accelerators: Any = getattr(torch._C, "_acc")  # noqa: B009  unknown to type checkers

    class DeviceGuard(accelerators.DeviceGuard):
        def type_(self) -> Any:
            return torch._C._autograd.DeviceType.PrivateUse1  # type: ignore[attr-defined]

    class Hooks(accelerators.PrivateUse1Hooks):
        def is_built(self) -> bool:
            return True

        def is_available(self) -> bool:
            return False

        def has_primary_context(self, device_index: int) -> bool:
            return True

    accelerators.register_python_privateuseone_device_guard(DeviceGuard())
    accelerators.register_python_privateuseone_hook(Hooks())


def _takes_device_from_python() -> bool:
    accelerators: Any = getattr(torch._C, "_acc", None)
    names = (
        "DeviceGuard", "PrivateUse1Hooks", "register_python_privateuseone_device_guard",
        "register_python_privateuseone_hook",
    )  # fmt: skip
    return all(hasattr(accelerators, name) for name in names)


DEVICE_IN_TORCH: Final = Mechanism(
    "guard of the device in torch",
    "torch",
    rests_on="torch._C._acc, which torch 2.9 has not yet",
    without='"jax" stands for "jax:0" in moves of tensors, and calls of torch about pinned memory fail in torch itself',
    probe=_takes_device_from_python,
)


# --- optimizers ---


def group_tensors(tensors: list[list[Any]], with_indices: bool) -> dict[Any, Any]:
    """Lists of tensors by their device and dtype, as optimizers that work on lists
    take them.
    """
    return _group_tensors(tensors, with_indices)


# Of torch itself, where optimizers get another one.
_group_tensors: Any = getattr(torch._C, "_group_tensors_by_device_and_dtype", None)


def _groups_tensors() -> bool:
    with outside_of_modes():
        tensors = [torch.zeros(1), torch.zeros(2, dtype=torch.float64)]
        groups = group_tensors([tensors], True)
    return torch.Tensor in types_of_lists()[0] and [
        group[1] for group in groups.values()
    ] in ([[0], [1]], [[1], [0]])


def types_of_lists() -> list[list[type]]:
    """The classes of tensors that optimizers, and the clipping of gradients, work on by
    lists.
    """
    # `torch.optim` removes the module's name.
    optimizer = importlib.import_module("torch.optim.optimizer")
    from torch.utils import _foreach_utils

    return [
        optimizer._foreach_supported_types,
        _foreach_utils._foreach_supported_types,
    ]


OPTIMIZERS_OVER_LISTS: Final = Mechanism(
    "optimizers over lists of tensors",
    "torch",
    rests_on="torch._C._group_tensors_by_device_and_dtype, _foreach_supported_types of torch.optim.optimizer and of "
    "torch.utils._foreach_utils",
    without="an optimizer with foreach=True fails on the device; the default works on single tensors",
    probe=_groups_tensors,
)


# --- transformations ---


def forward_differentiation_level() -> int:
    """How many `torch.autograd.forward_ad.dual_level` blocks are open, less one."""
    return torch.autograd.forward_ad._current_level


def is_function_transformed() -> bool:
    """Whether a transformation of `torch.func` is under way in this thread."""
    return torch._C._functorch.maybe_current_level() is not None  # type: ignore[reportAttributeAccessIssue]


def is_transformed(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a value inside of a transformation of `torch.func`."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)  # type: ignore[reportAttributeAccessIssue]


def _sees_transformations() -> bool:
    seen: list[bool] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        seen.extend([is_function_transformed(), is_transformed(tensor)])
        return tensor

    with outside_of_modes(), contextlib.ExitStack() as stack:
        tensor = torch.zeros(1)
        # The first to ask may be inside of a transformation, which has new tensors too.
        seen.append(is_function_transformed() or not is_transformed(tensor))
        torch.func.vmap(note)(tensor)
        # Of these blocks there is one at a time.
        if forward_differentiation_level() < 0:
            stack.enter_context(torch.autograd.forward_ad.dual_level())
        seen.append(forward_differentiation_level() >= 0)
    return seen == [True] * 4


TRANSFORMATIONS: Final = Mechanism(
    "refusal of torch's transformations",
    "torch",
    rests_on="torch.autograd.forward_ad._current_level, torch._C._functorch.maybe_current_level, "
    "is_functorch_wrapped_tensor",
    without="torch.func and forward-mode differentiation of a compiled program are not refused, and see a constant",
    probe=_sees_transformations,
)


# --- functions and attributes of modules ---


def pop_function_modes() -> list[Any]:
    """Take all modes of torch functions off this thread's stack, the innermost
    first.
    """
    count = torch._C._len_torch_function_stack()
    return [torch.overrides._pop_mode() for _ in range(count)]


def push_function_mode(mode: Any) -> None:
    """Put a mode of torch functions on this thread's stack."""
    torch.overrides._push_mode(mode)


def global_forward_hooks() -> tuple[Any, ...]:
    """The hooks of all modules' calls, before and after their forward."""
    hooks = torch.nn.modules.module
    return (
        *hooks._global_forward_hooks.values(),
        *hooks._global_forward_pre_hooks.values(),
    )


def parse_to(*args: Any, **kwargs: Any) -> Any:
    """The device, dtype, non_blocking and memory format that `module.to` makes of its
    arguments.
    """
    return torch._C._nn._parse_to(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]


def count_gpus() -> int:
    """How many GPUs torch has; `torch.cuda.device_count` may be replaced."""
    count = getattr(torch._C, "_cuda_getDeviceCount", None)
    return 0 if count is None else count()


def deserializers() -> list[Any]:
    """What `torch.serialization.register_package` has registered; there is no call that
    removes an entry.
    """
    return torch.serialization._package_registry


def is_filled_later(storage: torch.UntypedStorage) -> bool:
    """Whether a file of torch's former format has the contents of a storage after all
    tensors.
    """
    return getattr(storage, "_torch_load_uninitialized", False)


def remove_kernels(library: torch.library.Library) -> None:
    """Take the kernels of a library back, of which torch has public calls that add."""
    library._destroy()


def let_torch_look_for_triton() -> None:
    """Have torch find out once and for all whether triton is installed."""
    # Where another release has them elsewhere, it finds out later.
    with contextlib.suppress(ImportError, AttributeError):
        importlib.import_module("torch._inductor.runtime.triton_compat")
        importlib.import_module("torch.utils._triton").has_triton_package()


# --- dictionaries ---


def dictionary_versions() -> Callable[[dict], int]:
    """torch's function that gives another number after each change of a dictionary; not
    a function around it, because a model has hundreds of dictionaries.
    """
    return torch._C._dynamo.guards.dict_version  # pyright: ignore[reportAttributeAccessIssue]


def _do_versions_follow_changes() -> bool:
    """Whether the version of a dictionary is another one after each kind of change, and
    the same as long as nothing changes; an equal dictionary has another one.
    """
    version_of = dictionary_versions()

    class Owner:
        name = 0

    owner: Any = Owner()
    owner.value = 0
    namespace = vars(owner)
    [of_class] = [
        part for part in gc.get_referents(vars(Owner)) if isinstance(part, dict)
    ]

    if version_of(dict(namespace)) == version_of(namespace):
        return False

    def assign(value: object) -> None:
        # More than once, as Python has faster instructions for code that runs often.
        for _ in range(64):
            owner.value = object()
        owner.value = value

    changes: list[tuple[dict, Callable[[], Any]]] = [
        (namespace, lambda: assign(1)),
        (namespace, lambda: setattr(owner, "other", 1)),
        (namespace, lambda: namespace.update(other=2)),
        (namespace, lambda: namespace.pop("other")),
        (namespace, lambda: delattr(owner, "value")),
        (namespace, lambda: namespace.setdefault("value", 3)),
        (namespace, namespace.clear),
        (of_class, lambda: setattr(Owner, "name", 1)),
        (of_class, lambda: delattr(Owner, "name")),
    ]
    for dictionary, change in changes:
        before = version_of(dictionary)
        if version_of(dictionary) != before:
            return False
        change()
        if version_of(dictionary) == before:
            return False
    return True


DICTIONARY_VERSIONS: Final = Mechanism(
    "versions of dictionaries",
    "torch",
    rests_on="torch._C._dynamo.guards.dict_version",
    without="each call of a compiled function compares all attributes of its modules, which takes 0.15 ms for 4 layers "
    "of a language model and 1.5 ms for 80",
    probe=_do_versions_follow_changes,
)
