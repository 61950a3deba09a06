"""Common parts of the callbacks of training loops: which steps are saved, to which folder, when the store is open, and what is
reported of what they log."""

import numbers
import os
import pathlib

import torch
import torch.distributed as dist

from . import _report
from ._distributed import DistributedStore
from ._retention import Keep
from ._store import Reader, Save, Store
from .errors import Refused


class Saving:
    """A callback that saves at a step interval, through a store that is open from the first save to the
    training's end."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        every_n_steps: int,
        keep: int | Keep | None = 2,
        *,
        archive: str | None = None,
        overlap: bool = False,
    ) -> None:
        if every_n_steps < 1:
            raise Refused(f"save every {every_n_steps} steps: at least 1")
        # The training may change its working directory.
        self.path, self.every_n_steps, self.keep = pathlib.Path(path).absolute(), every_n_steps, keep
        self.archive, self.overlap = archive, overlap
        self.last: Save | None = None
        """The latest save."""
        self._store = None
        self._loaded = None  # the step that the training goes on from
        self._stop = Stop()

    def _reader(self):
        """Returns a reader of earlier checkpoints, if there are any."""
        if not self.path.exists():
            return None
        reader = Reader(self.path)
        if reader.list():
            return reader
        reader.close()
        return None

    def _send(self, step, state, optimizers):
        self.last = self._opened().save(step, state, stable_until=optimizers if self.overlap else None)

    def _opened(self):
        """Returns the store, which several processes open together."""
        if self._store is None:
            kind = DistributedStore if is_gang() else Store
            self._store = kind(self.path, self.keep, archive=self.archive)
            if self._loaded is not None:
                self._store._resumed(self._loaded)
        return self._store

    def _end(self, error=None):
        """Waits for saves in flight; their failure only warns if the training itself has failed."""
        store, self._store = self._store, None
        if store is not None:
            store.__exit__(type(error), error, None)
        if error is None:
            self._stop.close()


class Stop:
    """Agrees with the other ranks on the step after which all save and stop, since Gangline's order reaches them at different
    steps. Their answers are waited for a step later, so no rank waits for another more than training does."""

    # What a process that has saved and is to be started again exits with (docs/reference/rank-protocol.md).
    CODE = 94

    def __init__(self):
        self._group = self._asked = self._answers = None

    def is_due(self):
        """Reports whether all ranks stop after this step. All call it after each of their steps."""
        if not _report.is_in_job():
            return False
        is_asked = _report.stop_requested() is not None
        if not is_gang():
            return is_asked
        if self._group is None:
            # Small numbers by way of the CPU, which no work of a GPU is waited for.
            self._group = dist.new_group(backend="gloo")
        if self._is_answered():
            # Nothing is under way when the ranks leave.
            return True
        self._asked = torch.tensor([int(is_asked)])
        self._answers = dist.all_reduce(self._asked, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return False

    def _is_answered(self):
        """Waits for the ranks' answers of the step before, and reports whether one of them was asked to stop."""
        answers, self._answers = self._answers, None
        if answers is None:
            return False
        answers.wait()
        return bool(self._asked.item())

    def close(self):
        """Ends the agreement, in all ranks: a rank that ends with a part of it under way may be aborted by gloo's threads."""
        self._is_answered()
        if self._group is not None and is_gang():
            dist.barrier(group=self._group)
            dist.destroy_process_group(self._group)
            self._group = None


def report_logged(step, logged):
    """Reports the numbers among what a training loop logs of a step; its loss as such. A name that can't be reported, or means
    something else to `report`, is left out."""
    is_metric = lambda name: _report.is_name(name) and name not in ("step", "tokens", "total_steps")  # noqa: E731
    named = ((name, value) for name, value in logged.items() if is_number(value) and is_metric(name))
    metrics = dict(list(named)[: _report.METRICS_MAX])
    _report.report(step, loss=metrics.pop("loss", None), **metrics)


def is_number(value):
    """Reports whether a value is one number, in a tensor or not."""
    return isinstance(value, numbers.Real) or (hasattr(value, "numel") and value.numel() == 1)


def is_gang():
    """Reports whether several processes train."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def with_shared_buffers(state_dict, module):
    """Returns the state dict with rank 0's buffers on every rank, as DistributedDataParallel broadcasts
    them before each step; buffers such as running averages of batches differ by rank between steps."""
    shared = dict(state_dict)
    for name, buffer in module.named_buffers():
        if name in shared:
            shared[name] = buffer.detach().clone()
            dist.broadcast(shared[name], src=0)
    return shared
