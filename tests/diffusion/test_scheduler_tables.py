"""Tables against diffusers' own step, for every timestep."""

import dataclasses
import inspect
import warnings

import diffusers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuport import compat
from tpuport.diffusion import schedulers
from tpuport.diffusion.scheduler_tables import StepTables
from tpuport.errors import PortError

# diffusers' own, of how NumPy reads torch tensors.
pytestmark = pytest.mark.filterwarnings("ignore:__array(__|_wrap__).*:DeprecationWarning")

SHAPE = (2, 3, 4, 4)

FLOW = "FlowMatchEulerDiscreteScheduler"
DPM = "DPMSolverMultistepScheduler"
UNIPC = "UniPCMultistepScheduler"
FLOWING = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
# (class, configuration, arguments of set_timesteps)
CASES = [
    (FLOW, {}, {}),
    (FLOW, {"shift": 7.0}, {}),
    (FLOW, {"use_dynamic_shifting": True}, {"mu": 0.8}),
    (FLOW, {"use_dynamic_shifting": True, "time_shift_type": "linear"}, {"mu": 0.8}),
    (FLOW, {"use_dynamic_shifting": True, "shift_terminal": 0.1}, {"mu": 1.1}),
    (FLOW, {"use_karras_sigmas": True}, {}),
    (FLOW, {"use_exponential_sigmas": True}, {}),
    (FLOW, {"invert_sigmas": True}, {}),
    (FLOW, {"shift": 5.0}, {"sigmas": np.linspace(1, 0, 8)[:-1]}),
    (FLOW, {}, {"sigmas": [1.0, 0.7, 0.2], "timesteps": [1000.0, 600.0, 100.0]}),
    ("FlowMatchHeunDiscreteScheduler", {}, {}),
    (DPM, {}, {}),
    (DPM, {}, {"num_inference_steps": 20}),
    (DPM, {"solver_order": 1}, {}),
    (DPM, {"solver_order": 3, "use_karras_sigmas": True}, {"num_inference_steps": 20}),
    (DPM, {"solver_order": 3, "lower_order_final": False}, {}),
    (DPM, {"solver_type": "heun", "final_sigmas_type": "sigma_min"}, {}),
    (DPM, {"euler_at_final": True, "use_lu_lambdas": True, "timestep_spacing": "trailing"}, {}),
    (DPM, {"algorithm_type": "dpmsolver", "final_sigmas_type": "sigma_min", "solver_order": 3}, {}),
    (DPM, {"algorithm_type": "dpmsolver", "final_sigmas_type": "sigma_min", "solver_type": "heun"}, {}),
    (DPM, FLOWING, {}),
    (DPM, {**FLOWING, "solver_order": 3}, {"num_inference_steps": 20}),
    (DPM, {"prediction_type": "v_prediction", "rescale_betas_zero_snr": True}, {}),
    (DPM, {"prediction_type": "sample", "timestep_spacing": "leading"}, {}),
    (UNIPC, {}, {}),
    (UNIPC, {"solver_order": 1}, {}),
    (UNIPC, {"solver_order": 3}, {"num_inference_steps": 20}),
    (UNIPC, {"solver_type": "bh1", "solver_order": 3, "final_sigmas_type": "sigma_min"}, {}),
    (UNIPC, {"predict_x0": False, "final_sigmas_type": "sigma_min"}, {}),
    (UNIPC, {"predict_x0": False, "solver_type": "bh1", "final_sigmas_type": "sigma_min"}, {}),
    (UNIPC, {"disable_corrector": [0, 1, 2]}, {}),
    (UNIPC, {"lower_order_final": False, "final_sigmas_type": "sigma_min"}, {}),
    (UNIPC, FLOWING, {}),
    (UNIPC, {**FLOWING, "solver_order": 3}, {"num_inference_steps": 20}),
    ("EulerDiscreteScheduler", {"use_karras_sigmas": True}, {}),
    ("EulerDiscreteScheduler", {"prediction_type": "v_prediction", "timestep_type": "continuous"}, {}),
    ("HeunDiscreteScheduler", {}, {}),
    ("KDPM2DiscreteScheduler", {}, {}),
    ("LMSDiscreteScheduler", {}, {}),
    ("DDIMScheduler", {"clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1}, {}),
    ("DDIMScheduler", {}, {}),  # clips
    ("DDIMScheduler", {"thresholding": True, "sample_max_value": 2.0}, {}),
    (DPM, {"thresholding": True, "dynamic_thresholding_ratio": 0.8}, {}),
    (DPM, {"thresholding": True, "sample_max_value": 3.0, "solver_order": 3}, {"num_inference_steps": 20}),
    (UNIPC, {"thresholding": True, "sample_max_value": 2.0, "dynamic_thresholding_ratio": 0.9}, {}),
    ("HeunDiscreteScheduler", {"clip_sample": True}, {}),
    ("DEISMultistepScheduler", {"solver_order": 3}, {}),
    ("DEISMultistepScheduler", {"thresholding": True}, {}),
    ("PNDMScheduler", {"skip_prk_steps": True}, {}),
    ("PNDMScheduler", {}, {"num_inference_steps": 9}),
    ("DPMSolverSinglestepScheduler", {"solver_order": 3}, {"num_inference_steps": 9}),
    ("IPNDMScheduler", {}, {}),
    ("EDMEulerScheduler", {}, {}),
]


def name_of(case) -> str:
    return "-".join([case[0].replace("Scheduler", ""), *map(str, case[1].values()), *map(str, case[2])])


def make(name: str, **config):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # diffusers', of dpmsolver
        return getattr(diffusers, name)(**config)


def set_timesteps(scheduler, options) -> None:
    if not options.keys() & {"num_inference_steps", "sigmas", "timesteps"}:
        options = {**options, "num_inference_steps": 7}
    scheduler.set_timesteps(**options)


def to_host(array) -> torch.Tensor:
    return compat.to_torch(compat.as_jax(array))


@jax.jit
def both(tables, index, low, half):
    """A step in float32 and one in bfloat16, one program for all schedulers with as many slots."""
    return schedulers.take_step(tables, index, *low), schedulers.take_step(tables, index, *half)


class Steps:
    """Our steps from tables, one run in float32 and one in bfloat16, fed with host tensors."""

    def __init__(self, tables: StepTables, sample: torch.Tensor) -> None:
        names = tuple(map(str, range(len(tables.slots))))
        fields = tuple(map(str, range(len(tables.fields))))
        self.tables = dataclasses.replace(tables.padded(), slots=names, fields=fields)
        self.low = self.half = schedulers.initial_state(self.tables, compat.to_jax(sample))

    def __call__(self, index, output, low, half=None):
        half = low.bfloat16() if half is None else half
        arrays = [compat.to_jax(x) for x in (output, low, output.bfloat16(), half)]
        (low, self.low), (half, self.half) = both(
            self.tables, np.int32(index), (*arrays[:2], self.low), (*arrays[2:], self.half)
        )
        return compat.to_torch(low), compat.to_torch(half)


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


# Those of schedulers that few use, and long runs, are for `make test-all`.
FIRST = (FLOW, DPM, UNIPC, "EulerDiscreteScheduler", "DDIMScheduler", "FlowMatchHeunDiscreteScheduler")


def is_first(case) -> bool:
    name, config, options = case
    return name in FIRST and len(config) < 3 and options.get("num_inference_steps", 0) < 20


PARAMETERS = [
    pytest.param(case, id=name_of(case), marks=() if is_first(case) else pytest.mark.slow) for case in CASES
]


@pytest.mark.parametrize("case", PARAMETERS)
def test_every_timestep_is_as_diffusers_own(case):
    name, config, options = case
    own = make(name, **config)
    set_timesteps(own, options)
    tables = schedulers.build_tables(own)
    assert tables.coefficients.dtype == tables.scales.dtype == jnp.float32
    np.testing.assert_array_equal(tables.timesteps, own.timesteps.float().numpy())
    generator = torch.Generator().manual_seed(0)
    sample = torch.randn(SHAPE, generator=generator) * float(getattr(own, "init_noise_sigma", 1))
    low, expected, half = sample, sample, sample.bfloat16()
    steps = Steps(tables, low)
    other = make(name, **config)
    set_timesteps(other, options)
    for index, timestep in enumerate(own.timesteps):
        output = torch.randn(SHAPE, generator=generator)
        if hasattr(own, "scale_model_input"):
            scaled = own.scale_model_input(expected, timestep)
            other.scale_model_input(expected, timestep)
            assert relative(expected * float(tables.scales[index]), scaled) < 1e-6
        expected = own.step(output, timestep, expected).prev_sample
        # bfloat16 outside, float32 inside: diffusers' step in float32 from the same numbers, rounded once.
        exact = other.step(output.bfloat16().float(), timestep, half.float()).prev_sample
        low, half = steps(index, output, low, half)
        assert relative(low, expected) < 1e-5, index
        assert half.dtype == torch.bfloat16
        assert ((half.float() - exact).abs() <= 2.0**-8 * exact.abs() + 1e-6 * exact.abs().max()).all(), index


def test_bfloat16_latents_end_where_diffusers_end():
    own = make(FLOW, shift=3.0)
    own.set_timesteps(20)
    expected = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).bfloat16()
    steps, got = Steps(schedulers.build_tables(own), expected), expected
    for index, timestep in enumerate(own.timesteps):
        output = torch.randn(SHAPE, generator=torch.Generator().manual_seed(index)).bfloat16()
        expected = own.step(output, timestep, expected).prev_sample
        _, got = steps(index, output.float(), got.float(), got)
    assert got.dtype == expected.dtype
    assert relative(got, expected) < 20 * 2.0**-8


@settings(max_examples=5, deadline=None)
@given(
    count=st.integers(1, 30),
    shift=st.floats(0.5, 12),
    name=st.sampled_from([FLOW, UNIPC]),
    data=st.data(),
)
def test_any_number_of_steps_shift_and_start(count, shift, name, data):
    start = data.draw(st.integers(0, count - 1))
    config = {"shift": shift} if name == FLOW else {**FLOWING, "flow_shift": shift}
    own = make(name, **config)
    tables = schedulers.build_tables(own, count, begin_index=start)
    assert own.step_index is None  # it was not touched
    own.set_timesteps(count)
    own.set_begin_index(start)
    expected = got = torch.randn(SHAPE)
    steps = Steps(tables, got)
    for index, timestep in enumerate(own.timesteps[start:], start):
        output = torch.randn(SHAPE)
        expected = own.step(output, timestep, expected).prev_sample
        got, _ = steps(index, output, got)
        if name == FLOW:
            assert torch.equal(got, expected)
        assert relative(got, expected) < 1e-5


def test_what_a_step_does_not_take_does_not_count():
    own = make(DPM)
    own.set_timesteps(5)
    tables = schedulers.build_tables(own)
    sample = jnp.ones((2, 3))
    lost = tuple(jnp.full_like(sample, jnp.nan) for _ in tables.slots)
    following, state = schedulers.take_step(tables, 0, sample, sample, lost)
    assert jnp.isfinite(following).all()
    following, _ = schedulers.take_step(tables, 1, sample, sample, state)
    assert jnp.isfinite(following).all()


def test_a_step_that_gives_no_numbers_is_refused():
    with pytest.raises(PortError, match="infinite numbers or NaN at step 4"):
        schedulers.build_tables(make(UNIPC, solver_type="bh1"), 5)


class Odd(diffusers.FlowMatchEulerDiscreteScheduler):
    """One whose step is a little off, in a way that a table cannot be."""

    kind = ""

    def step(self, model_output, timestep, sample, return_dict=True):
        (following,) = super().step(model_output, timestep, sample, return_dict=False)
        most = torch.full_like(following, 50)
        following = {
            "offset": lambda: following + 1e-3,
            "late": lambda: following.minimum(most) if self.step_index == 5 else following,
            "several": lambda: following.clamp(-50, 50).clamp(-40, 60),
            "bounded": lambda: following.clamp(-50 * most.abs().mean() / 50, most),
            "random": lambda: following + torch.empty_like(following).uniform_(),
            "product": lambda: following + 1e-4 * sample * model_output,
            "mixing": lambda: following + 1e-3 * sample.mean(),
        }[self.kind]()
        return diffusers.schedulers.scheduling_utils.SchedulerOutput(prev_sample=following)


@pytest.mark.parametrize("kind", ["offset", "late", "several", "bounded", "random", "product", "mixing"])
def test_the_check_notices(kind, monkeypatch):
    monkeypatch.setattr(Odd, "kind", kind)
    message = {"random": "random numbers", "several": "its steps bound several values"}.get(
        kind, "linear map"
    )
    with pytest.raises(PortError, match=f"^Odd cannot step by a table: .*{message}") as error:
        schedulers.build_tables(Odd(), 6)
    assert "fix:" in str(error.value)


def test_another_thresholding_is_noticed(monkeypatch):
    monkeypatch.setattr(diffusers.DDIMScheduler, "_threshold_sample", lambda self, sample: sample.tanh())
    with pytest.raises(PortError, match="its threshold is not that of diffusers"):
        schedulers.build_tables(diffusers.DDIMScheduler(thresholding=True), 6)


def test_a_check_leaves_the_random_numbers_alone():
    torch.manual_seed(3)
    expected = torch.randn(4)
    torch.manual_seed(3)
    schedulers.build_tables(make("EulerAncestralDiscreteScheduler"), 4)
    assert torch.equal(torch.randn(4), expected)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "no steps yet"),
        ({"num_inference_steps": 0}, "not a number of steps"),
        ({"num_inference_steps": 4, "mu": 1.0, "colour": 1}, "does not take colour"),
        ({"num_inference_steps": 4, "sigmas": [1.0]}, "does not accept these steps"),
        ({"num_inference_steps": 4, "begin_index": 4}, "no step 4 of 4"),
        ({"mu": 1.0}, "without steps"),
    ],
)
def test_bad_input(options, what):
    with pytest.raises(PortError, match=what):
        schedulers.build_tables(make(FLOW), **options)
    with pytest.raises(PortError, match="not a scheduler"):
        schedulers.build_tables(torch.nn.Linear(1, 1), 3)


def test_a_scheduler_within_a_run_has_no_tables():
    own = make(DPM)
    own.set_timesteps(4)
    own.step(torch.ones(SHAPE), own.timesteps[0], torch.ones(SHAPE))
    with pytest.raises(PortError, match="middle of a run"):
        schedulers.build_tables(own)
    assert len(schedulers.build_tables(own, 6)) == 6


def test_tables_are_padded_to_one_shape():
    few, many = (schedulers.build_tables(make(UNIPC), count).padded() for count in (2, 50))
    assert len(few) == len(many) == 64
    assert jax.tree.structure(few) == jax.tree.structure(many)
    assert not np.asarray(few.coefficients[2:]).any()


def test_noise_is_an_input():
    own = make("EulerAncestralDiscreteScheduler")
    tables = schedulers.build_tables(own, 6)
    assert tables.noises == 1
    own.set_timesteps(6)
    sample = output = torch.ones(SHAPE)
    own.scale_model_input(sample, own.timesteps[0])
    expected = own.step(
        output, own.timesteps[0], sample, generator=torch.Generator().manual_seed(1)
    ).prev_sample
    noise = compat.to_jax(torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)))
    got, _ = schedulers.take_step(tables, 0, compat.to_jax(output), compat.to_jax(sample), (), (noise,))
    assert relative(compat.to_torch(got), expected) < 1e-6


def test_the_trace_reads_a_row_and_searches_nothing():
    tables = schedulers.build_tables(make(FLOW), 4).padded()
    x = jnp.ones(SHAPE)
    text = str(jax.make_jaxpr(schedulers.take_step)(tables, 0, x, x, ()))
    assert "dynamic_slice" in text
    assert "argmax" not in text
    assert "eq" not in inspect.getsource(StepTables)
