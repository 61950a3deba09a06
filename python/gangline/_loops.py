"""Common parts of the callbacks of training loops: which steps are saved, to which folder, and when the
store is open."""

import os
import pathlib

import torch.distributed as dist

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
