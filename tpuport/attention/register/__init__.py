"""Registration of tpuport's attention with the libraries that call attention, one file a library."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType

from jax.sharding import Mesh

from tpuport.attention import settings
from tpuport.attention.register import names
from tpuport.attention.settings import Settings
from tpuport.mesh import check_mesh

_lock = threading.RLock()
_holders = 0


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
        """Restore what was before, whatever has been registered since. A second time does nothing."""
        if settings.withdraw(self):
            _release()

    def again(self) -> None:
        """Register once more after `undo`. Does nothing while it is in force."""
        if self in settings.owners():
            return
        _hold()
        settings.choose(self, self.settings)
        try:
            names.give()
        except BaseException:
            self.undo()
            raise

    def __enter__(self) -> "Registration":
        self.again()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def register(
    mesh: Mesh | None = None,
    *,
    sequence: str = "gather",
    padding: str = "exact",
    implementation: str = "auto",
    interpret: bool = False,
) -> Registration:
    """Compute every attention call on the device by tpuport, in all threads, until `unregister`.

    It answers for `F.scaled_dot_product_attention` (and `nn.MultiheadAttention`) under torchax, for transformers'
    attention interface, and for diffusers' attention dispatch. Models that `tpuport.port` or `load` put on the device
    have it without being asked, in compiled programs; registering chooses other options. Tensors of the host stay
    with torch.

    Args:
        mesh: the mesh to share the work out on: batch over dp, heads over tp, queries over sp. None takes the mesh of
            the ported model that runs.
        sequence: how queries reach keys on other devices of sp: "gather" them, pass them round a "ring", or exchange
            heads for positions ("ulysses").
        padding: how padded keys are left out: "exact" (by a copy of a real key that weighs nothing), "segment_ids"
            (exact, slower), or "zero" (zeroed keys, as some ports have it: wrong, for comparison).
        implementation: "auto", "splash" (a call that the kernel cannot serve is an error) or "xla".
        interpret: run the kernel itself on any device, slowly, for tests.

    Returns:
        A context manager: `with register(...):` restores what was before. Without `with`, it lasts.

    Raises:
        PortError: an option that is not known, or a mesh whose axes are not Auto.
    """
    check_mesh(mesh)
    made = Registration(Settings(mesh, sequence, padding, implementation, interpret))
    made.again()
    return made


def unregister() -> None:
    """Take back every `register`. Does nothing when there is none."""
    for owner in settings.owners():
        owner.undo()


@contextlib.contextmanager
def automatic(meshes: Sequence[Mesh | None]) -> Iterator[None]:
    """Compute attention by tpuport in this thread, on the mesh of the models that are being traced.

    Models on different meshes get none, so that the compiler shares out their work.
    """
    found = set(meshes)
    _hold()
    try:
        with settings.automatic(found.pop() if len(found) == 1 else None):
            yield
    finally:
        _release()


def _hold() -> None:
    """One more has asked; the first one installs."""
    global _holders
    from tpuport.attention.register import torch_sdpa

    with _lock:
        # Every time, because `tpuport.disable` may have taken the operators out in between.
        torch_sdpa.install()
        _holders += 1


def _release() -> None:
    """One less; the last one takes everything out."""
    global _holders
    from tpuport.attention.register import torch_sdpa

    with _lock:
        _holders -= 1
        if not _holders:
            torch_sdpa.uninstall()
            names.withdraw()
