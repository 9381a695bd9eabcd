"""torch's recurrent layers, which keep references to their weights, to see when one was
replaced.
"""

from typing import Any


def update_flat_weights(layer: Any) -> None:
    """Traced. Lists the layer's weights, and keeps no references to what exists only
    while a program is traced.
    """
    layer._flat_weights = [
        getattr(layer, name, None) for name in layer._flat_weights_names
    ]
