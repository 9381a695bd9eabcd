"""What a dense mask is, from the operations that made it: `structure_of`."""

from tpuport.attention.provenance.structure import structure_of

__all__ = ["structure_of"]
