"""tpuport as an attention backend of diffusers, against diffusers' own native backend on the host."""

import copy
import os
import subprocess
import sys
from typing import Any

import diffusers
import jax
import numpy as np
import pytest
import torch
from diffusers.models import attention_dispatch as dispatch

import tpuport
from tpuport import attention, compat
from tpuport.attention.register.diffusers_backend import (
    NAME,
    diffusers_attention,
    register_diffusers,
    unregister_diffusers,
)
from tpuport.errors import PortError
from tpuport.internals.diffusers_internals import ATTENTION_BACKENDS


def ported(value: Any) -> Any:
    return compat.wrap(compat.to_jax(value)) if isinstance(value, torch.Tensor) else value


def values(tensor: torch.Tensor) -> torch.Tensor:
    return compat.to_torch(compat.as_jax(tensor))


@pytest.fixture
def registered() -> Any:
    register_diffusers()
    yield
    unregister_diffusers()


def operands(seed: int = 0, heads: int = 2, queries: int = 5, keys: int = 5) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    shapes = ((2, queries, 4, 8), (2, keys, heads, 8), (2, keys, heads, 6))
    return [torch.randn(shape, generator=random) for shape in shapes]


def mask(*shape: int, added: bool = False) -> torch.Tensor:
    random = torch.Generator().manual_seed(3)
    if added:
        return torch.randn(shape, generator=random)
    made = torch.rand(shape, generator=random) < 0.6
    made[..., 0] = True  # torch has no defined output for a query that sees nothing
    return made


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ({}, "none"), ({"is_causal": True}, "causal"), ({"scale": 0.9}, "none"), ({"keys": 9}, "none"),
        ({"is_causal": True, "keys": 9}, "causal"), ({"heads": 2, "enable_gqa": True}, "none"),
        ({"attn_mask": mask(2, 5)}, "padding"), ({"attn_mask": mask(2, 1, 1, 5)}, "padding"),
        ({"attn_mask": mask(2, 1, 1, 5, added=True)}, "bias of keys"), ({"attn_mask": mask(5, 5)}, "dense"),
        ({"attn_mask": mask(2, 1, 5, 5)}, "dense"), ({"attn_mask": mask(4, 5, 5)}, "dense"),
        ({"attn_mask": mask(2, 4, 5, 5, added=True)}, "dense"), ({"attn_mask": mask(1, 9), "keys": 9}, "padding"),
        # [B, T] where it could be [Q, T] as well
        ({"attn_mask": mask(2, 5), "queries": 2}, "padding"),
    ],
)  # fmt: skip
def test_every_call_is_that_of_the_native_backend(registered: None, case: dict[str, Any], kind: str) -> None:
    case = dict(case)
    sizes = {name: case.pop(name) for name in ("heads", "queries", "keys") if name in case}
    tensors = operands(**({"heads": 4} | sizes))
    expected = dispatch.dispatch_attention_fn(*tensors, **case)
    attention.explain(clear=True)

    def run(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None) -> jax.Array:
        given = case if mask is None else case | {"attn_mask": compat.wrap(mask)}
        with compat.environment():
            out = dispatch.dispatch_attention_fn(
                *map(compat.wrap, (query, key, value)), **given, backend=NAME
            )
            return compat.as_jax(out)

    given_mask = case.pop("attn_mask", None)
    arrays = map(compat.to_jax, tensors)
    got = jax.jit(run)(*arrays, None if given_mask is None else compat.to_jax(given_mask))
    torch.testing.assert_close(compat.to_torch(got), expected, atol=2e-6, rtol=2e-6)
    (call,) = attention.explain(clear=True)
    assert call.source == "diffusers"
    assert kind in call.mask


def test_a_call_outside_of_programs(registered: None) -> None:
    tensors, hidden = operands(heads=4), mask(2, 5)
    expected = dispatch.dispatch_attention_fn(*tensors, attn_mask=hidden)
    with compat.environment():
        got = dispatch.dispatch_attention_fn(*map(ported, tensors), attn_mask=ported(hidden), backend=NAME)
    torch.testing.assert_close(values(got), expected, atol=2e-6, rtol=2e-6)


def test_tensors_of_the_host_stay_with_torch(registered: None) -> None:
    tensors = operands(heads=4)
    expected = dispatch.dispatch_attention_fn(*tensors)
    assert torch.equal(dispatch.dispatch_attention_fn(*tensors, backend=NAME), expected)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ({"dropout_p": -0.5}, "dropout"),
        ({"attn_mask": mask(5, 5), "is_causal": True}, "not both"),
        ({"attention_kwargs": {"return_lse": True}}, "log-sum-exp"),
        ({"attention_kwargs": {"window_size": 3}}, "window_size"),
        ({"parallel_config": object()}, "context parallelism"),
        ({"attn_mask": mask(5, 4)}, "broadcast"),
    ],
)
def test_what_would_be_ignored_is_refused(registered: None, case: dict[str, Any], message: str) -> None:
    given = {name: ported(value) for name, value in case.items()}
    with compat.environment(), pytest.raises(PortError, match=message):
        dispatch.dispatch_attention_fn(*map(ported, operands(heads=4)), **given, backend=NAME)


def test_tensors_of_which_some_are_on_the_host_are_refused() -> None:
    q, k, v = operands(heads=4)
    with compat.environment(), pytest.raises(PortError, match="not on the device"):
        diffusers_attention(ported(q), k, v)


def state() -> Any:
    """Everything that diffusers knows of backends."""
    names, registry = dispatch.AttentionBackendName, dispatch._AttentionBackendRegistry
    kept = lambda value: copy.copy(value) if isinstance(value, dict | list | set) else value  # noqa: E731
    owners = (names, registry, dispatch)
    tables = [{name: kept(value) for name, value in vars(owner).items()} for owner in owners]
    return list(names), dict(names.__members__), tables


def test_registration_leaves_no_trace() -> None:
    unregister_diffusers()
    before = state()
    order = list(vars(dispatch.AttentionBackendName))
    register_diffusers()
    register_diffusers()
    member = dispatch.AttentionBackendName(NAME)
    assert member in list(dispatch.AttentionBackendName)
    assert (member.name, member.value, member == NAME, copy.deepcopy(member) is member) == (
        "TPUPORT",
        NAME,
        True,
        True,
    )
    assert dispatch.AttentionBackendName["TPUPORT"] is member
    assert dispatch._AttentionBackendRegistry.list_backends().count(member) == 1
    unregister_diffusers()
    unregister_diffusers()
    assert state() == before
    assert list(vars(dispatch.AttentionBackendName)) == order
    with pytest.raises(ValueError, match="tpuport"):
        dispatch.AttentionBackendName(NAME)


def test_the_context_manager_chooses_it(registered: None) -> None:
    with dispatch.attention_backend(NAME):
        assert dispatch._AttentionBackendRegistry.get_active_backend()[1] is diffusers_attention
    assert dispatch._AttentionBackendRegistry.get_active_backend()[0] == "native"


def test_no_object_is_searched_unless_a_model_chose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    register_diffusers()
    monkeypatch.setattr("gc.get_referrers", lambda *_: pytest.fail("every object was looked at"))
    unregister_diffusers()


def test_models_that_chose_it_choose_none_afterwards() -> None:
    register_diffusers()
    model = flux()
    model.set_attention_backend(NAME)
    processors = [module.processor for module in model.modules() if hasattr(module, "processor")]
    assert {processor._attention_backend for processor in processors} == {NAME}
    unregister_diffusers()
    assert {processor._attention_backend for processor in processors} == {None}
    assert dispatch._AttentionBackendRegistry.get_active_backend()[0] == "native"


@pytest.mark.parametrize(
    "name", ["AttentionBackendName", "_AttentionBackendRegistry", "dispatch_attention_fn"]
)
def test_another_kind_of_table_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    unregister_diffusers()
    monkeypatch.setattr(dispatch, name, lambda query: None)
    monkeypatch.setattr(ATTENTION_BACKENDS, "reason", None)
    with pytest.raises(PortError, match="attention backend of diffusers does not work"):
        register_diffusers()


@pytest.mark.slow
def test_the_environment_chooses_it() -> None:
    program = (
        "from tpuport.attention.register.diffusers_backend import register_diffusers; register_diffusers();"
        "from diffusers.models import attention_dispatch as d; print(d._AttentionBackendRegistry._active_backend.value)"
    )
    environment = os.environ | {"DIFFUSERS_ATTN_BACKEND": NAME}
    command = [sys.executable, "-W", "ignore", "-c", program]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    assert found.stdout.split()[-1] == NAME


def flux() -> torch.nn.Module:
    torch.manual_seed(0)
    return diffusers.FluxTransformer2DModel(
        in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
    ).eval()  # fmt: skip


def wan() -> torch.nn.Module:
    torch.manual_seed(0)
    return diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=16,
        freq_dim=32, ffn_dim=32, num_layers=2, cross_attn_norm=True, rope_max_seq_len=32,
    ).eval()  # fmt: skip


def hunyuan() -> torch.nn.Module:
    torch.manual_seed(0)
    return diffusers.HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=10, num_layers=1, num_single_layers=1,
        num_refiner_layers=1, patch_size=1, patch_size_t=1, guidance_embeds=True, text_embed_dim=16,
        pooled_projection_dim=8, rope_axes_dim=(2, 4, 4),
    ).eval()  # fmt: skip


def inputs(name: str) -> dict[str, Any]:
    random = torch.Generator().manual_seed(5)
    draw = lambda *shape: torch.randn(shape, generator=random)  # noqa: E731
    timestep = torch.tensor([500.0, 300.0])
    text_mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    if name == "flux":
        return {
            "hidden_states": draw(2, 16, 4), "encoder_hidden_states": draw(2, 7, 32), "pooled_projections": draw(2, 32),
            "timestep": timestep / 1000, "img_ids": draw(16, 3).round(), "txt_ids": torch.zeros(7, 3),
        }  # fmt: skip
    if name == "wan":
        return {
            "hidden_states": draw(2, 4, 2, 8, 8),
            "encoder_hidden_states": draw(2, 7, 16),
            "timestep": timestep,
        }
    return {
        "hidden_states": draw(2, 4, 2, 4, 4), "encoder_hidden_states": draw(2, 7, 16), "timestep": timestep,
        "encoder_attention_mask": text_mask, "pooled_projections": draw(2, 8), "guidance": torch.tensor([4.0, 4.0]),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype", "ignore:float64 becomes float32")
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        pytest.param("flux", {"none"}, marks=pytest.mark.slow),
        pytest.param("wan", {"none"}, marks=pytest.mark.slow),
        ("hunyuan", {"padding"}),
    ],
)
def test_models_agree_with_torch(registered: None, name: str, kinds: set[str]) -> None:
    model = {"flux": flux, "wan": wan, "hunyuan": hunyuan}[name]()
    arguments = inputs(name)
    with torch.no_grad():
        expected = model(**arguments, return_dict=False)[0]
    model.set_attention_backend(NAME)
    compiled = tpuport.compile(tpuport.port(model))
    attention.explain(clear=True)
    got = compiled(**arguments, return_dict=False)[0]
    np.testing.assert_allclose(values(got), expected, atol=2e-5)
    calls = attention.explain(clear=True)
    # HunyuanVideo refines its text with an older class, which calls torch's attention.
    assert {call.mask for call in calls if call.source == "diffusers"} == kinds
