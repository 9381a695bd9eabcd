"""A ported pipeline is the user's own: called as before, with the same results, errors, callbacks and outputs."""

import contextlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, EulerAncestralDiscreteScheduler, FlowMatchEulerDiscreteScheduler
from jax.sharding import PartitionSpec

import tpuport
from tpuport import PortError, compat
from tpuport.diffusion import mixed_devices

Build = Callable[..., Any]


def embeddings() -> torch.Tensor:
    return torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(3))


def run(pipe: Any, seed: int = 0, **options: Any) -> torch.Tensor:
    return pipe(embeddings(), generator=torch.Generator().manual_seed(seed), **options).images


@pytest.fixture(scope="module")
def expected(tiny: Build) -> torch.Tensor:
    return run(tiny())


@pytest.fixture
def pipe(tiny: Build) -> Any:
    return tpuport.port(tiny())


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(torch.as_tensor(actual), torch.as_tensor(expected), rtol=1e-5, atol=1e-6)


def test_the_same_results_from_one_program(pipe: Any, tiny: Build, expected: torch.Tensor) -> None:
    actual = run(pipe)
    assert not compat.is_ported(actual)
    close(actual, expected)
    close(run(pipe, seed=1, num_inference_steps=5), run(tiny(), seed=1, num_inference_steps=5))
    assert pipe.transformer.forward.program.compilations == 1


def test_the_class_is_the_users(pipe: Any, tiny: Build) -> None:
    own = type(tiny())
    assert isinstance(pipe, own)
    assert type(pipe).__name__ == own.__name__
    assert type(pipe).__module__ == own.__module__
    assert inspect.signature(type(pipe).__call__) == inspect.signature(own.__call__)
    assert inspect.signature(pipe.transformer.forward) == inspect.signature(tiny().transformer.forward)
    assert pipe.device == torch.device("cpu")
    assert pipe.components.keys() == tiny().components.keys()


def test_outputs_are_of_the_host_in_each_form(pipe: Any, tiny: Build, expected: torch.Tensor) -> None:
    array = run(pipe, output_type="np")
    assert isinstance(array, np.ndarray)
    close(array, expected)
    (image,) = pipe(embeddings(), generator=torch.Generator().manual_seed(0), output_type="tuple")
    close(image, expected)


@pytest.mark.parametrize("change", [False, True])
def test_callbacks_see_and_change_tensors_of_the_host(pipe: Any, tiny: Build, change: bool) -> None:
    seen: list[torch.Tensor] = []

    def callback(pipeline: Any, step: int, timestep: Any, tensors: dict) -> dict:
        assert mixed_devices.to_host(tensors["latents"]) is tensors["latents"]
        seen.append(tensors["latents"].clone())
        assert torch.equal(tensors["prompt_embeds"], embeddings())
        if change:
            tensors["latents"] = tensors["latents"] * 0.5
            tensors["latents"][0] += 0.1
        return tensors

    options = {
        "callback_on_step_end": callback,
        "callback_on_step_end_tensor_inputs": ["latents", "prompt_embeds"],
    }
    theirs, reference = run(tiny(), **options), seen[:]
    seen.clear()
    close(run(pipe, **options), theirs)
    for latents, other in zip(seen, reference, strict=True):
        close(latents, other)


def test_a_callback_may_write_into_what_it_is_shown(pipe: Any, tiny: Build) -> None:
    def callback(pipeline: Any, step: int, timestep: Any, tensors: dict) -> dict:
        tensors["latents"].mul_(0.5)
        return tensors

    close(run(pipe, callback_on_step_end=callback), run(tiny(), callback_on_step_end=callback))


def test_a_callback_may_interrupt(pipe: Any, tiny: Build, expected: torch.Tensor) -> None:
    def callback(pipeline: Any, step: int, timestep: Any, tensors: dict) -> dict:
        pipeline._interrupt = step == 1
        return tensors

    close(run(pipe, callback_on_step_end=callback), run(tiny(), callback_on_step_end=callback))
    close(run(pipe), expected)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_interrupted_run_leaves_the_pipeline_usable(
    pipe: Any, expected: torch.Tensor, error: type
) -> None:
    def callback(*_: Any) -> dict:
        raise error

    with contextlib.suppress(error):
        run(pipe, callback_on_step_end=callback)
    assert mixed_devices.current_mode() is None
    assert vars(pipe)["_tpuport"].bar is None
    close(run(pipe), expected)


def test_the_progress_bar_keeps_its_settings(pipe: Any, capsys: pytest.CaptureFixture) -> None:
    run(pipe)
    assert capsys.readouterr().err == ""
    pipe.set_progress_bar_config(desc="denoising")
    run(pipe)
    visible = capsys.readouterr().err
    assert "denoising" in visible
    assert "3/3" in visible
    assert "s/step" in visible


def test_encoding_a_prompt_by_itself(pipe: Any, tiny: Build) -> None:
    actual = pipe.encode_prompt(embeddings())
    assert not compat.is_ported(actual)
    close(actual, tiny().encode_prompt(embeddings()).detach())


def test_back_on_the_host_it_is_what_it_was(tiny: Build, expected: torch.Tensor) -> None:
    pipe = tiny()
    own, forward, weight = type(pipe), pipe.transformer.forward, pipe.transformer.inner.weight.clone()
    assert tpuport.to_cpu(tpuport.port(pipe)) is pipe
    assert type(pipe) is own
    assert pipe.transformer.forward == forward
    assert "forward" not in vars(pipe.transformer)
    assert "step" not in vars(pipe.scheduler)
    assert torch.equal(pipe.transformer.inner.weight, weight)
    assert torch.equal(run(pipe), expected)


def test_a_model_taken_back_alone_is_missed(pipe: Any, expected: torch.Tensor) -> None:
    tpuport.to_cpu(pipe.transformer)
    assert "forward" not in vars(pipe.transformer)
    with pytest.raises(PortError, match="transformer was replaced, or moved"):
        run(pipe)
    close(run(tpuport.port(pipe)), expected)


def test_ported_again_and_to_another_mesh(pipe: Any, expected: torch.Tensor) -> None:
    close(run(tpuport.port(pipe)), expected)
    mesh = tpuport.create_mesh(dp=2, sp=2, tp=2)
    tpuport.port(pipe, mesh=mesh)
    close(run(pipe), expected)
    assert pipe.transformer.tpuport_mesh is mesh
    tpuport.port(pipe)
    assert pipe.transformer.tpuport_mesh is mesh


def test_two_pipelines_share_a_model(pipe: Any, tiny: Build, expected: torch.Tensor) -> None:
    close(run(pipe), expected)
    other = tiny()
    other.transformer = pipe.transformer
    tpuport.port(other)
    close(run(other), expected)
    assert pipe.transformer.forward.program.compilations == 1


def test_from_pipe_gives_a_pipeline_to_port(pipe: Any, tiny: Build, expected: torch.Tensor) -> None:
    close(run(pipe), expected)
    other = type(tiny()).from_pipe(pipe)
    tpuport.port(other)
    close(run(other), expected)
    assert pipe.transformer.forward.program.compilations == 1


def compilations(pipe: Any) -> dict[str, int]:
    """How often each of a pipeline's compiled calls has been compiled."""
    counts = {}
    for name, component in pipe.components.items():
        for method, value in vars(component).items() if component is not None else ():
            program = getattr(getattr(value, "compiled", value), "program", None)
            if program is not None:
                counts[f"{name}.{method}"] = program.compilations
    assert counts
    return counts


def test_it_is_saved_as_before(tiny: Build, pipe: Any, expected: torch.Tensor, tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path / "host")
    close(run(pipe), expected)
    pipe.save_pretrained(tmp_path / "device")
    files = sorted(path.relative_to(tmp_path / "host") for path in (tmp_path / "host").rglob("*.*"))
    assert [path.name for path in files].count("diffusion_pytorch_model.safetensors") > 0
    for path in files:
        assert (tmp_path / "device" / path).read_bytes() == (tmp_path / "host" / path).read_bytes(), path
    before = compilations(pipe)
    close(run(pipe), expected)
    assert compilations(pipe) == before


@pytest.mark.parametrize("name", ["to", "enable_model_cpu_offload", "enable_sequential_cpu_offload"])
def test_what_would_move_its_models_is_refused(pipe: Any, name: str, expected: torch.Tensor) -> None:
    with pytest.raises(PortError, match=r"(?s)ported.*to_cpu"):
        getattr(pipe, name)("cuda")
    close(run(pipe), expected)


def test_weights_of_another_type(tiny: Build) -> None:
    pipe = tpuport.port(tiny(), dtype="bfloat16")
    theirs = tiny()
    theirs.transformer.to(torch.bfloat16)
    with pytest.raises(RuntimeError):  # float32 latents: torch refuses, and so do we, in the same words
        run(theirs)
    assert pipe.transformer.dtype == torch.bfloat16
    assert tpuport.to_cpu(pipe).transformer.inner.weight.dtype == torch.bfloat16


def test_a_scheduler_assigned_later(pipe: Any, tiny: Build) -> None:
    pipe.scheduler = FlowMatchEulerDiscreteScheduler.from_config(pipe.scheduler.config, shift=3.0)
    close(run(pipe), run(tiny(FlowMatchEulerDiscreteScheduler(shift=3.0))))
    assert pipe.transformer.forward.program.compilations == 1


class Squaring(DDIMScheduler):
    """Its step is no linear map, and bounds nothing either."""

    def step(self, model_output: Any, timestep: Any, sample: Any, return_dict: bool = True) -> Any:
        return super().step(model_output.square(), timestep, sample, return_dict=return_dict)


def test_a_scheduler_that_is_not_supported(tiny: Build) -> None:
    pipe = tiny(Squaring())
    with pytest.raises(
        PortError, match=r"on the device, Squaring cannot step by a table: its step is no"
    ) as raised:
        tpuport.port(pipe)
    assert 'scheduler="host"' in str(raised.value)
    assert str(raised.value).count("Squaring") == 1
    assert not compat.is_ported(pipe.transformer.inner.weight)
    tpuport.port(pipe, scheduler="host")
    close(run(pipe), run(tiny(Squaring())))


@pytest.mark.parametrize("thresholding", [True, False])
def test_a_scheduler_that_bounds_its_samples(tiny: Build, thresholding: bool) -> None:
    make = lambda: DDIMScheduler(thresholding=thresholding, clip_sample=not thresholding)  # noqa: E731
    close(run(tpuport.port(tiny(make()))), run(tiny(make())))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_scheduler_that_draws_noise(tiny: Build) -> None:
    close(
        run(tpuport.port(tiny(EulerAncestralDiscreteScheduler()))),
        run(tiny(EulerAncestralDiscreteScheduler())),
    )


def test_components_may_stay_on_the_host(tiny: Build) -> None:
    pipe = tiny(extra=torch.nn.Linear(2, 2))
    tpuport.port(pipe, components=["transformer"])
    assert compat.is_ported(pipe.transformer.inner.weight)
    assert not compat.is_ported(pipe.extra.weight)
    with pytest.raises(PortError, match="no such model"):
        tpuport.port(pipe, components=["unet"])


def test_where_one_model_cannot_move_none_does(tiny: Build) -> None:
    broken = torch.nn.Linear(2, 2, device="meta")
    pipe = tiny(extra=broken)
    with pytest.raises(PortError, match="meta"):
        tpuport.port(pipe)
    assert not compat.is_ported(pipe.transformer.inner.weight)
    assert "_tpuport" not in vars(pipe)
    assert "forward" not in vars(pipe.transformer)


def test_batched_guidance_without_a_guider_is_refused(tiny: Build) -> None:
    with pytest.raises(PortError, match="TinyPipeline has no guider") as raised:
        tpuport.port(tiny(), batch_guidance=True)
    assert raised.value.where == "batch_guidance"


def test_rules_by_component(tiny: Build) -> None:
    mesh = tpuport.create_mesh(tp=2, dp=4)
    rules = tpuport.ShardingRules({r"inner\.weight": PartitionSpec("tp", None)})
    for inputs in (rules, {"transformer": rules}):
        pipe = tpuport.port(tiny(), mesh=mesh, rules=inputs)
        assert compat.as_jax(pipe.transformer.inner.weight).sharding.spec[0] == "tp"
    with pytest.raises(PortError, match="unet: no such model"):
        tpuport.port(tiny(), mesh=mesh, rules={"unet": rules})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guidance_scale": "3"}, "guidance_scale is '3', which is not a number"),
        ({"guidance_scale": float("nan")}, "guidance_scale is nan"),
        ({"num_inference_steps": 0}, "0 denoising steps"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(pipe: Any, options: dict, message: str) -> None:
    with pytest.raises(PortError, match=message):
        run(pipe, **options)
    assert pipe.transformer.forward.program.compilations == 0


def test_missing_arguments_are_the_pipelines_own_error(pipe: Any) -> None:
    with pytest.raises(TypeError, match="prompt_embeds"):
        pipe()
