"""Errors of the store and of token data, one class for each decision a caller can make."""

import os


class Error(Exception):
    """Base class of the store's errors. The message names the step, file or tensor."""


class Refused(Error, ValueError):
    """An argument can't be saved, doesn't fit the checkpoint, or is an invalid option. Nothing was
    changed."""


class NotFound(Error, LookupError):
    """There is no such checkpoint."""


class Corrupt(Error):
    """A file is not what was saved. Load an older checkpoint; `load()` without a step does so
    automatically."""


class Poisoned(Error):
    """An earlier fsync failed: this store writes no more. Open a new one on a healthy disk."""


class NoSpace(Error, OSError):
    """The disk or quota is full. This save is lost, earlier ones are unaffected, and a later one may
    succeed."""


class IoFailed(Error, OSError):
    """The operating system refused to read or write."""


class Unreachable(Error, OSError):
    """An archive failed to perform an operation, after all sensible retries. Repeat it: it continues from
    there."""


class Disagreement(Error):
    """Ranks saved different tensors, values or metadata for the same step, or one of them was refused or
    failed. The message names the rank, and the difference or the failure."""


class TimedOut(Error, TimeoutError):
    """Another rank, or the disk, didn't finish in time."""


class Superseded(Error):
    """A newer attempt has saved this step: this process belongs to an attempt that has ended."""


class Held(Error):
    """Another run, or a newer attempt of this one, writes to this folder; each run needs a folder of its
    own. Nothing was changed."""


class Changed(Error):
    """With `stable_until`, tensors changed before they were copied. The message names them; nothing of this
    save is visible, and a later one is unaffected. Of token data: a file was changed while it was open."""


class Closed(Error):
    """The store was closed before the save was committed, or is closed now."""


class SaveFailedWarning(UserWarning):
    """A save failed in the background while another exception was being raised."""


class RetentionFailedWarning(UserWarning):
    """The checkpoint is durable, but retention failed to remove older ones, so the disk fills up."""


class ArchiveFailedWarning(UserWarning):
    """Checkpoints are durable locally, but the newest isn't in the archive. The next save, or the next
    store, retries."""


class BranchWarning(UserWarning):
    """A save began a new branch although nothing had been loaded: earlier checkpoints in the folder are
    kept, but the branch doesn't continue from them."""


class ResumeWarning(UserWarning):
    """A resumed training may differ from one that was never stopped, for the reason in the message."""


class SkippedWarning(UserWarning):
    """A newer checkpoint is damaged, and an older one was loaded instead."""


class PartialLoadWarning(UserWarning):
    """With strict=False, the checkpoint lacks something that `into` or `only` names; it was left
    unchanged."""


def none_good(path: str | os.PathLike[str]) -> NotFound:
    """Returns the error of a folder without a good checkpoint, or without one before the step that the platform says."""
    below = os.environ.get("GANGLINE_RESTORE_BELOW")
    limit = f" before step {below}, near which the loss went bad: keep more of them (keep=), or start anew" if below else ""
    return NotFound(f"find a good checkpoint in {path}: there is none{limit}")
