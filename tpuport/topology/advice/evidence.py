"""What the rules look at: a report without advice, the program it is of, and what that was traced from."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import torch
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh, Sharding

from tpuport.topology.advice.equations import Equation, equations
from tpuport.topology.advice.products import Products, products
from tpuport.topology.advice.returned import Returned, returned
from tpuport.topology.compile_report import Report
from tpuport.topology.hlo import Instruction, Program


@dataclasses.dataclass(frozen=True)
class CacheArray:
    """Keys, values or states that a step is given: the whole array, its place, and whether it may be overwritten."""

    shape: tuple[int, ...]
    dtype: str
    sharding: Sharding | None
    donated: bool


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Everything that is known of one program.

    Attributes:
        report: without advice.
        program: None where it does not fit.
        weights: parameters and buffers by name, with their shardings.
        mesh: of the described devices.
        model: on the meta device.
        jaxpr: of the whole traced program; None where there is none.
        cache: the arrays of the cache that the step is given.
        inputs: as they were given to `compile_for`; for a task, its fields.
    """

    report: Report
    program: Program | None
    weights: Mapping[str, jax.ShapeDtypeStruct]
    mesh: Mesh
    model: torch.nn.Module
    jaxpr: ClosedJaxpr | None
    cache: tuple[CacheArray, ...]
    inputs: Mapping[str, Any]

    @functools.cached_property
    def equations(self) -> tuple[Equation, ...]:
        """Every equation of the traced program, those of nested ones too; the devices have not been thought of yet."""
        return () if self.jaxpr is None else tuple(equations(self.jaxpr.jaxpr))

    @functools.cached_property
    def products(self) -> Products:
        """Products with weights in the traced program."""
        return Products() if self.jaxpr is None else products(self.jaxpr, self.weights)

    @functools.cached_property
    def returned(self) -> tuple[Returned, ...]:
        """Arguments that come back with a part overwritten, or longer, such as caches, by the traced program."""
        return () if self.jaxpr is None else returned(self.jaxpr)

    @functools.cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """Of the compiled program."""
        return () if self.program is None else self.program.instructions

    @functools.cached_property
    def sizes(self) -> dict[str, int]:
        """Devices along each axis of the mesh, of those that have more than one."""
        return {str(axis): int(size) for axis, size in self.mesh.shape.items() if size > 1}

    @functools.cached_property
    def model_axes(self) -> dict[str, int]:
        """The axes that weights are sharded over: all but those of the batch and of the sequence."""
        return {axis: size for axis, size in self.sizes.items() if axis not in ("dp", "sp")}

    @property
    def config(self) -> Any:
        """The model's configuration, the text part of it; None where it has none."""
        config = getattr(self.model, "config", None)
        text = getattr(config, "get_text_config", None)
        return text(decoder=True) if callable(text) else config
