"""The parent's side of `tpuport compile`: a child process for each topology, and its
events as they come.

A process of its own bounds the compiler's memory, survives its crashes and keeps its
noise off the terminal. Importing this needs neither torch nor jax.
"""

import dataclasses
import os
import signal
from collections.abc import Iterator
from typing import Final

from tpuport.base.child_process import (
    COMPILER_ENVIRONMENT,
    ChildDiedError,
    ChildProcess,
    ChildStalledError,
)
from tpuport.errors import PortError
from tpuport.hardware import LIBTPU_ENVIRONMENT
from tpuport.topology.compile_messages import (
    CompileRequest,
    Crash,
    Done,
    Event,
    Problem,
    decode_event,
)

_JOB: Final = "from tpuport.topology import compile_job; compile_job.main()"
# A compiler that computes nothing for so long waits for something that never comes.
_IDLE_SECONDS: Final = 300.0


def run_in_child(request: CompileRequest, code: str = _JOB) -> Iterator[Event]:
    """Compile in a new process, which ends with the iteration.

    Args:
        request: what to compile.
        code: what the process runs.

    Yields:
        `Progress`, `LogMessage`, `SplitRanking` and `CompileResult` events.

    Raises:
        PortError: the request cannot be served, or the process has died, or computes
            nothing for five minutes.
    """
    # Only defaults: a user who has said how libtpu is shared keeps their word.
    environment = {**LIBTPU_ENVIRONMENT, **os.environ, **COMPILER_ENVIRONMENT}
    with ChildProcess(code, environment=environment) as child:
        child.send(dataclasses.asdict(request))
        while True:
            try:
                event = decode_event(child.receive_while_busy(_IDLE_SECONDS))
            except ChildDiedError as error:
                raise _explain_death(error) from None
            except ChildStalledError as error:
                raise PortError(
                    f"the process that compiles has computed nothing for {error.seconds:g} seconds, and was ended",
                    fix="run the command again; tpuport doctor shows what is installed",
                ) from None
            match event:
                case Done():
                    return
                case Problem(what, where, fix):
                    raise PortError(what, where=where, fix=fix)
                case Crash(traceback):
                    raise PortError(
                        f"tpuport failed: {traceback.strip().splitlines()[-1]}",
                        where=f"\n{traceback.rstrip()}",
                        fix="this is a bug of tpuport; please report it",
                    )
                case _:
                    yield event


def _explain_death(error: ChildDiedError) -> PortError:
    fix = "tpuport doctor shows what is installed"
    if error.exit_code == -signal.SIGKILL:
        # The kernel's out-of-memory killer sends this signal, and hardly anyone else
        # does.
        fix = "the system most likely ran out of memory: close other programs, or try --scan-layers or --effort -1"
    where = None
    if error.last_lines:
        where = "\n    ".join(["its last words:", *error.last_lines])
    return PortError(
        f"the process that compiles has died ({error.cause})", where=where, fix=fix
    )
