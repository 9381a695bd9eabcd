"""What libtpu writes on a host without a TPU: none of it reaches the terminal, and everything else does."""

import os
import subprocess
import sys

import pytest

from tpuport.hardware import libtpu

NOISE = """\
Failed to find host bounds for accelerator type: WARNING: could not determine TPU accelerator type, please set env var
WARNING: Logging before InitGoogle() is written to STDERR
E0000 00:00:1795327176.263599   14528 common_lib.cc:554] INVALID_ARGUMENT: Error: unexpected worker hostname
=== Source Location Trace: ===
learning/45eac/tfrc/runtime/libtpu_init_utils.cc:327
"""
OTHERS = """\
WARNING: a library of the user's
E0000 00:00:1795327176.263599   14528 cuda_executor.cc:1228] no GPU
Traceback (most recent call last):
"""


def test_lines_of_libtpu_are_dropped_and_others_are_not() -> None:
    assert libtpu._drop_noise((NOISE + OTHERS).encode()) == OTHERS.encode()


def test_everything_is_written_if_the_block_fails(capfd: pytest.CaptureFixture[str]) -> None:
    def write_and_fail() -> None:
        with libtpu._filtered_stderr(libtpu._drop_noise):
            os.write(2, NOISE.encode())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_fail()
    assert capfd.readouterr().err == NOISE


@pytest.mark.skipif(bool(libtpu.tpu_chips()), reason="on a TPU host, libtpu's messages matter")
def test_a_mesh_on_the_cpu_shows_none_of_libtpus_messages_and_all_of_the_users() -> None:
    code = (
        "import os, sys, jax, tpuport\n"
        "print('before', file=sys.stderr)\n"
        "devices = jax.devices\n"
        "def loud_devices():\n"
        "    os.write(2, b'during\\n'); return devices()\n"
        "jax.devices = loud_devices\n"
        "print(tpuport.create_mesh(tp=-1).devices.flat[0].platform)\n"
        "print('after', file=sys.stderr)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "cpu\n"
    assert done.stderr == "before\nduring\nduring\nafter\n"
