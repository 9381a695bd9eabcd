"""Which implementation serves a call, what is refused, and how registrations come and go."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

import tpuport
from tpuport import attention, compat
from tpuport.attention.attend import attend, describe_mask
from tpuport.attention.attention_settings import Settings, current_settings
from tpuport.attention.mask import Mask
from tpuport.attention.reference import attention as reference


@pytest.fixture(autouse=True)
def clean():
    attention.explain(clear=True)
    yield
    attention.unregister()
    attention.explain(clear=True)


def arrays(heads=4, kv_heads=4, queries=40, keys=520, dim=32, width=None, dtype=jnp.float32, batch=2):
    shapes = [
        (batch, heads, queries, dim),
        (batch, kv_heads, keys, dim),
        (batch, kv_heads, keys, width or dim),
    ]
    return [jnp.asarray(np.random.default_rng(n).normal(size=shape), dtype) for n, shape in enumerate(shapes)]


def defined(inputs, mask, **options):
    """The definition. Compiled, as is what is compared with it: one by one, its operations take longer to compile."""
    queries, keys = inputs[0].shape[2], inputs[1].shape[2]
    dense = lambda: None if mask is None else mask.to_dense(queries, keys)  # noqa: E731
    return jax.jit(lambda *inputs: reference(*inputs, dense(), scale=0.2, **options))(*inputs)


def run(inputs, mask=None, sinks=None, **options):
    """(output, the one call that was noted)."""
    attention.explain(clear=True)
    program = jax.jit(
        lambda *inputs: attend(*inputs, mask, scale=0.2, sinks=sinks, source="torch", **options)
    )
    out = program(*inputs)
    (call,) = attention.explain(clear=True)
    want = defined(inputs, mask, sinks_H=sinks, **options)
    tolerance = 1e-5 if inputs[0].dtype == jnp.float32 else 2e-2
    np.testing.assert_allclose(np.float32(out), np.float32(want), atol=tolerance, rtol=tolerance)
    assert out.dtype == inputs[0].dtype
    return out, call


KEYS = jnp.arange(520)[None] < jnp.array([[520], [300]])


@pytest.mark.parametrize(
    ("inputs", "mask", "implementation", "reason"),
    [
        ({}, None, "flash", "stay out of memory"),
        ({"dtype": jnp.bfloat16}, Mask(right=0), "flash", "40 x 520"),
        pytest.param({"kv_heads": 2, "width": 64}, Mask(keys_BT=KEYS), "flash", "", marks=pytest.mark.slow),
        ({"dim": 256}, Mask(left=9, right=0), "flash", ""),
        ({"queries": 17, "keys": 964}, None, "flash", ""),
        ({"queries": 17, "keys": 963}, None, "xla", "17 x 963 scores"),
        ({"queries": 16}, Mask(keys_BT=KEYS), "xla", "16 queries"),
        ({"queries": 1, "keys": 4000}, None, "xla", "1 query, where"),
        pytest.param({"queries": 128, "keys": 128}, None, "xla", "128 x 128 scores", marks=pytest.mark.slow),
        ({"dim": 31}, None, "xla", "head dimension 31"),
        pytest.param({"dim": 257}, None, "xla", "head dimension 257", marks=pytest.mark.slow),
        ({"width": 8}, None, "xla", "head dimension 8"),
        ({"dtype": jnp.float16}, None, "xla", "not float16"),
        pytest.param({"batch": 0}, None, "xla", "dimension is 0", marks=pytest.mark.slow),
        pytest.param({"queries": 0}, None, "xla", "dimension is 0", marks=pytest.mark.slow),
        ({"keys": 0}, None, "xla", "dimension is 0"),
        ({}, Mask(dense=jnp.ones((1, 1, 40, 520), jnp.bool_)), "xla", "[1, 1, 40, 520] bool"),
    ],
)  # fmt: skip
def test_each_call_says_why_it_went_where(inputs, mask, implementation, reason):
    _, call = run(arrays(**inputs), mask)
    assert call.implementation == implementation
    assert reason in call.reason


def test_soft_cap_and_sinks_reach_both():
    sinks = jnp.array([-1.0, 0.0, 1.0, 30.0])
    for queries, implementation in ((40, "flash"), (4, "xla")):
        _, call = run(arrays(queries=queries), Mask(right=0, offset=300), softcap=2.0, sinks=sinks)
        assert call.implementation == implementation


@pytest.mark.parametrize("options", [{"softcap": None}, {"softcap": 3.0}])
def test_it_has_no_choice_between_implementations_when_told(options):
    with attention.register(implementation="xla"):
        assert run(arrays(), **options)[1].reason == 'asked for: implementation="xla"'
    with attention.register(implementation="flash"):
        assert run(arrays(queries=1), **options)[1].implementation == "flash"
        for impossible in ({"dim": 8}, {"dtype": jnp.float16}):
            with pytest.raises(tpuport.PortError, match="kernel cannot serve"):
                attend(*arrays(**impossible), None, scale=1.0, source="torch")
        with pytest.raises(tpuport.PortError, match=r"without known structure.*\[1, 4, 40, 520\] float32"):
            attend(*arrays(), Mask(dense=jnp.zeros((1, 4, 40, 520))), scale=1.0, source="torch")


@pytest.mark.parametrize("padding", ["exact", "segment_ids", "zero"])
def test_the_kernel_itself_with_each_kind_of_padding(padding):
    inputs = arrays(queries=130, keys=300, heads=2, kv_heads=1)
    mask = Mask(keys_BT=KEYS[:, :300] & (jnp.arange(300) < 250))
    with attention.register(padding=padding, interpret=True):
        if padding == "zero":
            out = attend(*inputs, mask, scale=0.2, source="torch")
            assert not np.allclose(out, defined(inputs, mask), atol=1e-3)
            return
        _, call = run(inputs, mask)
    assert (call.padding, call.mask) == (padding, "padding")


def test_padding_is_exact_wherever_the_kernel_does_not_run():
    with attention.register(padding="zero"):
        _, call = run(arrays(queries=1), Mask(keys_BT=KEYS))
    assert (call.implementation, call.padding) == ("xla", "exact")


@pytest.mark.parametrize("sequence", ["gather", "ring", "ulysses"])
def test_a_mesh_shares_the_work(sequence):
    mesh = tpuport.create_mesh(dp=2, sp=2, tp=2)
    with attention.register(mesh, sequence=sequence):
        _, call = run(arrays(), Mask(right=0, offset=400))
        _, small = run(arrays(queries=1))
    assert "dp=2" in call.mesh
    assert "tp=2" in call.mesh
    assert small.mesh == "8 devices, as the compiler places it"


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (Mask(), "none"),
        (Mask(right=0), "causal"),
        (Mask(right=0, offset=3), "causal, offset 3"),
        (Mask(right=0, offset=jnp.int32(3)), "causal, traced offset"),
        (Mask(left=4095, right=0), "window 4096"),
        (Mask(left=2, right=2), "band 2 before, 2 after"),
        (Mask(left=2), "band 2 before, all after"),
        (Mask(keys_BT=KEYS), "padding"),
        (Mask(right=0, keys_BT=KEYS, queries_BQ=KEYS), "causal, padding+queries"),
        (Mask(query_segments_BQ=KEYS * 1, key_segments_BT=KEYS * 1), "segments"),
        (Mask(bias_BT=KEYS * 1.0), "bias of keys"),
        (Mask(dense=jnp.ones((1, 2, 3, 4))), "dense [1, 2, 3, 4] float32"),
    ],
)
def test_masks_in_words(mask, text):
    assert describe_mask(mask) == text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": (2, 3, 520, 32), "value": (2, 3, 520, 32)}, "4 query heads cannot share 3"),
        ({"value": (2, 4, 519, 32)}, "do not fit"),
        ({"key": (2, 4, 520, 16)}, "do not fit"),
        ({"query": (1, 4, 40, 32)}, "do not fit"),
        ({"dtype": jnp.bfloat16}, "float32, bfloat16"),
        ({"mask": Mask(keys_BT=KEYS[:, :100])}, r"a mask of shape \(2, 100\)"),
        ({"mask": Mask(dense=jnp.ones((2, 3, 40, 520)))}, r"a mask of shape \(2, 3, 40, 520\)"),
        ({"sinks": jnp.ones(3)}, "sinks for 4 heads"),
    ],
    ids=str,
)
def test_refused(change, message):
    q, k, v = (
        jnp.zeros(change.get(n, (2, 4, 40 if n == "query" else 520, 32))) for n in ("query", "key", "value")
    )
    k = k.astype(change.get("dtype", jnp.float32))
    with pytest.raises(tpuport.PortError, match=message):
        attend(q, k, v, change.get("mask"), scale=1.0, sinks=change.get("sinks"), source="torch")


@pytest.mark.parametrize("option", ["sequence", "padding", "implementation"])
def test_unknown_options(option):
    with pytest.raises(tpuport.PortError, match=f"{option} cannot be 'other'"):
        attention.register(**{option: "other"})
    assert current_settings() is None


def operators():
    return [compat.environment()._ops.get(target) for target in _TARGETS]


_TARGETS = (
    functional.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention,
    functional.multi_head_attention_forward,
)


def test_registrations_nest_and_are_undone_by_exceptions():
    before = operators()
    with attention.register(padding="zero"):
        assert operators() != before
        with pytest.raises(KeyError), attention.register(padding="segment_ids", implementation="xla"):  # noqa: PT012
            assert current_settings() == Settings(padding="segment_ids", implementation="xla")
            raise KeyError
        assert current_settings() == Settings(padding="zero")
        assert operators() != before
    assert current_settings() is None
    assert operators() == before


def test_registrations_may_end_in_any_order_and_twice():
    before = operators()
    first, second = attention.register(padding="zero"), attention.register(padding="segment_ids")
    first.undo()
    first.undo()
    assert current_settings() == Settings(padding="segment_ids")
    second.undo()
    assert current_settings() is None
    assert operators() == before


def test_unregister_takes_back_everything():
    before = operators()
    with attention.register():
        attention.register(padding="zero")
        attention.unregister()
        assert current_settings() is None
    attention.unregister()
    assert operators() == before


def test_after_disable_nothing_is_left_and_register_works_again():
    before = operators()
    with attention.register():
        tpuport.disable()
        assert operators()[:2] == before[:2]
    assert operators() == before
    with attention.register():
        assert operators() != before
    assert operators() == before


@pytest.mark.slow
def test_registrations_of_many_threads_leave_nothing():
    before, failures = operators(), []

    def work(padding):
        try:
            for _ in range(50):
                with attention.register(padding=padding):
                    assert current_settings() is not None
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(p,)) for p in ("exact", "zero", "segment_ids", "exact")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert current_settings() is None
    assert operators() == before


def test_names_of_libraries_come_and_go():
    interface = AttentionInterface()
    interface._global_mapping.pop("tpuport", None)
    with attention.register():
        assert "tpuport" in interface
    assert "tpuport" not in interface
    attention.register_transformers()
    with attention.register():
        assert "tpuport" in interface
    assert "tpuport" in interface
    interface._global_mapping.pop("tpuport", None)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(64, 192)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_a_compiled_model_uses_it_by_itself_on_its_own_mesh():
    torch.manual_seed(0)
    model, x = Block(), torch.randn(2, 200, 64)
    with torch.no_grad():
        want = model(x)
    before = operators()
    tpuport.port(model, mesh=tpuport.create_mesh(dp=2, tp=2, sp=2), allow=("qkv.weight", "qkv.bias"))
    compiled = tpuport.compile(model)
    torch.testing.assert_close(tpuport.to_cpu(compiled(x)), want, atol=2e-5, rtol=2e-5)
    (call,) = attention.explain(clear=True)
    assert (call.implementation, call.mask, call.module) == ("flash", "causal", "Block")
    assert "tp=2" in call.mesh
    assert operators() == before
    compiled(x)
    assert not attention.explain()


def test_what_the_user_registers_comes_first_and_makes_new_programs():
    torch.manual_seed(0)
    model, x = tpuport.port(Block(), mesh=None), torch.randn(2, 200, 64)
    compiled = tpuport.compile(model)
    first = tpuport.to_cpu(compiled(x))
    with attention.register(implementation="xla"):
        torch.testing.assert_close(tpuport.to_cpu(compiled(x)), first, atol=2e-5, rtol=2e-5)
    compiled(x)
    assert [call.implementation for call in attention.explain()] == ["flash", "xla"]
    assert compiled.program.compilations == 2


def test_a_registration_without_a_mesh_takes_the_models():
    mesh = tpuport.create_mesh(tp=-1)
    with attention.register(padding="zero"), attention.use_on_meshes([mesh]):
        assert current_settings() == Settings(mesh=mesh, padding="zero")
    other = tpuport.create_mesh(dp=-1)
    with attention.register(other), attention.use_on_meshes([mesh]):
        assert current_settings() == Settings(mesh=other)
    with attention.use_on_meshes([mesh, other]):
        assert current_settings() == Settings()


def test_llama_arrives_with_its_structure():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    tokens = torch.randint(0, 64, (2, 150))
    padding = (torch.arange(150) >= torch.tensor([[0], [30]])).long()
    with torch.no_grad():
        want = model(tokens, attention_mask=padding).logits
    tpuport.port(model)
    got = tpuport.to_cpu(tpuport.compile(model)(tokens, attention_mask=padding).logits)
    torch.testing.assert_close(got[padding.bool()], want[padding.bool()], atol=1e-4, rtol=1e-4)
    report = attention.explain()
    assert len(report) == 1
    assert report.counts == (2,)
    assert (report[0].implementation, report[0].mask) == ("flash", "causal, padding")
    assert report[0].site.startswith("transformers/models/llama/modeling_llama.py:")
    assert report[0].module == "LlamaAttention"


def test_the_kernel_is_not_called_splash_any_more() -> None:
    with pytest.raises(tpuport.PortError, match='"flash" now'):
        attention.register(implementation="splash")
