"""Counting bundles with the real compiler, in its own process, and with programs that bring it down."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tpuport.attention.tuning.bundle_compiler import Compiler, kernel_bundles
from tpuport.errors import PortError

PROGRAMS = '''
import os, time
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def product(size=256, repeat=1, name="product", vmem=None, conditional=False):
    """size^3 products, `repeat` of them unrolled; one more only in the first step, where `conditional`."""
    def kernel(x_ref, y_ref, out_ref):
        total = jnp.zeros(out_ref.shape, jnp.float32)
        for _ in range(repeat):
            total = jnp.dot(x_ref[...], y_ref[...] + total.astype(y_ref.dtype), preferred_element_type=jnp.float32)
        out_ref[...] = total

        if conditional:
            @pl.when(pl.program_id(0) == 0)
            def _():
                out_ref[...] += jnp.dot(y_ref[...], x_ref[...], preferred_element_type=jnp.float32)

    def function(x, y):
        block = pl.BlockSpec((size, size), lambda i: (i, 0))
        return pl.pallas_call(
            kernel, grid=(4,), in_specs=[block, pl.BlockSpec((size, size), lambda i: (0, 0))], out_specs=block,
            out_shape=jax.ShapeDtypeStruct((4 * size, size), jnp.float32), name=name,
            compiler_params=pltpu.CompilerParams(vmem_limit_bytes=vmem),
        )(x, y)

    shapes = [jax.ShapeDtypeStruct((n, size), jnp.bfloat16) for n in (4 * size, size)]
    return function, tuple(shapes)


def plain():
    print("noise on standard output", flush=True)
    os.write(1, b"more of it\\n")
    return (lambda x: x @ x), (jax.ShapeDtypeStruct((128, 128), jnp.float32),)


def traced(effect):
    def function(x):
        {"crash": os.abort, "exit": lambda: os._exit(3), "hang": lambda: time.sleep(600), "raise": fail}[effect]()
        return x
    return function, (jax.ShapeDtypeStruct((128,), jnp.float32),)


def fail():
    raise ValueError("the first line\\nthe second")


def broken():
    raise RuntimeError("no such shape")
'''


@pytest.fixture(scope="module", autouse=True)
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    directory = tmp_path_factory.mktemp("programs")
    (directory / "bundle_programs.py").write_text(PROGRAMS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        yield


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    with Compiler("v5e", timeout=120.0) as compiler:
        yield compiler


def bundles(compiler: Compiler, **arguments: object) -> int:
    (kernel,) = compiler.count("bundle_programs:product", arguments).kernels
    return kernel.bundles


def test_more_work_takes_more_bundles(compiler: Compiler) -> None:
    one, four = bundles(compiler, repeat=1), bundles(compiler, repeat=4)
    # A 256^3 product is four passes of 128 x 128 weights over 256 rows, eight rows at a time, on four units.
    assert 32 <= one <= 1000
    assert 2 * one < four < 5 * one


def test_the_same_program_takes_the_same(compiler: Compiler) -> None:
    assert bundles(compiler, repeat=2) == bundles(compiler, repeat=2)


def test_name_use_and_time(compiler: Compiler) -> None:
    compilation = compiler.count("bundle_programs:product", {"name": "of_mine", "repeat": 4})
    (kernel,) = compilation.kernels
    assert kernel.name == "of_mine"
    assert compilation.failure is None
    assert compilation.seconds > 0
    assert 0.05 < kernel.utilization["MXU"] <= 1
    assert kernel.utilization["EUP"] == 0


def test_what_runs_under_a_condition_is_told_apart(compiler: Compiler) -> None:
    (without,) = compiler.count("bundle_programs:product", {}).kernels
    (kernel,) = compiler.count("bundle_programs:product", {"conditional": True}).kernels
    (section,) = kernel.sections
    assert 0 < section < kernel.bundles
    assert kernel.bundles - section == pytest.approx(without.bundles, rel=0.2)


def test_a_program_without_kernels_has_none_and_may_print(compiler: Compiler) -> None:
    compilation = compiler.count("bundle_programs:plain", {})
    assert compilation.kernels == ()
    assert compilation.failure is None


def test_a_kernel_too_large_for_vmem_is_a_failure_with_the_compiler_s_line(compiler: Compiler) -> None:
    compilation = compiler.count("bundle_programs:product", {"size": 1024, "vmem": 1 << 20})
    assert compilation.kernels == ()
    assert compilation.failure is not None
    assert "vmem" in compilation.failure
    assert "\n" not in compilation.failure


def test_what_tracing_raises_is_a_failure(compiler: Compiler) -> None:
    assert compiler.count("bundle_programs:traced", {"effect": "raise"}).failure == "the first line"


@pytest.mark.slow  # tests/base/test_child_process.py has a process that dies
@pytest.mark.parametrize(
    ("effect", "why"),
    [("crash", "killed by SIGABRT"), ("exit", "exit code 3")],
)
def test_a_dead_compiler_is_a_failure_and_the_next_program_compiles(
    compiler: Compiler, effect: str, why: str
) -> None:
    failure = compiler.count("bundle_programs:traced", {"effect": effect}).failure
    assert failure is not None
    assert why in failure
    assert bundles(compiler) > 0


@pytest.mark.slow  # the dead compiler above, and the processes that hang in tests/base/test_child_process.py
def test_a_hanging_compiler_is_ended() -> None:
    with Compiler("v5e", timeout=3.0) as compiler:
        assert compiler._child is not None
        process = compiler._child.process
        failure = compiler.count("bundle_programs:traced", {"effect": "hang"}).failure
        assert failure == "the compiler took more than 3 seconds"
        assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("function", "arguments", "why"),
    [
        ("no_such_module:f", {}, "ModuleNotFoundError"),
        ("bundle_programs:no_such", {}, "no attribute 'no_such'"),
        ("bundle_programs:product", {"colour": 1}, "unexpected keyword argument 'colour'"),
        ("bundle_programs:broken", {}, "no such shape"),
    ],
)
def test_a_program_that_is_none_is_an_error(
    compiler: Compiler, function: str, arguments: dict, why: str
) -> None:
    with pytest.raises(PortError, match=why) as raised:
        compiler.count(function, arguments)
    assert function in str(raised.value)


def test_an_unknown_topology_is_refused_before_a_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a process was started"))
    with pytest.raises(PortError, match="h100"):
        kernel_bundles("bundle_programs:product", {}, "h100")


def test_what_the_compiler_cannot_describe_is_its_own_error() -> None:
    with pytest.raises(PortError, match="v6e has slices of"):
        kernel_bundles("bundle_programs:product", {}, "v6e:3x3")


@pytest.mark.slow  # tests/base/test_child_process.py, whose children die with a cause and their last lines
def test_a_process_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jax.py").write_text("import os; os.write(2, b'no licence'); os._exit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PortError, match=r"exit code 3.*no licence"):
        kernel_bundles("bundle_programs:product", {}, "v6e")


@pytest.mark.slow  # the compiler's end in tests/base/test_child_process.py
def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Compiler("v5e") as compiler:
        compiler.count("bundle_programs:product", {})
        (directory,) = tmp_path.iterdir()
        assert not list(directory.iterdir())
        assert compiler._child is not None
        process = compiler._child.process
    assert not list(tmp_path.iterdir())
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
