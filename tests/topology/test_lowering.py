"""Programs before they are compiled: what decides on them, and what of them decides on splits."""

import dataclasses
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import EncodecConfig, PretrainedConfig, PreTrainedModel, ReformerConfig, ReformerModel
from transformers.models.encodec.modeling_encodec import EncodecConv1d

import tpuport
from tpuport.topology import compile_for, compiling, lower_for
from tpuport.topology.lowering import Lowered, LoweringOptions
from tpuport.topology.mesh_splits import Facts, Split, split_reasons, suitable_splits
from tpuport.topology.split_search import facts_of
from tpuport.topology.targets import resolve
from tpuport.topology.targets.target import empty
from tpuport.trace_errors import CannotTrace

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True, scope="module")
def enabled():
    tpuport.enable()
    yield
    tpuport.disable()


class Doubling(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


class Trebling(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x + x


def test_which_line_of_the_package_asked_for_a_program_is_no_part_of_its_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Lowering(Exception):
        """Ends `compile_for` where it would compile."""

    def stop(lowered: Lowered, effort: float | None) -> None:
        raise Lowering(lowered)

    monkeypatch.setattr(compiling, "compile_lowered", stop)
    programs = []
    # On one line of this file, which is a part of the key.
    for function, model in ((lower_for, Doubling), (compile_for, Doubling), (lower_for, Trebling)):
        try:
            programs.append(function(model, {"x": torch.empty(1, 8, device="meta")}, topology="v6e", tp=4))
        except Lowering as stopped:
            programs.append(stopped.args[0])
    direct, through_another, other = programs
    assert direct.stage.as_text(debug_info=True) != through_another.stage.as_text(debug_info=True)
    assert direct.key == through_another.key
    assert direct.key != other.key
    assert direct.key != dataclasses.replace(direct, lower_unrolled=lambda: other).key
    # Options of the compiler are read from the environment.
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_scoped_vmem_limit_kib=16384")
    assert direct.key != dataclasses.replace(direct).key


class Cut(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self) -> None:
        super().__init__(PretrainedConfig())

    def forward(self, x: torch.Tensor, sizes: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return torch.stack([part.sum(0) for part in x.split(sizes.tolist())]) + step


def test_values_that_decide_shapes_are_a_part_of_the_program() -> None:
    inputs = {
        "x": torch.empty(6, 4, device="meta"),
        "sizes": torch.tensor([2, 1, 3]),
        "step": torch.tensor([1]),
    }
    lowered = lower_for(Cut, inputs, topology="v6e", tp=4)
    assert lowered.step.on_host == ("sizes",)
    assert lowered.jaxpr.out_avals[0].shape == (3, 4)
    with pytest.raises(CannotTrace, match="tolist"):
        lower_for(
            Cut, inputs | {"sizes": torch.empty(3, dtype=torch.long, device="meta")}, topology="v6e", tp=4
        )


def padded_convolution() -> torch.nn.Module:
    return EncodecConv1d(EncodecConfig(), 1, 4, kernel_size=8, stride=4)


def reformer() -> torch.nn.Module:
    config = ReformerConfig(
        vocab_size=64, hidden_size=16, axial_pos_shape=(4, 8), axial_pos_embds_dim=(4, 12), num_attention_heads=2,
        attention_head_size=8, feed_forward_size=16, attn_layers=["local"], local_attn_chunk_length=8,
        is_decoder=False,
    )  # fmt: skip
    return ReformerModel(config)


@pytest.mark.parametrize(
    ("build", "inputs"),
    [
        (padded_convolution, {"hidden_states": torch.zeros(2, 1, 37)}),
        (reformer, {"input_ids": torch.zeros(2, 16, dtype=torch.long)}),
    ],
)
def test_values_that_follow_from_sizes_and_buffers_are_known_without_weights(
    build: Callable[[], torch.nn.Module], inputs: dict[str, torch.Tensor]
) -> None:
    with torch.no_grad():
        expected = build().eval()(**inputs)
    without_values = {name: value.to("meta") for name, value in inputs.items()}
    lowered = lower_for(build, without_values, topology="v6e", tp=4)
    assert lowered.step.decided is not None
    shape = (expected if isinstance(expected, torch.Tensor) else expected[0]).shape
    assert lowered.jaxpr.out_avals[0].shape == shape
    # Of another size, other values follow.
    compiling._retrace(lowered, {name: value[..., :9] for name, value in without_values.items()})


@pytest.mark.parametrize("persistent", [False, True])
def test_values_of_what_a_checkpoint_holds_are_not_known_without_it(persistent: bool) -> None:
    class Repeated(torch.nn.Module):
        times: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("times", torch.tensor(3), persistent=persistent)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.repeat(int(self.times.item()), 1)

    inputs = {"x": torch.empty(2, 4, device="meta")}
    if persistent:
        with pytest.raises(CannotTrace, match="item"):
            lower_for(Repeated, inputs, topology="v6e", tp=4)
    else:
        assert lower_for(Repeated, inputs, topology="v6e", tp=4).jaxpr.out_avals[0].shape == (6, 4)


def test_the_text_of_a_line_that_reports_quote_is_part_of_the_key(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    text = "import torch\n\nclass Mine(torch.nn.Module):\n    def forward(self, x):\n        return x + x  # once\n"
    names: dict[str, Any] = {}
    exec(compile(text, str(file), "exec"), names)

    keys = []
    for written in (text, text, text.replace("once", "again")):
        file.write_text(written)
        keys.append(lower_for(names["Mine"], {"x": torch.empty(1, 8)}, topology="v6e:1x1").key)
    assert keys[0] == keys[1] != keys[2]


def test_the_options_that_compiling_passes_on_are_those_of_lowering() -> None:
    options = set(inspect.signature(lower_for).parameters) - {"model", "inputs"}
    assert set(LoweringOptions.__annotations__) == options
    with pytest.raises(TypeError, match="no_such"):
        compile_for(Doubling, {}, no_such=1)


VIDEO = {
    "_class_name": "WanTransformer3DModel", "num_attention_heads": 8, "attention_head_dim": 16, "in_channels": 4,
    "out_channels": 4, "text_dim": 8, "freq_dim": 16, "ffn_dim": 32, "num_layers": 2, "patch_size": [1, 2, 2],
}  # fmt: skip
PICTURE = {
    "_class_name": "FluxTransformer2DModel", "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
    "num_attention_heads": 8, "joint_attention_dim": 8, "pooled_projection_dim": 8, "axes_dims_rope": [4, 6, 6],
    "in_channels": 4,
}  # fmt: skip
UNET = {
    "_class_name": "UNet2DConditionModel", "block_out_channels": [32, 64], "layers_per_block": 1,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"], "norm_num_groups": 8,
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"], "cross_attention_dim": 8, "attention_head_dim": 8,
}  # fmt: skip


def facts(directory: Path, raw: dict[str, Any], given: dict[str, Any] | None = None, **options: Any) -> Facts:
    """Of the model on four chips; `given` are inputs in place of those that are made for it."""
    (directory / "config.json").write_text(json.dumps(raw))
    [target] = resolve(str(directory), **options)
    assert isinstance(target.inputs, dict)
    inputs = target.inputs | (given or {})
    return facts_of(lower_for(target.build, inputs, topology="v6e", tp=4, dtype=target.dtype))


@pytest.mark.slow  # the pictures below
def test_of_a_video_its_patches_are_shared_out(tmp_path: Path) -> None:
    found = facts(tmp_path, VIDEO, frames=9, image_size=(240, 416))
    assert found == Facts(heads=8, kv_heads=8, batch=1, sequences=(3 * 15 * 26,))


def test_of_a_picture_with_text_beside_it_the_text_is_not_counted(tmp_path: Path) -> None:
    text = {"encoder_hidden_states": empty(1, 77, 8), "txt_ids": empty(77, 3)}
    found = facts(tmp_path, PICTURE, text, image_size=128)
    assert found.sequences == (8 * 8,)
    assert Split(1, 4, 1) in suitable_splits(
        4, found
    )  # 64 patches and 77 tokens are 141, which 4 does not divide


def test_of_a_unet_the_queries_are_shared_out(tmp_path: Path) -> None:
    found = facts(tmp_path, UNET, image_size=128)
    assert found.sequences == (8 * 8, 16 * 16)
    unet = Facts(heads=10, sequences=(1024, 4096))  # as SDXL's
    assert suitable_splits(4, unet) == (Split(1, 1, 4), Split(1, 4, 1), Split(1, 2, 2))
    assert split_reasons(4, unet)[Split(1, 1, 4)] == "tp=4 does not divide 10 heads"


class Drawing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.linear(x)[:, None]
        attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return attended[:, 0] + torch.rand_like(x)


def test_keys_of_draws_are_arguments_and_attention_is_counted_once() -> None:
    lowered = lower_for(Drawing, {"x": torch.empty(1, 6, 4, device="meta")}, topology="v6e", tp=1, dp=4)
    assert [aval.shape for aval in lowered.jaxpr.in_avals][-1] == (1, 2)
    [(_, times)] = lowered.attention
    assert times == 1
