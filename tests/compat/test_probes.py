"""Mechanisms that rest on private names: each works here, and is off alone where its
library has renamed them.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from packaging.version import Version
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

import tpuport
from tpuport import compat
from tpuport.cli import probes
from tpuport.compat.view_writes import WRITES_THROUGH_VIEWS
from tpuport.diffusion.ported_step import PortedStep
from tpuport.errors import PortError
from tpuport.generation.decoder import Decoder
from tpuport.generation.decoder_choice import decoder_class
from tpuport.generation.decoding_cache import FIXED_CACHES
from tpuport.generation.recomputing_decoder import RecomputingDecoder
from tpuport.internals import mechanism, torch_internals, transformers_internals
from tpuport.internals.diffusers_internals import STEPS_ON_DEVICE
from tpuport.internals.mechanism import Mechanism


@pytest.fixture
def make_mechanism(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mechanism, "registered", {})

    def make(probe, **options: Any) -> Mechanism:
        return Mechanism(
            "a thing", "torch", rests_on="torch._thing", without="it is slow", probe=probe, **options
        )

    return make


# What a mechanism rests on came with this release.
SINCE = {
    "guard of the device in torch": ("torch", "2.10"),
    "positions of images in prompts": ("transformers", "5.2"),
    "dtypes that models insist on": ("transformers", "5.2"),
}
TOO_NEW = {
    name
    for name, (library, version) in SINCE.items()
    if Version(metadata.version(library)) < Version(version)
}


def test_all_mechanisms_work_with_the_installed_libraries():
    off = {entry["mechanism"]: entry["reason"] for entry in probes.mechanisms() if not entry["works"]}
    assert set(off) == TOO_NEW, off


def in_dual_level(call: Callable[[], bool]) -> bool:
    with torch.autograd.forward_ad.dual_level():
        return call()


def in_grad(call: Callable[[], bool]) -> bool:
    results = []
    torch.func.grad(lambda x: (results.append(call()), x)[1])(torch.tensor(1.0))
    return results[0]


def with_default_device(call: Callable[[], bool]) -> bool:
    with torch.device("jax"):
        return call()


@pytest.mark.parametrize(
    ("thing", "ask"),
    [
        (torch_internals.TRANSFORMATIONS, in_dual_level),
        (torch_internals.TRANSFORMATIONS, in_grad),
        (torch_internals.OPTIMIZERS_OVER_LISTS, with_default_device),
    ],
)
def test_where_a_probe_runs_for_the_first_time_changes_nothing(
    thing: Mechanism, ask: Callable[[Callable[[], bool]], bool], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(thing, "reason", None)
    tpuport.enable()
    assert ask(thing.works)


def test_a_probe_that_fails_leaves_no_name_behind(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transformers_internals.CHOICE_OF_ATTENTION, "reason", None)
    monkeypatch.setattr(transformers_internals, "choose_attention", lambda config, name: config.no_such_name)
    before = list(AttentionInterface())
    assert not transformers_internals.CHOICE_OF_ATTENTION.works()
    assert list(AttentionInterface()) == before


def test_every_module_with_a_mechanism_is_asked():
    package = Path(mechanism.__file__).parents[1]
    declaring = {
        ".".join(["tpuport", *file.relative_to(package).with_suffix("").parts])
        for file in package.rglob("*.py")
        if "= Mechanism(" in file.read_text()
    }
    assert set(probes.MODULES_WITH_MECHANISMS) == declaring


@pytest.mark.parametrize("probe", [lambda: False, lambda: [][0]])
def test_a_failing_probe_warns_once_and_stays_off(make_mechanism, probe, caplog: pytest.LogCaptureFixture):
    thing = make_mechanism(probe)
    with caplog.at_level(logging.WARNING, "tpuport"):
        assert [thing.works(), thing.works()] == [False, False]
    [record] = caplog.records
    assert record.getMessage().startswith("a thing is off with torch ")
    assert record.getMessage().endswith("): it is slow")


def test_a_probe_runs_once_and_may_use_its_own_mechanism(make_mechanism):
    calls = []
    thing = make_mechanism(lambda: calls.append(1) or thing.works())
    assert thing.works()
    assert thing.works()
    assert calls == [1]


def test_what_nothing_replaces_is_an_error(make_mechanism):
    with pytest.raises(PortError, match=r"a thing does not work: private names have changed: torch\._thing"):
        make_mechanism(lambda: False, fix="pip install another").require()


def test_a_forward_pass_that_records_does_not_look_like_a_change_of_names():
    """The first question may come while hidden states are being recorded."""
    capturing = pytest.importorskip("transformers.utils.output_capturing")
    token = capturing._active_collector.set({"hidden_states": [1]})
    try:
        assert transformers_internals.RECORDED_OUTPUTS.probe()
    finally:
        capturing._active_collector.reset(token)


# A name of each library, what runs without it, and the mechanism that is off then.
RENAMED = [
    ("torch._C", "_dispatch_get_all_op_names", "_all_op_names", "causal_llama", "autocast on the device"),
    ("torchax", "_dispatch_mode", "_operator_mode", "causal_llama", "dispatch of operators"),
    ("jax._src.interpreters.partial_eval", "parent", "origin", "causal_llama", "recognition of masks"),
    (
        "transformers", "_attn_implementation_internal", "_attention_name", "causal_llama",
        "attention in transformers",
    ),
    ("diffusers", "_supported_arg_names", "_argument_names", "flux", "attention backend of diffusers"),
]  # fmt: skip


@pytest.mark.slow  # `make test-libraries` runs it
def test_a_renamed_attribute_stops_one_mechanism_and_changes_no_result():
    script = Path(__file__).with_name("renamed_library.py")
    renames = json.dumps([rename for *rename, _ in RENAMED])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, renames], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    reports = map(json.loads, filter(lambda line: line.startswith("{"), done.stdout.splitlines()))
    found = {tuple(report["rename"]): report for report in reports}
    off = {rename: set(report["off"]) for rename, report in found.items()}
    assert off == {tuple(rename): {expected, *TOO_NEW} for *rename, expected in RENAMED}
    for *rename, expected in RENAMED:
        report = found[tuple(rename)]
        assert report["difference"] < 1e-5
        assert any(line.startswith(f"off: {expected} (") for line in report["doctor"])
        assert any(text.startswith(f"{expected} is off with ") for text in report["warnings"])


def test_without_writes_through_views_a_shared_write_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(WRITES_THROUGH_VIEWS, "reason", "torch has changed")
    with compat.environment():
        tensor = torch.zeros(2, 2, device="jax")
        tensor.add_(1)
        view = tensor[0]
        with pytest.raises(PortError, match="writes through views does not work: torch has changed"):
            view.mul_(3)
        assert tensor.tolist() == [[1, 1], [1, 1]]


def test_without_steps_on_the_device_schedulers_step_on_the_host(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(STEPS_ON_DEVICE, "reason", "diffusers has changed")
    model_output, sample = torch.full((1, 4), 0.5), torch.ones(1, 4)
    scheduler, expected = FlowMatchEulerDiscreteScheduler(), FlowMatchEulerDiscreteScheduler()
    scheduler.step = PortedStep(scheduler)
    for each in (scheduler, expected):
        each.set_timesteps(4)
    for timestep in expected.timesteps:
        with compat.environment():
            result = scheduler.step(model_output.to("jax"), timestep, sample.to("jax")).prev_sample
        sample = expected.step(model_output, timestep, sample).prev_sample
        assert compat.is_ported(result)
        assert torch.equal(compat.to_torch(compat.to_jax(result)), sample)


def test_without_fixed_caches_all_tokens_run_again(monkeypatch: pytest.MonkeyPatch):
    model = LlamaForCausalLM(
        LlamaConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=1, vocab_size=8)
    )
    assert decoder_class(model) is Decoder
    monkeypatch.setattr(FIXED_CACHES, "reason", "transformers has changed")
    assert decoder_class(model) is RecomputingDecoder
