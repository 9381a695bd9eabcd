"""Rotary tables: computed once for each shape, on the host and outside of traced code, and looked up inside of it."""

from tpuport.rotary.store import ProgramTables, position_tables, split_tables, use_tables

__all__ = ["ProgramTables", "position_tables", "split_tables", "use_tables"]
