"""The version of tpuport, for every room to import."""

__version__ = "0.2.0"
