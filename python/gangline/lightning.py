"""Checkpoints of Lightning's Trainer through the store: saved beside the training, and resumed exactly.

    checkpoints = gangline.lightning.CheckpointCallback("checkpoints", every_n_steps=100)
    trainer = lightning.pytorch.Trainer(callbacks=[checkpoints])
    trainer.fit(model, data, ckpt_path=checkpoints.newest())

Saved is what Lightning itself saves (model, optimizers, schedulers, loops, callbacks, stateful data loaders) and the states of the
generators of random numbers, without pickle. One process trains; where Lightning goes on within the data is its own affair: it
needs a data loader with `state_dict` for the middle of an epoch. Works with `lightning` and with `pytorch_lightning`.
"""

import os
import pathlib
import sys
from typing import Any

if "lightning.pytorch" in sys.modules or "pytorch_lightning" not in sys.modules:
    try:
        from lightning.pytorch.callbacks import Checkpoint
        from lightning.pytorch.plugins import CheckpointIO
    except ModuleNotFoundError:
        from pytorch_lightning.callbacks import Checkpoint
        from pytorch_lightning.plugins import CheckpointIO
else:
    from pytorch_lightning.callbacks import Checkpoint
    from pytorch_lightning.plugins import CheckpointIO

from . import _random
from ._loops import Saving
from ._retention import Keep
from ._store import Reader
from .errors import Refused

# Stands for the newest good checkpoint in the address that Lightning is given.
NEWEST = "newest"


class CheckpointCallback(Saving, Checkpoint):
    """Saves every so many steps and after the last, without making the trainer wait for the disk.

    path: the store's folder; it is made if it isn't there.
    every_n_steps: optimizer steps between two saves, 1 or more.
    keep: how many good checkpoints stay; None keeps all.
    archive: where the newest also goes in the background, as for Store.

    A save that fails in the background stops the training at the next one, or at its end. Raises Refused, in a training on
    more than one process too; what Lightning saves and has no safe encoding is refused, with its path.
    """

    def __init__(
        self, path: str | os.PathLike[str], every_n_steps: int, keep: int | Keep | None = 2, *, archive: str | None = None
    ) -> None:
        super().__init__(path, every_n_steps, keep, archive=archive)
        self._random_states = None

    def newest(self) -> str | None:
        """What `fit` takes as `ckpt_path` to go on from the newest good checkpoint; None if there is none yet."""
        reader = self._reader()
        if reader is None:
            return None
        reader.close()
        return str(self.path / NEWEST)

    def setup(self, trainer, pl_module, stage):
        self._refuse_gang(trainer.world_size)
        if not isinstance(trainer.strategy.checkpoint_io, _StoreIO):
            trainer.strategy.checkpoint_io = _StoreIO(self, trainer.strategy.checkpoint_io)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if self._random_states is not None:
            # Now, and not earlier: making loaders and their iterators has drawn numbers of its own.
            _random.restore(self._random_states)
            self._random_states = None

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step % self.every_n_steps == 0:
            self._save(trainer)

    def on_train_end(self, trainer, pl_module):
        self._save(trainer)
        self._end()

    def on_exception(self, trainer, pl_module, exception):
        self._end(exception)

    def state_dict(self):
        return {"random": _random.states()}

    def load_state_dict(self, state_dict):
        self._random_states = state_dict["random"]

    def _save(self, trainer):
        if trainer.global_step > 0 and (self.last is None or self.last.step != trainer.global_step):
            trainer.save_checkpoint(self.path / str(trainer.global_step), weights_only=False)


class _StoreIO(CheckpointIO):
    """Where Lightning reads and writes: the store for addresses in its folder, what was there before for others."""

    def __init__(self, callback, others):
        self.callback, self.others = callback, others

    def save_checkpoint(self, checkpoint: dict[str, Any], path, storage_options=None):
        if pathlib.Path(path).parent != self.callback.path:
            return self.others.save_checkpoint(checkpoint, path, storage_options)
        self.callback._send(checkpoint["global_step"], checkpoint)

    def load_checkpoint(self, path, *args, **kwargs):
        path = pathlib.Path(path)
        if path.parent != self.callback.path:
            return self.others.load_checkpoint(path, *args, **kwargs)
        if path.name != NEWEST and not path.name.isdecimal():
            raise Refused(f"load {path}: give a step or {NEWEST!r} in the store's folder")
        with Reader(self.callback.path) as reader:
            return reader.load(None if path.name == NEWEST else int(path.name))

    def remove_checkpoint(self, path):
        if pathlib.Path(path).parent != self.callback.path:
            self.others.remove_checkpoint(path)

    def teardown(self):
        self.others.teardown()
