"""A captured program, compiled: what it is called, and what makes it give way to another one."""

import copy

import jax
import pytest
import torch

import tpuport


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def test_profilers_see_the_name_of_the_model() -> None:
    model = tpuport.port(Encoder())
    x = torch.ones(2, 3)
    assert "module @jit_Encoder" in tpuport.compile(model).lower(x).as_text()
    assert "module @jit_my_step" in tpuport.compile(model, name="my step").lower(x).as_text()


def test_weights_of_another_dtype_get_a_program_and_keep_the_first() -> None:
    model = tpuport.port(Encoder())
    compiled = tpuport.compile(lambda x: model.linear.weight.sum() + x)
    x = torch.ones(2)
    narrow = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    wide = dict(model.state_dict())
    for _ in range(2):
        for weights, dtype in ((wide, torch.float32), (narrow, torch.bfloat16)):
            model.linear.weight = torch.nn.Parameter(weights["linear.weight"])
            assert model.linear.weight.dtype is dtype
            expected = model.linear.weight.cpu().sum() + x
            assert torch.allclose(compiled(x).cpu(), expected, atol=1e-2)
    assert compiled.program.compilations == 2


def test_a_cleared_cache_of_jax_compiles_again() -> None:
    model = tpuport.port(Encoder())
    x = torch.ones(2, 3).to("jax")
    before = [model(x) for _ in range(2)][1]
    jax.clear_caches()
    after = [model(x) for _ in range(2)][1]
    assert torch.equal(before.cpu(), after.cpu())


class Keeps(torch.nn.Module):
    """Leaves a tensor in its state, for which the program of the first call serves the second."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.linear(x)
        return self.last * 2


def test_a_program_that_serves_another_state_may_be_forgotten() -> None:
    torch.manual_seed(0)
    host = Keeps()
    model = tpuport.port(copy.deepcopy(host))
    x = torch.ones(2, 3)
    for repeat in range(6):
        assert torch.allclose(model(x.to("jax")).cpu(), host(x), atol=1e-6)
        if repeat % 2:
            jax.clear_caches()


def test_debug_nans_names_the_line() -> None:
    compiled = tpuport.compile(lambda x: torch.sqrt(x))
    for _ in range(2):
        with jax.debug_nans(True), pytest.raises(tpuport.PortError, match="invalid value"):
            compiled(torch.tensor([-1.0]))
        compiled(torch.ones(1))


def test_programs_of_one_key_do_not_pile_up() -> None:
    compiled = tpuport.compile(lambda x: x + 1)
    for _ in range(8):
        compiled(torch.ones(2))
        jax.clear_caches()
    [programs] = compiled.program._programs.values()
    assert len(programs) <= 4
