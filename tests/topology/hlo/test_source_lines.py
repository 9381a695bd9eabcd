"""Which line a program's instruction comes from: tables as the compiler writes them, and a model compiled here."""

import contextlib
import importlib.util

import jax
import pytest

import tpuport
from tpuport.topology import hlo
from tpuport.topology.hlo.source_lines import Frames

LIBRARIES = "/venv/lib/python3.11/site-packages"
OURS = tpuport.__path__[0]
FILES = [
    "/srv/me/train.py",
    f"{LIBRARIES}/torch/nn/modules/module.py",
    f"{LIBRARIES}/transformers/models/llama/modeling_llama.py",
    f"{LIBRARIES}/transformers/integrations/sdpa_attention.py",
    f"{OURS}/attention/dispatch.py",
    f"{LIBRARIES}/torchax/tensor.py",
    f"{OURS}/generation/sampling.py",
    f"{LIBRARIES}/diffusers/models/attention_dispatch.py",
    f"{LIBRARIES}/diffusers/models/transformers/transformer_flux.py",
    contextlib.__file__,
    f"{LIBRARIES}/timm/models/vit.py",
    f"{LIBRARIES}/_pytest/python.py",
    f"{LIBRARIES}/typing_extensions.py",
]


def header(*stack: int) -> str:
    """Tables of a program with one stack of the files of these places, the outermost first."""
    names = "\n".join(f'{place} "{name}"' for place, name in enumerate(FILES, 1))
    places = "\n".join(
        f"{place} {{file_name_id={place} function_name_id=1 line={10 * place} end_line=0 column=0 end_column=0}}"
        for place in range(1, len(FILES) + 1)
    )
    # The compiler numbers parents one higher than they are: the first has itself.
    frames = "\n".join(
        f"{number} {{file_location_id={place + 1} parent_frame_id={number}}}"
        for number, place in enumerate(stack, 1)
    )
    return (
        f'HloModule jit_f\n\nFileNames\n{names}\n\nFunctionNames\n1 "Net.forward"\n\n'
        f"FileLocations\n{places}\n\nStackFrames\n{frames}\n\n\n"
    )


@pytest.mark.parametrize(
    ("stack", "own"),
    [
        ((0, 1, 2, 3, 4, 5), 2),  # user, torch, the model, plumbing of transformers, tpuport, torchax
        ((11, 0, 1, 5), 0),
        ((11, 6), 6),  # nothing of a model's: sampling
        ((0, 8, 7, 4), 8),
        ((0, 2, 10, 1, 9, 5), 10),
        ((11, 1, 5), 1),
    ],
)
def test_the_innermost_line_of_a_model_is_told(stack, own) -> None:
    source = Frames(header(*stack)).source(len(stack))
    assert source is not None
    assert (source.line, source.function) == (10 * (own + 1), "Net.forward")
    assert FILES[own].endswith(source.file)
    assert source.file == FILES[own] or "site-packages" in FILES[own] or "tpuport" in FILES[own]
    assert "site-packages" not in source.file, "the same on every machine"


def test_a_stack_is_told_from_inside() -> None:
    frames = Frames(header(0, 1, 2))
    assert [line for _, line, _ in frames.stack(3)] == [30, 20, 10]
    assert [line for _, line, _ in frames.stack(1)] == [10]
    assert frames.stack(9) == []


def test_parents_numbered_as_frames_are() -> None:
    text = header(0, 1, 2)
    for number in (1, 2, 3):
        text = text.replace(f"parent_frame_id={number}}}", f"parent_frame_id={number - 1}}}")
    assert [line for _, line, _ in Frames(text).stack(3)] == [30, 20, 10]


def test_what_only_traces_is_no_source() -> None:
    assert Frames(header(5)).source(1) is None
    assert Frames("HloModule jit_f\n\n").source(1) is None


def test_what_moves_an_array_has_the_source_of_what_made_it() -> None:
    program = hlo.parse(
        header(0)
        + """%inner (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  ROOT %made = f32[8]{0} negate(%a), metadata={op_name="jit(f)/neg" stack_frame_id=1}
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %fusion = f32[8]{0} fusion(%p), kind=kLoop, calls=%inner
  %reduced = f32[8]{0} all-reduce(%fusion), replica_groups={}, to_apply=%add
  %copied = f32[8]{0} copy(%p)
  ROOT %moved = f32[8]{0} copy(%reduced)
}
"""
    )
    found = {instruction.name: program.source(instruction) for instruction in program.instructions}
    assert found["moved"] == found["reduced"] == found["fusion"] == found["made"]
    assert found["made"] is not None
    assert found["copied"] is None


def test_the_line_of_a_users_own_file(tmp_path, compile_program, array) -> None:
    file = tmp_path / "own_model.py"
    file.write_text("import jax.numpy as jnp\n\n\ndef block(x, w):\n    return jnp.maximum(x @ w, 0)\n")
    spec = importlib.util.spec_from_file_location("own_model", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    program, _ = compile_program(
        lambda x, w: jax.nn.gelu(module.block(x, w)), array(512, 512), array(512, 512)
    )
    products = [instruction for instruction in program.instructions if instruction.operation == "convolution"]
    assert len(products) == 1
    source = program.source(products[0])
    assert source is not None
    assert (source.file, source.line, source.function) == (str(file), 5, "block")
    assert source.code == "return jnp.maximum(x @ w, 0)"
