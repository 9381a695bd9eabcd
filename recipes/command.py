"""What the recipes' commands share: devices, times, and errors as a sentence instead of a traceback."""

import argparse
import logging
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console

import tpuport


def simulate_devices(count: int) -> None:
    """Let the CPU simulate `count` devices; must be called before jax starts."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={count}".strip()


def at_least(minimum: int) -> Callable[[str], int]:
    """An argparse type: an integer of at least `minimum`."""

    def integer(text: str) -> int:
        number = int(text)
        if number < minimum:
            raise argparse.ArgumentTypeError(f"{number} is less than {minimum}")
        return number

    return integer


def create_mesh(sizes: dict[str, int], console: Console) -> Any:
    """A mesh of as many devices as it needs."""
    import jax

    devices = None
    if min(sizes.values()) > 0:
        devices = jax.devices()[: math.prod(sizes.values())]
    mesh = tpuport.create_mesh(**sizes, devices=devices)
    shape = " ".join(f"{axis}={mesh.shape[axis]}" for axis in sizes)
    console.print(f"mesh: {shape}, {mesh.devices.flat[0].platform}")
    return mesh


def quiet_libraries() -> None:
    """Hide what transformers prints while it loads a model."""
    from transformers.utils.logging import disable_progress_bar

    logging.getLogger("transformers").setLevel(logging.ERROR)
    disable_progress_bar()


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result and the seconds of a call; generate's tokens are on the host, so the device has finished."""
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def run_command(main: Callable[[], None]) -> None:
    """Run a recipe; a PortError is printed as a sentence, and the exit code is then 1."""
    try:
        main()
    except tpuport.PortError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(str(error), style="red", markup=False)
        sys.exit(1)
