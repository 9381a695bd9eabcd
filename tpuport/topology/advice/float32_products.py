"""Where a model of 16 bits computes in float32: products, convolutions and attention,
by the user's lines.

On a TPU such a product reads and writes twice as many bytes, and takes several passes
of a matrix unit that multiplies 16 bits. torch computes there in float32 too: where
torch refuses mixed dtypes, tpuport does as well, while it traces.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from tpuport.base.mappings import group_by
from tpuport.compat.jaxprs import (
    Equation,
    SubJaxpr,
    argument_names,
    open_jaxpr,
    source_frames,
    sub_jaxprs,
)
from tpuport.topology.advice.attention_scores import is_own_attention
from tpuport.topology.compile_report import Source
from tpuport.topology.hlo import innermost_source
from tpuport.topology.kernels import product_flops

_KINDS: Final = {
    "dot_general": "matrix product", "ragged_dot_general": "matrix product", "conv_general_dilated": "convolution",
}  # fmt: skip
_HALF: Final = (jnp.bfloat16, jnp.float16)


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where an array became float32.

    Attributes:
        description: how, as "converted from bfloat16", "16 bits met float32" or "the
            argument table".
        source: the line; None for an argument of the program.
        is_wider: whether 16 bits became 32 there, so that what came before is no
            reason.
        reason: where the float32 came from that 16 bits met.
    """

    description: str
    source: Source | None = None
    is_wider: bool = False
    reason: str = ""

    def __str__(self) -> str:
        text = self.description
        if self.reason:
            text += f" ({self.reason})"
        if self.source is not None:
            text += f" at {self.source.file}:{self.source.line}"
        return text


@dataclasses.dataclass(frozen=True)
class Float32Product:
    """Products in float32 of one line of a model, in all layers that run the line.

    Attributes:
        kind: "matrix product", "convolution" or "attention".
        source: the line of the model's code, or the user's; None if jax does not say
            it.
        origins: of their operands.
        shapes: of the largest product's operands; where attention is divided by hand,
            of one device's part of them.
        times: how often the program runs it.
        flops: of all of them, on all devices together.
        nbytes: of all operands and results, but the scores of attention.
    """

    kind: str
    source: Source | None
    origins: tuple[Origin, ...]
    shapes: tuple[tuple[int, ...], ...]
    times: int
    flops: float
    nbytes: float


def find_float32_products(jaxpr: ClosedJaxpr) -> tuple[Float32Product, ...]:
    """The lines on which a program of 16 bits computes products in float32, the
    costliest first.

    Args:
        jaxpr: of the program, whose arguments are weights and inputs. If none has 16
            bits, float32 is what was asked for, and nothing is found.
    """
    arguments = open_jaxpr(jaxpr).invars
    # Not every value has a dtype: a token of an effect has none.
    dtypes = [getattr(variable.aval, "dtype", None) for variable in arguments]
    if not any(dtype in _HALF for dtype in dtypes):
        return ()
    names = argument_names(jaxpr) or ("",) * len(arguments)
    origins = [
        Origin(f"the argument {name}") if dtype == jnp.float32 else None
        for dtype, name in zip(dtypes, names, strict=True)
    ]
    products = _Walk().run(open_jaxpr(jaxpr), origins, 1)
    groups = group_by(products, lambda product: (product.kind, product.source)).values()
    return tuple(sorted(map(_join, groups), key=lambda product: -product.flops))


def _join(products: Sequence[Float32Product]) -> Float32Product:
    largest = max(products, key=lambda product: product.flops / product.times)
    # The same line in other layers has tables of other names.
    origins = {
        (origin.source, origin.description): origin
        for product in products
        for origin in product.origins
    }
    return dataclasses.replace(
        largest,
        origins=tuple(origins.values()),
        times=sum(product.times for product in products),
        flops=sum(product.flops for product in products),
        nbytes=sum(product.nbytes for product in products),
    )


class _Walk:
    """Follows float32 arrays through a program, from where each became float32 to the
    products with it.
    """

    def __init__(self) -> None:
        # Of variables of all jaxprs. One that several calls share has other arguments
        # each time, so that it is walked again, and its entries are of the latest call.
        self._origins: dict[Any, Origin | None] = {}
        # The line of the innermost call around the present jaxpr that is a model's or a
        # user's.
        self._site: Source | None = None

    def run(
        self,
        jaxpr: Jaxpr,
        origins: Iterable[Origin | None],
        times: int,
        devices: int = 1,
    ) -> list[Float32Product]:
        """Products in float32 of a jaxpr, whose arguments have these origins; each of
        `devices` runs it by itself.
        """
        self._origins |= zip(jaxpr.invars, origins, strict=True)
        products = []
        for equation in jaxpr.eqns:
            products += self._visit(equation, times, devices)
        return products

    def _visit(
        self, equation: Equation, times: int, devices: int
    ) -> list[Float32Product]:
        inner = [part for part in sub_jaxprs(equation) if part.kind != "kernel"]
        if not inner:
            origin = self._result_origin(equation)
            self._origins |= dict.fromkeys(equation.outvars, origin)
            return list(self._product(equation, times, devices))
        if equation.primitive.name == "shard_map":
            devices *= equation.params["mesh"].size
        outside, self._site = self._site, self._source(equation)
        products_of_parts = [self._enter(part, times, devices) for part in inner]
        self._site = outside
        results = next(
            part for part in inner if part.kind != "while condition"
        ).jaxpr.outvars
        self._origins |= {
            outer: self._of(result)
            for outer, result in zip(equation.outvars, results, strict=False)
        }
        if any(part.kind == "branch" for part in inner):
            # One branch runs, and those of attention are the same on different devices.
            return max(
                products_of_parts,
                key=lambda products: sum(product.flops for product in products),
            )
        return list(itertools.chain.from_iterable(products_of_parts))

    def _enter(self, part: SubJaxpr, times: int, devices: int) -> list[Float32Product]:
        operands = part.operands or (None,) * len(part.jaxpr.invars)
        return self.run(
            part.jaxpr, list(map(self._of, operands)), times * part.times, devices
        )

    def _source(self, equation: Equation) -> Source | None:
        """The line of a model or of a user; of an equation that jax has traced apart,
        that of the call.
        """
        source = innermost_source(source_frames(equation))
        if source is None or source.file.startswith("tpuport/"):
            return self._site or source
        return source

    def _of(self, variable: Any) -> Origin | None:
        # Literals cannot be hashed, and a number widens nothing in torch.
        if variable is None or isinstance(variable, Literal):
            return None
        return self._origins.get(variable)

    def _result_origin(self, equation: Equation) -> Origin | None:
        if not any(map(_is_float32, equation.outvars)):
            return None
        source = self._source(equation)
        before = equation.invars[0].aval.dtype if equation.invars else None
        if equation.primitive.name == "convert_element_type" and before in _HALF:
            return Origin(f"converted from {before}", source, is_wider=True)
        known = list(filter(None, map(self._of, equation.invars)))
        if not known:
            return Origin("made in float32", source)
        # What this line converted from 16 bits was to meet an array that is float32
        # already, which is the reason.
        reasons = [origin for origin in known if origin.source != source]
        if len(reasons) == len(known) or not reasons or reasons[0].is_wider:
            return (reasons or known)[0]
        return Origin(
            "16 bits met float32", source, is_wider=True, reason=str(reasons[0])
        )

    def _product(
        self, equation: Equation, times: int, devices: int
    ) -> Iterator[Float32Product]:
        is_attention = is_own_attention(equation)
        is_kernel = is_attention and equation.primitive.name == "pallas_call"
        operands = [
            variable
            for variable in equation.invars
            if jnp.issubdtype(variable.aval.dtype, jnp.floating)
        ]
        if not (is_kernel or equation.primitive.name in _KINDS):
            return
        if not operands or not all(map(_is_float32, operands)):
            return
        kind = "attention" if is_attention else _KINDS[equation.primitive.name]
        origins = dict.fromkeys(filter(None, map(self._of, operands)))
        sizes = [variable.aval.size for variable in (*operands, *equation.outvars)]
        if is_attention:
            # The scores, which are meant to be float32, and in the kernel are not an
            # array in memory.
            sizes.remove(max(sizes))
        yield Float32Product(
            kind, self._source(equation), tuple(origins), tuple(variable.aval.shape for variable in operands), times,
            _flops(equation) * times * devices, 4.0 * sum(sizes) * times * devices,
        )  # fmt: skip


def _flops(equation: Equation) -> float:
    """Of a product, or as a kernel states it."""
    estimate = equation.params.get("cost_estimate")
    if estimate is not None:
        return float(estimate.flops)
    return product_flops(equation)


def _is_float32(variable: Any) -> bool:
    return getattr(variable.aval, "dtype", None) == jnp.float32
