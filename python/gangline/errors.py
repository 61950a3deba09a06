"""What the store refuses or fails at: one class for each decision that a caller can make."""


class Error(Exception):
    """Anything the store refuses or fails at. The message names the step, file or tensor."""


class Refused(Error, ValueError):
    """What was passed can't be saved, or doesn't fit what was; or the options make no sense. Nothing was changed."""


class NotFound(Error, LookupError):
    """There is no such checkpoint."""


class Corrupt(Error):
    """A file is not what was saved. Load an older checkpoint: `load()` without a step does so by itself."""


class Poisoned(Error):
    """An earlier fsync failed: this store writes no more. Open a new one on a healthy disk."""


class NoSpace(Error, OSError):
    """The disk or quota is full. This save is gone, earlier ones are untouched, a later one may succeed."""


class IoFailed(Error, OSError):
    """The operating system refused to read or write."""


class Unreachable(Error, OSError):
    """An archive didn't do what it was asked, also after all tries that make sense. Do the same again: it goes on where it was."""


class Disagreement(Error):
    """Ranks saved other tensors, values or metadata under the same step, or one of them was refused or failed and told the others so.
    The message names the rank, and what differs or went wrong."""


class TimedOut(Error, TimeoutError):
    """Another rank, or the disk, didn't come in time."""


class Superseded(Error):
    """A newer attempt has saved this step: this process belongs to one that is over."""


class Held(Error):
    """Another run writes to this folder, or a newer attempt of this one: give each run a folder of its own. Nothing was changed."""


class Closed(Error):
    """The store was closed before the save was committed, or is closed now."""


class SaveFailedWarning(UserWarning):
    """A save failed in the background while another exception was already on its way."""


class RetentionFailedWarning(UserWarning):
    """A checkpoint is durable, but older ones that were to go after it couldn't be removed: the disk fills up."""


class ArchiveFailedWarning(UserWarning):
    """Checkpoints are durable here, but the newest isn't in the archive. The next save, or the next store, tries again."""


class BranchWarning(UserWarning):
    """A save began a new branch though nothing had been loaded: what the folder held is left alone, and isn't gone on from."""


class ResumeWarning(UserWarning):
    """A training that is resumed may not go on exactly as one that was never stopped, for this reason."""


class SkippedWarning(UserWarning):
    """A newer checkpoint isn't good, and an older one was loaded instead."""


class PartialLoadWarning(UserWarning):
    """With strict=False, the checkpoint lacks something that `into` or `only` names: it was left as it is."""
