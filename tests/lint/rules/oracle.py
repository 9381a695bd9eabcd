"""Runs a rule's examples: eagerly in torch, and compiled through torchax; shows each kind of harm."""

import importlib.util
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tpuport
from tpuport import compat
from tpuport.lint.rules import Example, Rule
from tpuport.trace_errors import CannotTrace

PRELUDE = "import math\n\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n"
# What is wrong with an example itself, rather than with tracing it.
BROKEN = (NameError, SyntaxError, ImportError)


def text(example: Example) -> str:
    """The example as a whole file."""
    return PRELUDE + example.code.strip("\n") + "\n"


def on_host(example: Example) -> Example:
    """The example with the CPU in the GPU's place: what it means, on a machine without a GPU."""
    code = example.code.replace(".cuda()", ".cpu()")
    return Example(re.sub(r"(['\"])cuda(:\d+)?\1", '"cpu"', code), example.inputs)


class Workshop:
    """Makes models out of examples; their files stay in `directory`, because torch reads the source of functions."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._count = 0

    def model(self, example: Example) -> torch.nn.Module:
        """The example's `Model`, with the weights of seed 0, from a module of its own."""
        self._count += 1
        path = self.directory / f"example_{self.directory.name}_{self._count}.py".replace("-", "_")
        path.write_text(text(example))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # dataclasses look for it there
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spec.loader.exec_module(module)
            return module.Model().eval()

    def eager(self, example: Example) -> Any:
        """What torch gives on the host."""
        return _called(self.model(example), inputs(example))

    def compiled(self, example: Example) -> Callable[..., Any]:
        """The ported model as a compiled function of tensors on the host, giving tensors on the host."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = tpuport.compile(tpuport.port(self.model(example)))

        def run(*args: Any) -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return jax.tree.map(_to_host, program(*args))

        run.__dict__["program"] = program
        return run

    def jitted(self, example: Example) -> Callable[..., Any]:
        """The ported model in a program of jax alone, out of which nothing is carried but the result."""
        model = tpuport.port(self.model(example))

        def run(*args: Any) -> Any:
            with compat.environment():
                program = jax.jit(lambda *arrays: compat.as_jax(model.forward(*compat.as_torch(arrays))))
                return program(*map(compat.to_jax, args))

        return run

    def traced(self, example: Example) -> Any:
        """What the compiled program gives."""
        return self.compiled(example)(*inputs(example))

    def lowered(self, example: Example, args: tuple[Any, ...] | None = None) -> str:
        """The program before any optimisation, as text."""
        program = self.compiled(example).__dict__["program"]
        return program.lower(*(inputs(example) if args is None else args)).as_text()


def inputs(example: Example) -> tuple[Any, ...]:
    """The example's arguments, always the same."""
    torch.manual_seed(1)
    return eval(example.inputs, {"torch": torch})  # the rules' own text


def _called(model: torch.nn.Module, args: tuple[Any, ...]) -> Any:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return model(*args)


def _to_host(leaf: Any) -> Any:
    if compat.is_ported(leaf):
        leaf = compat.as_jax(leaf)
    return compat.to_torch(leaf) if isinstance(leaf, jax.Array) else leaf


def leaves(tree: Any) -> list[Any]:
    """Tensors and numbers of a result, in order; of an object that is not a pytree, those of its fields."""
    return [
        part
        for leaf in jax.tree.leaves(tree)
        for part in (leaves(vars(leaf)) if hasattr(leaf, "__dataclass_fields__") else [leaf])
    ]


def assert_same(got: Any, expected: Any) -> None:
    """The same numbers in the same shapes; integers may be of 32 bits, and floats too."""
    assert len(leaves(got)) == len(leaves(expected))
    for left, right in zip(leaves(got), leaves(expected), strict=True):
        assert_same_leaf(left, right)


def assert_same_leaf(got: Any, expected: Any) -> None:
    """As `assert_same`, for a single tensor or number."""
    got, expected = torch.as_tensor(got), torch.as_tensor(expected)
    assert got.dtype.is_floating_point == expected.dtype.is_floating_point
    is_coarse = torch.bfloat16 in (got.dtype, expected.dtype)
    tolerance = torch.finfo(torch.bfloat16).eps if is_coarse else 1e-5
    torch.testing.assert_close(got.double(), expected.double(), atol=tolerance, rtol=tolerance)


def fails(shop: Workshop, rule: Rule) -> BaseException:
    """The error that the bad example ends with, which is not a mistake in the example itself."""
    try:
        shop.traced(rule.bad)
    except Exception as error:
        if isinstance(error, BROKEN):
            raise
        return error
    raise AssertionError(f"the bad example of {rule.id} traces")


# --- harms: each takes the workshop and the rule, and asserts that the bad example shows it and the good one not ---


def error(shop: Workshop, rule: Rule) -> None:
    """It does not trace, though torch alone runs it; what wants a GPU or a process group torch cannot run either."""
    fails(shop, rule)
    if not rule.id.startswith("TPU3"):
        shop.eager(rule.bad)


def cuda(shop: Workshop, rule: Rule) -> None:
    """It cannot run without a GPU, neither traced nor eagerly."""
    assert not torch.cuda.is_available(), "run the tests on a machine without a GPU"
    fails(shop, rule)
    try:
        shop.eager(rule.bad)
    except (AssertionError, RuntimeError) as failure:
        assert "CUDA" in str(failure)  # noqa: PT017 - either kind, by torch's build
        return
    raise AssertionError(f"the bad example of {rule.id} runs on a machine without a GPU")


def unimportable(shop: Workshop, rule: Rule) -> None:
    """The file cannot even be imported."""
    try:
        shop.model(rule.bad)
    except (ImportError, IndexError, OSError, RuntimeError):  # torch 2.15 takes the last GPU
        return
    raise AssertionError(f"the bad example of {rule.id} can be imported")


def differs(shop: Workshop, rule: Rule) -> None:
    """It traces, and returns something else than torch does."""
    expected, got = leaves(shop.eager(on_host(rule.bad))), leaves(shop.traced(rule.bad))
    if [leaf.dtype for leaf in got] != [leaf.dtype for leaf in expected]:
        return
    try:
        assert_same(got, expected)
    except AssertionError:
        return
    raise AssertionError(f"the bad example of {rule.id} gives what torch gives")


def precision(shop: Workshop, rule: Rule) -> None:
    """It loses digits: other numbers than torch's, in the dtype that they come in."""
    pairs = zip(leaves(shop.traced(rule.bad)), leaves(shop.eager(rule.bad)), strict=True)
    assert any((one.double() - other.double()).abs().max() > 1e-3 for one, other in pairs)


def nan(shop: Workshop, rule: Rule) -> None:
    """It returns NaN or infinity; the good example, on the same inputs, does not."""
    assert not all(leaf.isfinite().all() for leaf in leaves(shop.traced(rule.bad)))
    assert all(leaf.isfinite().all() for leaf in leaves(shop.traced(rule.good)))


def complex_numbers(shop: Workshop, rule: Rule) -> None:
    """Its program has complex arrays."""
    assert "complex<" in shop.lowered(rule.bad)
    assert "complex<" not in shop.lowered(rule.good)


def memory(shop: Workshop, rule: Rule) -> None:
    """Beyond what the good example's operators give, its own give arrays that grow with the square of the length."""
    excess = []
    for factor in (16, 32):
        args = tuple(x.repeat_interleave(factor, -2) for x in inputs(rule.bad))
        bad, good = (_elements(shop.model(example), args) for example in (rule.bad, rule.good))
        excess.append(bad - good)
    assert excess[0] > 0
    assert excess[1] > 3.5 * excess[0]


def _elements(model: torch.nn.Module, args: tuple[Any, ...]) -> int:
    """Number of elements of all results that torch's dispatcher gives, attention being one operator of it."""
    with _Counting() as counting:
        _called(model, args)
    return counting.elements


class _Counting(TorchDispatchMode):
    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in leaves(result) if isinstance(leaf, torch.Tensor)]
        self.elements += sum(tensor.numel() for tensor in tensors)
        return result


def slow(shop: Workshop, rule: Rule) -> None:
    """Its program does more, though the result is the same."""
    bad, good = (shop.lowered(example).count("stablehlo.") for example in (rule.bad, rule.good))
    assert bad > good


def constant(shop: Workshop, rule: Rule) -> None:
    """What differs from call to call in torch is frozen in the program."""
    model, args = shop.model(rule.bad), inputs(rule.bad)
    assert not torch.equal(_called(model, args), _called(model, args))
    run = shop.compiled(rule.bad)
    assert torch.equal(run(*args), run(*args))


def leaks(shop: Workshop, rule: Rule) -> None:
    """The second tracing, for a batch of twice the size, meets a tracer of the first; the good example does not."""
    _assert_leaks(shop.compiled, rule)


def leaks_from_loops(shop: Workshop, rule: Rule) -> None:
    """The same in a program that carries nothing out, as the bodies of loops on the device."""
    _assert_leaks(shop.jitted, rule)


def _assert_leaks(start: Callable[[Example], Callable[..., Any]], rule: Rule) -> None:
    args = inputs(rule.bad)
    run = start(rule.bad)
    run(*args)
    try:
        run(*_twice(args))
    except (CannotTrace, jax.errors.UnexpectedTracerError) as error:
        leak = error.__cause__ if isinstance(error, CannotTrace) else error
        assert isinstance(leak, jax.errors.UnexpectedTracerError)
        good, args = start(rule.good), inputs(rule.good)
        good(*args)
        good(*_twice(args))
        return
    raise AssertionError(f"the bad example of {rule.id} can be traced twice")


def _twice(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(torch.cat([arg, arg]) for arg in args)


def recompiles(shop: Workshop, rule: Rule) -> None:
    """Each of two calls compiles a program, where the good example needs one for both."""
    counts = []
    for example in (rule.bad, rule.good):
        run = shop.compiled(example)
        for shift in (0, 1):
            run(*(arg + shift for arg in inputs(example)))
        counts.append(run.__dict__["program"].program.compilations)
    assert counts == [2, 1]


def unrolled(shop: Workshop, rule: Rule) -> None:
    """Its program grows with the number of rows, which the good example's does not."""
    args = inputs(rule.bad)
    bad, good = (
        len(shop.lowered(example, _twice(args)).splitlines()) / len(shop.lowered(example, args).splitlines())
        for example in (rule.bad, rule.good)
    )
    assert bad > 1.7
    assert good < 1.1


def bypassed(shop: Workshop, rule: Rule) -> None:
    """It changes nothing about the program, though it runs another compiler on tensors of the host."""
    assert shop.lowered(rule.bad) == shop.lowered(rule.good)
    assert rule.bad != rule.good


HARMS: dict[str, Callable[[Workshop, Rule], None]] = {
    "error": error,
    "cuda": cuda,
    "import": unimportable,
    "differs": differs,
    "precision": precision,
    "nan": nan,
    "complex": complex_numbers,
    "memory": memory,
    "slow": slow,
    "constant": constant,
    "leaks": leaks,
    "leaks from loops": leaks_from_loops,
    "recompiles": recompiles,
    "unrolled": unrolled,
    "bypassed": bypassed,
}
# Harms whose bad example gives other numbers than the good one, because that is the harm, or cannot run on the CPU.
INCOMPARABLE = frozenset({"nan", "constant", "import"})
