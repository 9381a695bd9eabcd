"""What else the real compiler refuses, in sentences."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import SingleDeviceSharding

from tpuport.topology import described
from tpuport.trace_errors import TraceFailure, explain_refusal


def refused(
    function, *shapes: tuple[int, ...], topology: str = "v5e", dtype: object = jnp.float32
) -> TraceFailure:
    place = SingleDeviceSharding(described(topology).devices[0])
    arguments = [jax.ShapeDtypeStruct(shape, dtype, sharding=place) for shape in shapes]
    try:
        jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",)).compile()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return explain_refusal(error)
    raise AssertionError("it compiles")


def kernel(body, shape: tuple[int, ...], *arguments: jax.Array) -> jax.Array:
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(shape, jnp.float32))(*arguments)


def test_a_dtype_that_the_matrix_units_do_not_take() -> None:
    def product(x, y, out) -> None:
        out[...] = jax.lax.dot(x[...], y[...], preferred_element_type=jnp.float32)

    failure = refused(
        lambda x, y: kernel(product, (256, 256), x, y), (256, 256), (256, 256), topology="v4",
        dtype=jnp.float8_e4m3fn,
    )  # fmt: skip
    assert failure.kind == "compiler"
    assert "f8E4M3FN" in failure.message
    assert "generation" in failure.remedy
    assert "Mosaic failed" in failure.traceback


def test_a_kernel_with_what_kernels_have_not() -> None:
    def sorting(x, out) -> None:
        out[...] = jnp.sort(x[...], axis=0)

    failure = refused(lambda x: kernel(sorting, (128, 128), x), (128, 128))
    assert "a Pallas kernel uses sort" in failure.message


def test_an_operation_that_tpus_have_not() -> None:
    failure = refused(lambda x: jnp.linalg.eig(x)[0].real, (16, 16))
    assert "uses eig" in failure.message
    assert "host" in failure.remedy


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (("INTERNAL: Mosaic failed to compile TPU kernel: E2003: CompileTimeMosaicUnprovenMemoryAccessAlignment: "
         "cannot prove that index is divisible by 8\nThe MLIR operation"), "cannot prove that index is divisible by 8"),
        ("NOT_FOUND: No such compile option: 'xla_tpu_new'", "xla_tpu_new"),
        ("UNIMPLEMENTED: op of type c64[4] on this", "complex numbers"),
        ("Mosaic kernels cannot be automatically partitioned. Please wrap the call in a shard_map.", "spread over"),
        ("INTERNAL: the moon is full.\nmore", "refuses the program: INTERNAL: the moon is full"),
        ("", "RuntimeError"),
    ],
)  # fmt: skip
def test_other_messages(message: str, wanted: str) -> None:
    failure = explain_refusal(RuntimeError(message))
    assert wanted in failure.message
    assert "\n" not in failure.message
    assert failure.remedy
    assert failure.rule is None
