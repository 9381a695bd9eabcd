"""Rotary tables: computed once for each shape, on the host and outside of traced code,
and looked up inside of it.
"""

from tpuport.compilation.rotary.table_store import (
    ProgramTables,
    split_tables,
    use_tables,
)

__all__ = ["ProgramTables", "split_tables", "use_tables"]
