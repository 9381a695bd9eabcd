"""The runs on the host that a run on the device is held against, and where it leaves
them.
"""

import dataclasses
from collections.abc import Callable
from typing import Final, NamedTuple

import torch

from tpuport.verification import comparing, model_runs
from tpuport.verification.comparing import Mismatch, Runs
from tpuport.verification.model_runs import Arguments
from tpuport.verification.recording import Answer, ModuleCall, Recording

# Choices among equal values after which a comparison goes on; each takes another run.
_MOST_TIES: Final = 8
# Runs with arguments rounded at random: of a single number, one may be near by chance.
_MOST_ROUNDED: Final = 3
# A difference so much larger than what rounding does to a result is none.
_BEYOND_ROUNDING: Final = 100.0


class Comparison(NamedTuple):
    """How a run on the device compares.

    Attributes:
        runs: that were compared last, with torch's side in ties.
        mismatch: the first result outside of the bound that no tie explains.
        ties: in order.
        is_cut: whether there are more of them than a comparison follows.
    """

    runs: Runs
    mismatch: Mismatch | None
    ties: tuple[Mismatch, ...]
    is_cut: bool = False


class ReferenceRuns:
    """A call of a model in torch, in float64, and there with random rounding.

    Attributes:
        torch: its answers are those of all others.
        exact: None if the model does not run in float64, or has not.
        rounded: made as soon as something differs.
    """

    def __init__(self, model: torch.nn.Module, arguments: Arguments) -> None:
        self._model = model
        self._arguments = arguments
        self.torch = Recording()
        self.exact: Recording | None = None
        self.rounded: list[Recording] = []

    def fresh_model(self) -> torch.nn.Module:
        """A copy that was never called: a call may write to the model."""
        return model_runs.copy_model(self._model)

    def fresh_exact_model(self) -> torch.nn.Module | None:
        """The same in float64; None if it does not run so.

        Made anew each time: it is twice as large as the model.
        """
        return None if self.exact is None else model_runs.widen_model(self._model)

    def record_exact(self) -> None:
        """Run the model in float64, which raises whatever its code does there."""
        model = model_runs.widen_model(self._model)
        answers = self.torch.answers
        self.exact = model_runs.run_exact(model, self._arguments, answers)
        self.rounded.clear()

    def add_rounded(self) -> bool:
        """Make one more run with random rounding; whether there is one."""
        if len(self.rounded) < _MOST_ROUNDED:
            run = self._run_rounded(len(self.rounded))
            self.rounded += [] if run is None else [run]
            return run is not None
        return False

    def _run_rounded(
        self, seed: int, focus: ModuleCall | None = None
    ) -> Recording | None:
        model = self.fresh_exact_model()
        if model is None or self.exact is None:
            return None
        runs = self.torch, self.exact
        try:
            return model_runs.run_rounded(model, self._arguments, *runs, seed, focus)
        except Exception:  # noqa: BLE001  code may check what it computes
            return None

    def forget_values(self) -> None:
        """Keep the values of results alone, when nothing is left to compare."""
        for run in filter(None, (self.torch, self.exact, *self.rounded)):
            run.keep_results()

    def compare(
        self,
        device_run: Recording,
        port: Callable[[], torch.nn.Module],
        *,
        until: Callable[[], bool] = lambda: False,
    ) -> Comparison:
        """Where a run on the device first leaves torch's for good.

        After a tie everything may differ. So all run again with torch's choice; what
        differs then has another cause.

        Args:
            port: makes a copy of the model on the device.
            until: whether a mismatch is not to be looked into.
        """
        ties: list[Mismatch] = []
        runs = self._runs(device_run)
        for _ in range(_MOST_TIES):
            runs, mismatch = self._first_module(runs)
            if mismatch is None or until():
                return Comparison(runs, None, tuple(ties))
            mismatch = self._narrow(runs, mismatch, port)
            if mismatch.tie is None:
                return Comparison(runs, mismatch, tuple(ties))
            ties.append(mismatch)
            choice = Answer(None, False, mismatch.tie.indices)
            self.torch.answers[mismatch.tie.key] = choice
            answers = self.torch.answers
            device_run = model_runs.run_device(port(), self._arguments, answers)
            if self.exact is not None:
                self.record_exact()
            runs = self._runs(device_run)
            if device_run.error is not None:
                return Comparison(runs, None, tuple(ties))
        return Comparison(runs, None, tuple(ties), is_cut=True)

    def agree_with(self, device_run: Recording) -> bool:
        """Whether no module of a run on the device leaves the bound."""
        return self._first_module(self._runs(device_run))[1] is None

    def _runs(self, device_run: Recording) -> Runs:
        return Runs(device_run, self.torch, self.exact, tuple(self.rounded))

    def _first_module(self, runs: Runs) -> tuple[Runs, Mismatch | None]:
        """The first module that leaves the bound, as wide as rounding makes it."""
        mismatch = comparing.first_module(runs)
        while mismatch is not None and _may_be_rounding(mismatch, runs):
            if not self.add_rounded():
                break
            runs = dataclasses.replace(runs, rounded=tuple(self.rounded))
            mismatch = comparing.first_module(runs)
        return runs, mismatch

    def _narrow(
        self, runs: Runs, mismatch: Mismatch, port: Callable[[], torch.nn.Module]
    ) -> Mismatch:
        """The operator to blame in a module, from runs that keep the values of its
        operators.

        Only now, and only of one call: the values of all operators of a model would not
        fit in memory.
        """
        answers, call = self.torch.answers, mismatch.call
        device_run = model_runs.run_device(port(), self._arguments, answers, call)
        if device_run.error is not None:
            return mismatch
        torch_run = model_runs.run_torch(self.fresh_model(), self._arguments, call)
        exact_run = None
        exact_model = self.fresh_exact_model()
        if exact_model is not None:
            exact_run = model_runs.run_exact(
                exact_model, self._arguments, answers, call
            )
        rounded = (self._run_rounded(seed, call) for seed in range(len(runs.rounded)))
        focused = Runs(device_run, torch_run, exact_run, tuple(filter(None, rounded)))
        return comparing.first_operator(focused, call) or mismatch


def _may_be_rounding(mismatch: Mismatch, runs: Runs) -> bool:
    """Whether runs with random rounding may show that a difference is no more."""
    difference = mismatch.deviation
    if difference.reason:
        return False
    # Without such a run torch may be nearer than rounding lets it, by chance.
    return (
        not runs.rounded
        or difference.error <= _BEYOND_ROUNDING * difference.torch_error
    )
