"""Questions that only torch, torchax and jax can answer, each asked in a child process.

A library that cannot be imported, crashes or hangs is an answer too. jax hangs if
another process holds the TPU.
"""

import importlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tpuport.base.child_process import ChildDiedError, ChildProcess, open_replies
from tpuport.errors import PortError

_MAX_LINES: Final = 5
_REINSTALL: Final = "install what belongs together: pip install --force-reinstall, with the clone or wheel of tpuport"

# Of the modules that declare what rests on private names of a library. Importing them
# imports torch and jax.
MODULES_WITH_MECHANISMS: Final = (
    "tpuport.hardware.process_watch",
    "tpuport.internals.diffusers_internals",
    "tpuport.internals.jax_internals",
    "tpuport.internals.torch_internals",
    "tpuport.internals.torchax_internals",
    "tpuport.internals.transformers_internals",
    "tpuport.attention.provenance.structure",
    "tpuport.compat.view_writes",
    "tpuport.generation.decoding_cache",
)


def ask(name: str, timeout: float) -> dict[str, Any]:
    """The answer of a probe, or a `problem` (what, where, fix) if there is none within
    `timeout` seconds.

    Args:
        name: a key of `PROBES`.
    """
    probe = PROBES[name]
    code = f"from tpuport.cli import probes; probes.answer({name!r})"
    with ChildProcess(code, environment=probe.environment) as child:
        try:
            return child.receive(timeout)
        except TimeoutError:
            what = f"{probe.subject} did not answer within {timeout:g} seconds"
            return {"problem": {"what": what, "where": name, "fix": probe.slow_fix}}
        except ChildDiedError as error:
            lines = " | ".join(map(str.strip, error.last_lines[-_MAX_LINES:]))
            what = f"asking {probe.subject} ended the process ({error.cause})"
            return {
                "problem": {"what": what, "where": lines or name, "fix": _REINSTALL}
            }


def answer(name: str) -> None:
    """In the child: run the probe and send its answer."""
    with open_replies() as reply:
        try:
            reply(PROBES[name].run())
        except PortError as error:
            reply(
                {
                    "problem": {
                        "what": error.what,
                        "where": error.where,
                        "fix": error.fix,
                    }
                }
            )
        except Exception as error:  # noqa: BLE001  whatever a broken installation raises is an answer
            reply({"problem": _explain_error(name, error)})


def _explain_error(name: str, error: Exception) -> dict[str, str]:
    first_line = str(error).strip().partition("\n")[0]
    what = (
        f"{PROBES[name].subject} cannot be used: {type(error).__name__}: {first_line}"
    )
    return {"what": what, "where": name, "fix": _REINSTALL}


def _compatibility() -> dict[str, Any]:
    import jax

    from tpuport import compat, compilation
    from tpuport.compat import versions

    compat.environment()
    tested = versions.are_recommended(compat.checked_versions())
    note = "tpuport's tests are pinned to them"
    if not tested:
        note = (
            f"tpuport's tests are pinned to: {versions.pip_line(versions.RECOMMENDED)}"
        )
    compilation.use_persistent_cache()
    directory = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    return {
        "tested": tested,
        "note": note,
        "shims": compat.active_shims(),
        "operators": replaced_operators(),
        "mechanisms": mechanisms(),
        "cache_directory": directory or None,
    }


def mechanisms() -> list[dict[str, Any]]:
    """What rests on private names of installed libraries, each tried. Imports the
    libraries.
    """
    from tpuport import compat
    from tpuport.internals import mechanism

    # Some are tried with torchax, which is imported under a shim.
    compat.environment()
    for name in MODULES_WITH_MECHANISMS:
        importlib.import_module(name)
    return mechanism.report()


def replaced_operators() -> list[dict[str, str]]:
    """Each operator of torchax that tpuport replaces, and the reason. Imports torch,
    torchax and jax.
    """
    from tpuport.compat import replacements

    operators = [
        {"operator": _operator_name(lowering.target), "reason": lowering.reason}
        for lowering in replacements.lowerings()
    ]
    methods = [
        {"operator": f"torchax {method.owner}.{method.name}", "reason": method.reason}
        for method in replacements.methods()
    ]
    return operators + methods


def _operator_name(target: Any) -> str:
    """aten.copy_.default for an overload, TensorBase.__getitem__ for a method, its name
    for a function.
    """
    # The name of an overload is what torchax reports as missing.
    name = str(target)
    if name.startswith("aten."):
        return name
    return getattr(target, "__qualname__", name)


def _devices() -> dict[str, Any]:
    import jax

    return {
        "devices": [
            {
                "index": device.id,
                "platform": device.platform,
                "kind": device.device_kind,
                "process": device.process_index,
                # CPU devices have no statistics.
                "memory_bytes": (device.memory_stats() or {}).get("bytes_limit"),
            }
            for device in jax.devices()
        ]
    }


class Probe(NamedTuple):
    """A question.

    Attributes:
        run: answers it, in the child.
        subject: of messages.
        slow_fix: what to do if there is no answer in time.
        environment: variables of the child.
    """

    run: Callable[[], dict[str, Any]]
    subject: str
    slow_fix: str
    environment: dict[str, str]


PROBES: Final = {
    "compat": Probe(
        _compatibility,
        "torch and torchax",
        "try again with a longer --timeout; a first import from a cold disk is slow",
        # It is about versions: it must neither wait for the TPU nor take it.
        {"JAX_PLATFORMS": "cpu"},
    ),
    "devices": Probe(
        _devices,
        "the devices of jax",
        "look for another process that holds the TPU; on several hosts, run it on all of them",
        {},
    ),
}
