"""A module whose forward is a program: what it takes and gives, when it is not one, what it says."""

import inspect
from typing import Any

import pytest
import torch
from transformers import T5Config, T5EncoderModel

import tpuport
from tpuport import PortError, compat
from tpuport.checkpoint import to_cpu
from tpuport.compilation.model_calls import compile_call, restore_call
from tpuport.diffusion.compiled_components import ComponentCall
from tpuport.diffusion.mixed_devices import allow_mixed, to_host


def ported(module: torch.nn.Module) -> tuple[Any, ComponentCall]:
    with torch.no_grad():
        tpuport.port(module)
    return module, compile_call(module, call_class=ComponentCall)


class Double(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: torch.Tensor, options: Any = None, flag: bool = False) -> Any:
        out = x * self.weight
        for value in (options or {}).values() if isinstance(options, dict) else options or []:
            out = out if value is None else out + value
        return {"out": out + 1 if flag else out, "none": None}


def test_arguments_in_containers_of_host_and_device() -> None:
    module, forward = ported(Double())
    x, y = torch.ones(2), torch.full((2,), 3.0)
    on_device = compat.wrap(compat.to_jax(y))
    for options in ([y, None], {"a": on_device, "b": 1.5}, [], None, [on_device, y]):
        with allow_mixed():
            actual = module(x, options, flag=True)
        expected = Double()(x, tpuport.to_cpu(options), flag=True)
        torch.testing.assert_close(to_host(actual["out"]), expected["out"].detach())
        assert actual["none"] is None
    assert forward.program.compilations == 5


def test_the_signature_is_the_modules() -> None:
    module, forward = ported(Double())
    assert inspect.signature(module.forward) == inspect.signature(Double().forward)
    assert compile_call(module, call_class=ComponentCall) is forward
    restore_call(module)
    assert "forward" not in vars(module)


def test_a_forward_that_its_class_gets_later_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As caches between denoising steps replace that of a transformer's class."""
    module, forward = ported(Double())
    x = torch.ones(2)
    for new in (Double.forward, lambda self, x: {"out": x - self.weight}, Double.forward):
        monkeypatch.setattr(Double, "forward", new)
        with allow_mixed():
            actual = module(x)["out"]
        torch.testing.assert_close(to_host(actual), Double()(x)["out"].detach())
    assert forward.program.compilations == 1


def test_a_text_encoder_gives_its_model_output() -> None:
    torch.manual_seed(0)
    config = T5Config(vocab_size=32, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    encoder = T5EncoderModel(config).eval()
    ids, mask = torch.tensor([[3, 4, 1, 0]]), torch.tensor([[1, 1, 1, 0]])
    with torch.no_grad():
        expected = encoder(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    module, forward = ported(encoder)
    with allow_mixed():
        actual = module(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    assert type(actual) is type(expected)
    assert len(actual.hidden_states) == len(expected.hidden_states)
    torch.testing.assert_close(to_host(actual[0]), expected[0], rtol=1e-4, atol=1e-5)
    assert forward.program.compilations == 1


def test_inside_of_a_compiled_function_it_is_part_of_that() -> None:
    module, forward = ported(Double())
    outer = tpuport.compile(lambda x: module(x)["out"] + 1)
    torch.testing.assert_close(tpuport.to_cpu(outer(torch.ones(2))), torch.full((2,), 3.0))
    assert forward.program.compilations == 0


class Caching(torch.nn.Module):
    """As the causal convolutions of a video autoencoder, which keep frames in a list that they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: torch.Tensor, cache: list) -> torch.Tensor:
        before = cache[0]
        cache[0] = x * self.weight
        return cache[0] if before is None else cache[0] + before


def test_a_list_that_a_forward_writes_into_is_the_callers_own() -> None:
    module, forward = ported(Caching().eval())
    cache: list[Any] = [None]
    own_cache: list[Any] = [None]
    with allow_mixed():
        for n in range(3):
            x = torch.full((2,), float(n))
            actual, expected = module(x, cache), Caching()(x, own_cache)
            torch.testing.assert_close(to_host(actual), expected.detach())
            torch.testing.assert_close(to_host(cache[0]), own_cache[0].detach())
    # Without anything in the list, and with a tensor in it.
    assert forward.program.compilations == 2


class Renewing(torch.nn.Module):
    """Replaces an entry of a dictionary, adds one and removes one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: torch.Tensor, state: dict) -> torch.Tensor:
        state["last"] = state["last"] + x * self.weight
        state["count"] = len(state)
        del state["first"]
        return x * self.weight


def test_what_a_call_leaves_alone_stays_the_tensor_of_the_host() -> None:
    module, _ = ported(Renewing())
    x, kept = torch.ones(2), torch.zeros(3)
    state = {"first": torch.ones(1), "last": torch.ones(2), "kept": kept}
    with allow_mixed():
        module(x, state)
    assert list(state) == ["last", "kept", "count"]
    assert state["kept"] is kept
    assert state["count"] == 3
    torch.testing.assert_close(to_host(state["last"]), torch.full((2,), 3.0))


class Branching(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x > 0).all():
            return x
        return x * self.weight


def test_what_cannot_be_traced_names_its_line() -> None:
    module, _ = ported(Branching())
    line = inspect.getsourcelines(Branching.forward)[1] + 1
    with pytest.raises(
        PortError,
        match=rf"(?s)Branching.forward cannot be traced.*{__file__}, line {line}.*TPU205.*on the host",
    ):
        module(torch.ones(2))


def test_errors_of_the_model_itself_are_its_own() -> None:
    module, _ = ported(Double())
    with pytest.raises(TypeError, match="missing"):
        module()


def test_weights_that_went_back_are_missed() -> None:
    module, forward = ported(Double())
    module(torch.ones(2))
    to_cpu(module)  # of a checkpoint's room, which knows nothing of programs
    with pytest.raises(PortError, match="not on the device"):
        forward(torch.ones(2))


def test_hooks_of_diffusers_inside_are_seen(caplog: pytest.LogCaptureFixture) -> None:
    from diffusers.hooks import HookRegistry, ModelHook

    class Zero(ModelHook):
        def post_forward(self, module: Any, output: Any) -> Any:
            return output * 0

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    module, _ = ported(model)
    with allow_mixed():
        whole = to_host(module(torch.ones(1, 2)))
        HookRegistry.check_if_exists_or_initialize(module[1]).register_hook(Zero(), "zero")
        with caplog.at_level("INFO", "tpuport"):
            assert not to_host(module(torch.ones(1, 2))).any()
        module[1]._diffusers_hook.remove_hook("zero")
        torch.testing.assert_close(to_host(module(torch.ones(1, 2))), whole)
    assert any("hooks" in record.getMessage() for record in caplog.records)


def test_a_cache_by_addresses_is_refused() -> None:
    from diffusers.hooks import HookRegistry, ModelHook
    from diffusers.hooks.text_kv_cache import _TEXT_KV_CACHE_BLOCK_HOOK

    module, _ = ported(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)))
    registry = HookRegistry.check_if_exists_or_initialize(module[0])
    registry.register_hook(ModelHook(), _TEXT_KV_CACHE_BLOCK_HOOK)
    with allow_mixed(), pytest.raises(PortError, match=r"(?s)TextKVCacheConfig.*Linear.*disable_cache"):
        module(torch.ones(1, 2))
    registry.remove_hook(_TEXT_KV_CACHE_BLOCK_HOOK)
    with allow_mixed():
        assert to_host(module(torch.ones(1, 2))).shape == (1, 2)
