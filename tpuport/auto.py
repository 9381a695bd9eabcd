"""`import tpuport.auto`, before the model's own imports: `tpuport.enable()` by the import alone."""

from tpuport.activation import enable

enable()
