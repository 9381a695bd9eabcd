"""The process that compiles, with other code in the job's place: its events, and how it ends."""

import pytest

from tpuport.errors import PortError
from tpuport.topology import compile_process
from tpuport.topology.compile_messages import CompileRequest, Event, LogMessage, Progress
from tpuport.topology.compile_process import run_in_child

SAY = (
    "import json, os, sys; request = json.loads(sys.stdin.readline());"
    "say = lambda event, **fields: print(json.dumps({'event': event, **fields}), flush=True);"
)


def events(code: str, target: str = "model") -> list[Event]:
    request = CompileRequest(target, {}, "v6e:2x2", {"dp": 1, "sp": 1, "tp": 4})
    return list(run_in_child(request, SAY + code))


def test_events_come_as_they_are_emitted_until_it_is_done() -> None:
    code = "say('Progress', stage='tracing', target=request['target']); say('Done'); say('Never')"
    assert events(code, target="ü") == [Progress("tracing", "ü")]


def test_noise_stays_off_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    events("os.write(2, b'libtpu: noise\\n'); say('Done')")
    assert capfd.readouterr() == ("", "")


def test_its_environment_is_for_a_described_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "0")
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)
    names = ["JAX_PLATFORMS", "TPU_SKIP_MDS_QUERY", "TPU_STDERR_LOG_LEVEL", "ALLOW_MULTIPLE_LIBTPU_LOAD"]
    code = "say('LogMessage', level='', text=' '.join(map(os.environ.get, request['target'].split()))); say('Done')"
    [event] = events(code, target=" ".join(names))
    assert event == LogMessage("", "cpu 1 3 0"), "what the user has said of sharing libtpu stays"


def test_a_problem_is_a_port_error() -> None:
    with pytest.raises(PortError, match="no such slice") as caught:
        events("say('Problem', what='no such slice', where='here', fix='another')")
    assert (caught.value.where, caught.value.fix) == ("here", "another")


def test_a_crash_shows_its_traceback() -> None:
    with pytest.raises(PortError, match="tpuport failed: KeyError: 'x'") as caught:
        events("say('Crash', traceback='Traceback:\\n  line\\nKeyError: \\'x\\'\\n')")
    assert "  line" in (caught.value.where or "")
    assert "report it" in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("ending", "cause", "fix"),
    [
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL", "out of memory"),
        ("os._exit(3)", "exit code 3", "doctor"),
    ],
)
def test_a_death_is_a_sentence_with_the_last_words(ending: str, cause: str, fix: str) -> None:
    with pytest.raises(PortError, match=cause) as caught:
        events(f"say('Progress', stage='compiling'); os.write(2, b'last words'); {ending}")
    assert fix in (caught.value.fix or "")
    assert "last words" in str(caught.value)


def test_a_process_that_stands_still_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_process, "_IDLE_SECONDS", 0.5)
    with pytest.raises(PortError, match=r"has computed nothing for 0\.5 seconds") as caught:
        events("say('Progress', stage='compiling'); import time; time.sleep(60)")
    assert "again" in (caught.value.fix or "")
