"""Training under a loop of the user's own: optimizers whose steps are programs, and the
loops of libraries.

Gradients are not here: torch's autograd records them (`compat.recording`,
`compilation.recorded_programs`).
"""

from tpuport.training import optimizers, trainers


def install() -> None:
    """Change torch and libraries as training needs it. Does nothing the second time."""
    optimizers.install()
    trainers.install()


def uninstall() -> None:
    """Undo `install`."""
    trainers.uninstall()
    optimizers.uninstall()
