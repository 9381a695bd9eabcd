"""tpuport's attention as a backend of diffusers:
`model.set_attention_backend("tpuport")`.

diffusers looks backends up in an Enum and in the tables of a registry. This module adds
a member and its entries, after checking that both have the known form, and removes them
again.

Shapes: B batch, H query heads, K key/value heads, S query length, T key/value length, D
and C head dimensions.
"""

import enum
import gc
import importlib
import inspect
import logging
import operator
import os
import sys
import weakref
from typing import Any, Final

import torch

from tpuport import compat
from tpuport.attention.attend import attend
from tpuport.attention.mask import Mask
from tpuport.attention.register.broadcasting import arrange
from tpuport.compat.operators.attention import refuse_mask_beside_causal
from tpuport.errors import PortError

logger = logging.getLogger("tpuport")

NAME: Final = "tpuport"
_MEMBER: Final = "TPUPORT"
_MODULE: Final = "diffusers.models.attention_dispatch"
_CONSTANTS: Final = "diffusers.utils.constants"
_ARGUMENTS: Final = {
    "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa",
}  # fmt: skip
_REGISTRY_TABLES: Final = ("_backends", "_constraints", "_supported_arg_names")
# What registering reads and changes, by its path in the module of backends.
_DICTIONARIES: Final = (
    "AttentionBackendName._member_map_",
    "AttentionBackendName._value2member_map_",
    *(f"_AttentionBackendRegistry.{table}" for table in _REGISTRY_TABLES),
)
_ATTRIBUTES: Final = (
    "_AttentionBackendRegistry.register",
    "_AttentionBackendRegistry.set_active_backend",
    "_AttentionBackendRegistry._active_backend",
)


def diffusers_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    _parallel_config: Any = None,
    **others: Any,
) -> torch.Tensor:
    """Traced. A backend of diffusers: query [B, S, H, D], key [B, T, K, D], value
    [B, T, K, C] -> [B, S, H, C].

    Tensors on the host go to diffusers' native backend.

    Args:
        attn_mask: [B, T], or anything that broadcasts to [B, H, S, T]; boolean, or
            added to the scores.
        is_causal: query i sees keys 0 to i; excludes a mask.
        scale: factor on the dot products; None is D ** -0.5.
        enable_gqa: each key/value head serves a group of query heads.
        others: what diffusers passes to other backends.

    Raises:
        PortError: the log of the softmax's sum, diffusers' own parallelism, an unknown
            argument, or tensors of which some are on the host.
    """
    _reject_unsupported(return_lse, _parallel_config, others)
    if not any(map(compat.is_ported, (query, key, value, attn_mask))):
        return _native_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        )
    if not all(map(compat.is_ported, (query, key, value))):
        raise PortError(
            "attention over tensors of which some are not on the device",
            fix="tpuport.port(model)",
        )
    refuse_mask_beside_causal(attn_mask, is_causal)
    mask = None
    if attn_mask is not None:
        mask = compat.to_jax(attn_mask)
        # The native backend reads this shape as [B, T] too, even if B equals S.
        if mask.shape == (query.shape[0], key.shape[1]):
            mask = mask[:, None, None, :]
    q, k, v = (x.swapaxes(1, 2) for x in compat.as_jax((query, key, value)))
    operands = arrange(q, k, v, mask, enable_gqa)
    structure = operands.mask_structure()
    if is_causal:
        structure = Mask(right=0)
    out = attend(
        operands.query, operands.key, operands.value, structure, scale=scale, dropout_p=dropout_p, source="diffusers"
    )  # fmt: skip
    return compat.wrap(out.reshape(operands.output).swapaxes(1, 2))


def _reject_unsupported(
    return_lse: bool, parallel: Any, others: dict[str, Any]
) -> None:
    """PortError for arguments that would otherwise be ignored."""
    if return_lse:
        raise PortError(
            "the backend gives no log-sum-exp",
            where="return_lse=True",
            fix="use another attention backend",
        )
    if parallel is not None:
        raise PortError(
            "diffusers' context parallelism needs torch processes",
            where="enable_parallelism",
            fix="leave it out, and give tpuport.port(model, mesh=...) a mesh with an sp axis",
        )
    unknown = sorted(name for name, argument in others.items() if argument is not None)
    if unknown:
        raise PortError(
            "arguments that this attention backend does not know",
            where=", ".join(unknown),
        )


def _native_attention(*args: Any) -> torch.Tensor:
    module = importlib.import_module(_MODULE)
    return module._AttentionBackendRegistry._backends[
        module.AttentionBackendName.NATIVE
    ](*args)


class _EveryName(frozenset):
    """Contains every name: diffusers silently drops the arguments whose names a backend
    does not list.
    """

    def __contains__(self, _: object) -> bool:
        return True


def register_diffusers() -> None:
    """Make the attention backend "tpuport" known to diffusers; only models that choose
    it change. Idempotent.

    `DIFFUSERS_ATTN_BACKEND=tpuport` in the environment chooses it for all models, if
    this runs before diffusers' models are imported: without the backend, that import
    fails.

    Raises:
        PortError: this version of diffusers keeps its backends in another way.
    """
    module = _import_backends()
    _check_backends(module)
    names, registry = module.AttentionBackendName, module._AttentionBackendRegistry
    if _MEMBER in names.__members__:
        return
    # An Enum cannot be extended officially; this is what its metaclass does for each
    # member.
    member = str.__new__(names, NAME)
    member._name_, member._value_ = _MEMBER, NAME
    member.__objclass__, member._sort_order_ = names, len(names._member_names_)
    names._member_names_.append(_MEMBER)
    names._member_map_[_MEMBER] = names._value2member_map_[NAME] = member
    type.__setattr__(names, _MEMBER, member)
    registry.register(member)(diffusers_attention)
    registry._supported_arg_names[member] = _EveryName()
    if os.environ.get("DIFFUSERS_ATTN_BACKEND") == NAME:
        registry.set_active_backend(member)
    logger.info("attention backend %r registered with diffusers", NAME)


def is_registered() -> bool:
    """Whether diffusers has been imported and knows the backend."""
    module = sys.modules.get(_MODULE)
    return module is not None and _MEMBER in module.AttentionBackendName.__members__


def unregister_diffusers() -> None:
    """Remove the backend; models that had chosen it return to diffusers' default.
    Idempotent.
    """
    if not is_registered():
        return
    module: Any = sys.modules[_MODULE]
    names, registry = module.AttentionBackendName, module._AttentionBackendRegistry
    member = names[_MEMBER]
    if registry._active_backend is member:
        registry.set_active_backend(names.NATIVE)
    for table in _REGISTRY_TABLES:
        getattr(registry, table).pop(member, None)
    type.__delattr__(names, _MEMBER)
    names._member_names_.remove(_MEMBER)
    del names._member_map_[_MEMBER], names._value2member_map_[NAME]
    remaining = weakref.ref(member)
    del member
    # Looking for the processors takes a third of a second, and there are rarely any.
    if remaining() is not None:
        _reset_processors(remaining())
    logger.info("attention backend %r taken out of diffusers", NAME)


def _import_backends() -> Any:
    """diffusers' module of backends, even if the environment names one that it does not
    know yet.
    """
    if _MODULE in sys.modules or os.environ.get("DIFFUSERS_ATTN_BACKEND") != NAME:
        return importlib.import_module(_MODULE)
    constants: Any = importlib.import_module(_CONSTANTS)
    # The import reads this name, and fails if it knows no such backend.
    constants.DIFFUSERS_ATTN_BACKEND = "native"
    try:
        return importlib.import_module(_MODULE)
    finally:
        constants.DIFFUSERS_ATTN_BACKEND = NAME


def _check_backends(module: Any) -> None:
    """PortError unless the backends are kept in the form that `register_diffusers`
    extends.
    """
    if not _has_known_form(module):
        version = getattr(sys.modules.get("diffusers"), "__version__", "?")
        raise PortError(
            f"diffusers {version} keeps its attention backends in a form that is not known",
            where=_MODULE,
            fix="pip install 'diffusers>=0.36,<0.43'; F.scaled_dot_product_attention is served without the backend",
        )


def _has_known_form(module: Any) -> bool:
    try:
        native = module.AttentionBackendName.NATIVE
        tables = operator.attrgetter(*_DICTIONARIES)(module)
        operator.attrgetter(*_ATTRIBUTES)(module)
        arguments = inspect.signature(module.dispatch_attention_fn).parameters.keys()
    # An attribute is missing, or the dispatch is not a function.
    except (AttributeError, TypeError):
        return False
    is_text_enum = isinstance(native, str) and isinstance(native, enum.Enum)
    return (
        is_text_enum
        and arguments >= _ARGUMENTS
        and all(isinstance(table, dict) for table in tables)
    )


def _reset_processors(member: Any) -> None:
    """Let every attention processor that had chosen the backend choose none."""
    # Nothing lists the processors, but each of them refers to the member.
    for holder in gc.get_referrers(member):
        # The referrer is the processor, or the dict of its attributes if Python has
        # made one.
        attributes = getattr(holder, "__dict__", holder)
        if (
            isinstance(attributes, dict)
            and attributes.get("_attention_backend") is member
        ):
            attributes["_attention_backend"] = None
