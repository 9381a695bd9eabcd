"""The graph of operations behind a mask, read lazily, with calls of jitted functions
looked through.

jax keeps with every array traced by `jax.jit` the equation that it is a result of. That
is not a public interface (`jax_internals`), and where it has changed, only the shape of
a mask is known.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Literal

from tpuport.compat import jaxprs
from tpuport.internals import jax_internals

# Past so many nodes, or so deep, nothing more is looked at: a mask that is worth it is
# simpler.
MAX_NODES = 2000
MAX_DEPTH = 48
# Calls that do what their bodies do; not those with derivatives of their own.
_CALLS = frozenset({"jit", "closed_call", "remat2"})


class UnknownError(Exception):
    """A part of the graph cannot be understood or computed again."""


class Operation(NamedTuple):
    """An operation that is in no program: a rewritten one."""

    primitive: Any
    params: dict[str, Any]
    effects: frozenset[Any] = frozenset()


class Node:
    """One array of the graph: a result of an operation, or a leaf.

    Attributes:
        graph: the graph that it is in.
        shape, dtype: of the array.
        equation: what to run again to compute the array: anything with `primitive`,
            `params` and `effects`; None for a leaf.
        name: the primitive's name; "" for a leaf.
        params: the primitive's parameters.
        can_rerun: whether it is an operation without side effects.
        array: the array itself, traced or not; None inside of a jitted function and for
            a rewritten operation.
        output: its index among the results of the equation.
        memo: results of analyses of this node.
    """

    def __init__(
        self,
        graph: "Graph",
        shape: tuple[int, ...],
        dtype: Any,
        equation: Any = None,
        read_operands: Callable[[], tuple["Node", ...]] = tuple,
        array: Any = None,
        output: int = 0,
    ) -> None:
        self.graph = graph
        self.shape = tuple(map(int, shape))
        # NumPy does not have the dtype of keys of random numbers.
        self.dtype: Any = (
            dtype if jnp.issubdtype(dtype, jax.dtypes.extended) else np.dtype(dtype)
        )
        self.equation = equation
        self.name = ""
        self.params: dict[str, Any] = {}
        self.can_rerun = False
        if equation is not None:
            self.name, self.params = _name_operation(equation), equation.params
            self.can_rerun = not equation.effects
        self.array = array
        self.output = output
        self.memo: dict[Any, Any] = {}
        self._read_operands = read_operands
        graph.count += 1

    @functools.cached_property
    def operands(self) -> tuple["Node", ...]:
        """The arrays that the operation takes."""
        # Read when they are first needed: a mask may be computed from the whole model
        # before it.
        return self._read_operands()

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def known(self) -> Any:
        """The array if its values can be read now, else None."""
        # Of an array that is spread over several hosts, this one has only a part.
        if isinstance(self.array, Tracer) or not getattr(
            self.array, "is_fully_addressable", True
        ):
            return None
        return self.array


def _name_operation(equation: Any) -> str:
    name: str = equation.primitive.name
    # A reshape that permutes axes as well is nothing that the rules for reshapes
    # understand.
    if name == "reshape" and equation.params.get("dimensions") is not None:
        return "reshape of a transpose"
    return name


class Graph:
    """All nodes of one analysis.

    Attributes:
        count: the number of nodes so far.
        depth: how many analyses are inside of one another now.
    """

    def __init__(self) -> None:
        self.count = 0
        self.depth = 0
        # By id, with the array itself, so that no other array gets its id.
        self._nodes: dict[int, tuple[Any, Node]] = {}
        self._scopes: dict[int, _Scope] = {}

    def node(self, array: Any) -> Node:
        """The node of an array, traced or not."""
        if id(array) not in self._nodes:
            self._nodes[id(array)] = (array, self._make_node(array))
        return self._nodes[id(array)][1]

    def apply(
        self,
        primitive: Any,
        operands: tuple[Node, ...],
        shape: tuple[int, ...],
        dtype: Any,
        params: dict[str, Any],
    ) -> Node:
        """A new operation on nodes."""
        return Node(self, shape, dtype, Operation(primitive, params), lambda: operands)

    def number(self, value: Any, dtype: Any) -> Node:
        """A number as a leaf."""
        return Node(self, (), dtype, array=np.asarray(value, dtype))

    def _make_node(self, array: Any) -> Node:
        constant = jax_internals.find_constant(array)
        if constant is not None:
            return Node(self, constant.shape, constant.dtype, array=constant)
        producer = producing_equation(array)
        if producer is None or self.count >= MAX_NODES:
            return Node(self, array.shape, array.dtype, array=array)
        return self.result_node(producer, array.aval, self.node, self._scopes, array)

    def result_node(
        self,
        producer: jaxprs.Producer,
        aval: Any,
        read: Callable[[Any], Node],
        scopes: "dict[int, _Scope]",
        array: Any = None,
    ) -> Node:
        """The node of one result of an equation, or of what makes it inside of the
        function that it calls.

        Args:
            producer: the equation and the result.
            aval: of the result.
            read: returns the node of what the equation takes.
            scopes: the calls already entered from there, by the id of their equation.
            array: the result itself, if there is one.
        """
        equation: Any = producer.equation
        scope = scopes.get(id(equation)) or _enter_call(self, equation, read)
        if scope is None:
            sources = tuple(equation.invars)

            def operands() -> tuple[Node, ...]:
                return tuple(map(read, sources))

            return Node(
                self, aval.shape, aval.dtype, equation, operands, array, producer.output
            )
        scopes[id(equation)] = scope
        # The body's own node, so that a mask looks the same whether a part of it was
        # jitted or not.
        node = scope.node(scope.results[producer.output])
        if node.array is None:
            node.array = array
        return node


class _Scope:
    """The body of a called function. Its arguments are read when they are needed."""

    def __init__(
        self,
        graph: Graph,
        equation: Any,
        body: jaxprs.SubJaxpr,
        read: Callable[[Any], Node],
    ) -> None:
        self._graph = graph
        self.equation = equation  # so that no other equation gets its id
        self.results = body.jaxpr.outvars
        self._read = read
        self._scopes: dict[int, _Scope] = {}
        self._arguments = dict(zip(body.jaxpr.invars, body.operands, strict=True))
        constants = map(graph.node, body.consts)
        self._nodes: dict[Any, Node] = dict(
            zip(body.jaxpr.constvars, constants, strict=True)
        )
        self._producers = jaxprs.producers(body.jaxpr)

    def node(self, atom: Any) -> Node:
        """The node of a variable or number of the body."""
        if isinstance(atom, Literal):
            aval: Any = atom.aval
            return self._graph.number(atom.val, aval.dtype)
        if atom in self._arguments:
            return self._read(self._arguments[atom])
        if atom not in self._nodes:
            producer = self._producers[atom]
            self._nodes[atom] = self._graph.result_node(
                producer, atom.aval, self.node, self._scopes
            )
        return self._nodes[atom]


def _enter_call(
    graph: Graph, equation: Any, read: Callable[[Any], Node]
) -> _Scope | None:
    """The scope of a call; None if the equation is not one that can be looked
    through.
    """
    if equation.primitive.name not in _CALLS:
        return None
    body = jaxprs.callee(equation)
    # Without the values of its constants, the body cannot be read.
    if body is None or len(body.jaxpr.constvars) != len(body.consts):
        return None
    return _Scope(graph, equation, body, read)


def analysis(
    unknown: Callable[[Node], Any],
) -> Callable[[Callable[[Node], Any]], Callable[[Node], Any]]:
    """Remember the result of a function of a node; return `unknown(node)` if the graph
    is too deep or too large.
    """

    def decorate(function: Callable[[Node], Any]) -> Callable[[Node], Any]:
        @functools.wraps(function)
        def remember(node: Node) -> Any:
            if function not in node.memo:
                if node.graph.depth >= MAX_DEPTH or node.graph.count >= MAX_NODES:
                    # Not remembered: from elsewhere the node may be less deep.
                    return unknown(node)
                node.memo[function] = go_deeper(node, function)
            return node.memo[function]

        return remember

    return decorate


def go_deeper(node: Node, function: Callable[..., Any], *args: Any) -> Any:
    """Call `function(node, *args)` one level deeper."""
    node.graph.depth += 1
    try:
        return function(node, *args)
    finally:
        node.graph.depth -= 1


def compute_once(node: Node, function: Callable[..., Any], *args: Any) -> Any:
    """`function(node, *args)` one level deeper, computed once for each node and
    arguments.

    Raises:
        UnknownError: the graph is too deep.
    """
    key = (function, *args)
    if key not in node.memo:
        if node.graph.depth >= MAX_DEPTH:
            raise UnknownError(node.name)
        node.memo[key] = go_deeper(node, function, *args)
    return node.memo[key]


def producing_equation(tracer: Any) -> jaxprs.Producer | None:
    """The equation that made a tracer; None for an argument, or if it is not known."""
    producer = jax_internals.find_equation(tracer)
    return jaxprs.Producer(*producer) if producer else None
