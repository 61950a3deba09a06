"""Durable, verified checkpoints with almost no stall, and tokens in an order that any number of ranks can go on
with, for PyTorch, numpy and JAX.

    store = gangline.Store("checkpoints")
    save = store.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step})
    ...                                   # the state is copied: training continues
    save.durable()                        # waits until it is on disk, if you need to know
    state = store.load()                  # the newest good one, every byte checked

Uses no pickle: loading a checkpoint never runs code from it. The files are safetensors.
"""

from ._distributed import DistributedStore
from ._info import Branch, CheckpointInfo, Listed, Problem, Pruned, Pulled, Pushed, Saved, TensorInfo, VerifyReport
from ._loading import Loaded
from ._native import __version__
from ._order import MegatronOrder
from ._per_rank import PerRank
from ._random import rng_state, set_rng_state
from ._report import StopRequest, phase, report, saved, stop_requested
from ._retention import Keep
from ._rows import Rows
from ._store import Reader, Save, Store
from ._tokens import Batch, PackedBatch, Tokens
from .errors import (
    ArchiveFailedWarning,
    BranchWarning,
    Changed,
    Closed,
    Corrupt,
    Disagreement,
    Error,
    Held,
    IoFailed,
    NoSpace,
    NotFound,
    PartialLoadWarning,
    Poisoned,
    Refused,
    ResumeWarning,
    RetentionFailedWarning,
    SaveFailedWarning,
    SkippedWarning,
    Superseded,
    TimedOut,
    Unreachable,
)

__all__ = [
    "ArchiveFailedWarning",
    "Batch",
    "Branch",
    "BranchWarning",
    "Changed",
    "CheckpointInfo",
    "Closed",
    "Corrupt",
    "Disagreement",
    "DistributedStore",
    "Error",
    "Held",
    "IoFailed",
    "Keep",
    "Listed",
    "Loaded",
    "MegatronOrder",
    "NoSpace",
    "NotFound",
    "PackedBatch",
    "PartialLoadWarning",
    "PerRank",
    "Poisoned",
    "Problem",
    "Pruned",
    "Pulled",
    "Pushed",
    "Reader",
    "Refused",
    "ResumeWarning",
    "RetentionFailedWarning",
    "Rows",
    "Save",
    "SaveFailedWarning",
    "Saved",
    "SkippedWarning",
    "StopRequest",
    "Store",
    "Superseded",
    "TensorInfo",
    "TimedOut",
    "Tokens",
    "Unreachable",
    "VerifyReport",
    "__version__",
    "phase",
    "report",
    "rng_state",
    "saved",
    "set_rng_state",
    "stop_requested",
]
