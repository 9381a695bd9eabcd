"""`scheduler.step` on the instance, in the place of diffusers' own."""

import copy
import inspect
import logging

import diffusers
import jax
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec

import tpuport
from tpuport import compat
from tpuport.diffusion import schedulers
from tpuport.diffusion.ported_step import PortedStep, step_program
from tpuport.errors import PortError

pytestmark = pytest.mark.filterwarnings("ignore:__array(__|_wrap__).*:DeprecationWarning")

SHAPE = (2, 3, 4, 4)


def to_host(tensor) -> torch.Tensor:
    return compat.to_torch(compat.as_jax(tensor))


def close(got, expected) -> bool:
    return torch.allclose(to_host(got), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


def pair(cls, steps=6, **config):
    """diffusers' own and a ported one."""
    own, ported = cls(**config), cls(**config)
    schedulers.install(ported)
    own.set_timesteps(steps)
    ported.set_timesteps(steps)
    return own, ported


def run(scheduler, sample, start=0, stop=None, seed=0, **options):
    """Steps with a made-up model, whose output depends on the sample."""
    generator = torch.Generator().manual_seed(seed)
    for timestep in scheduler.timesteps[start:stop]:
        noise = torch.randn(SHAPE, generator=generator)
        if hasattr(scheduler, "scale_model_input"):
            scheduler.scale_model_input(noise, timestep)
        if compat.is_ported(sample):
            noise = compat.wrap(compat.to_jax(noise))
            with compat.environment():
                output = 0.3 * sample + noise
        else:
            output = 0.3 * sample + noise
        sample = scheduler.step(output, timestep, sample, **options).prev_sample
    return sample


KINDS = [
    diffusers.FlowMatchEulerDiscreteScheduler,
    diffusers.DPMSolverMultistepScheduler,
    diffusers.UniPCMultistepScheduler,
    diffusers.EulerDiscreteScheduler,
    diffusers.PNDMScheduler,
]


@pytest.mark.parametrize("cls", KINDS)
def test_a_run_is_as_diffusers_own(cls):
    own, ported = pair(cls, 20)
    sample = torch.randn(SHAPE)
    expected = run(own, sample)
    got = run(ported, sample)
    assert compat.is_ported(got)
    assert got.dtype == sample.dtype
    assert close(got, expected)
    assert getattr(ported, "step_index", None) == getattr(own, "step_index", None)
    # Another number of steps, and again: no program more, no history left over.
    before = step_program().compilations
    for count in (5, 20):
        own.set_timesteps(count)
        ported.set_timesteps(count)
        assert close(run(ported, sample), run(own, sample))
    assert step_program().compilations == before


@pytest.mark.parametrize("cls", KINDS[2:4])
def test_an_interrupted_run_leaves_nothing_behind(cls):
    own, ported = pair(cls, 8)
    run(ported, torch.randn(SHAPE), stop=4)
    ported.set_timesteps(8)
    sample = torch.randn(SHAPE)
    assert close(run(ported, sample), run(own, sample))


@pytest.mark.parametrize("cls", KINDS[1:4:2])
def test_a_run_may_start_late(cls):
    own, ported = pair(cls, 8)
    sample = torch.randn(SHAPE)
    for begin in (True, False):
        for scheduler in (own, ported):
            scheduler.set_timesteps(8)
            if begin:
                scheduler.set_begin_index(3)
        assert close(run(ported, sample, start=3), run(own, sample, start=3))


def test_a_scheduler_that_goes_by_the_timestep():
    own, ported = pair(diffusers.DDIMScheduler, 8, clip_sample=False)
    sample = torch.randn(SHAPE)
    for start in (0, 3, 0):
        assert close(run(ported, sample, start=start), run(own, sample, start=start))
    expected = run(own, sample, eta=0.5, generator=torch.Generator().manual_seed(1))
    got = run(ported, sample, eta=0.5, generator=torch.Generator().manual_seed(1))
    assert compat.is_ported(got)
    assert close(got, expected)


@pytest.mark.parametrize("name", ["EulerAncestralDiscreteScheduler", "DDPMScheduler", "LCMScheduler"])
def test_drawn_noise_is_what_torch_draws(name):
    own, ported = pair(getattr(diffusers, name))
    sample = torch.randn(SHAPE)
    for generators in (lambda: torch.Generator().manual_seed(5),
                       lambda: [torch.Generator().manual_seed(s) for s in (1, 2)]):  # fmt: skip
        own.set_timesteps(6)
        ported.set_timesteps(6)
        assert close(run(ported, sample, generator=generators()), run(own, sample, generator=generators()))


def test_runs_of_several_schedulers_side_by_side():
    own, first = pair(diffusers.UniPCMultistepScheduler)
    second = copy.deepcopy(first)
    assert isinstance(second.step, PortedStep)
    samples = [torch.randn(SHAPE), torch.randn(SHAPE)]
    outputs = [torch.randn(SHAPE) for _ in range(6)]
    got = list(samples)
    for timestep, output in zip(first.timesteps, outputs, strict=True):
        got = [s.step(output, timestep, x).prev_sample for s, x in zip((first, second), got, strict=True)]
    for sample, result in zip(samples, got, strict=True):
        own.set_timesteps(6)
        for timestep, output in zip(own.timesteps, outputs, strict=True):
            sample = own.step(output, timestep, sample).prev_sample
        assert close(result, sample)


def test_results_have_diffusers_own_form():
    own, ported = pair(diffusers.EulerDiscreteScheduler)
    x, t = torch.ones(SHAPE), own.timesteps[0]
    for scheduler in (own, ported):
        scheduler.scale_model_input(x, t)
    expected, got = own.step(x, t, x), ported.step(x, t, x)
    assert type(got) is type(expected)
    assert list(got) == list(expected)
    assert close(got.pred_original_sample, expected.pred_original_sample)
    own, ported = pair(diffusers.EulerDiscreteScheduler)
    for scheduler in (own, ported):
        scheduler.scale_model_input(x, t)
    expected, got = own.step(x, t, x, return_dict=False), ported.step(x, t, x, return_dict=False)
    assert type(got) is tuple
    assert len(got) == len(expected)
    assert inspect.signature(ported.step) == inspect.signature(own.step)


def test_tensors_of_the_device_keep_their_place():
    own, ported = pair(diffusers.UniPCMultistepScheduler)
    mesh = tpuport.create_mesh(dp=2, tp=2, devices=jax.devices()[:4])
    sharding = NamedSharding(mesh, PartitionSpec("dp"))
    sample = torch.randn(SHAPE)
    there = compat.wrap(jax.device_put(compat.to_jax(sample), sharding))
    got = run(ported, there)
    assert compat.as_jax(got).sharding.is_equivalent_to(sharding, 4)
    assert close(got, run(own, sample))
    ported.set_timesteps(6)
    output = torch.randn(SHAPE)  # of the host, beside a sample of the device
    own.set_timesteps(6)
    got = ported.step(output, ported.timesteps[0], there).prev_sample
    assert close(got, own.step(output, own.timesteps[0], sample).prev_sample)


def test_bfloat16_stays_bfloat16():
    _, ported = pair(diffusers.UniPCMultistepScheduler)
    sample = torch.randn(SHAPE).bfloat16()
    got = ported.step(sample, ported.timesteps[0], sample).prev_sample
    assert got.dtype == torch.bfloat16


def test_what_tables_cannot_serve_runs_on_the_host(caplog):
    own, ported = pair(diffusers.FlowMatchEulerDiscreteScheduler)
    x, t = torch.randn(2, 5, 3), own.timesteps[0]
    tokens = torch.full((2, 5), 700.0)
    there = compat.wrap(compat.to_jax(x))
    with caplog.at_level(logging.WARNING, logger="tpuport"):
        for _ in range(2):
            got = ported.step(there, t, there, per_token_timesteps=tokens).prev_sample
    assert [record.message for record in caplog.records] == [
        "FlowMatchEulerDiscreteScheduler.step runs on the host: per_token_timesteps cannot be in a table"
    ]
    assert compat.is_ported(got)
    own.step(x, t, x, per_token_timesteps=tokens)
    assert close(got, own.step(x, t, x, per_token_timesteps=tokens).prev_sample)
    with pytest.raises(ValueError, match="integer indices"):
        ported.step(x, 0, x)
    with pytest.raises(TypeError, match="colour"):
        ported.step(x, t, x, colour=1)


class Squaring(diffusers.DDIMScheduler):
    """Its step is no linear map, and bounds nothing either."""

    def step(self, model_output, timestep, sample, return_dict=True):
        return super().step(model_output.square(), timestep, sample, return_dict=return_dict)


def test_what_is_no_linear_map_runs_on_the_host(caplog):
    own, ported = pair(Squaring, clip_sample=False)
    sample = torch.randn(SHAPE)
    with caplog.at_level(logging.WARNING, logger="tpuport"):
        got = run(ported, sample)
    assert len(caplog.records) == 1
    assert "not a linear map" in caplog.text
    assert torch.equal(got, run(own, sample))


@pytest.mark.parametrize("options", [{}, {"thresholding": True, "sample_max_value": 2.0}])
def test_clipping_and_thresholding_run_on_the_device(options, caplog):
    own, ported = pair(diffusers.DDIMScheduler, **options)
    sample = 3 * torch.randn(SHAPE)
    got, expected = run(ported, sample), run(own, sample)
    assert not caplog.records
    assert compat.is_ported(got)
    assert close(got, expected)
    _, unbounded = pair(diffusers.DDIMScheduler, clip_sample=False)
    assert not close(run(unbounded, sample), expected)


def test_a_change_within_a_run_is_an_error():
    _, ported = pair(diffusers.DPMSolverMultistepScheduler)
    x = torch.randn(SHAPE)
    run(ported, x, stop=3)
    ported._step_index = 1
    with pytest.raises(PortError, match="from 3 to 1"):
        ported.step(x, ported.timesteps[1], x)
    ported.set_timesteps(6)
    run(ported, x, stop=2)
    with pytest.raises(PortError, match="variance_noise cannot be in a table"):
        ported.step(x, ported.timesteps[2], x, variance_noise=x)
    ported.set_timesteps(2)
    run(ported, x)
    with pytest.raises(PortError, match="2 timesteps, and there is no further one"):
        ported.step(x, ported.timesteps[1], x)


def test_a_changed_configuration_counts_from_the_next_run():
    own, ported = pair(diffusers.DPMSolverMultistepScheduler, 8)
    sample = torch.randn(SHAPE)
    run(ported, sample)
    for scheduler in (own, ported):
        scheduler.register_to_config(solver_type="heun")
        scheduler.set_timesteps(8)
    assert close(run(ported, sample), run(own, sample))


def test_install_and_uninstall():
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    schedulers.install(scheduler)
    step = scheduler.step
    schedulers.install(scheduler)
    assert scheduler.step is step
    assert "step" not in scheduler.config
    schedulers.uninstall(scheduler)
    schedulers.uninstall(scheduler)
    assert "step" not in vars(scheduler)
    with pytest.raises(PortError, match="not a scheduler"):
        schedulers.install(torch.nn.Linear(1, 1))


def test_the_program_holds_no_tables():
    _, ported = pair(diffusers.FlowMatchEulerDiscreteScheduler)
    x = compat.to_jax(torch.ones(SHAPE))
    tables = schedulers.build_tables(ported, 4).padded()
    program = step_program().program_of(tables, np.int32(0), x, x, (), ())
    assert not program.captured.program.consts
