"""Rotary tables: computed once for each shape, on the host and outside of traced code, and looked up inside of it."""

from tpuport.rotary.precompute import Found, precompute_rotary
from tpuport.rotary.store import Tables, divided, looked_up, position_tables

__all__ = ["Found", "Tables", "divided", "looked_up", "position_tables", "precompute_rotary"]
