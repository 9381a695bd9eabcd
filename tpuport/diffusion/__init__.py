"""Diffusion pipelines: the user's own, ported in place, and the denoising loop as one program."""

from tpuport.diffusion.pipeline import port_pipeline

__all__ = ["port_pipeline"]
