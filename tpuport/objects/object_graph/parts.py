"""Values taken apart as results, rather than for a program."""

from typing import Any

from tpuport.objects.object_graph.classes import kind_of
from tpuport.objects.object_graph.flattening import Flattener, Reference


class Parts(Flattener):
    """As `Flattener`, but NumPy's arrays are leaves as they are, and what cannot be
    taken apart is a leaf too, whatever it has inside.
    """

    def _visit(self, value: Any, name: str) -> Reference:
        if kind_of(type(value)) == "opaque":
            return self._visit_leaf(value, name)
        return super()._visit(value, name)

    def _visit_attribute(self, value: Any, name: str) -> Reference:
        return self._visit(value, name)
