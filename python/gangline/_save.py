"""A save in flight, and the reporting of its outcome."""

import os
import warnings

from . import _info, _native, _report
from .errors import BranchWarning, Error, Refused, RetentionFailedWarning, TimedOut

# Saves whose outcome nobody has asked for. A store drops a save at the next one after its end.
unasked = set()


class Save:
    """A save in flight: the result of `Store.save`."""

    def __init__(self, step: int, pending: _native.Pending) -> None:
        self.step = step
        """The step being saved."""
        self._pending = pending
        self._process = os.getpid()
        self._retention_error = None
        self._began = None

    def staged(self) -> bool:
        """Reports whether the state is copied and may change. Always true once `save` has returned, unless it
        was called with `stable_until`."""
        return True

    def copied(self, timeout: float | None = None) -> None:
        """Waits until the state is copied and may change; with `stable_until`, call it before you change the
        state in another way than by an optimizer's step, from the thread that trains.

        timeout: the most seconds to wait; None for no limit.

        Raises TimedOut if that passed; the error of the copy.
        """

    def acknowledge(self, timeout=None):
        """Waits for the copy, like `copied`, but raises nothing."""
        return True

    def done(self) -> bool:
        """Reports whether the save has ended, well or not. Never waits."""
        check_process(self._process)
        return self._pending.done()

    def durable(self, timeout: float | None = None) -> _info.Saved:
        """Waits until the checkpoint is on disk, synced, and visible to `latest`; returns its description.

        timeout: the most seconds to wait; None for no limit.

        Raises TimedOut if that passed (the call may be repeated), or the save's error, on every call.
        """
        check_process(self._process)
        try:
            told = self._pending.wait(timeout)
        except Error:
            unasked.discard(self)
            raise
        if told is None:
            raise TimedOut(f"wait for step {self.step}: not durable after {timeout} s")
        unasked.discard(self)
        saved = _info.saved(told)
        self._retention_error = saved.retention_error
        self._began = saved.began
        _report.tell_durable()
        return saved

    def outcome(self) -> _info.Saved | None:
        """Returns the description of a save that is done; None if it failed. Its error then still counts as one that the
        user hasn't seen."""
        try:
            told = None if self._pending is None else self._pending.wait(0)
        except Error:
            return None
        return None if told is None else _info.saved(told)

    def __repr__(self):
        return f"<gangline.Save of step {self.step}>"


def check_process(opened_by):
    """Refuses use in a forked child, which has no writing thread and would wait forever."""
    if opened_by != os.getpid():
        raise Refused("use a store in a forked process: open it again there")


def warn_of_retention(save):
    if save._began is not None and "anew" in save._began:
        beside, save._began = save._began["anew"]["beside"], None
        text = f"step {save.step} begins a new branch: nothing was loaded, and the folder's newest save is of step {beside}, "
        text += "which stays and is not gone on from (branches(), prune(abandoned=True); load() before the first save goes on)"
        warnings.warn(text, BranchWarning, stacklevel=4)
    if save._retention_error is not None:
        text = f"step {save.step} is durable, but older checkpoints couldn't be removed: {save._retention_error}"
        warnings.warn(text, RetentionFailedWarning, stacklevel=4)


def ask(saves):
    """Waits for these saves; returns the errors of those that failed and that nobody had asked about."""
    failures = []
    for save in saves:
        is_told = save not in unasked
        try:
            save.durable()
        except Error as error:
            failures.extend([] if is_told else [error])
        warn_of_retention(save)
    return failures
