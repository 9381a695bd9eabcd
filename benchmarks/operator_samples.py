"""One operator of torch's database through tpuport, sample by sample, beside torch on the CPU."""

import contextlib
import copy
import functools
import itertools
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import jax
import torch
from torch.utils import _pytree as pytree

import tpuport
from benchmarks import operator_hostile
from benchmarks.operator_outcomes import Outcome, compare, error_outcome, same_elements
from tpuport import compat

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "bool": torch.bool,
    "complex64": torch.complex64,
}
# What an allocation without values contains is nobody's result.
_UNINITIALIZED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
# Programs of more samples than this take the compiler long, and say less when it fails.
_SAMPLES_A_PROGRAM = 25
# Which of several equal elements they find first, torch leaves open.
_OPEN_ORDER = {"argsort", "kthvalue", "median", "mode", "nanmedian", "sort", "topk"}
_EXAMPLES = 4
_NOT_CHECKED = re.compile(r"memory location|index -?\d+ is out of bounds|index out of range")
# Of the others, torch itself makes one of these.
_COMPILED = {"function", "in-place method"}

Call = Callable[..., Any]


class Sample(NamedTuple):
    """A call of an operator: the arguments, and what makes its outputs comparable (signs of eigenvectors, say).

    Attributes:
        hostile: what stands among the arguments in place of the database's own; "" for nothing.
    """

    args: tuple
    kwargs: dict[str, Any]
    comparable: Call
    hostile: str = ""


class Reference(NamedTuple):
    """What torch answers: its outputs, or its error."""

    outputs: Any
    error: Exception | None
    is_random: bool


@functools.cache
def database() -> dict[str, Any]:
    """Every operator of torch's database by its name, variants as `name[variant]`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {_full_name(info): info for info in op_db}


def _full_name(info: Any) -> str:
    variant = info.variant_test_name
    return f"{info.name}[{variant}]" if variant else info.name


def supports(info: Any, dtype: str) -> bool:
    return info.supports_dtype(DTYPES[dtype], "cpu")


def record(
    name: str, dtype: str, *, compiled: bool, limit: int | None = None, hostile: bool = False
) -> dict[str, Any]:
    """Run every sample of an operator; how many came out how, by form of the operator and way of running.

    Args:
        name: of `database()`.
        dtype: of `DTYPES`.
        compiled: run under `jax.jit` as well.
        limit: only so many samples.
        hostile: variations of samples, which are called as functions; they are taken from all of the database's.
    """
    tpuport.enable()
    info = database()[name]
    entry: dict[str, Any] = {"operator": name, "dtype": dtype, "samples": limit, "forms": {}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        samples = _samples(info, DTYPES[dtype], None if hostile else limit)
        calls = forms(info)
        if hostile:
            samples = _hostile(samples, info, limit)
            calls = {"function": info.op}
        for form, call in calls.items():
            ways = [eager, traced] if compiled and form in _COMPILED else [eager]
            references = [_reference(call, sample, info.name) for sample in samples]
            has_refused = [False] * len(samples)
            for way in ways:
                results = way(call, samples)
                entry["forms"][f"{form}, {way.__name__}"] = _summary(
                    [
                        _judge(info.name, call, *parts)
                        for parts in zip(samples, references, results, has_refused, strict=True)
                    ]
                )
                has_refused = [isinstance(result, Exception) for result in results]
        if dtype == "float32" and info.error_inputs_func is not None and not hostile:
            entry["forms"]["errors, eager"] = _errors(info, limit)
    return entry


def _hostile(samples: list[Sample], info: Any, limit: int | None) -> list[Sample]:
    """Variations of as many samples, in equal distances; those with other sizes where torch accepts them."""
    chosen = samples[:: max(1, len(samples) // limit)][:limit] if limit else samples
    varied = [
        variation
        for sample in chosen
        for variation in operator_hostile.variations(sample)
        if not operator_hostile.ends_torch(info.name, variation.hostile)
    ]
    sizes = {operator_hostile.EMPTY, operator_hostile.SINGLE}
    return [
        sample
        for sample in varied
        if sample.hostile not in sizes or _reference(info.op, sample, info.name).error is None
    ]


def _errors(info: Any, limit: int | None) -> dict[str, Any]:
    """The database's wrong calls, each of which torch refuses."""
    wrong = [error.sample_input for error in itertools.islice(info.error_inputs("cpu"), limit)]
    samples = [
        Sample((sample.input, *sample.args), dict(sample.kwargs), lambda output: output) for sample in wrong
    ]
    samples = [sample for sample in samples if not _is_exotic(sample)]
    references = [_reference(info.op, sample, info.name) for sample in samples]
    chosen = [pair for pair in zip(samples, references, strict=True) if _can_go_wrong(*pair)]
    results = eager(info.op, [sample for sample, _ in chosen])
    return _summary(
        [_judge(info.name, info.op, *pair, result) for pair, result in zip(chosen, results, strict=True)]
    )


def _can_go_wrong(sample: Sample, reference: Reference) -> bool:
    """Whether the mistake exists on the device: it has no 64-bit types, and no memory that tensors share.

    Nor does it read indices before it uses them, on a GPU as on a TPU.
    """
    wide = {torch.float64, torch.complex128}
    tensors = [leaf for leaf in pytree.tree_leaves(sample[:2]) if isinstance(leaf, torch.Tensor)]
    return not ({tensor.dtype for tensor in tensors} & wide or _NOT_CHECKED.search(str(reference.error)))


def forms(info: Any) -> dict[str, Call]:
    """The ways to write a call of the operator: function, method, operator, and those that write in place."""
    calls = {
        "function": info.op,
        "method": info.method_variant,
        "operator": info.operator_variant,
        "in-place method": info.inplace_variant,
        "in-place operator": info.inplace_operator_variant,
    }
    return {form: call for form, call in calls.items() if call is not None}


def _samples(info: Any, dtype: torch.dtype, limit: int | None) -> list[Sample]:
    samples = []
    for sample in itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=False), limit):
        process = sample.output_process_fn_grad or (lambda output: output)
        samples.append(Sample((sample.input, *sample.args), dict(sample.kwargs), process))
    return [sample for sample in samples if not _is_exotic(sample)]


def _is_exotic(sample: Sample) -> bool:
    """Whether an argument has no counterpart on a device of jax: a sparse, quantized or nested tensor."""
    tensors = [leaf for leaf in pytree.tree_leaves(sample[:2]) if isinstance(leaf, torch.Tensor)]
    return any(tensor.layout != torch.strided or tensor.is_quantized for tensor in tensors)


def _reference(call: Call, sample: Sample, name: str) -> Reference:
    """Run a sample in torch several times, to see whether its outputs are random."""
    answers, has_drawn = [], False
    for seed in range(6):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        args, kwargs = _copied(sample)
        try:
            # Some operators of the database seed themselves, with the same number each time.
            with mock.patch("torch.manual_seed"):
                answers.append(_outputs(call, args, kwargs))
        except Exception as error:  # noqa: BLE001 - whatever torch raises is its answer
            return Reference(None, error, is_random=False)
        has_drawn |= not torch.equal(state, torch.get_rng_state())
    # Few random numbers may be the same twice by chance.
    is_random = (
        name in _UNINITIALIZED or has_drawn or not all(_identical(answers[0], other) for other in answers[1:])
    )
    return Reference(answers[0], None, is_random)


def _copied(sample: Sample) -> tuple[tuple, dict[str, Any]]:
    """The arguments, of which the call may change each tensor; a slice comes without the memory around it."""
    tree = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), sample[:2])
    return copy.deepcopy(tree)


def _outputs(call: Call, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
    """What a call gives: its result, and the tensors among its arguments, to which it may have written."""
    result = call(*args, **kwargs)
    return result, [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]


def _identical(left: Any, right: Any) -> bool:
    pairs = zip(pytree.tree_leaves(left), pytree.tree_leaves(right), strict=True)
    return all(
        a.shape == b.shape and torch.equal(_bits(a), _bits(b))
        for a, b in pairs
        if isinstance(a, torch.Tensor)
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes, in which NaN equals NaN."""
    plain = tensor.detach().to_dense().resolve_conj().resolve_neg()
    return plain.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)


def eager(call: Call, samples: Sequence[Sample]) -> list[Any]:
    """Each sample's outputs on the host, or the exception that it raised."""
    results: list[Any] = []
    for sample in samples:
        try:
            args, kwargs = _on_device(sample[:2])
            with compat.environment():
                outputs = _outputs(call, args, kwargs)
            results.append(_on_host(outputs))
        except Exception as error:  # noqa: BLE001
            results.append(error)
    return results


def traced(call: Call, samples: Sequence[Sample]) -> list[Any]:
    """The same from compiled programs of several samples each; alone if the compiler refuses them together."""
    results: list[Any] = []
    for start in range(0, len(samples), _SAMPLES_A_PROGRAM):
        part = samples[start : start + _SAMPLES_A_PROGRAM]
        try:
            results += _compiled(call, part)
        except Exception:  # noqa: BLE001
            for sample in part:
                try:
                    results += _compiled(call, [sample])
                except Exception as error:  # noqa: BLE001
                    results.append(error)
    return results


def _compiled(call: Call, samples: Sequence[Sample]) -> list[Any]:
    """Compile one program of all samples and run it."""
    inputs = [pytree.tree_flatten(_on_device(sample[:2])) for sample in samples]
    arrays = [[leaf.jax() if compat.is_ported(leaf) else None for leaf in leaves] for leaves, _ in inputs]
    # What is not an array does not leave the program: it stays here while the program is traced.
    traces: list[Any] = []

    def program(arrays: list[list[Any]]) -> list[list[jax.Array]]:
        traces.clear()
        return [
            _trace_one(call, leaves, spec, sample_arrays, traces)
            for (leaves, spec), sample_arrays in zip(inputs, arrays, strict=True)
        ]

    outputs = jax.jit(program)(arrays)
    return [_complete(trace, arrays) for trace, arrays in zip(traces, outputs, strict=True)]


def _trace_one(
    call: Call, leaves: list[Any], spec: Any, arrays: list[Any], traces: list[Any]
) -> list[jax.Array]:
    """Traced. The arrays among a sample's outputs; everything else about them is appended to `traces`."""
    leaves = [
        leaf if array is None else compat.wrap(array, leaf.dtype)
        for leaf, array in zip(leaves, arrays, strict=True)
    ]
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    try:
        with compat.environment(), _own_random_key():
            outputs, structure = pytree.tree_flatten(_outputs(call, args, kwargs))
            result_arrays = [leaf.jax() if compat.is_ported(leaf) else None for leaf in outputs]
    except Exception as error:  # noqa: BLE001
        traces.append(error)
        return []
    traces.append((outputs, structure, [array is not None for array in result_arrays]))
    return [array for array in result_arrays if array is not None]


@contextlib.contextmanager
def _own_random_key() -> Iterator[None]:
    """A key of random numbers that does not outlive the trace."""
    with compat.environment().override_property(prng=jax.random.key(0)):
        yield


def _complete(trace: Any, arrays: list[jax.Array]) -> Any:
    if isinstance(trace, Exception):
        return trace
    outputs, structure, is_array = trace
    results = iter(arrays)
    leaves = [
        compat.to_torch(compat.wrap(next(results), leaf.dtype)) if array else leaf
        for leaf, array in zip(outputs, is_array, strict=True)
    ]
    return pytree.tree_unflatten(leaves, structure)


def _on_device(tree: Any) -> Any:
    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return compat.to_device(leaf)
        if isinstance(leaf, torch.device) or leaf == "cpu":
            return torch.device("jax")
        return leaf

    return pytree.tree_map(move, tree, is_leaf=lambda leaf: isinstance(leaf, str))


def _on_host(tree: Any) -> Any:
    def move(leaf: Any) -> Any:
        return compat.to_torch(leaf) if compat.is_ported(leaf) else leaf

    return pytree.tree_map(move, tree)


def _judge(
    name: str, call: Call, sample: Sample, reference: Reference, result: Any, has_refused: bool = False
) -> Outcome:
    """What came of a sample; `has_refused` says whether the device refuses it outside of compiled programs."""
    outcome = _compared(name, call, sample, reference, result)
    if not sample.hostile or outcome.verdict == "equal":
        return outcome
    if has_refused and reference.error is not None:
        return Outcome("explained", operator_hostile.UNKNOWN)
    if sample.hostile == operator_hostile.DENORMAL:
        torch.set_flush_denormal(True)
        flushed = _compared(name, call, sample, _reference(call, sample, name), result)
        torch.set_flush_denormal(False)
        if flushed.verdict == "equal":
            return Outcome("explained", operator_hostile.FLUSHED)
    return operator_hostile.explained(name, sample.hostile, outcome)


def _compared(name: str, call: Call, sample: Sample, reference: Reference, result: Any) -> Outcome:
    if isinstance(result, Exception):
        return error_outcome(result, reference.error)
    if reference.error is not None:
        return Outcome("different", f"torch raises {type(reference.error).__name__}: {reference.error}")
    if reference.is_random:
        return compare(result, reference.outputs, None, values=False)

    def exact() -> Any:
        """torch's outputs in double precision."""
        args, kwargs = pytree.tree_map(_widened, _copied(sample))
        result, changed = _outputs(call, args, kwargs)
        return sample.comparable(result), changed

    try:
        mine, torchs = [
            (sample.comparable(output), changed) for output, changed in (result, reference.outputs)
        ]
    except Exception:  # noqa: BLE001 - outputs of a wrong structure are compared as they are
        mine, torchs = result, reference.outputs
    outcome = compare(mine, torchs, exact, signs=bool(sample.hostile))
    if outcome.verdict == "different" and name in _OPEN_ORDER:
        return (
            outcome
            if not same_elements(sample.args[0], result[0], reference.outputs[0])
            else Outcome("equal")
        )
    return outcome


_WIDE = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}


def _widened(leaf: Any) -> Any:
    """A tensor in double precision, and so for the dtype that a call asks for."""
    if isinstance(leaf, torch.dtype):
        return _WIDE.get(leaf, leaf)
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.dtype.is_floating_point:
        return leaf.double()
    return leaf.to(torch.complex128) if leaf.dtype.is_complex else leaf


def _summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Counts by verdict, and the first few reasons of each verdict but "equal"."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    reasons: dict[str, list[str]] = {}
    for position, outcome in enumerate(outcomes):
        listed = reasons.setdefault(outcome.verdict, [])
        if outcome.reason and len(listed) < _EXAMPLES:
            listed.append(f"sample {position}: {outcome.reason}")
    return {"counts": dict(counts), "reasons": {verdict: some for verdict, some in reasons.items() if some}}
