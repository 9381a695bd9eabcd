"""Ctrl-C during a command, also where something swallows the interrupt."""

import subprocess
import sys

import pytest

RUN = """
import os, signal, sys, time
from tpuport import cli

def press():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)

def work(name, arguments):
{body}
    return 0

cli._run_command = work
sys.argv = ["tpuport", "compile"]
sys.exit(cli.main())
"""
BODIES = {
    "python code": "press()",
    # As extension modules do while they are imported.
    "another error": """
try:
    press()
except KeyboardInterrupt:
    raise ImportError("initializing the extension") from None
""",
    # As callbacks of the garbage collector do.
    "an object that is deleted": """
class Pressed:
    def __del__(self):
        press()
pressed = Pressed()
del pressed
""",
    "nothing, and the command goes on": """
try:
    press()
except BaseException:
    time.sleep(60)
""",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_an_interrupt_ends_the_command_wherever_it_is(body: str) -> None:
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    command = [sys.executable, "-c", RUN.format(body=indented)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=9, check=False)
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr == "interrupted; what was compiled before is kept\n"
