"""The process that compiles, with other code in the job's place: what it says, and how it ends."""

import os
import signal
import time
from pathlib import Path

import pytest

from tpuport.errors import PortError
from tpuport.topology import process

SAY = (
    "import json, os, sys; request = json.loads(sys.stdin.readline());"
    "say = lambda **event: print(json.dumps(event), flush=True);"
)


def heard(code: str, **request) -> list[dict]:
    return list(process.events(request, SAY + code))


def test_events_come_as_they_are_said_until_it_is_done() -> None:
    code = "say(event='progress', stage=request['stage']); say(event='done'); say(event='never')"
    assert heard(code, stage="ü") == [{"event": "progress", "stage": "ü"}]


def test_noise_stays_off_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    heard("os.write(2, b'libtpu: noise\\n'); say(event='done')")
    assert capfd.readouterr() == ("", "")


def test_its_environment_is_for_a_tpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "0")
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)
    names = ["JAX_PLATFORMS", "TPU_SKIP_MDS_QUERY", "TPU_STDERR_LOG_LEVEL", "ALLOW_MULTIPLE_LIBTPU_LOAD"]
    [event] = heard(
        "say(event='env', values=[os.environ[n] for n in request['names']]); say(event='done')", names=names
    )
    assert event["values"] == ["cpu", "1", "3", "0"], "what the user has said of sharing libtpu stays"


def test_a_problem_is_a_port_error() -> None:
    with pytest.raises(PortError, match="no such slice") as caught:
        heard("say(event='problem', what='no such slice', where='here', fix='another')")
    assert (caught.value.where, caught.value.fix) == ("here", "another")


def test_a_crash_shows_its_traceback() -> None:
    with pytest.raises(PortError, match="tpuport failed: KeyError: 'x'") as caught:
        heard("say(event='crash', traceback='Traceback:\\n  line\\nKeyError: \\'x\\'\\n')")
    assert "  line" in (caught.value.where or "")
    assert "report it" in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("ending", "how", "fix"),
    [
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL", "out of memory"),
        ("os.abort()", "killed by SIGABRT", "doctor"),
        ("os._exit(3)", "exit code 3", "doctor"),
    ],
)
def test_a_death_is_a_sentence_with_the_last_words(ending: str, how: str, fix: str) -> None:
    words = "[os.write(2, b'line %d\\n\\n' % n) for n in range(40)];"
    with pytest.raises(PortError, match=how) as caught:
        heard(f"say(event='progress', stage='compiling'); {words} {ending}")
    assert fix in (caught.value.fix or "")
    assert "line 39" in str(caught.value)
    assert "line 20" not in str(caught.value)


def test_a_process_that_dies_at_once_is_told_as_well() -> None:
    with pytest.raises(PortError, match="has died") as caught:
        list(process.events({"large": "x" * 1_000_000}, "import nothing_of_the_kind"))
    assert "nothing_of_the_kind" in str(caught.value)


def test_who_stops_listening_ends_it_and_its_children() -> None:
    code = (
        "import subprocess; child = subprocess.Popen(['sleep', '60']);"
        "say(event='pids', pids=[os.getpid(), child.pid]); import time; time.sleep(60)"
    )
    said = process.events({}, SAY + code)
    pids = next(said)["pids"]
    said.close()
    for pid in pids:
        assert ended(pid), pid


def test_it_ends_when_the_one_who_asked_is_gone() -> None:
    """Killed, so that nothing could be tidied up."""
    inner = SAY + "import threading; from tpuport.topology import job;"
    inner += "threading.Thread(target=job._end_with_parent, daemon=True).start();"
    inner += "say(event='pid', pid=os.getpid()); import time; time.sleep(60)"
    outer = f"from tpuport.topology import process;[say(**e) for e in process.events({{}}, {inner!r})]"
    said = process.events({}, SAY + f"say(event='outer', pid=os.getpid()); {outer}")
    middle, innermost = next(said)["pid"], next(said)["pid"]
    os.kill(middle, signal.SIGKILL)
    said.close()
    assert ended(innermost)


def ended(pid: int) -> bool:
    """Whether a process ends within ten seconds; one that nobody has waited for is a zombie."""
    for _ in range(200):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            if stat.rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False
