"""Ports of whole models, each through the public API of tpuport alone."""
