"""The one exception that tpuport raises on purpose."""


class PortError(Exception):
    """Something about the user's model, files, mesh or options cannot work, found
    before the work starts.

    Args:
        what: one sentence saying what happened.
        where: the parameter, file, line, option or mesh axis it concerns.
        fix: what to do about it.
    """

    def __init__(
        self, what: str, *, where: str | None = None, fix: str | None = None
    ) -> None:
        self.what, self.where, self.fix = what, where, fix
        parts = [what]
        if where:
            parts.append(f"  where: {where}")
        if fix:
            parts.append(f"  fix: {fix}")
        super().__init__("\n".join(parts))


class NoCudaError(PortError, AssertionError, RuntimeError):
    """Code needs CUDA where there is none.

    Libraries catch what torch raises then, an AssertionError or a RuntimeError by its
    build.
    """


class MissingDtypeError(PortError):
    """A dtype is asked for, or needed for the values of a tensor, that the device does
    not have.
    """
