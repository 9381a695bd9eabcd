"""What the advices look at: a report without advice, the program it is of, and what
that was traced from.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import torch
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh, Sharding

from tpuport.base.mappings import without
from tpuport.compat.jaxprs import Visit, walk_equations
from tpuport.internals.torch_internals import torch_pytree
from tpuport.topology.advice.data_movement import (
    CacheCollectives,
    DataMovement,
    ProductCollective,
)
from tpuport.topology.advice.overwritten_inputs import (
    OverwrittenInput,
    find_overwritten,
)
from tpuport.topology.advice.traced_products import Products, find_products
from tpuport.topology.compile_report import Costs, Report
from tpuport.topology.hlo import Program, parse


@dataclasses.dataclass(frozen=True)
class CacheArray:
    """Keys, values or states that a step is given.

    Attributes:
        shape: of the whole array.
        dtype: its name.
        sharding: None if it is not known.
        donated: whether the step may overwrite it.
    """

    shape: tuple[int, ...]
    dtype: str
    sharding: Sharding | None
    donated: bool


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Everything that is known of one program.

    Attributes:
        report: without advice.
        program: None if it does not fit; see `compiled`.
        weights: parameters and buffers by name, with their shardings.
        mesh: of the described devices.
        model: on the meta device.
        jaxpr: of the whole traced program; None if there is none; see `traced`.
        cache: the arrays of the cache that the step is given.
        inputs: as they were given to `compile_for`; for a task, its fields.
        retrace: traces the call with some other inputs, and raises if that cannot be;
            None if there is no call.
        recompile: the report on the same program with these sharding rules over its
            own, or None if they do not fit.
    """

    report: Report
    program: Program | None
    weights: Mapping[str, jax.ShapeDtypeStruct]
    mesh: Mesh
    model: torch.nn.Module
    jaxpr: ClosedJaxpr | None
    cache: tuple[CacheArray, ...]
    inputs: Mapping[str, Any]
    retrace: Callable[[Mapping[str, Any]], None] | None = None
    recompile: Callable[[Mapping[str, Any]], Report | None] | None = None

    @functools.cached_property
    def compiled(self) -> Program:
        """The compiled program, or an empty one, in which no rule finds anything."""
        return self.program or parse("")

    @functools.cached_property
    def traced(self) -> ClosedJaxpr:
        """The traced program, or an empty one."""
        return self.jaxpr or jax.make_jaxpr(tuple)()

    @property
    def costs(self) -> Costs:
        """What the report counts, or nothing."""
        # A program that was refused has no counts.
        return self.report.costs or Costs(0.0, 0.0, 0.0, 0.0)

    @functools.cached_property
    def equations(self) -> tuple[Visit, ...]:
        """Every equation of the traced program, also nested ones; shapes are of all
        devices together.
        """
        return tuple(walk_equations(self.traced))

    @functools.cached_property
    def products(self) -> Products:
        """Products with weights in the traced program."""
        return find_products(self.traced, self.weights)

    @functools.cached_property
    def overwritten(self) -> tuple[OverwrittenInput, ...]:
        """Arguments of the traced program that come back with a part overwritten, or
        longer, such as caches.
        """
        return find_overwritten(self.traced)

    @functools.cached_property
    def movement(self) -> DataMovement:
        """What the collectives of the compiled program move."""
        return DataMovement(self.compiled, self.weights.keys())

    @functools.cached_property
    def cache_collectives(self) -> CacheCollectives:
        """Collectives of arguments that come back overwritten. A prefill has none, as
        it makes its cache.
        """
        # Whatever such an argument is called, a step that writes a part of it keeps the
        # rest for the next step.
        arguments = {array.argument for array in self.overwritten}
        return self.movement.cache_collectives(arguments)

    @functools.cached_property
    def split_products(self) -> tuple[ProductCollective, ...]:
        """Collectives that take products with fused projections apart."""
        # Devices that only divide rows have whole products.
        if not self.model_axes:
            return ()
        return tuple(self.movement.split_products(self.products.fused.keys()))

    @functools.cached_property
    def axis_sizes(self) -> dict[str, int]:
        """Devices along each axis of the mesh that has more than one."""
        # An axis of one device divides nothing, whatever the shardings say.
        return {
            str(axis): int(size) for axis, size in self.mesh.shape.items() if size > 1
        }

    @functools.cached_property
    def model_axes(self) -> dict[str, int]:
        """The axes that weights are sharded over: all but those of the batch and of the
        sequence.
        """
        return without(self.axis_sizes, ("dp", "sp"))

    @property
    def config(self) -> Any:
        """The model's configuration, of a model of several kinds of input that of its
        text; None if it has none.
        """
        config: Any = getattr(self.model, "config", None)
        if hasattr(config, "get_text_config"):
            return config.get_text_config(decoder=True)
        return config

    def named_inputs(self) -> Iterator[tuple[str, Any]]:
        """(name, value) of everything in the inputs, also in dicts, lists and tuples:
        ("more['x']", 3).
        """
        # Other containers, such as outputs of transformers, may be registered without
        # names for their parts.
        leaves, _ = torch_pytree.tree_flatten_with_path(
            dict(self.inputs),
            is_leaf=lambda value: not isinstance(value, dict | list | tuple),
        )
        for (argument, *path), value in leaves:
            # The first key is of the dict of the inputs.
            yield f"{argument.key}{torch_pytree.keystr(tuple(path))}", value  # type: ignore[attr-defined]
