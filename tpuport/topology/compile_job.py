"""The child's side of `tpuport compile`: a `CompileRequest` comes in, and events go
out.
"""

import json
import logging
import sys
import traceback
from collections.abc import Callable
from typing import Any

from tpuport.base import child_process
from tpuport.errors import PortError
from tpuport.topology.compile_messages import (
    CompileRequest,
    Crash,
    Done,
    Event,
    Problem,
    Progress,
    WarningEvents,
    encode_event,
)
from tpuport.topology.whole_runs import STEPPED_KINDS


def main() -> None:
    """Read a request from standard input, and send events until the work is done."""
    with child_process.open_replies() as reply:
        request = CompileRequest(**json.loads(sys.stdin.readline()))
        child_process.exit_with_parent()
        run(request, reply)


def run(request: CompileRequest, send: Callable[[dict[str, Any]], None]) -> None:
    """Compile what is requested and send the events, `Done` last; nothing is raised."""

    def emit(event: Event) -> None:
        send(encode_event(event))

    warnings = WarningEvents(emit)
    logger = logging.getLogger("tpuport")
    logger.addHandler(warnings)
    try:
        _compile_targets(request, emit, warnings)
    except PortError as error:
        emit(Problem(error.what, error.where, error.fix))
    except Exception:  # noqa: BLE001  the parent shows it
        emit(Crash(traceback.format_exc()))
    finally:
        logger.removeHandler(warnings)
    emit(Done())


def _compile_targets(
    request: CompileRequest, emit: Callable[[Event], None], warnings: WarningEvents
) -> None:
    emit(Progress("starting"))
    from tpuport.hardware import described

    # Problems of the topology should come up before a model is read, which takes long.
    described(request.topology)
    emit(Progress("building"))
    import tpuport
    from tpuport.topology.target_compiler import TargetCompiler
    from tpuport.topology.targets import resolve

    # As `import tpuport.auto` does: before a model's code is imported.
    tpuport.enable()
    compiler = TargetCompiler(request, emit, warnings)
    targets = resolve(request.target, **request.options)
    if request.is_denoised and not any(
        target.kind in STEPPED_KINDS for target in targets
    ):
        raise PortError(
            "there is no denoiser whose steps could be added up", where="--steps",
            fix="leave it out, or for a language model, --task generate --length P --new-tokens N",
        )  # fmt: skip
    for target in targets:
        emit(compiler.compile(target))
