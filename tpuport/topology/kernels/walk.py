"""A traced program walked through: FLOPs of its products, and its Pallas kernels with what they do over their grids."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from tpuport.topology.kernels import products, splits
from tpuport.topology.kernels.grid import Grid, grid_of, in_hbm, is_whole, moved
from tpuport.topology.kernels.kernel_calls import KernelCall, KernelCost, by_groups, described, size
from tpuport.topology.kernels.values import UNKNOWN, Value, constant, evaluated, read

_MOST_ROUNDS: Final = 4096  # of all loops in a kernel that are gone through one by one
_EVERY: Final = frozenset(range(32))
_Work = np.ndarray
_Values = Sequence[Value]


class TracedWork(NamedTuple):
    """Attributes: flops: of all devices; calls: of Pallas kernels and products by groups (`RAGGED`), in its order."""

    flops: float
    calls: tuple[KernelCall, ...]


def count_work(jaxpr: ClosedJaxpr) -> TracedWork:
    """What a traced function has to compute: FLOPs of matrix products, convolutions and Pallas kernels.

    A product of [M, K] and [K, N] has 2 * M * N * K, and so has a convolution, with K the channels of a group times
    the kernel's size. A grouped product counts each row once. The body of a scan counts as often as it runs, the body
    of another loop once, and of branches the costliest or, where code differs by platform, a TPU's. A Pallas kernel
    counts the products of its body at those steps of its grid that do them, if that is known before it runs; otherwise
    its own estimate, or at most that many. The body of a shard_map counts for each device along the axes that its
    arguments or results are split over; along the other axes all devices do the same work. Devices that divide the
    groups of a grouped product among them have all rows, and each does those of its own groups.
    """
    walk = _Walk(None)
    consts = [constant(one) for one in jaxpr.consts]
    work, _ = walk.jaxpr(jaxpr.jaxpr, [UNKNOWN] * len(jaxpr.jaxpr.invars), _Where(), consts)
    return TracedWork(float(work[0]), tuple(walk.calls))


class _Where(NamedTuple):
    """Which steps of a grid come here [S or 1], how many those are, and how often each does.

    `axes`: sizes of those that the shard_map around it splits work over and along which no rows are sent.
    """

    active: np.ndarray = np.ones(1, bool)
    steps: int = 1
    times: float = 1.0
    axes: Mapping[str, int] = MappingProxyType({})

    def only(self, which: np.ndarray) -> "_Where":
        active = self.active & which
        if len(active) == 1:
            return self._replace(active=active, steps=self.steps if active[0] else 0)
        return self._replace(active=active, steps=int(active.sum()))


class _Walk:
    """Of a program or, with a grid, of a kernel's body.

    Work is [FLOPs, bytes that copies move at an end in HBM], over all steps that come to a place.

    Attributes:
        calls: kernels that were met.
        high, low: whether a branch was counted that may not be taken, or a loop that may run longer.
    """

    def __init__(self, grid: Grid | None) -> None:
        self._grid = grid
        self.calls: list[KernelCall] = []
        self.high = self.low = False
        self._rounds = 0 if grid is None else _MOST_ROUNDS
        self._kernels: dict[Any, tuple[Any, KernelCost]] = {}

    def jaxpr(self, jaxpr: Any, given: _Values, where: _Where, consts: _Values = ()) -> tuple[_Work, _Values]:
        """(the work, what is known of the results)."""
        if isinstance(jaxpr, ClosedJaxpr):
            return self.jaxpr(jaxpr.jaxpr, given, where, [constant(one) for one in jaxpr.consts])
        values: dict[Any, Value] = dict(zip(jaxpr.constvars, consts, strict=False))
        values.update(zip(jaxpr.invars, given, strict=False))
        work = np.zeros(2)
        for equation in jaxpr.eqns:
            done, made = self._equation(equation, [read(one, values) for one in equation.invars], where)
            work = work + done
            values.update(zip(equation.outvars, made, strict=True))
        return work, [read(one, values) for one in jaxpr.outvars]

    def _equation(self, equation: Any, given: _Values, where: _Where) -> tuple[_Work, _Values]:
        special = _SPECIAL.get(equation.primitive.name)
        if special is not None:
            return special(self, equation, given, where)
        inner = list(splits.inside(equation.params))
        if not inner:
            work = np.array([products.flops(equation) * where.steps, 0.0])
            split = splits.after(equation, [one.split for one in given])
            made = evaluated(equation, given)
            return work, [one._replace(split=axes) for one, axes in zip(made, split, strict=True)]
        work, made = np.zeros(2), _nothing(equation)
        for one in inner:
            fits = len((one.jaxpr if isinstance(one, ClosedJaxpr) else one).invars) == len(given)
            # What is run in a scope of its own, with references of its own, has its operands as constants.
            done, results = self.jaxpr(one, given if fits else [], where, () if fits else given)
            work = work + done
            if fits and len(inner) == 1 and len(results) == len(made):
                made = results
        return work, made

    def _cond(self, equation: Any, given: _Values, where: _Where) -> tuple[_Work, _Values]:
        branches, index, nothing = equation.params["branches"], given[0].known, _nothing(equation)
        if index is None:
            found = np.array([self.jaxpr(one, given[1:], where)[0] for one in branches])
            self.high = self.high or bool((found.min(axis=0) < found.max(axis=0)).any())
            return found.max(axis=0), nothing
        chosen, work, made = np.clip(index.astype(np.int64), 0, len(branches) - 1), np.zeros(2), nothing
        for place, one in enumerate(branches):
            inside = where.only(chosen == place)
            if inside.steps:
                done, results = self.jaxpr(one, given[1:], inside)
                work = work + done
                made = results if inside.steps == where.steps else nothing
        return work, made

    def _scan(self, equation: Any, given: _Values, where: _Where) -> tuple[_Work, _Values]:
        params, nothing = equation.params, _nothing(equation)
        body, length, fixed = params["jaxpr"], int(params["length"]), params["num_consts"]
        carried = fixed + params["num_carry"]
        if length > self._rounds or not _decides(body):
            parts = [_unknown()._replace(split=one.split[1:]) for one in given[carried:]]
            inputs = [*given[:fixed], *[_unknown()] * (carried - fixed), *parts]
            done, _ = self.jaxpr(body, inputs, where._replace(times=where.times * length))
            return length * done, nothing
        self._rounds -= length
        state, work = given[fixed:carried], np.zeros(2)
        for place in reversed(range(length)) if params["reverse"] else range(length):
            parts = [
                one._replace(known=_part(one.known, place), split=one.split[1:]) for one in given[carried:]
            ]
            done, results = self.jaxpr(body, [*given[:fixed], *state, *parts], where)
            state, work = results[: params["num_carry"]], work + done
        return work, [*state, *nothing[len(state) :]]

    def _while(self, equation: Any, given: _Values, where: _Where) -> tuple[_Work, _Values]:
        params, nothing = equation.params, _nothing(equation)
        asked, fixed = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        state, work = given[fixed:], np.zeros(2)
        while self._rounds > 0:
            self._rounds -= 1
            done, [goes_on] = self.jaxpr(params["cond_jaxpr"], [*given[:asked], *state], where)
            if goes_on.known is None:
                break
            where = where.only(goes_on.known.astype(bool))
            if not where.steps:
                return work, nothing
            more, state = self.jaxpr(params["body_jaxpr"], [*given[asked:fixed], *state], where)
            work = work + done + more
        self.low = True
        more, _ = self.jaxpr(params["body_jaxpr"], given[asked:fixed], where)
        return work + more, nothing

    def _shard_map(self, equation: Any, given: _Values, where: _Where) -> tuple[_Work, _Values]:
        params = equation.params
        whole = [
            value
            if all(entry is None for entry in spec)
            else _unknown()._replace(split=splits.of_spec(spec, variable.aval.ndim))
            for value, spec, variable in zip(given, params["in_specs"], equation.invars, strict=True)
        ]
        axes, sent = _axes(params), splits.sent_over(params["jaxpr"])
        kept = {axis: size for axis, size in axes.items() if axis not in sent}
        work, _ = self.jaxpr(params["jaxpr"], whole, where._replace(axes={**where.axes, **kept}))
        return work * math.prod(axes.values()), _nothing(equation)

    def _ragged(self, equation: Any, given: _Values, where: _Where) -> tuple[_Work, _Values]:
        """A product by groups. Devices that share out the groups have all rows each, and do those of their own groups.

        So it is where no rows are sent: a row then is wherever its group may be.
        """
        numbers, split = equation.params["ragged_dot_dimension_numbers"], given[1].split
        over = {axis for place in numbers.rhs_group_dimensions if split for axis in split[place]}
        ways = math.prod(size for axis, size in where.axes.items() if axis in over)
        flops = products.flops(equation) / ways
        self.calls.append(by_groups(equation, where.times, flops, ways))
        return np.array([flops * where.steps, 0.0]), _nothing(equation)

    def _place(self, equation: Any, given: _Values, where: _Where) -> tuple[_Work, _Values]:
        if self._grid is None:
            return np.zeros(2), [_unknown()]
        axis = self._grid.own[equation.params["axis"]]
        is_id = equation.primitive.name == "program_id"
        return np.zeros(2), [self._grid.ids[axis] if is_id else constant(self._grid.sizes[axis])]

    def _platform(self, equation: Any, given: _Values, where: _Where) -> tuple[_Work, _Values]:
        """The branch that a TPU has."""
        platforms = equation.params["platforms"]
        found = [place for place, names in enumerate(platforms) if names is None or "tpu" in names]
        return np.zeros(2), [constant(found[0]) if found else _unknown()]

    def _copy(self, equation: Any, given: _Values, where: _Where) -> tuple[_Work, _Values]:
        """A copy that a kernel starts: it counts at each end that is in HBM."""
        source, target, *_ = jax.tree.unflatten(equation.params["tree"], equation.invars)
        ends = [getattr(one, "ref", one).aval for one in (source, target)]
        transforms = getattr(source, "transforms", ())
        # A reference's own shape, or that of what is taken of it; what only views it otherwise has as many bytes.
        shapes = [one.get_indexer_shape() for one in transforms if hasattr(one, "get_indexer_shape")]
        numbers = math.prod(shapes[-1] if shapes else ends[0].shape)
        nbytes = numbers * getattr(ends[0].dtype, "itemsize", 0) * sum(in_hbm(one) for one in ends)
        return np.array([0.0, nbytes * where.steps]), _nothing(equation)

    def _write(self, equation: Any, given: _Values, where: _Where) -> tuple[_Work, _Values]:
        """Of what is stored into a reference; one whose numbers were known has others from there on."""
        if given[0].known is not None:
            self.high = self.low = True
        return np.zeros(2), _nothing(equation)

    def _kernel(self, equation: Any, given: _Values, where: _Where) -> tuple[_Work, _Values]:
        params = equation.params
        stored = tuple(None if one.known is None else one.known.tobytes() for one in given)
        key = id(params["jaxpr"]), id(params["grid_mapping"]), stored
        if key not in self._kernels:  # kept with what has the ids
            self._kernels[key] = params, counted(equation, given)
        call = described(equation, where.times, self._kernels[key][1])
        self.calls.append(call)
        return np.array([call.cost.flops * where.steps, 0.0]), _nothing(equation)


_SPECIAL: Final[dict[str, Any]] = {
    "cond": _Walk._cond, "scan": _Walk._scan, "while": _Walk._while, "shard_map": _Walk._shard_map,
    "program_id": _Walk._place, "num_programs": _Walk._place, "platform_index": _Walk._platform,
    "pallas_call": _Walk._kernel, "dma_start": _Walk._copy, "ragged_dot_general": _Walk._ragged,
    "swap": _Walk._write, "addupdate": _Walk._write,
}  # fmt: skip


def counted(equation: Any, given: _Values) -> KernelCost:
    """What a pallas_call does: its body's products over the steps of its grid, and the blocks that these bring in.

    Of arrays that a kernel gets whole it moves what the copies in its body say or, where there are none, each once.
    """
    mapping, body = equation.params["grid_mapping"], equation.params["jaxpr"]
    bounds, rest = given[: mapping.num_dynamic_grid_bounds], given[mapping.num_dynamic_grid_bounds :]
    # What is stored in an operand is the same at every step.
    prefetched = [Value(one.known) for one in rest[: mapping.num_index_operands]]
    grid, known = grid_of(mapping, bounds)
    walk = _Walk(grid)
    inputs = [*prefetched, *[_unknown()] * (len(body.invars) - len(prefetched))]
    (flops, copied), _ = walk.jaxpr(body, inputs, _Where(steps=grid.steps))
    blocks = [moved(grid, one, prefetched) for one in mapping.block_mappings]
    whole = [size(one.array_aval) for one in mapping.block_mappings if is_whole(one)]
    numbers = [float(size(one.aval)) for one in equation.invars[: len(given) - mapping.num_inputs]]
    parts = [nbytes for nbytes, _ in blocks]
    high, low = walk.high or not all(exact for _, exact in blocks), walk.low or not known
    bound = {(True, False): "at most", (False, True): "at least", (True, True): "about"}.get((high, low))
    if whole and not copied:
        copied, bound = float(sum(whole)), "about"
    return KernelCost(
        float(flops), sum(numbers) + sum(parts) + copied, "counted", bound,
        (*numbers, *parts[: mapping.num_inputs]), tuple(parts[mapping.num_inputs :]), float(copied),
    )  # fmt: skip


def _unknown() -> Value:
    return Value(None, _EVERY)


def _nothing(equation: Any) -> list[Value]:
    """Of its results nothing is known."""
    return [_unknown()] * len(equation.outvars)


def _part(known: np.ndarray | None, place: int) -> np.ndarray | None:
    return None if known is None else known[:, place]


def _decides(jaxpr: Any) -> bool:
    """Whether there is a branch or a loop in it that may depend on how often it ran."""
    return any(
        one.primitive.name in ("cond", "while") or any(_decides(inner) for inner in splits.inside(one.params))
        for one in jaxpr.eqns
    )


def _axes(params: dict[str, Any]) -> dict[str, int]:
    """Sizes of the axes that a shard_map splits its work over."""
    specs = (*params["in_specs"], *params["out_specs"])
    named = {axis for spec in specs for entry in spec for axis in splits.axes_of(entry)}
    manual = (
        params["newly_manual_axes"] if "newly_manual_axes" in params else params["manual_axes"]
    )  # older jax
    return {axis: size for axis, size in params["mesh"].shape.items() if axis in named and axis in manual}
