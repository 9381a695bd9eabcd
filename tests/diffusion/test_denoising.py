"""The denoising loop as one program, against torch and diffusers in a Python loop."""

import copy
import functools

import diffusers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import PartitionSpec

import tpuport
from tpuport import compat
from tpuport.diffusion.denoising import denoise, find_denoiser
from tpuport.diffusion.denoising_program import lift_function, lower_function
from tpuport.errors import PortError

pytestmark = pytest.mark.filterwarnings("ignore:__array(__|_wrap__).*:DeprecationWarning")

SHAPE = (2, 16, 8)
SIZES = {"num_frames": 1, "height": 4, "width": 4}


class Tiny(torch.nn.Module):
    """A model of one's own: [B, tokens, channels], a condition per row or none, a mask."""

    def __init__(self, channels=8, width=16, wide=0):
        super().__init__()
        self.take = torch.nn.Linear(channels + wide, width)
        self.text = torch.nn.Linear(6, width)
        self.give = torch.nn.Linear(width, channels)

    def forward(self, hidden_states, timestep, encoder_hidden_states, encoder_attention_mask=None, bias=None):
        text = self.text(encoder_hidden_states)
        if encoder_attention_mask is not None:
            text = text * encoder_attention_mask[..., None]
        hidden = self.take(hidden_states) + text.mean(1, keepdim=True)
        if bias is not None:
            hidden = hidden + bias
        hidden = torch.tanh(hidden * torch.cos(timestep / 1000).reshape(-1, 1, 1).to(hidden.dtype))
        return self.give(hidden)


def transformer(**config):
    torch.manual_seed(0)
    return diffusers.LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, num_attention_heads=2, attention_head_dim=16, cross_attention_dim=32,
        num_layers=1, caption_channels=6, **config,
    ).eval()  # fmt: skip


def condition(seed, length=5, valid=3):
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.arange(length) < valid).float().expand(SHAPE[0], length)
    return {
        "encoder_hidden_states": torch.randn(SHAPE[0], length, 6, generator=generator),
        "encoder_attention_mask": mask,
    }


LATENTS = torch.randn(SHAPE, generator=torch.Generator().manual_seed(9))
POSITIVE, NEGATIVE = condition(1), condition(2, valid=5)


@torch.no_grad()
def reference(model, scheduler, latents, conditions, negative=None, scale=1.0, combine=None, start=0, **call):
    """diffusers' way, step by step on the host."""
    if start:
        scheduler.set_begin_index(start)
    for timestep in scheduler.timesteps[start:]:
        steps_taken = (
            scheduler.scale_model_input(latents, timestep)
            if hasattr(scheduler, "scale_model_input")
            else latents
        )
        rows = timestep.expand(len(latents))
        predict = lambda inputs: model(steps_taken, timestep=rows, **inputs, **call)  # noqa: B023, E731
        first = lambda out: out if isinstance(out, torch.Tensor) else out[0]  # noqa: E731
        output = first(predict(conditions))
        if negative is not None:
            other = first(predict(negative))
            output = combine(output, other) if combine else other + scale * (output - other)
        latents = scheduler.step(output, timestep, latents).prev_sample
    return latents


def to_host(tensor):
    return compat.to_torch(compat.as_jax(tensor))


def error(got, expected) -> float:
    return float((to_host(got).float() - expected.float()).norm() / expected.float().norm())


@pytest.fixture(scope="module")
def models():
    """A transformer of diffusers on the host, and the same ported."""
    return transformer(), tpuport.port(transformer())


@pytest.fixture(scope="module")
def own():
    """A model of one's own on the host, and the same ported."""

    def make():
        torch.manual_seed(0)
        return Tiny().eval()

    return make(), tpuport.port(make())


def test_warm_up_and_run_are_one_compilation(models):
    host, ported = models
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    inputs = {"conditions": POSITIVE | SIZES, "negative": NEGATIVE | SIZES, "guidance_scale": 4.0}
    seen = []
    for count, options in (
        (2, {"progress": False}),
        (12, {"progress": False}),
        (5, {"progress": False, "callback": lambda index, t, latents: seen.append((index, t, latents))}),
    ):
        scheduler.set_timesteps(count)
        expected = reference(host, scheduler, LATENTS, POSITIVE, NEGATIVE, 4.0, return_dict=False, **SIZES)
        got = denoise(ported, scheduler, LATENTS, num_inference_steps=count, **inputs, **options)
        assert compat.is_ported(got)
        assert got.dtype == LATENTS.dtype
        assert error(got, expected) < 1e-5
    assert find_denoiser(ported).program.compilations == 1
    assert [index for index, *_ in seen] == list(range(5))
    np.testing.assert_array_equal([float(to_host(t)) for _, t, _ in seen], scheduler.timesteps)
    assert torch.equal(to_host(seen[-1][2]), to_host(got))
    assert not torch.equal(to_host(seen[0][2]), to_host(got))  # each its own copy


@pytest.mark.parametrize(
    ("name", "config", "dtype"),
    [
        ("UniPCMultistepScheduler", {"solver_order": 3}, torch.float32),
        ("EulerDiscreteScheduler", {}, torch.float32),
        ("FlowMatchEulerDiscreteScheduler", {}, torch.bfloat16),
        pytest.param("DPMSolverMultistepScheduler", {}, torch.float32, marks=pytest.mark.slow),
        pytest.param("HeunDiscreteScheduler", {}, torch.float32, marks=pytest.mark.slow),
        pytest.param("PNDMScheduler", {}, torch.float32, marks=pytest.mark.slow),
    ],
)
def test_schedulers(own, name, config, dtype):
    host, ported = own
    scheduler = getattr(diffusers, name)(**config)
    scheduler.set_timesteps(6)
    latents = LATENTS * float(getattr(scheduler, "init_noise_sigma", 1))
    expected = reference(host, scheduler, latents, POSITIVE)
    scheduler.set_timesteps(9)  # the user's own object stays as it is
    timesteps = scheduler.timesteps
    conditions = POSITIVE
    if dtype != torch.float32:
        # As in torch, a model computes in the dtype of its weights.
        ported = tpuport.port(copy.deepcopy(host).to(dtype))
        conditions = {name: value.to(dtype) for name, value in POSITIVE.items()}
    got = denoise(
        ported, scheduler, latents.to(dtype), num_inference_steps=6, conditions=conditions, progress=False
    )
    assert got.dtype == dtype
    assert error(got, expected) < (1e-5 if dtype == torch.float32 else 3e-2)
    assert scheduler.timesteps is timesteps
    assert getattr(scheduler, "step_index", None) is None


def test_a_late_start_and_levels_of_ones_own(own):
    host, ported = own
    scheduler = diffusers.UniPCMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction")
    sigmas = [1.0, 0.8, 0.5, 0.3, 0.1]
    scheduler.set_timesteps(sigmas=np.array(sigmas))
    expected = reference(host, scheduler, LATENTS, POSITIVE, start=2)
    got = denoise(
        ported, scheduler, LATENTS, sigmas=sigmas, begin_index=2, conditions=POSITIVE, progress=False
    )
    assert error(got, expected) < 1e-5


def test_conditions_of_two_lengths_are_two_calls(own):
    host, ported = own
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(4)
    negative = condition(3, length=7)
    expected = reference(host, scheduler, LATENTS, POSITIVE, negative, 2.0)
    got = denoise(
        ported, scheduler, LATENTS, num_inference_steps=4, conditions=POSITIVE, negative=negative,
        guidance_scale=2.0, progress=False,
    )  # fmt: skip
    assert error(got, expected) < 1e-5


def rescaled(positive, negative, scale=4.0, share=0.7):
    guided = negative + scale * (positive - negative)
    axes = list(range(1, guided.ndim))
    spread = positive.std(dim=axes, keepdim=True) / guided.std(dim=axes, keepdim=True)
    return share * guided * spread + (1 - share) * guided


def test_guidance_of_ones_own_and_rescaled(own):
    host, ported = own
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(4)
    expected = reference(host, scheduler, LATENTS, POSITIVE, NEGATIVE, combine=rescaled)
    inputs = {"num_inference_steps": 4, "conditions": POSITIVE, "negative": NEGATIVE, "progress": False}
    got = denoise(ported, scheduler, LATENTS, guidance_scale=4.0, guidance_rescale=0.7, **inputs)
    assert error(got, expected) < 1e-5
    program = find_denoiser(ported).program
    for share in (0.7, 0.2):
        scheduler.set_timesteps(4)
        combine = functools.partial(rescaled, share=torch.tensor(share))
        expected = reference(host, scheduler, LATENTS, POSITIVE, NEGATIVE, combine=combine)
        before = program.compilations
        got = denoise(ported, scheduler, LATENTS, guidance=combine, **inputs)
        assert error(got, expected) < 1e-5
    assert program.compilations == before  # the share is a tensor, an argument


def test_model_input_of_ones_own():
    def make():
        torch.manual_seed(0)
        return Tiny(wide=4).eval()

    host, ported = make(), tpuport.port(make())
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    inputs = {"num_inference_steps": 3, "conditions": POSITIVE, "progress": False}
    for seed in (0, 1):
        more = torch.randn(*SHAPE[:2], 4, generator=torch.Generator().manual_seed(seed))
        widen = lambda latents: torch.cat([latents, more], -1)  # noqa: B023, E731
        scheduler.set_timesteps(3)
        wider = lambda x, take=widen, **call: host(take(x), **call)  # noqa: E731
        expected = reference(wider, scheduler, LATENTS, POSITIVE)
        assert error(denoise(ported, scheduler, LATENTS, model_input=widen, **inputs), expected) < 1e-5
    assert find_denoiser(ported).program.compilations == 1  # what the function holds is an argument


def test_on_a_mesh():
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=2.0)
    scheduler.set_timesteps(4)
    host = transformer()
    expected = reference(host, scheduler, LATENTS, POSITIVE, NEGATIVE, 3.0, return_dict=False, **SIZES)
    ported = tpuport.port(transformer(), mesh=tpuport.create_mesh(dp=2, tp=2, devices=jax.devices()[:4]))
    inputs = {"conditions": POSITIVE | SIZES, "negative": NEGATIVE | SIZES, "guidance_scale": 3.0}
    got = denoise(ported, scheduler, LATENTS, num_inference_steps=4, progress=False, **inputs)
    assert compat.as_jax(got).sharding.spec == PartitionSpec("dp")
    assert error(got, expected) < 1e-5
    # From where the last run left them, a step at a time.
    denoise(ported, scheduler, got, num_inference_steps=2, progress=False, callback=lambda *_: None, **inputs)
    assert find_denoiser(ported).program.compilations == 1
    assert error(got, expected) < 1e-5  # the user's own latents are still there


def test_an_interrupt_leaves_everything_usable(own):
    _, ported = own
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    inputs = {"num_inference_steps": 4, "conditions": POSITIVE, "progress": False}
    there = compat.wrap(jnp.asarray(LATENTS.numpy()))
    expected = to_host(denoise(ported, scheduler, there, **inputs))

    def stop(index, timestep, latents):
        if index == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        denoise(ported, scheduler, there, callback=stop, **inputs)
    assert torch.equal(to_host(denoise(ported, scheduler, there, **inputs)), expected)


def test_the_program_holds_no_weights_and_no_conditions(own, caplog):
    _, ported = own
    denoise(
        ported, diffusers.FlowMatchEulerDiscreteScheduler(), LATENTS, num_inference_steps=2, conditions=POSITIVE,
        progress=False,
    )  # fmt: skip
    assert not [record for record in caplog.records if "constants" in record.message]


class Squaring(diffusers.FlowMatchEulerDiscreteScheduler):
    """Its step is no linear map."""

    def step(self, model_output, timestep, sample, **inputs):
        return super().step(model_output * model_output, timestep, sample, **inputs)


BAD = [
    ({"model": torch.nn.Linear(1, 1)}, "not on the device"),
    ({"latents": torch.zeros(SHAPE, dtype=torch.long)}, "latents are"),
    ({"conditions": {}}, "needs encoder_hidden_states"),
    ({"conditions": POSITIVE | {"colour": 1}}, "does not take colour"),
    ({"conditions": POSITIVE | {"timestep": torch.ones(2)}}, "timestep comes from the loop"),
    ({"conditions": POSITIVE | {"encoder_attention_mask": torch.ones(2, 4)}}, r"\[2, 5\] tokens.*\[2, 4\]"),
    ({"negative": POSITIVE | {"encoder_attention_mask": torch.ones(1, 5)}}, "mask is"),
    ({"guidance_scale": 3.0}, "guidance needs"),
    ({"guidance": torch.add, "negative": NEGATIVE, "guidance_scale": 2.0}, "replaces guidance_scale"),
    ({"guidance_scale": float("nan"), "negative": NEGATIVE}, "finite"),
    ({"num_inference_steps": 0}, "number of steps"),
    ({"begin_index": 9}, "no step 9"),
    ({"scheduler": Squaring()}, "cannot step by a table"),
    ({"scheduler": "EulerAncestralDiscreteScheduler"}, "draws noise"),
    ({"scheduler": torch.nn.Identity()}, "not a scheduler"),
    ({"model_input": functools.partial(torch.add, {})}, "neither a tensor nor hashable"),
]


@pytest.mark.parametrize(("change", "what"), BAD)
def test_bad_input(own, change, what):
    inputs = {
        "model": own[1], "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(), "latents": LATENTS,
        "conditions": POSITIVE, "num_inference_steps": 2, "progress": False,
    } | change  # fmt: skip
    if isinstance(inputs["scheduler"], str):
        inputs["scheduler"] = getattr(diffusers, inputs["scheduler"])()
    before = find_denoiser(own[1]).program.compilations
    with pytest.raises(PortError, match=what):
        denoise(**inputs)
    assert find_denoiser(own[1]).program.compilations == before


def test_an_output_of_another_shape(own):
    with pytest.raises(PortError, match="the scheduler needs"):
        denoise(
            own[1], diffusers.FlowMatchEulerDiscreteScheduler(), LATENTS, num_inference_steps=2, conditions=POSITIVE,
            model_input=lambda x: torch.cat([x, x], 1), progress=False,
        )  # fmt: skip


def test_tensors_that_a_function_holds_are_arguments():
    namespace = {"torch": torch, "BESIDE": torch.ones(2)}
    exec("def widen(x): return torch.cat([x, BESIDE])", namespace)
    last = torch.ones(3)
    bound = functools.partial(lambda x, y, z=last: torch.cat([x, y, z]), y=torch.ones(1))
    arrays: list[jax.Array] = []
    key = lift_function(namespace["widen"], arrays)
    assert [x.shape for x in arrays] == [(2,)]
    assert key == lift_function(namespace["widen"], [])
    arrays = [jnp.full(2, 7.0)]
    with compat.environment():
        np.testing.assert_array_equal(
            compat.as_jax(lower_function(key, arrays)(compat.wrap(jnp.zeros(1)))), [0.0, 7.0, 7.0]
        )
    arrays = []
    lift_function(bound, arrays)
    assert sorted(x.shape for x in arrays) == [(1,), (3,)]


class Casting(Tiny):
    """As HunyuanVideo-1.5 does it: what is made of the timestep gets the timestep's dtype."""

    def forward(self, hidden_states, timestep, encoder_hidden_states, encoder_attention_mask=None):
        phase = torch.sin(timestep.float() / 100).to(timestep.dtype).reshape(-1, 1, 1)
        return super().forward(hidden_states + phase, timestep, encoder_hidden_states, encoder_attention_mask)


class Told(Casting):
    """On the host, told the timestep as pipelines tell it."""

    def forward(self, hidden_states, timestep, *args, **kwargs):
        return super().forward(hidden_states, timestep.to(hidden_states.dtype), *args, **kwargs)


def test_timesteps_of_whole_numbers_are_floating_for_the_model():
    scheduler = diffusers.UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True)
    scheduler.set_timesteps(4)
    assert not scheduler.timesteps.is_floating_point()
    torch.manual_seed(0)
    model, host = Casting(), Told()
    host.load_state_dict(model.state_dict())
    expected = reference(host, scheduler, LATENTS, POSITIVE)
    scheduler = diffusers.UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True)
    got = denoise(
        tpuport.port(model), scheduler, LATENTS, num_inference_steps=4, conditions=POSITIVE, progress=False
    )
    assert error(got, expected) < 1e-5


class Choosing(Tiny):
    def forward(self, hidden_states, timestep, encoder_hidden_states):
        if timestep[0] > 500:
            return hidden_states
        return super().forward(hidden_states, timestep, encoder_hidden_states)


def test_a_model_that_cannot_be_traced():
    with pytest.raises(PortError, match="cannot be traced") as error:
        denoise(
            tpuport.port(Choosing()), diffusers.FlowMatchEulerDiscreteScheduler(), LATENTS, num_inference_steps=2,
            conditions={"encoder_hidden_states": POSITIVE["encoder_hidden_states"]}, progress=False,
        )  # fmt: skip
    assert "test_denoising.py" in str(error.value)


class Drawing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, hidden_states, timestep):
        return self.weight * torch.randn_like(hidden_states)


def test_a_model_that_draws_draws_anew_in_each_step():
    model = tpuport.port(Drawing())

    def run(steps):
        torch.manual_seed(0)
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
        scheduler.set_timesteps(steps)
        latents = torch.zeros(2, 500)
        return compat.to_torch(
            compat.as_jax(denoise(model, scheduler, latents, conditions={}, progress=False))
        )

    result = run(4)
    assert torch.equal(run(4), result)
    assert not torch.equal(result[0], result[1])
    # Three steps of a third and a tiny one: independent draws add up to 0.58, equal ones to 1.
    assert 0.5 < result.std().item() < 0.65
