"""Child processes: messages in both directions, and every way in which a child can end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tpuport.base.child_process import ChildDiedError, ChildProcess, ChildStalledError

REPLY = "from tpuport.base.child_process import open_replies, exit_with_parent; import os, sys, json, time;"


def test_messages_arrive_in_order_and_outside_noise() -> None:
    code = (
        f"{REPLY}\nwith open_replies() as reply:\n"
        "    print('noise'); os.write(1, b'more noise')\n"
        "    for line in sys.stdin: reply([sys.argv[1], json.loads(line), os.environ['COLOUR']])"
    )
    with ChildProcess(code, "argument", environment={"COLOUR": "blue"}) as child:
        child.send({"text": "ü"})
        child.send(2)
        assert child.receive() == ["argument", {"text": "ü"}, "blue"]
        assert child.receive(timeout=60.0) == ["argument", 2, "blue"]


def test_standard_error_stays_off_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with ChildProcess("import os; os.write(2, b'noise'); print(1, flush=True)") as child:
        assert child.receive() == 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("ending", "cause"),
    [
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("os.abort()", "killed by SIGABRT"),
        ("os._exit(3)", "exit code 3"),
    ],
)
def test_a_death_has_a_cause_and_the_last_lines(ending: str, cause: str) -> None:
    code = f"import os; [os.write(2, b'line %d\\n\\n' % n) for n in range(40)]; {ending}"
    with ChildProcess(code) as child:
        child.send("x" * 1_000_000)
        with pytest.raises(ChildDiedError) as caught:
            child.receive()
    assert caught.value.cause == cause
    assert caught.value.last_lines == [f"line {number}" for number in range(28, 40)]


def test_a_child_that_takes_too_long_is_killed_on_exit() -> None:
    with (
        ChildProcess("import time; time.sleep(60)") as child,
        pytest.raises(TimeoutError, match=r"0\.1 seconds"),
    ):
        child.receive(timeout=0.1)
    assert child.process.returncode == -signal.SIGKILL


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells of processor time")
def test_a_child_that_computes_nothing_has_stalled() -> None:
    with ChildProcess("import time; time.sleep(60)") as child:
        with pytest.raises(ChildStalledError):
            child.receive_while_busy(0.5)
        assert child.process.poll() is None


def test_a_child_that_computes_is_waited_for() -> None:
    code = "import time; start = time.monotonic()\nwhile time.monotonic() - start < 1.5: pass\nprint(7, flush=True)"
    with ChildProcess(code) as child:
        assert child.receive_while_busy(0.4) == 7


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells of processor time")
def test_a_child_that_was_suspended_with_its_parent_has_not_stalled() -> None:
    waiting = (
        "from tpuport.base.child_process import ChildProcess\n"
        "code = 'import time; print(1, flush=True); [time.sleep(0.1) for _ in range(7)]; print(2, flush=True)'\n"
        "with ChildProcess(code) as child:\n"
        "    print(child.receive(), child.process.pid, flush=True)\n"
        "    print(child.receive_while_busy(1.0), flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", waiting], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline().split()[1]), parent.pid]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        # The clock says more than twice what a child may be idle for.
        time.sleep(2.5)
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
        assert parent.stdout.read() == "2\n"


def test_a_child_that_dies_while_it_is_waited_for() -> None:
    with ChildProcess("import os; os._exit(4)") as child, pytest.raises(ChildDiedError):
        child.receive_while_busy(5)


def test_a_message_that_json_cannot_carry_is_not_sent() -> None:
    with ChildProcess("print(input(), flush=True)") as child:
        with pytest.raises(TypeError):
            child.send(object())
        child.send(7)
        assert child.receive() == 7


def test_closing_ends_what_the_child_has_started() -> None:
    code = (
        "import os, subprocess, time; grandchild = subprocess.Popen(['sleep', '60']);"
        "print([os.getpid(), grandchild.pid], flush=True); time.sleep(60)"
    )
    with ChildProcess(code) as child:
        pids = child.receive()
    for pid in pids:
        assert has_ended(pid), pid


def test_a_child_ends_when_its_parent_is_killed() -> None:
    inner = f"{REPLY}exit_with_parent(); print(os.getpid(), flush=True); time.sleep(60)"
    outer = (
        "from tpuport.base.child_process import ChildProcess; import time;"
        f"child = ChildProcess({inner!r}); print(child.receive(), flush=True); time.sleep(60)"
    )
    with ChildProcess(outer) as child:
        grandchild = child.receive()
        os.kill(child.process.pid, signal.SIGKILL)
        assert has_ended(grandchild)


def has_ended(pid: int) -> bool:
    """Whether a process ends within ten seconds; nobody waits for an orphan here, which is then a zombie."""
    status = Path(f"/proc/{pid}/stat")
    for _ in range(200):
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False
