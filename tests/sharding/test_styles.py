"""Every style that transformers and diffusers have is known, and cuts the dimension that theirs cuts."""

import importlib
import inspect
import pkgutil
import re

import pytest
import transformers.models
from diffusers.models import transformers as diffusion_transformers
from jax.sharding import PartitionSpec as P
from transformers import PreTrainedConfig
from transformers.distributed import expert_parallel  # noqa: F401  registers its styles
from transformers.distributed.parallel_utils import replace_layer_number_by_wildcard
from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES

from tpuport.errors import PortError
from tpuport.sharding.plans import compile_plan
from tpuport.sharding.styles import STYLES, Cut, plan_regex, style_cut, weight_spec


def config_modules():
    for package in pkgutil.iter_modules(transformers.models.__path__):
        folder = importlib.import_module(f"transformers.models.{package.name}")
        for module in pkgutil.iter_modules(folder.__path__):
            if module.name.startswith("configuration_"):
                yield importlib.import_module(f"{folder.__name__}.{module.name}")


def config_plans():
    for module in config_modules():
        for name, config in inspect.getmembers(module, inspect.isclass):
            if config.__module__ == module.__name__ and issubclass(config, PreTrainedConfig):
                for kind in ("base_model_tp_plan", "base_model_ep_plan"):
                    plan = config.__dict__.get(kind)
                    if isinstance(plan, dict) and plan:
                        yield f"{name}.{kind}", plan


@pytest.mark.slow  # the styles below, and the plans of diffusers
def test_every_plan_in_transformers_compiles():
    plans = dict(config_plans())
    assert len([name for name in plans if name.endswith("tp_plan")]) >= 130
    for name, plan in plans.items():
        for entry in compile_plan(plan):
            example = entry.key.replace("*", "17")
            assert entry.regex.fullmatch(example), (name, entry.key)
            assert not entry.regex.fullmatch("x" + example)
            assert replace_layer_number_by_wildcard(example) == entry.key


def test_every_style_that_transformers_registers_is_known():
    assert set(ALL_PARALLEL_STYLES) <= set(STYLES)


def test_every_plan_in_diffusers_compiles():
    classes = [getattr(diffusion_transformers, name) for name in dir(diffusion_transformers)]
    plans = [cls._tp_plan for cls in classes if getattr(cls, "_tp_plan", None)]
    assert len(plans) >= 4
    assert all(compile_plan(plan) for plan in plans)


def test_an_unknown_style_is_an_error_that_names_it():
    with pytest.raises(PortError, match="spiral") as caught:
        style_cut("spiral", "layers.*.mlp")
    assert "layers.*.mlp" in str(caught.value)


def test_a_star_is_one_number_and_a_number_is_itself():
    assert re.fullmatch(plan_regex("blocks.*.to_out.0"), "blocks.12.to_out.0")
    assert not re.fullmatch(plan_regex("blocks.*.to_out.0"), "blocks.12.to_out.1")
    assert not re.fullmatch(plan_regex("blocks.*.to_out"), "blocks.a.to_out")


def sharded_dimension(spec):
    return next((dim for dim, axis in enumerate(spec) if axis), None)


@pytest.mark.parametrize(
    "style", ["colwise", "colwise_gather_output", "packed_colwise", "rowwise", "packed_rowwise"]
)
@pytest.mark.parametrize("shape", [(8, 4), (2, 8, 4)])
def test_the_dimension_cut_is_the_one_that_transformers_cuts(style, shape, monkeypatch):
    import torch
    from transformers.distributed import tensor_parallel

    seen = []
    monkeypatch.setattr(
        tensor_parallel,
        "distribute_tensor",
        lambda tensor, mesh, placements, **_: seen.extend(placements) or tensor,
    )
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.zeros(shape))
    ALL_PARALLEL_STYLES[style].shard_param(module, "weight", None)
    assert sharded_dimension(weight_spec(STYLES[style], shape)) == seen[0].dim % len(shape)


@pytest.mark.parametrize(
    ("cut", "shape", "options", "spec"),
    [
        (Cut.COLUMNS, (8,), {}, P("tp")),
        (Cut.ROWS, (8,), {}, P()),
        (Cut.COLUMNS, (8, 4), {"transposed": True}, P(None, "tp")),
        (Cut.ROWS, (8, 4), {"transposed": True}, P("tp", None)),
        (Cut.COLUMNS, (8, 4, 3, 3), {"convolution": True}, P("tp", None, None, None)),
        (Cut.ROWS, (8, 4, 3, 3), {"convolution": True}, P(None, "tp", None, None)),
        (Cut.FIRST, (8, 4), {}, P("tp", None)),
        (Cut.EXPERTS, (8, 4), {}, P("tp", None)),
        (Cut.EXPERTS, (8,), {}, P()),
        (Cut.NOTHING, (8, 4), {}, P()),
        (Cut.COLUMNS, (), {}, P()),
    ],
)
def test_the_layouts_that_styles_alone_do_not_say(cut, shape, options, spec):
    assert weight_spec(cut, shape, **options) == spec
