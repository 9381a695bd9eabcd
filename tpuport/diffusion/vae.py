"""An autoencoder on the device: its encoder and decoder are programs, its tiling and slicing stay diffusers' own.

With tiling or slicing on, a program sees one tile or one sample at a time, and each result goes to the host at once,
where diffusers blends and joins them: what the device holds is bounded by a tile. A decode of the whole is one
program; where that is large the log advises tiling.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch

from tpuport.checkpoint import model_mesh, port_count, record_port
from tpuport.diffusion import mixed_devices, unported
from tpuport.diffusion.compiled_components import CompiledForward, compile_forward, restore_forward
from tpuport.tracing import is_tracing

logger = logging.getLogger("tpuport")

# Elements of a decoder's result from which on tiling is advised: 33 frames of 720 x 1280.
_LARGE = 3 * 33 * 720 * 1280
_METHODS = ("encode", "decode")


class _PartForward(CompiledForward):
    """The encoder or decoder of an autoencoder."""

    owner: torch.nn.Module
    _times = 0
    _advised = False

    def follow(self) -> None:
        """Be on the devices that the autoencoder is on; its programs are made anew where that was ported again."""
        times, mesh = port_count(self.owner), model_mesh(self.owner)
        if mesh is not None and times != self._times:
            self._times = times
            record_port(self.module, mesh)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As `CompiledForward`; tensors of the host where the autoencoder works piece by piece."""
        if not is_tracing():
            self.follow()
        out = super().__call__(*args, **kwargs)
        if in_pieces(self.owner):
            return mixed_devices.hosted(out) if mixed_devices.current() is not None else out
        if not self._advised and isinstance(out, torch.Tensor) and out.numel() >= _LARGE:
            self._advised = True
            logger.warning(
                "%s made %s in one piece; `vae.enable_tiling()` bounds the memory that this takes",
                type(self.module).__name__, list(out.shape),
            )  # fmt: skip
        return out


def in_pieces(vae: torch.nn.Module) -> bool:
    """Whether diffusers cuts what this autoencoder is given into tiles, samples or frames."""
    names = ("use_tiling", "use_slicing", "use_framewise_decoding", "use_framewise_encoding")
    return any(getattr(vae, name, False) for name in names)


def is_autoencoder(module: torch.nn.Module) -> bool:
    """Whether a component has an encoder or decoder and the methods around them."""
    return all(callable(getattr(module, name, None)) for name in _METHODS) and bool(parts_of(module))


def parts_of(vae: torch.nn.Module) -> list[torch.nn.Module]:
    """The encoder and the decoder, as far as they are there."""
    held = (getattr(vae, name, None) for name in ("encoder", "decoder"))
    return [part for part in held if isinstance(part, torch.nn.Module)]


def compile_parts(vae: torch.nn.Module) -> None:
    """Let the parts of a ported autoencoder run as programs, and its methods take tensors of the host."""
    for part in parts_of(vae):
        forward = compile_forward(part, _PartForward)
        if isinstance(forward, _PartForward):
            forward.owner = vae
            forward.follow()
    for name in _METHODS:
        if not hasattr(vars(vae).get(name), "tpuport_original"):
            setattr(vae, name, _mixing(vae, getattr(vae, name)))


def restore_parts(vae: torch.nn.Module) -> None:
    """Undo `compile_parts`."""
    for part in parts_of(vae):
        restore_forward(part)
        vars(part).pop("tpuport_mesh", None)
    for name in _METHODS:
        if hasattr(vars(vae).get(name), "tpuport_original"):
            delattr(vae, name)


def _mixing(vae: torch.nn.Module, method: Callable) -> Callable:
    """A method whose code may meet tensors of host and device alike."""

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        unported.check_caller(vae)
        with mixed_devices.mixed(model_mesh(vae)):
            return method(*args, **kwargs)

    called.tpuport_original = method  # pyright: ignore[reportAttributeAccessIssue]
    return called


__all__ = ["compile_parts", "in_pieces", "is_autoencoder", "parts_of", "restore_parts"]
