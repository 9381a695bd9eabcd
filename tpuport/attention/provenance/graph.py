"""The graph of operations behind a mask, read lazily, with calls of jitted functions looked through."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend import core

from tpuport.attention.provenance import history

MOST_NODES = 2000
DEEPEST = 48
_CALLS = {"jit", "pjit", "closed_call", "core_call", "checkpoint"}  # not those with derivatives of their own


class Unknown(Exception):
    """A part of the graph cannot be understood or made again."""


class Node:
    """One array of the graph: a result of an operation, or a leaf of unknown or known value.

    Attributes:
        name: the primitive's name; "" for a leaf.
        params: the primitive's parameters.
        array: the array where there is one, traced or not; None inside of a jitted function and for a rewritten
            operation.
        equation: what to run again to have the array: anything with `primitive`, `params` and `effects`.
        output: place among the results of the equation.
    """

    def __init__(
        self,
        graph: "Graph",
        shape: tuple[int, ...],
        dtype: Any,
        equation: Any = None,
        operands: Callable[[], tuple["Node", ...]] | tuple["Node", ...] = (),
        array: Any = None,
        output: int = 0,
    ) -> None:
        self.graph = graph
        self.shape = tuple(int(size) for size in shape)
        # The keys of random numbers have a dtype that NumPy has not.
        self.dtype: Any = dtype if jnp.issubdtype(dtype, jax.dtypes.extended) else np.dtype(dtype)
        self.equation = equation
        self.name: str = "" if equation is None else equation.primitive.name
        self.params: dict[str, Any] = {} if equation is None else equation.params
        self.array = array
        self.output = output
        self.memo: dict[Any, Any] = {}
        self._operands = operands
        graph.count += 1

    @property
    def operands(self) -> tuple["Node", ...]:
        """The arrays that the operation takes."""
        if not isinstance(self._operands, tuple):
            self._operands = self._operands()
        return self._operands

    @property
    def known(self) -> Any:
        """The array if its values can be read now, else None."""
        readable = not isinstance(self.array, Tracer) and getattr(self.array, "is_fully_addressable", True)
        return self.array if readable else None


class Equation:
    """An operation that stands in no program: a rewritten one."""

    effects = frozenset()

    def __init__(self, primitive: Any, params: dict[str, Any]) -> None:
        self.primitive = primitive
        self.params = params


class Graph:
    """All nodes of one analysis. Past `MOST_NODES`, and deeper than `DEEPEST`, nothing more is looked at."""

    def __init__(self) -> None:
        self.count = 0
        self.depth = 0
        self._nodes: dict[int, tuple[Any, Node]] = {}
        self._scopes: dict[int, _Scope] = {}

    def node(self, value: Any) -> Node:
        """The node of an array, traced or not. Its tracer is kept, so that its id stays its own."""
        found = self._nodes.get(id(value))
        if found is None:
            found = self._nodes[id(value)] = (value, self._of_array(value))
        return found[1]

    def apply(
        self,
        primitive: Any,
        operands: tuple[Node, ...],
        shape: tuple[int, ...],
        dtype: Any,
        params: dict[str, Any],
    ) -> Node:
        """A new operation on nodes."""
        return Node(self, shape, dtype, Equation(primitive, params), operands)

    def constant(self, value: Any, dtype: Any) -> Node:
        """A number."""
        return Node(self, (), dtype, array=np.asarray(value, dtype))

    def _of_array(self, value: Any) -> Node:
        constant = history.concrete(value)
        if constant is not None:
            return Node(self, constant.shape, constant.dtype, array=constant)
        origin = history.equation_of(value) if self.count < MOST_NODES else None
        if origin is None:
            return Node(self, value.shape, value.dtype, array=value)
        return self.result(*origin, value.aval, self.node, self._scopes, value)

    def result(
        self,
        equation: Any,
        output: int,
        aval: Any,
        read: Callable[[Any], Node],
        scopes: "dict[int, _Scope]",
        array: Any = None,
    ) -> Node:
        """The node of one result of an equation, or of what made it inside of the function that it calls.

        `read` gives the node of what the equation takes; `scopes` has the calls already entered from here.
        """
        scope = scopes.get(id(equation)) or _Scope.enter(self, equation, read)
        if scope is None:
            sources = tuple(equation.invars)
            operands = functools.partial(_read_all, read, sources)
            return Node(self, aval.shape, aval.dtype, equation, operands, array, output)
        scopes[id(equation)] = scope
        node = scope.node(scope.results[output])
        if node.array is None:
            node.array = array
        return node


def _read_all(read: Callable[[Any], Node], sources: tuple[Any, ...]) -> tuple[Node, ...]:
    return tuple(read(source) for source in sources)


class _Scope:
    """The body of a called function. Its arguments are read when they are needed."""

    def __init__(
        self, graph: Graph, equation: Any, jaxpr: Any, constants: Any, read: Callable[[Any], Node]
    ) -> None:
        self._graph = graph
        self.equation = equation  # kept, so that its id stays its own
        self.results = jaxpr.outvars
        self._read = read
        self._scopes: dict[int, _Scope] = {}
        self._arguments = dict(zip(jaxpr.invars, equation.invars, strict=True))
        self._nodes = {v: graph.node(c) for v, c in zip(jaxpr.constvars, constants, strict=True)}
        self._made_by = {
            result: (made_by, place) for made_by in jaxpr.eqns for place, result in enumerate(made_by.outvars)
        }

    @classmethod
    def enter(cls, graph: Graph, equation: Any, read: Callable[[Any], Node]) -> "_Scope | None":
        """The scope of a call, or None where the equation is no call."""
        if equation.primitive.name not in _CALLS:
            return None
        body = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        jaxpr, constants = (body.jaxpr, body.consts) if isinstance(body, core.ClosedJaxpr) else (body, ())
        if len(getattr(jaxpr, "invars", ())) != len(equation.invars) or len(jaxpr.constvars) != len(
            constants
        ):
            return None
        return cls(graph, equation, jaxpr, constants, read)

    def node(self, atom: Any) -> Node:
        """The node of a variable or number of the body."""
        if isinstance(atom, core.Literal):
            aval: Any = atom.aval
            return self._graph.constant(atom.val, aval.dtype)
        if atom in self._arguments:
            return self._read(self._arguments[atom])
        if atom not in self._nodes:
            equation, output = self._made_by[atom]
            self._nodes[atom] = self._graph.result(equation, output, atom.aval, self.node, self._scopes)
        return self._nodes[atom]


def analysis(unknown: Callable[[Node], Any]) -> Callable[[Callable[[Node], Any]], Callable[[Node], Any]]:
    """Remember what a function says of a node; answer `unknown(node)` where the graph is too deep or too large."""

    def decorate(function: Callable[[Node], Any]) -> Callable[[Node], Any]:
        @functools.wraps(function)
        def call(node: Node) -> Any:
            if function in node.memo:
                return node.memo[function]
            graph = node.graph
            if graph.depth >= DEEPEST or graph.count >= MOST_NODES:
                return unknown(node)
            graph.depth += 1
            try:
                answer = function(node)
            finally:
                graph.depth -= 1
            node.memo[function] = answer
            return answer

        return call

    return decorate
