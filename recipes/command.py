"""What the recipes' commands share: simulated devices, and errors as a sentence instead of a traceback."""

import argparse
import os
import sys
from collections.abc import Callable

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


def run_command(main: Callable[[], None]) -> None:
    """Run a recipe; a PortError is printed as a sentence, and the exit code is then 1."""
    try:
        main()
    except tpuport.PortError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(str(error), style="red", markup=False)
        sys.exit(1)
