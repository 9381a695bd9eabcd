"""One of two processes dies, stops, stalls or fails: the other ends in the stated time, and names it."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tpuport.hardware.process_watch import Judge, Sign

ROOT = Path(__file__).resolve().parents[2]
HEARTBEAT, STALL = 6, 5
TIMEOUTS = {"heartbeat_timeout_seconds": HEARTBEAT, "stall_timeout_seconds": STALL}
# A loop of collectives, whose process misbehaves as the file beside it asks for.
LOOP = """
import pathlib, time

def misbehave():
    order = pathlib.Path(f"order-{meeting[2]}")
    match order.read_text() if order.exists() else "":
        case "stall":
            time.sleep(600)
        case "raise":
            raise ValueError("no more")
        case "leave":
            sys.exit(3)

def repeat(step):
    while True:
        step()
        pathlib.Path(f"busy-{meeting[2]}").touch()
        misbehave()
"""
SUM = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from tpuport.hardware.process_watch import begin_call

mesh = tpuport.create_mesh(dp=2, tp=4)
ones = jax.make_array_from_callback((8,), NamedSharding(mesh, P(("dp", "tp"))), lambda index: np.ones(1))
add = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, P()))

def step():
    begin_call("sum", ones)
    add(ones).block_until_ready()

repeat(step)
"""
LOAD = """
import tpuport.auto, torch
from transformers import AutoModelForCausalLM

mesh = tpuport.create_mesh(dp=2, tp=4)
load = lambda: tpuport.load(AutoModelForCausalLM, arguments[0], mesh=mesh)
"""
STAGES = {
    "load": LOAD + "repeat(load)",
    "generate": LOAD
    + """
model, ids = load(), torch.arange(3, 19).reshape(2, 8)
repeat(lambda: tpuport.generate(model, ids, torch.ones_like(ids), max_new_tokens=20))
""",
    "denoise": LOAD
    + """
import diffusers

model = diffusers.LTXVideoTransformer3DModel(
    in_channels=8, out_channels=8, num_attention_heads=4, attention_head_dim=16, cross_attention_dim=64,
    num_layers=1, caption_channels=6,
).eval()
tpuport.port(model, mesh=mesh)
scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
noise, text = torch.ones(2, 16, 8), torch.ones(2, 5, 6)
conditions = {
    "encoder_hidden_states": text, "encoder_attention_mask": torch.ones(2, 5), "num_frames": 1, "height": 4, "width": 4,
}
repeat(lambda: tpuport.denoise(model, scheduler, noise, num_inference_steps=10, conditions=conditions))
""",
}


@pytest.fixture
def survive(start_processes: Callable, tmp_path: Path) -> Callable[..., str]:
    """`survive(script, victim, how)`: what the other process writes, which must end with code 1 in time.

    How is a signal, or a word that the script reads.
    """

    def run(script: str, victim: int, how: signal.Signals | str, limit: float = HEARTBEAT) -> str:
        checkpoint = ROOT / "recipes/llama/checkpoint"
        processes = start_processes(LOOP + script, checkpoint, join=TIMEOUTS)
        busy = [tmp_path / f"busy-{number}" for number in range(2)]
        deadline = time.monotonic() + 240
        while not all(path.exists() for path in busy):
            assert time.monotonic() < deadline
            assert not any(process.poll() for process in processes.running), (
                tmp_path / "run-0/0.err"
            ).read_text()
            time.sleep(0.05)
        if isinstance(how, str):
            (tmp_path / f"order-{victim}").write_text(how)
        else:
            os.kill(processes.running[victim].pid, how)
        other = processes.running[1 - victim]
        # The machine may be busy.
        assert other.wait(limit + 15) == 1
        return (tmp_path / f"run-0/{1 - victim}.err").read_text()

    def named(script: str, victim: int, how: signal.Signals | str, **options: float) -> str:
        errors = run(script, victim, how, **options)
        sentence = errors[errors.rindex("tpuport: process ") :]
        assert re.match(rf"tpuport: process {victim} \(pid \d+ on .+\) ", sentence), errors
        return sentence

    return named


@pytest.mark.parametrize(
    ("victim", "how", "words"),
    [
        (1, signal.SIGKILL, "is dead or stopped: it has given no sign of life"),
        pytest.param(0, "raise", "ValueError: no more", marks=pytest.mark.slow),
    ],
)
def test_the_other_process_names_the_one_that_failed(survive, victim, how, words):
    assert words in survive(SUM, victim, how)


@pytest.mark.slow  # the test above has other ways to fail
@pytest.mark.parametrize(
    ("victim", "how", "words"),
    [
        (0, signal.SIGKILL, "is dead or stopped: it does not answer"),
        (0, signal.SIGSTOP, "is dead or stopped: it does not answer"),
        (1, signal.SIGSTOP, "is dead or stopped: it has given no sign of life"),
        (0, "stall", "stalls: the others have been ahead of it"),
        (1, "stall", "in misbehave"),
        (1, "raise", "has failed with ValueError: no more"),
        (0, "leave", "has ended before the others"),
        (1, "leave", "has ended before the others"),
    ],
)
def test_each_way_to_fail(survive, victim, how, words):
    assert words in survive(SUM, victim, how, limit=HEARTBEAT + STALL)


@pytest.mark.slow  # the same watch as above
@pytest.mark.parametrize(
    ("stage", "how"),
    [
        ("load", signal.SIGKILL), ("load", signal.SIGSTOP),
        ("generate", signal.SIGKILL), ("generate", signal.SIGSTOP), ("generate", "stall"),
        ("denoise", signal.SIGKILL), ("denoise", signal.SIGSTOP), ("denoise", "stall"),
    ],
)  # fmt: skip
def test_each_stage(survive, stage, how):
    # Who reads its share of a checkpoint waits for nobody: a stall is noticed at the first call after it.
    survive(STAGES[stage], 0 if how == "stall" else 1, how, limit=HEARTBEAT + STALL)


@pytest.mark.slow  # processes that end as they should do so in the other tests too
def test_nobody_is_blamed_for_ending_together(run_two):
    assert run_two("answer(1)\nimport time\ntime.sleep(3 * meeting[2])", join=TIMEOUTS) == [1, 1]


def _sign(process: int, number: int, calls: int, **others: bool) -> Sign:
    return Sign(process, "host", 10 + process, number, calls, "decode", "model.py:7 in step", **others)


def _first_failure(histories: list[list[Sign]]) -> tuple[int, str] | None:
    """When the judge, who looks once a second, finds something, and what."""
    judge = Judge(silence=3, stall=5)
    for second, signs in enumerate(zip(*histories, strict=True)):
        error = judge.judge(list(signs), second)
        if error is not None:
            return second, str(error)
    return None


def _steady(process: int, calls: Callable[[int], int], **others: bool) -> list[Sign]:
    return [_sign(process, second, calls(second), **others) for second in range(30)]


def test_the_judge():
    working = _steady(0, lambda second: min(second, 9))
    assert _first_failure([working, _steady(1, lambda second: min(second, 9))]) is None
    # All may work on the host between two calls, and one may be behind for a while.
    assert _first_failure([working, _steady(1, lambda second: min(max(second - 5, 0), 9))]) is None
    when, text = _first_failure([working, _steady(1, lambda second: min(second, 4))]) or (0, "")
    assert when == 5 + 6  # call 5 begins in second 5
    assert "process 1 (pid 11 on host) stalls" in text
    assert "model.py:7 in step" in text
    assert "it had begun 4 calls that all make (decode), process 0 (pid 10 on host) 9" in text
    silent = [_sign(1, min(second, 4), 0) for second in range(30)]
    assert (_first_failure([_steady(0, lambda _: 0), silent]) or (0,))[0] == 4 + 4
    compiling = _steady(1, lambda _: 1, compiles=True)
    assert _first_failure([working, compiling]) is None
    ended = _steady(1, lambda _: 4, ended=True)
    when, text = _first_failure([working, ended]) or (0, "")
    assert (when, "process 1 (pid 11 on host) has ended before the others" in text) == (5, True)
    assert _first_failure([_steady(0, lambda _: 4), [_sign(1, 0, 4, ended=True)] * 30]) is None
