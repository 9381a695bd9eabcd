"""Names of modules in traced operations."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

from tpuport.compat import jaxprs
from tpuport.compilation.layers import block_calls
from tpuport.topology.module_scopes import module_path, module_scopes, star_numbers


class Sine(torch.nn.Module):
    fails = False

    def forward(self, x: jax.Array) -> jax.Array:
        if self.fails:
            raise ValueError("no")
        return jnp.sin(x)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Sine()

    def forward(self, x: jax.Array) -> jax.Array:
        return jnp.cos(self.inner(x))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.norm = Sine()

    def forward(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        return jnp.tan(self.norm(x))


def paths(function: Any) -> Iterator[tuple[str, str]]:
    """Primitive and module of each equation."""
    # jax keeps what it has traced by function.
    for visit in jaxprs.walk_equations(jax.make_jaxpr(lambda x: function(x))(1.0)):
        yield visit.equation.primitive.name, module_path(str(visit.equation.source_info.name_stack))


EXPECTED = [
    ("sin", "layers.0.inner"),
    ("cos", "layers.0"),
    ("sin", "layers.1.inner"),
    ("cos", "layers.1"),
    ("sin", "norm"),
    ("tan", ""),
]


def test_operations_have_the_path_of_their_module() -> None:
    model = Model()
    with module_scopes(model):
        assert list(paths(model)) == EXPECTED
    assert {path for _, path in paths(model)} == {""}


@pytest.mark.parametrize("marks_first", [True, False])
def test_marks_of_blocks_do_not_leave_a_scope_open(marks_first: bool) -> None:
    """As where blocks are found that can run in a loop: their marks are scopes too."""
    model = Model()

    def marked() -> Any:
        return block_calls._mark_block(model.layers[0], record, 0)

    with block_calls.record_calls() as record:
        scopes = [marked(), module_scopes(model)] if marks_first else [module_scopes(model), marked()]
        with scopes[0], scopes[1]:
            assert list(paths(model)) == EXPECTED


def test_an_exception_leaves_no_scope_open() -> None:
    model = Model()

    def call(x: jax.Array) -> jax.Array:
        model.norm.fails = True
        with pytest.raises(ValueError, match="no"):
            model(x)
        model.norm.fails = False
        return model(x)

    with module_scopes(model):
        assert list(paths(call))[-len(EXPECTED) :] == EXPECTED


@pytest.mark.parametrize(
    ("op_name", "path", "module"),
    [
        ("jit(call)/~model/~layers.3/~mlp/dot_general", "model.layers.3.mlp", "model.layers.*.mlp"),
        ("jit(call)/~model/while/body/~model/~layers.0/add", "model.layers.0", "model.layers.*"),
        (
            "jit(call)/~model/~layers.0/~attn/~model/~layers.0/~attn/~q/dot",
            "model.layers.0.attn.q",
            "model.layers.*.attn.q",
        ),
        ("jit(call)/~model/~layers.0/~model/add", "model.layers.0.model", "model.layers.*.model"),
        ("jit(call)/~layers.10/~0/mul", "layers.10.0", "layers.*.*"),
        ("jit(call)/add", "", ""),
    ],
)
def test_paths_are_in_the_names_of_compiled_operations(op_name: str, path: str, module: str) -> None:
    assert (module_path(op_name), star_numbers(module_path(op_name))) == (path, module)
