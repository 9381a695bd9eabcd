"""`torch.nn.attention.flex_attention` on the device: what patches put in the place of
its functions there.

torch's own function checks the arguments and arranges the results; what it would
compile with Triton, or compute with `torch.vmap`, is computed here instead. As in torch
without a compiler, the functions of indices alone decide who sees whom: the tables of
blocks of a `BlockMask` say which work a kernel may skip, and are not read.

Shapes: B batch, H query heads, K key/value heads, Q query length, T key/value length, D
head dimension of queries and keys, C of values; M rows and N columns of blocks.
"""

import contextlib
import inspect
import math
import types
import warnings
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import torch
from jax.core import Tracer

from tpuport import compat
from tpuport.attention.attend import attend
from tpuport.attention.attention_settings import Settings, current_settings
from tpuport.attention.call_report import Call, find_call_site, record_call
from tpuport.attention.index_functions import (
    IndexFunction,
    Statistics,
    attention_of_functions,
    count_indices,
)
from tpuport.attention.mask import Mask
from tpuport.attention.provenance import structure_of
from tpuport.attention.provenance.graph import Graph, UnknownError
from tpuport.attention.provenance.primitives import is_constant
from tpuport.attention.xla_attention import attention_xla
from tpuport.compat.recording import as_one_node
from tpuport.errors import PortError
from tpuport.patches import original

MODULE: Final = "torch.nn.attention.flex_attention"
# Elements of a dense mask up to which it is made at once. A larger one is made block by
# block, or only in a program, where XLA computes it in the place where it is read.
_DENSE_LIMIT: Final = 1 << 24


def flex_attention(query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Traced. torch's function of this name on the device: query [B, H, Q, D], key
    [B, K, T, D], value [B, K, T, C].

    Mask functions that compare positions, look up padding, or the documents of packed
    sequences, keep their structure, for which there is the fused kernel; any other
    mask, and a change of scores, is computed by XLA, in bounded memory. A block mask
    may be on the host.

    Raises:
        PortError: a function of indices that reads a value or returns something else
            than a scalar, or tensors on the host.
        ValueError, RuntimeError, NotImplementedError: what torch raises for the
            arguments.
    """
    function: Any = original(f"{MODULE}:flex_attention")
    arguments = inspect.signature(function).bind(query, *args, **kwargs)
    block_mask = arguments.arguments.get("block_mask")
    if block_mask is not None:
        _warn_of_unread_blocks(block_mask)
        arguments.arguments["block_mask"] = _MaskOnDevice(block_mask, query.device)
    aux = arguments.arguments.get("return_aux")
    is_lse_wanted = bool(arguments.arguments.get("return_lse")) or (
        aux is not None and aux.lse
    )
    is_maximum_wanted = aux is not None and aux.max_scores

    def operator(
        query: Any,
        key: Any,
        value: Any,
        score_mod: Any,
        block_mask: tuple,
        scale: float,
        _: Any,
    ) -> Any:
        tensors = {"query": query, "key": key, "value": value}
        # What the function of a mask from the host looks up is on the host, too. A
        # program would not see it change.
        is_traced = isinstance(compat.as_jax(query), Tracer)
        with (
            contextlib.nullcontext()
            if is_traced
            else compat.host_tensors_as_constants()
        ):
            mask = _read(block_mask[-1], "mask_mod")
        return _attend(
            tensors, score_mod, mask, scale, is_lse_wanted, is_maximum_wanted
        )

    # torch's own body, which calls the operator without a compiler where a developer
    # looks for mistakes.
    names = function.__globals__ | {
        "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True,
        "_validate_device": lambda *_: None,
        "flex_attention_hop": operator,
        # No length is a symbol. torch would look for one in places in memory.
        "has_free_unbacked_symbols": lambda _: False,
    }
    check = "_validate_block_mask_shape"
    if check in names:
        names[check] = _with_names(names[check], names)
    return _with_names(function, names)(*arguments.args, **arguments.kwargs)


def _with_names(function: Any, names: dict[str, Any]) -> Any:
    """The function, which finds these in place of the names of its module."""
    other = types.FunctionType(
        function.__code__, names, None, function.__defaults__, function.__closure__
    )
    other.__kwdefaults__ = function.__kwdefaults__
    return other


class _MaskOnDevice:
    """A block mask as torch's checks read it, on the device of the query wherever its
    tables are.
    """

    def __init__(self, block_mask: Any, device: torch.device) -> None:
        self._block_mask = block_mask
        self.kv_num_blocks = types.SimpleNamespace(
            device=device, size=block_mask.kv_num_blocks.size
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block_mask, name)


def _warn_of_unread_blocks(block_mask: Any) -> None:
    """Warn of a mask that hides pairs by its tables alone, which torch's compiled
    kernels read.
    """
    from torch.nn.attention import flex_attention as library

    is_empty = block_mask.BLOCK_SIZE[0] == library._LARGE_SPARSE_BLOCK_SIZE
    if (
        block_mask.mask_mod is library.noop_mask
        and not is_empty
        and not _lists_all_blocks(block_mask)
    ):
        warnings.warn(
            "a BlockMask whose mask_mod hides nothing: flex_attention attends to all keys, as it does in torch without "
            "torch.compile; torch's compiled kernels would leave out the blocks that the tables do not list. Give "
            "BlockMask.from_kv_blocks a mask_mod that says the same as its tables",
            stacklevel=4,
        )


def _lists_all_blocks(block_mask: Any) -> bool:
    """Whether the tables are known to list all blocks."""
    counts = block_mask.kv_num_blocks
    if block_mask.full_kv_num_blocks is not None:
        counts = counts + block_mask.full_kv_num_blocks
    if compat.is_ported(counts):
        counts = compat.as_jax(counts)
        if isinstance(counts, Tracer):
            # `create_block_mask` computes them from nothing, and lists all of them for
            # such a mask_mod.
            try:
                return is_constant(Graph().node(counts))
            except UnknownError:
                return False
    return bool((counts == block_mask.kv_indices.shape[-1]).all())


@as_one_node
def _attend(
    tensors: dict[str, torch.Tensor],
    score_mod: Callable[..., Any],
    mask: IndexFunction,
    scale: float,
    is_lse_wanted: bool,
    is_maximum_wanted: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Traced. torch's operator: the output [B, H, Q, C] and both statistics [B, H, Q]
    divided by the logarithm of 2.
    """
    host = [name for name, tensor in tensors.items() if not compat.is_ported(tensor)]
    if host:
        raise PortError(
            "flex_attention has tensors on the device and tensors on the host", where=", ".join(host),
            fix='move them, x.to("jax"), or create them on the device of the others, device=query.device',
        )  # fmt: skip
    arrays = compat.as_jax(tuple(tensors.values()))
    query, key, value = _broadcast_batch(*arrays)
    score = _read(score_mod, "score_mod", jnp.promote_types(query.dtype, jnp.float32))

    def compute(
        query: jax.Array, key: jax.Array, value: jax.Array
    ) -> tuple[jax.Array, Any, Any]:
        out, statistics = _compute(
            query,
            key,
            value,
            mask,
            score,
            float(scale),
            is_lse_wanted,
            is_maximum_wanted,
        )
        return (
            out,
            statistics.lse if is_lse_wanted else None,
            statistics.maximum if is_maximum_wanted else None,
        )

    pairs = math.prod(query.shape[:3]) * key.shape[2]
    if pairs > _DENSE_LIMIT and not isinstance(query, Tracer):
        # Outside of a program each array that structure is looked for in would be
        # computed.
        compute = jax.jit(compute)
    out, lse, maximum = compute(query, key, value)
    # torch's body multiplies by it.
    scaled = [
        None if array is None else compat.wrap(array / math.log(2.0))
        for array in (lse, maximum)
    ]
    return compat.wrap(out), scaled[0], scaled[1]


def _broadcast_batch(
    query: jax.Array, key: jax.Array, value: jax.Array
) -> list[jax.Array]:
    rows, of_keys = query.shape[0], key.shape[0]
    if of_keys not in (1, rows):
        raise RuntimeError(
            f"Bq and Bkv must broadcast. Got Bq={rows} and Bkv={of_keys}"
        )
    return [query, *(jnp.broadcast_to(x, (rows, *x.shape[1:])) for x in (key, value))]


def _compute(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: IndexFunction,
    score: IndexFunction,
    scale: float,
    is_lse_wanted: bool,
    is_maximum_wanted: bool,
) -> tuple[jax.Array, Statistics]:
    """Traced. The output and the statistics; those that are not wanted may be
    anything.
    """
    reason = ""
    if len({query.dtype, key.dtype, value.dtype}) > 1:
        reason = "keys or values of another dtype than the queries"
    if not score.is_identity:
        reason = "a score_mod, which may compute anything"
    if is_maximum_wanted:
        reason = "the largest scores are asked for"
    batch, heads, queries, _ = query.shape
    structure = Mask()
    if not reason:
        structure, reason = _structure(mask, (batch, heads, queries, key.shape[2]))
    if reason:
        _record(query, key, value, reason)
        return attention_of_functions(query, key, value, mask, score, scale)
    out = attend(
        query,
        key,
        value,
        structure,
        scale=scale,
        source="torch",
        note="a mask_mod of another kind",
    )
    if not is_lse_wanted:
        return out, Statistics(out, out)
    # In a program that does not use it, as transformers' does not without sinks, it is
    # not computed.
    lse = attention_xla(query, key, value, structure, scale=scale)[1]
    return out, Statistics(lse, lse)


def _structure(
    mask: IndexFunction, sizes: tuple[int, int, int, int]
) -> tuple[Mask, str]:
    """Traced. Who sees whom, and why that is to be computed block by block, if it
    is.
    """
    batch, heads, queries, keys = sizes
    dense = mask.at(count_indices(*sizes))
    structure = structure_of(
        dense, batch=batch, heads=heads, queries=queries, keys=keys
    )
    if structure.dense is not None and structure.dense.size > _DENSE_LIMIT:
        return (
            structure,
            f"a mask_mod without known structure over {queries} x {keys} pairs",
        )
    return structure, ""


def _record(query: jax.Array, key: jax.Array, value: jax.Array, reason: str) -> None:
    site, module = find_call_site()
    settings = current_settings() or Settings()
    mesh = "one device"
    if settings.mesh is not None and settings.mesh.size > 1:
        mesh = f"{settings.mesh.size} devices, as the compiler places it"
    record_call(
        Call(
            site=site, module=module, source="torch", query=query.shape, key=key.shape, value=value.shape,
            dtype=str(query.dtype), implementation="xla", reason=reason, mask="a function", mesh=mesh, padding="",
        )
    )  # fmt: skip


def _read(
    function: Callable[..., Any], kind: str, score_dtype: Any = None
) -> IndexFunction:
    """Traced. A mask_mod, or a score_mod for scores of this dtype.

    Raises:
        PortError: it reads a value, or does not return one scalar tensor, boolean for a
            mask.
    """

    def call(*scalars: jax.Array) -> jax.Array:
        result = function(*compat.as_torch(scalars))
        if not isinstance(result, torch.Tensor):
            raise TypeError(f"it returned {type(result).__name__}")
        return compat.to_jax(result)

    try:
        read = IndexFunction(call, score_dtype)
    except (
        jax.errors.ConcretizationTypeError,
        jax.errors.NonConcreteBooleanIndexError,
    ) as error:
        raise PortError(
            f"a {kind} reads the value of an index or a score, which is different for each pair",
            where=_describe(function),
            fix="compute with tensors: torch.where(condition, a, b) for an if, & and | for and, or",
        ) from error
    except TypeError as error:
        raise PortError(
            f"a {kind} does not return one scalar tensor: {error}", where=_describe(function),
            fix="return a tensor computed from the indices, one value for one pair of a query and a key",
        ) from error  # fmt: skip
    if kind == "mask_mod" and read.dtype != jnp.bool_:
        raise PortError(
            f"a mask_mod that returns {read.dtype}", where=_describe(function),
            fix="return a boolean tensor, True where a query sees a key",
        )  # fmt: skip
    return read


def _describe(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", repr(function))
    return name if code is None else f"{name}, {code.co_filename}:{code.co_firstlineno}"


def create_mask(
    mod_fn: Callable[..., Any],
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: Any = None,
) -> torch.Tensor:
    """Traced on the device. torch's function of this name: a mask [B, H, Q, T], boolean
    as a mask_mod's result is.
    """
    from torch.nn.attention import flex_attention as library

    if torch.compiler.is_compiling() or not _is_on_device(device):
        # Not by `original`, whose lock torch's compiler cannot follow.
        return library.create_mask.__wrapped__(mod_fn, B, H, Q_LEN, KV_LEN, device)  # type: ignore[attr-defined]
    sizes = (B or 1, H or 1, Q_LEN, KV_LEN)
    indices = count_indices(*sizes)
    if library._get_mod_type(mod_fn) is library._ModificationType.SCORE_MOD:
        scores = _read(mod_fn, "score_mod", jnp.float32).at(
            indices, jnp.zeros(sizes, jnp.float32)
        )
        return compat.wrap(~jnp.isneginf(scores))
    return compat.wrap(jnp.broadcast_to(_read(mod_fn, "mask_mod").at(indices), sizes))


def _is_on_device(device: Any) -> bool:
    """Whether tensors that torch's functions make for this argument are on the
    device.
    """
    device = device or torch.accelerator.current_accelerator() or "cpu"
    return compat.is_ported(torch.arange(1, device=device))


def ordered_to_dense(
    num_blocks_in_row: torch.Tensor,
    col_indices: torch.Tensor,
    num_cols: int | None = None,
) -> torch.Tensor:
    """Traced. torch's `_ordered_to_dense`: [..., M, N], 1 for as many of a row's first
    indices as it counts. Before torch 2.13, N is the number of indices of a row.
    """
    counts, indices = compat.as_jax((num_blocks_in_row, col_indices))
    width = indices.shape[-1] if num_cols is None else num_cols
    is_listed = jnp.arange(indices.shape[-1]) < counts[..., None]
    columns = jnp.where(is_listed, indices, width)
    rows = jnp.indices(indices.shape, sparse=True)[:-1]
    dense = jnp.zeros((*indices.shape[:-1], width), jnp.int32)
    return compat.wrap(dense.at[(*rows, columns)].set(1, mode="drop"))
