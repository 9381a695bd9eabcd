"""HunyuanVideo-1.5's transformer, traced, against diffusers' own forward on the host."""

import pytest
import torch
from diffusers import HunyuanVideo15Transformer3DModel
from hypothesis import given, settings
from hypothesis import strategies as st

import tpuport
from tpuport import attention, compat
from tpuport.errors import PortError
from tpuport.patches import hunyuan_video15 as patch
from tpuport.patches import registry

TEXT, GLYPHS, IMAGE = 7, 6, 5


def build(cls=HunyuanVideo15Transformer3DModel, **changes):
    torch.manual_seed(0)
    config = {
        "in_channels": 9, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1,
        "num_refiner_layers": 1, "mlp_ratio": 2.0, "patch_size": 1, "text_embed_dim": 24, "text_embed_2_dim": 12,
        "image_embed_dim": 20, "rope_axes_dim": (4, 6, 6), "target_size": 16, "task_type": "t2v",
    }  # fmt: skip
    return cls(**config | changes).eval()


def prefix(lengths, size):
    return (torch.arange(size) < torch.tensor(lengths)[:, None]).long()


def call(text=(5, 3), glyphs=(2, 0), *, image=False, size=(3, 4, 4), seed=0, dtype=torch.float32):
    """The model's arguments for a batch of prompts with so many valid tokens each."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    batch = len(text)
    return {
        "hidden_states": noise(batch, 9, *size),
        "timestep": torch.full((batch,), 500.0, dtype=dtype),
        "encoder_hidden_states": noise(batch, TEXT, 24),
        "encoder_attention_mask": prefix(text, TEXT),
        "encoder_hidden_states_2": noise(batch, GLYPHS, 12),
        "encoder_attention_mask_2": prefix(glyphs, GLYPHS),
        "image_embeds": noise(batch, IMAGE, 20) if image else torch.zeros(batch, IMAGE, 20, dtype=dtype),
        "return_dict": False,
    }


def difference(got, expected):
    got = tpuport.to_cpu(got) if compat.is_ported(got) else got
    return ((got.float() - expected.float()).abs().max() / expected.float().abs().max()).item()


@pytest.fixture(scope="module", autouse=True)
def patched():
    tpuport.enable()
    yield
    tpuport.disable()


@pytest.fixture(scope="module")
def host():
    return build()


@pytest.fixture(scope="module")
def program():
    """The model in a compiled function, and every distinct call of attention in its program for a batch of two.

    In a function, so that what is decided about its arguments is decided in the trace.
    """
    attention.explain(clear=True)
    model = tpuport.port(build())

    def run(**arguments):
        return model(**arguments)

    compiled = tpuport.compile(run)
    compiled(**CASES["image, guidance"])
    return compiled, attention.explain(clear=True)


@pytest.fixture
def compiled(program):
    return program[0]


@pytest.fixture
def calls(program):
    return program[1]


def expected(model, arguments):
    with torch.no_grad():
        return model(**arguments)[0]


CASES = {
    "text, guidance": call((5, 3), (2, 0)),
    "image, guidance": call((7, 1), (0, 6), image=True),
}


@pytest.mark.parametrize("name", CASES)
def test_output_is_that_of_torch(host, compiled, name):
    assert difference(compiled(**CASES[name])[0], expected(host, CASES[name])) < 1e-5


def test_one_program_for_a_shape(compiled):
    counted = compiled.program.compilations
    for prompts in (((5, 1), (2, 2)), ((1, 7), (6, 0)), ((7, 7), (0, 0))):
        compiled(**call(*prompts, seed=7))
        compiled(**call(*prompts, image=True, seed=7))
    assert compiled.program.compilations == counted
    program, _ = compiled.program_of(**CASES["text, guidance"])
    assert max((x.nbytes for x in program.captured.program.consts), default=0) < 1 << 20
    assert "f64" not in compiled.lower(**CASES["text, guidance"]).as_text()


def test_every_call_of_attention_is_padding(calls):
    assert {record.mask for record in calls} == {"padding+queries"}
    assert {record.query[2] for record in calls} == {TEXT, 3 * 4 * 4 + TEXT + GLYPHS + IMAGE}


def test_one_prompt_without_empty_streams(host):
    """What a pipeline's call becomes, and a compiled model's: no tokens of images, none of glyphs."""
    model = build()
    compiled = tpuport.compile(tpuport.port(model))
    for length in (5, 2):
        arguments = call((length,), (0,), seed=length)
        args, fewer = registry.prepared(model, (), arguments)
        assert args == ()
        assert fewer["image_embeds"] is None
        assert fewer["encoder_hidden_states_2"] is None
        assert difference(compiled(**fewer)[0], expected(host, arguments)) < 1e-5
        assert difference(compiled(**arguments)[0], expected(host, arguments)) < 1e-5
    assert compiled.program.compilations == 1


class Scaled(HunyuanVideo15Transformer3DModel):
    """A class of a user's own, whose forward takes its arguments in another way."""

    def forward(self, hidden_states, timestep, factor=1.0, **arguments):
        return super().forward(hidden_states * factor, timestep, **arguments)


@pytest.mark.slow  # the output of the model itself above
def test_a_derived_forward_takes_what_it_likes(host):
    arguments = call((5,), (2,))
    hidden, timestep = arguments.pop("hidden_states"), arguments.pop("timestep")
    compiled = tpuport.compile(tpuport.port(build(Scaled)))
    reference = expected(host, {"hidden_states": hidden * 2.0, "timestep": timestep, **arguments})
    assert difference(compiled(hidden, timestep, 2.0, **arguments)[0], reference) < 1e-5


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.data())
def test_any_mask(host, data):
    """Not only padding at the end: whatever a mask leaves out is left out."""
    bits = st.lists(st.booleans(), min_size=TEXT + GLYPHS, max_size=TEXT + GLYPHS)
    rows = torch.tensor([data.draw(bits) for _ in range(2)])
    rows[:, 0] = True  # of a prompt without tokens the model's own mean is 0 / 0
    image = data.draw(st.booleans())
    arguments = call(image=image) | {
        "encoder_attention_mask": rows[:, :TEXT],
        "encoder_attention_mask_2": rows[:, TEXT:].float(),
    }
    with torch.no_grad():
        assert difference(patch.forward(host, **arguments)[0], expected(host, arguments)) < 1e-6


@pytest.mark.parametrize("image", [False, True])
def test_padding_is_not_seen(compiled, image):
    arguments = call(image=image)
    other = dict(arguments)
    for name in ("encoder_hidden_states", "encoder_hidden_states_2"):
        hidden = arguments[name.replace("hidden_states", "attention_mask")].unsqueeze(-1) == 0
        other[name] = torch.where(hidden, 100.0, arguments[name])
        visible = torch.where(hidden, arguments[name], -arguments[name])
        changed = compiled(**arguments | {name: visible})[0]
        assert difference(changed, tpuport.to_cpu(compiled(**arguments)[0])) > 1e-4
    same = [tpuport.to_cpu(compiled(**case)[0]) for case in (arguments, other)]
    assert torch.equal(*same)


@pytest.mark.slow
@pytest.mark.parametrize("image", [False, True])
def test_one_prompt(host, compiled, image):
    arguments = call((5,), (2,), image=image)
    assert difference(compiled(**arguments)[0], expected(host, arguments)) < 1e-5


@pytest.mark.slow
def test_bfloat16():
    model = build().to(torch.bfloat16)
    arguments = call((5, 3), (2, 0), dtype=torch.bfloat16)
    reference = expected(build(), call((5, 3), (2, 0)))
    theirs = difference(expected(model, arguments), reference)
    got = tpuport.compile(tpuport.port(model))(**arguments)[0]
    assert got.dtype == torch.bfloat16
    assert difference(got, reference) < max(1.5 * theirs, 0.02)


def test_latents_with_patches():
    changes = {"patch_size": 2, "patch_size_t": 1, "use_meanflow": True, "in_channels": 4, "out_channels": 3}
    model = build(**changes)
    arguments = call((5,), (2,), size=(2, 4, 6))
    arguments["hidden_states"] = arguments["hidden_states"][:, :4]
    arguments["timestep_r"] = torch.full((1,), 20.0)
    reference = expected(model, arguments)
    with torch.no_grad():
        assert difference(patch.forward(model, **arguments)[0], reference) < 1e-6
        assert patch.forward(model, **arguments | {"return_dict": True}).sample.shape == reference.shape


def test_zero_images_on_the_device_are_seen_once(host):
    arguments = {
        name: compat.wrap(compat.to_jax(value)) if isinstance(value, torch.Tensor) else value
        for name, value in call().items()
    }
    for _ in range(2):
        _, prepared = patch.without_empty_streams(host, (), arguments)
        assert prepared["image_embeds"] is None
    assert compat.as_jax(arguments["image_embeds"]) in patch._is_zero


def test_glyphs_stay_once_they_came():
    model = build(num_layers=1)
    name = "encoder_hidden_states_2"
    is_cached = [
        patch.without_empty_streams(model, (), call((5,), (count,)))[1][name] is not None
        for count in (0, 2, 0)
    ]
    assert is_cached == [False, True, True]


BAD = {
    "no mask": ({"encoder_attention_mask": None}, "without encoder_attention_mask"),
    "no glyph mask": ({"encoder_attention_mask_2": None}, "without encoder_attention_mask_2"),
    "no glyphs": ({"encoder_hidden_states_2": None}, "without encoder_hidden_states_2"),
    "shorter mask": ({"encoder_attention_mask": torch.ones(2, 5)}, r"mask of shape \[2, 5\]"),
    "dense mask": ({"encoder_attention_mask": torch.ones(2, 1, 1, TEXT)}, "mask of shape"),
    "another batch": (
        {"encoder_hidden_states": torch.zeros(1, TEXT, 24)},
        r"embeddings of shape \[1, 7, 24\]",
    ),
    "another width": ({"image_embeds": torch.zeros(2, IMAGE, 24)}, "image_embeds"),
    "flat latents": ({"hidden_states": torch.zeros(2, 9, 4, 4)}, "latents of shape"),
    "noise alone": ({"hidden_states": torch.zeros(2, 4, 1, 4, 4)}, "9 channels"),
    "no frame": ({"hidden_states": torch.zeros(2, 9, 0, 4, 4)}, "frames"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(host, compiled, name):
    changes, words = BAD[name]
    with pytest.raises(PortError, match=words):
        patch.without_empty_streams(host, (), call() | changes)
    counted = compiled.program.compilations
    with pytest.raises(PortError, match=words):
        compiled(**call() | changes)
    compiled.program.compilations = counted


def test_a_size_that_the_patch_does_not_divide():
    model = build(patch_size=2)
    with pytest.raises(
        PortError, match="the latents' height, 5, is not a multiple of the patch, 2"
    ) as caught:
        patch.without_empty_streams(model, (), call(size=(2, 5, 4)))
    assert caught.value.fix is not None
    assert "4 or 6" in caught.value.fix


def test_scale_of_adapters(host):
    """Ignored with a warning where peft is missing, as by the model's own forward."""
    arguments = call() | {"attention_kwargs": {"scale": 1.0}}
    with torch.no_grad():
        assert torch.equal(patch.forward(host, **arguments)[0], patch.forward(host, **call())[0])
    assert arguments["attention_kwargs"] == {"scale": 1.0}
