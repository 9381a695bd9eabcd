"""`import tpuport.auto`, before anything imports torchax: `tpuport.enable()` by the
import alone.
"""

from tpuport.activation import enable

enable()
