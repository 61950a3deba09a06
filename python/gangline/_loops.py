"""What the callbacks of training loops have in common: which steps are saved, where to, and when the store is open."""

import os
import pathlib

from ._retention import Keep
from ._store import Reader, Save, Store
from .errors import Refused


class Saving:
    """A callback that saves every so many steps through a store that is open from the first save to the training's end."""

    def __init__(
        self, path: str | os.PathLike[str], every_n_steps: int, keep: int | Keep | None = 2, *, archive: str | None = None
    ) -> None:
        if every_n_steps < 1:
            raise Refused(f"save every {every_n_steps} steps: at least 1")
        # The training may change its folder.
        self.path, self.every_n_steps, self.keep = pathlib.Path(path).absolute(), every_n_steps, keep
        self.archive = archive
        self.last: Save | None = None
        """The save that was begun last."""
        self._store = None

    def _reader(self):
        """What reads earlier checkpoints, if there are any."""
        if not self.path.exists():
            return None
        reader = Reader(self.path)
        if reader.list():
            return reader
        reader.close()
        return None

    def _refuse_gang(self, world_size):
        if world_size > 1:
            raise Refused(f"save to {self.path}: {world_size} processes train; use gangline.DistributedStore")

    def _send(self, step, state):
        if self._store is None:
            self._store = Store(self.path, self.keep, archive=self.archive)
        self.last = self._store.save(step, state)

    def _end(self, error=None):
        """Waits for what is under way; what fails then only warns if the training has failed itself."""
        store, self._store = self._store, None
        if store is not None:
            store.__exit__(type(error), error, None)
