"""Registration of tpuport's attention with the libraries that call attention, one file
a library.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType

from jax.sharding import Mesh

from tpuport.attention.attention_settings import (
    Settings,
    add_settings,
    default_settings,
    remove_settings,
    settings_owners,
)
from tpuport.attention.register.library_names import register_names, unregister_names
from tpuport.hardware.mesh import check_mesh

_lock = threading.RLock()
_users = 0


class Registration:
    """What `register` returns: undone by `undo`, or at the end of a `with` block.

    Attributes:
        settings: what it was registered with.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __repr__(self) -> str:
        return f"<tpuport attention: {self.settings}>"

    def undo(self) -> None:
        """Restore what was before, whatever has been registered since. A second time
        does nothing.
        """
        # Only whoever removes the settings releases the operators: another thread may
        # have been faster.
        if remove_settings(self):
            _release_operators()

    def again(self) -> None:
        """Register once more after `undo`. Does nothing while it is in force."""
        if self in settings_owners():
            return
        _acquire_operators()
        add_settings(self, self.settings)
        try:
            register_names()
        # Half a registration would change some libraries and not others.
        except BaseException:
            self.undo()
            raise

    def __enter__(self) -> "Registration":
        self.again()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()


def register(
    mesh: Mesh | None = None,
    *,
    sequence: str = "auto",
    padding: str = "exact",
    implementation: str = "auto",
    interpret: bool = False,
) -> Registration:
    """Compute every attention call on the device by tpuport, in all threads, until
    `unregister`.

    It answers for `F.scaled_dot_product_attention` (and `nn.MultiheadAttention`) under
    torchax, for transformers' attention interface, and for diffusers' attention
    dispatch. Models that `tpuport.port` or `load` put on the device use it by
    themselves in compiled programs; registering chooses other options. Tensors on the
    host stay with torch.

    Args:
        mesh: the mesh to divide the work over: batch over dp, heads over tp, queries
            over sp. None uses the mesh of the ported model that runs.
        sequence: how queries reach keys on other devices of sp: "gather" them, pass
            them round a "ring", or exchange heads for positions ("ulysses"). "auto"
            takes what sends less of the first and the last.
        padding: how padded keys are left out: "exact" (by a copy of a real key that
            weighs nothing), "segment_ids" (exact, slower), or "zero" (zeroed keys, as
            some ports do it: wrong, for comparison).
        implementation: "auto", "flash" (a call that the kernel cannot serve is an
            error) or "xla".
        interpret: run the kernel itself on any device, slowly, for tests.

    Returns:
        A context manager: `with register(...):` restores what was before. Without
            `with`, it lasts.

    Raises:
        PortError: an unknown option, or a mesh whose axes are not Auto.
    """
    check_mesh(mesh)
    registration = Registration(
        Settings(mesh, sequence, padding, implementation, interpret)
    )
    registration.again()
    return registration


def unregister() -> None:
    """Undo every `register`. Does nothing if there is none."""
    for owner in settings_owners():
        owner.undo()


@contextlib.contextmanager
def use_on_meshes(meshes: Sequence[Mesh | None]) -> Iterator[None]:
    """Compute attention by tpuport in this thread, on the mesh of the models that are
    being traced.

    If the models are on different meshes, attention gets none of them, and the compiler
    divides its work.
    """
    distinct = set(meshes)
    # A program is divided over one mesh.
    mesh = None
    if len(distinct) == 1:
        mesh = distinct.pop()
    _acquire_operators()
    try:
        with default_settings(mesh):
            yield
    finally:
        _release_operators()


def _acquire_operators() -> None:
    global _users
    # Imported late: torch_sdpa starts torchax, which a program that never registers
    # does not need.
    from tpuport.attention.register import torch_sdpa

    with _lock:
        # Not only for the first user: `tpuport.disable` may have removed the operators
        # in between.
        torch_sdpa.install()
        _users += 1


def _release_operators() -> None:
    global _users
    from tpuport.attention.register import torch_sdpa

    with _lock:
        _users -= 1
        if not _users:
            torch_sdpa.uninstall()
            unregister_names()
