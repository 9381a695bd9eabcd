"""Samples of torch's database made hostile: NaN, infinities, zeros of both signs, denormals, empty or single rows.

The database has few of these itself. Each variation keeps everything else of the sample that it is made from. What
cannot be as in torch is named in `EXPLANATIONS`, with the reason.
"""

import fnmatch
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from benchmarks.operator_outcomes import Outcome

DENORMAL, EMPTY, SINGLE = "denormal", "empty", "single"
INFINITY, NAN = float("inf"), float("nan")
# One element in so many is replaced.
_SPARSITY = 3
# The smallest normal number of a dtype times this has no normal number beside it but zero.
_DENORMAL = 0.25


def variations(sample: Any) -> Iterator[Any]:
    """A sample with hostile elements and sizes, one kind at a time; nothing where torch is told not to check."""
    if sample.kwargs.get("unsafe"):
        return
    for kind, values in _VALUES.items():
        yield _mapped(sample, kind, lambda number, tensor, values=values: _replaced(tensor, values, number))
    for size in sorted(_sizes(sample)):
        for replacement, kind in ((0, EMPTY), (1, SINGLE)):
            sizes = size, replacement
            yield _mapped(sample, kind, lambda _, tensor, sizes=sizes: _resized(tensor, *sizes))


# LAPACK's routine for balancing takes NaN for a size.
_FATAL = {"linalg.eigvals": ("NaN", "infinity", "mixed")}
UNKNOWN = "torch refuses such values, and tpuport too, but in a compiled program they are not known while it is traced"
FLUSHED = "denormal numbers count as 0 on a TPU, and in XLA's programs for a CPU"


class Explanation(NamedTuple):
    """Why operators cannot be as in torch for some arguments.

    Attributes:
        operators: patterns of their names.
        kinds: of what is hostile; none: all kinds.
        text: of the outcome's reason; what it contains.
        reason: for the page.
    """

    operators: tuple[str, ...]
    kinds: tuple[str, ...]
    text: str
    reason: str


def ends_torch(name: str, kind: str) -> bool:
    """Whether torch itself ends the process, so that there is nothing to compare with."""
    return kind in _FATAL.get(name, ())


def explained(name: str, kind: str, outcome: Outcome) -> Outcome:
    """The outcome; "explained" where it is another than torch's for a reason that is known."""
    if outcome.verdict in {"equal", "dtype", "needs a value"}:
        return outcome
    # "nan for" is of complex numbers, too.
    texts = outcome.reason, outcome.reason.replace("nan+nanj", "nan")
    for explanation in EXPLANATIONS:
        is_meant = any(fnmatch.fnmatch(name, pattern) for pattern in explanation.operators)
        if (
            is_meant
            and kind in (explanation.kinds or (kind,))
            and any(explanation.text in text for text in texts)
        ):
            return Outcome("explained", explanation.reason)
    return outcome


def _values(*values: float) -> Callable[[torch.dtype], list[float]]:
    return lambda dtype: list(values)


def _denormals(dtype: torch.dtype) -> list[float]:
    smallest = torch.finfo(dtype).tiny * _DENORMAL
    return [smallest, -smallest]


_VALUES: dict[str, Callable[[torch.dtype], list[float]]] = {
    "NaN": _values(NAN),
    "infinity": _values(INFINITY, -INFINITY),
    "signed zero": _values(0.0, -0.0),
    DENORMAL: _denormals,
    "mixed": _values(NAN, INFINITY, -0.0, -INFINITY, 0.0),
}


EXPLANATIONS = (
    Explanation(
        ("*pow*", "frexp", "igamma*", "mode", "cummax", "cummin", "max", "min", "div",
         "floor_divide", "linalg.*", "lu*", "cholesky*", "pinverse", "special.*",
         "nn.functional.*max_pool*"), (DENORMAL,), "",
        f"{FLUSHED}; torch tells them apart here even with torch.set_flush_denormal(True)",
    ),
    Explanation(
        ("*",), (), "another sign of zero",
        "the sign of a zero that several elements make (a sum, the greater of -0 and 0, a quotient that is rounded "
        "down) depends on the order of operations, and torch's own kernels differ in it",
    ),
    Explanation(
        ("fft.*", "stft", "istft"), (), "values:",
        "a transform sums products of infinities in another order, so that others of its results are NaN",
    ),
    Explanation(
        ("_upsample_bilinear2d_aa", "nn.functional.interpolate*", "nn.functional.upsample_bilinear",
         "nn.functional.conv_transpose*", "nn.functional.bilinear"), (), "nan for",
        "infinity or NaN times a weight of 0, or less itself, is NaN on the way, where torch leaves the element out",
    ),
    Explanation(
        ("linalg.*", "lu*", "cholesky*", "ldl*", "pinverse", "pca_lowrank", "svd_lowrank", "norm*", "ormqr", "geqrf",
         "triangular_solve", "logdet", "qr", "svd"), ("NaN", "infinity", "signed zero", DENORMAL, "mixed"), "",
        "a factorization of a matrix with NaN or infinities, which LAPACK's routines leave in other states; whether "
        "torch refuses it, raises an internal error or ends the process depends on the routine",
    ),
    Explanation(
        ("bucketize", "searchsorted"), (), "",
        "boundaries with NaN or infinities in between are not sorted, as torch requires",
    ),
    Explanation(
        ("int", "long", "short", "char", "byte", "cfloat", "chalf"), (), "values:",
        "the integer for a number that has none is undefined in torch as in C",
    ),
    Explanation(
        ("mode", "unique"), ("NaN", "mixed"), "values:",
        "torch sorts by a comparison that is no order where there are NaN",
    ),
    Explanation(
        ("native_dropout_backward",), (), "0 for nan",
        "XLA selects in a compiled program, where x is multiplied by bools that became numbers: x times False is 0, "
        "also of NaN",
    ),
    Explanation(
        ("nn.functional.scaled_dot_product_attention",), ("NaN", "infinity", "mixed"), "nan for 0",
        "a query whose scores are all NaN gets zeros from torch's fused kernel for a CPU, and NaN from its other one",
    ),
    Explanation(
        ("nn.functional.conv_transpose*",), (EMPTY, SINGLE), "Output size is too small",
        "torch on a CPU has a result without elements for bfloat16, which it refuses in other dtypes",
    ),
    Explanation(
        ("add", "sub", "rsub", "__radd__", "__rsub__", "mean", "gradient", "addcdiv", "addcmul", "addr"),
        ("infinity", "mixed"), "j for ",
        "torch multiplies complex numbers by a complex 1 (`alpha`, `value`, the inverse of a count), which makes NaN "
        "of infinite parts",
    ),
    Explanation(
        ("_upsample_bilinear2d_aa",), (SINGLE,), "values:",
        "torch repeats the first row of an image that is one pixel wide, unless it is in channels_last",
    ),
    Explanation(
        ("cov",), (SINGLE,), "values:",
        "torch writes to its argument there, of a single observation, which is a mistake of torch's",
    ),
    Explanation(
        ("*batch_norm*", "native_layer_norm", "native_group_norm"), ("infinity", "mixed"), "for nan",
        "the mean of numbers and an infinity is infinite; torch's running sums make it NaN in passing",
    ),
    Explanation(
        ("_softmax_backward_data",), (), "values:",
        "the gradient of an infinite one is NaN by one order of its products, and infinite by the other",
    ),
    Explanation(
        ("nn.functional.binary_cross_entropy",), (), "torch raises",
        "torch on the CPU reads all elements to refuse NaN, which would stop the device at each call",
    ),
    Explanation(
        ("nn.functional.interpolate*", "nn.functional.upsample*"), (EMPTY, SINGLE), "",
        "an image without pixels, or a result without: torch's own kernels for shapes refuse some",
    ),
    Explanation(
        ("nn.functional.max_pool*", "max_pool*"), (SINGLE,), "values:",
        "the place in a window that holds no element, but only padding",
    ),
    Explanation(
        ("nn.functional.scaled_dot_product_attention",), (EMPTY,), "shape",
        "torch drops leading dimensions that keys alone have when there are no queries",
    ),
    Explanation(
        ("nn.functional.scaled_dot_product_attention",), (), "for nan",
        "the dropout of NaN: 0 or NaN, by what is drawn",
    ),
)  # fmt: skip


def _mapped(sample: Any, kind: str, function: Callable[[int, torch.Tensor], torch.Tensor]) -> Any:
    """The sample with `function(number, tensor)` in place of each tensor among its arguments."""
    leaves, structure = pytree.tree_flatten(sample[:2])
    changed = [
        function(number, leaf) if isinstance(leaf, torch.Tensor) else leaf
        for number, leaf in enumerate(leaves)
    ]
    args, kwargs = pytree.tree_unflatten(changed, structure)
    return sample._replace(args=args, kwargs=kwargs, hostile=kind)


def _replaced(tensor: torch.Tensor, values: Callable[[torch.dtype], list[float]], seed: int) -> torch.Tensor:
    """A copy in which values stand in place of some elements, at least one of those that there are."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return tensor
    copy = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    flat = (torch.view_as_real(copy) if copy.is_complex() else copy).view(-1)
    generator = torch.Generator().manual_seed(seed)
    places = torch.randperm(flat.numel(), generator=generator)[: -(-flat.numel() // _SPARSITY)]
    chosen = torch.tensor(values(flat.dtype), dtype=flat.dtype)
    flat[places] = chosen.repeat(-(-places.numel() // chosen.numel()))[: places.numel()]
    return copy


def _sizes(sample: Any) -> set[int]:
    """Sizes of the first tensor's dimensions that can be made smaller."""
    tensors = (leaf for leaf in pytree.tree_leaves(sample[:2]) if isinstance(leaf, torch.Tensor))
    return {size for tensor in list(tensors)[:1] for size in tensor.shape if size > 1}


def _resized(tensor: torch.Tensor, size: int, replacement: int) -> torch.Tensor:
    """The beginning of a tensor along each dimension of a size."""
    for dim, own in enumerate(tensor.shape):
        if own == size:
            tensor = tensor.narrow(dim, 0, replacement)
    return tensor.clone()
