"""Several processes watch each other, so that one that dies, stalls or fails ends the
others by name.

Every process gives signs of life to jax's coordination service, which process 0 runs,
and process 0 judges them. Its verdict ends all. jax's own heartbeats tell the others of
the end of process 0.
"""

import atexit
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import jax

from tpuport.errors import PortError
from tpuport.internals import jax_internals
from tpuport.internals.mechanism import Mechanism

_SIGNS = "tpuport/signs_of_life/"
_VERDICT = "tpuport/verdict"
_LIBRARIES = tuple(map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
# Where a process is when it compiles, which one may do for minutes whose neighbour has
# the program on disk.
_COMPILER = os.path.join("jax", "_src", "compiler.py")  # noqa: PTH118 - compared with the end of a file's name


def _has_distributed_state() -> bool:
    """Whether jax keeps what it knows of the other processes where it is read here."""
    fields = ("client", "coordinator_address", "num_processes", "process_id")
    state = jax_internals.distributed_state()
    return all(hasattr(state, name) for name in fields)


WATCH_OF_PROCESSES = Mechanism(
    "watch over other processes",
    "jax",
    rests_on="jax._src.distributed.global_state and its client",
    without="a process that fails or stalls ends the others by jax's own heartbeat, which does not say which one it is",
    probe=_has_distributed_state,
)


@dataclass(frozen=True)
class Sign:
    """What a process tells of itself.

    Attributes:
        number: another one in each sign.
        calls: how many of the calls that all processes make it has begun; call: the
            last one.
        place: the line that it runs.
        compiles: whether it compiles there; ended: whether it is about to end without
            an error.
    """

    process: int
    host: str
    pid: int
    number: int = 0
    calls: int = 0
    call: str = "start"
    place: str = ""
    compiles: bool = False
    ended: bool = False

    @property
    def name(self) -> str:
        """The process in messages."""
        return f"process {self.process} (pid {self.pid} on {self.host})"


@dataclass
class _Seen:
    """The latest sign of a process, since when there is none newer, and since when
    others are ahead of it.
    """

    sign: Sign
    since: float
    behind_since: float | None = None


class Judge:
    """What process 0 knows of all processes.

    Args:
        silence: seconds without a sign, after which a process is dead.
        stall: seconds that others may be ahead of a process; None: for ever.
    """

    def __init__(self, silence: float, stall: float | None) -> None:
        self._silence = silence
        self._stall = stall
        self._seen: dict[int, _Seen] = {}

    def judge(self, signs: list[Sign], now: float) -> PortError | None:
        """What is wrong with one of the processes, by the latest sign of each."""
        most = max(signs, key=lambda sign: sign.calls)
        for sign in signs:
            self._note(sign, now, is_behind=sign.calls < most.calls)
        # Who is behind most holds up the others.
        for sign in sorted(signs, key=lambda sign: sign.calls):
            what = self._find_failure(sign, now)
            if what is not None:
                reached = f"it had begun {sign.calls} calls that all make ({sign.call}), {most.name} {most.calls}"
                return _failure(f"{sign.name} {what}", f"{reached} ({most.call})")
        return None

    def _note(self, sign: Sign, now: float, *, is_behind: bool) -> None:
        seen = self._seen.setdefault(sign.process, _Seen(sign, now))
        has_moved = sign.calls != seen.sign.calls or sign.compiles
        if sign.number != seen.sign.number:
            seen.sign, seen.since = sign, now
        if not is_behind:
            seen.behind_since = None
        elif has_moved or seen.behind_since is None:
            seen.behind_since = now

    def _find_failure(self, sign: Sign, now: float) -> str | None:
        seen = self._seen[sign.process]
        silent = now - seen.since
        if silent > self._silence and not sign.ended:
            return f"is dead or stopped: it has given no sign of life for {silent:.0f} seconds"
        if seen.behind_since is None:
            return None
        if sign.ended:
            return "has ended before the others"
        behind = now - seen.behind_since
        if self._stall is not None and behind > self._stall:
            return f"stalls: the others have been ahead of it for {behind:.0f} seconds, and it is at {sign.place}"
        return None


def _failure(what: str, where: str | None = None) -> PortError:
    fix = "look at what that process has printed, and start all processes again"
    return PortError(f"{what}; no process can go on without it", where=where, fix=fix)


class Watch:
    """This process among the others."""

    def __init__(self, heartbeat_timeout: float, stall_timeout: float | None) -> None:
        self._state = jax_internals.distributed_state()
        self._client: Any = self._state.client
        self._address = str(self._state.coordinator_address)
        self._sign = Sign(self._state.process_id, socket.gethostname(), os.getpid())
        self._interval = min(2.0, heartbeat_timeout / 20)
        # Before jax's own heartbeats, which end a process without a name.
        silence = 0.4 * heartbeat_timeout
        self._judge = Judge(silence, stall_timeout)
        self._patience = silence + 5 * self._interval
        self._calls, self._call = 0, self._sign.call
        self._caller = threading.main_thread().ident
        self._has_ended = False
        self._stopped = threading.Event()
        self._publish()
        self._first = Sign(
            **json.loads(self._client.blocking_key_value_get(f"{_SIGNS}0", 60_000))
        )
        self._heard = time.monotonic()
        self._thread = threading.Thread(
            target=self._watch, name="tpuport-watch", daemon=True
        )
        self._thread.start()
        atexit.register(self._leave)
        if self._sign.process > 0:
            _catch_abort(self._explain_abort)

    def begin(self, call: str) -> None:
        """Count a call that all processes make."""
        self._calls, self._call = self._calls + 1, call
        self._caller = threading.get_ident()

    def _watch(self) -> None:
        while (
            not self._stopped.wait(self._interval)
            and self._state.client is self._client
        ):
            # Where process 0 is gone, jax ends this process.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                self._publish()
                verdict = self._read_verdict() or self._reach_verdict()
                self._heard = time.monotonic()
                if verdict is not None:
                    self._end(verdict)

    def _publish(self) -> None:
        frame = sys._current_frames().get(self._caller or 0)
        self._sign = Sign(
            self._sign.process,
            self._sign.host,
            self._sign.pid,
            self._sign.number + 1,
            self._calls,
            self._call,
            _place(frame),
            any(
                outer.f_code.co_filename.endswith(_COMPILER)
                for outer in _outwards(frame)
            ),
            self._has_ended,
        )
        text = json.dumps(vars(self._sign))
        self._client.key_value_set(
            f"{_SIGNS}{self._sign.process}", text, allow_overwrite=True
        )

    def _read_verdict(self) -> str | None:
        try:
            return self._client.key_value_try_get(_VERDICT)
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" in str(error):
                return None
            raise

    def _reach_verdict(self) -> str | None:
        if self._sign.process > 0:
            return None
        signs = [
            Sign(**json.loads(text))
            for _, text in self._client.key_value_dir_get(_SIGNS)
        ]
        error = self._judge.judge(signs, time.monotonic())
        return None if error is None else self._pronounce(error)

    def _pronounce(self, error: PortError) -> str:
        # The first verdict holds.
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._client.key_value_set(_VERDICT, str(error))
        return str(error)

    def _end(self, verdict: str) -> None:
        """End this process, whose other threads may wait in a collective for ever."""
        if self._sign.process == 0:
            # The others read it here.
            time.sleep(3 * self._interval)
        _say(verdict)
        os._exit(1)

    def _leave(self) -> None:
        """Before jax waits at the end of this process until all others end."""
        if self._state.client is not self._client:
            return
        error = getattr(sys, "last_value", None)
        if error is None:
            self._has_ended = True
            # The watch goes on meanwhile.
            jax.distributed.shutdown()
            self._stopped.set()
        else:
            if _is_of_device(error):
                # What another process has failed with may reach this one first, as a
                # lost connection.
                self._thread.join(self._patience)
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            self._pronounce(
                _failure(f"{self._sign.name} has failed with {reason:.300}")
            )
        self._thread.join()

    def _explain_abort(self) -> None:
        """End with a sentence if jax aborts this process because process 0 is gone."""
        if time.monotonic() - self._heard > 3 * self._interval or not _answers(
            self._address
        ):
            _say(
                str(
                    _failure(
                        f"{self._first.name} is dead or stopped: it does not answer"
                    )
                )
            )
            os._exit(1)


def _is_of_device(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, jax.errors.JaxRuntimeError):
        error = error.__cause__ or error.__context__
    return error is not None


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _place(frame: FrameType | None) -> str:
    """The line that a thread runs, of the user's code if there is any."""
    frames = list(_outwards(frame))
    if not frames:
        return "a thread that has ended"
    own = (
        outer for outer in frames if not outer.f_code.co_filename.startswith(_LIBRARIES)
    )
    shown = next(own, frames[0])
    return f"{shown.f_code.co_filename}:{shown.f_lineno} in {shown.f_code.co_name}"


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
    except OSError:
        return False
    return True


def _say(text: str) -> None:
    """Write to standard error, after what the process has printed so far."""
    # Another thread may hold the lock of a stream for ever.
    flushing = threading.Thread(
        target=lambda: (sys.stdout.flush(), sys.stderr.flush()), daemon=True
    )
    flushing.start()
    flushing.join(1)
    os.write(2, f"tpuport: {text}\n".encode())


def _catch_abort(explain: Any) -> None:
    """Let `explain` run where C++ code aborts: jax takes no callback from Python for
    the end of process 0.

    Python's own signal handlers would wait for the main thread.
    """
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]

    def handle(number: int) -> None:
        libc.signal(number, before)
        explain()
        os.kill(os.getpid(), number)

    _handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(handle))
    before = libc.signal(signal.SIGABRT, ctypes.cast(_handlers[-1], ctypes.c_void_p))


# C code keeps no reference to them.
_handlers: list[Any] = []
_watch: Watch | None = None


def start(heartbeat_timeout: float, stall_timeout: float | None) -> None:
    """Watch, in a process that has joined others."""
    global _watch
    if (
        WATCH_OF_PROCESSES.works()
        and jax_internals.distributed_state().num_processes > 1
    ):
        _watch = Watch(heartbeat_timeout, stall_timeout)


def begin_call(name: str, arrays: Any) -> None:
    """Count a call that all processes make, if one of the arrays is divided over
    processes.
    """
    if _watch is not None and any(
        isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
        for leaf in jax.tree.leaves(arrays)
    ):
        _watch.begin(name)


def put(array: Any, sharding: Any) -> jax.Array:
    """`jax.device_put`: where an array goes to several processes, these compare what
    they put, and wait for all.
    """
    if (
        _watch is not None
        and sharding is not None
        and not sharding.is_fully_addressable
    ):
        _watch.begin("placing an array")
    return jax.device_put(array, sharding)
