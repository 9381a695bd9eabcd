"""Objects of any class that cross a compiled call."""

from tpuport.objects.object_graph.building import unflatten
from tpuport.objects.object_graph.classes import (
    HostArray,
    can_be_made,
)
from tpuport.objects.object_graph.flattening import (
    Flattener,
    Graph,
    Reference,
    Structure,
    count_places,
    is_array,
    is_for_jax,
    is_own_object,
    is_plain,
    references_in,
)
from tpuport.objects.object_graph.object_states import (
    State,
    is_changed,
    matching_contents,
    read_state,
)
from tpuport.objects.object_graph.parts import Parts

__all__ = [
    "Flattener", "Graph", "HostArray", "Parts", "Reference", "State", "Structure", "can_be_made", "count_places",
    "is_array", "is_changed", "is_for_jax", "is_own_object", "is_plain", "matching_contents", "read_state",
    "references_in", "unflatten",
]  # fmt: skip
