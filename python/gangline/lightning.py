"""Saves checkpoints of Lightning's Trainer in the background, and resumes training exactly.

    checkpoints = gangline.lightning.CheckpointCallback("checkpoints", every_n_steps=100)
    trainer = lightning.pytorch.Trainer(callbacks=[checkpoints])
    trainer.fit(model, data, ckpt_path=checkpoints.newest())

A checkpoint holds what Lightning itself saves (model, optimizers, schedulers, loops, callbacks, stateful data
loaders), the states of the random number generators, and the positions of gangline.Tokens and of torch's own data
loaders in their epoch, without pickle. So a resumed training has the losses of one that was never stopped, also in the middle
of an epoch, with dropout and shuffle=True; where that can't be guaranteed (persistent workers, iterable
datasets) a ResumeWarning is issued. One process trains, or several under DDP: each has its own generators and
its own position in the data. Works with `lightning` and with `pytorch_lightning`.
"""

import os
import pathlib
import sys
import warnings
from typing import Any

if "lightning.pytorch" in sys.modules or "pytorch_lightning" not in sys.modules:
    try:
        from lightning.pytorch.callbacks import Callback, Checkpoint
        from lightning.pytorch.plugins import CheckpointIO
    except ModuleNotFoundError:
        from pytorch_lightning.callbacks import Callback, Checkpoint
        from pytorch_lightning.plugins import CheckpointIO
else:
    from pytorch_lightning.callbacks import Callback, Checkpoint
    from pytorch_lightning.plugins import CheckpointIO

from . import _loaders, _random
from ._loops import Saving, is_gang, report_logged, with_shared_buffers
from ._per_rank import PerRank
from ._retention import Keep
from ._report import report
from ._store import Reader
from .errors import Refused, ResumeWarning
from .torch import watch

# The key of the generators' states in a save by several processes.
RANDOM = "gangline.random"
# Stands for the newest good checkpoint in the path passed to Lightning.
NEWEST = "newest"


class WatchCallback(Callback):
    """Reports every step to Gangline, where its time went (see gangline.torch.watch), and every `log_every_n_steps` of the
    Trainer what the module logs. Of several optimizers the first one's steps count. Outside of a Gangline job it does nothing."""

    _watch = None
    _told = None

    def on_train_start(self, trainer, pl_module):
        self._watch, self._told = watch(pl_module, trainer.optimizers[0], first_step=trainer.global_step), trainer.global_step
        if 0 < trainer.estimated_stepping_batches < float("inf"):
            report(total_steps=int(trainer.estimated_stepping_batches))

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        # Lightning calls the module's training_step, and itself only under some strategies.
        self._watch.forward_begins(batch.get("input_ids") if isinstance(batch, dict) else batch)

    def on_before_backward(self, trainer, pl_module, loss):
        self._watch.forward_ended()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        step = trainer.global_step
        if step != self._told and step % trainer.log_every_n_steps == 0:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            self._told = step
            report_logged(step, {"loss": loss} | dict(trainer.logged_metrics))

    def on_train_end(self, trainer, pl_module):
        self._watch.close()


class CheckpointCallback(Saving, Checkpoint):
    """Saves every `every_n_steps` steps and after the last, without making the trainer wait for the disk.

    path: the store's folder, created if missing.
    every_n_steps: optimizer steps between two saves, 1 or more.
    keep: how many good checkpoints stay; None keeps all.
    archive: where the newest is also pushed in the background, as for Store.
    overlap: True copies parameters and optimizer state while the training goes on, until the optimizer's next
        step, as `stable_until` of Store.save does. A save fails if something else than the optimizer changes
        them meanwhile, such as clamping weights after each batch.

    A save that fails in the background stops the training at the next save, or at its end. Raises Refused:
    for several processes under another strategy than DDP, and for a value in Lightning's checkpoint without a
    safe encoding, with its path.

    If another number of processes resumes, each gets new generators that are derived from the old ones, and
    callbacks and loops are those of rank 0. gangline.Tokens go on where they were; other data of the epoch starts
    anew, with a ResumeWarning.

    Where Gangline asks the job to save and stop, all processes save after the same step and exit with 94 in `fit`, by
    which Gangline knows that the job is to go on elsewhere.

    weighs_losses: if the only data loader is of gangline.Tokens, whether each process's loss is multiplied by their
        `loss_weight` before its gradients are computed, so that DDP's mean is the global batch's though the
        processes have uneven rows. A training step that multiplies itself needs False.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        every_n_steps: int,
        keep: int | Keep | None = 2,
        *,
        archive: str | None = None,
        overlap: bool = False,
        weighs_losses: bool = True,
    ) -> None:
        super().__init__(path, every_n_steps, keep, archive=archive, overlap=overlap)
        self.weighs_losses = weighs_losses
        self._loaders = []
        self._random_states = None
        self._trainer = None
        self._last_step = None

    def newest(self) -> str | None:
        """Returns the `ckpt_path` for `fit` to resume from the newest good checkpoint; None if there is
        none yet."""
        reader = self._reader()
        if reader is None:
            return None
        reader.close()
        return str(self.path / NEWEST)

    def setup(self, trainer, pl_module, stage):
        strategy = trainer.strategy
        if trainer.world_size > 1 and type(strategy).__name__ != "DDPStrategy":
            raise Refused(
                f"save to {self.path}: {trainer.world_size} processes train under {type(strategy).__name__}, and this callback "
                "knows only DDP; use gangline.DistributedStore"
            )
        self._trainer = trainer
        if not isinstance(strategy.checkpoint_io, _StoreIO):
            strategy.checkpoint_io = _StoreIO(self, strategy.checkpoint_io)
            # Lightning passes each loader through this once it is fully configured, and before it requests
            # batches.
            strategy.process_dataloader = _resumable_for(self, trainer, strategy.process_dataloader)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        # Only now, unless one of torch's loaders has done so: others have drawn numbers until here.
        self.put_back()

    def put_back(self):
        """Restores the random number generators, before the first batch."""
        if self._random_states is not None:
            _random.restore(self._random_states)
            self._random_states = None

    def is_over(self):
        """Reports whether the last batch of an epoch has been trained on."""
        return self._trainer.fit_loop.epoch_loop.batch_progress.is_last_batch

    def ahead(self):
        """Returns the number of batches that Lightning has requested and not trained on: one, where the
        loader has no length."""
        return len(getattr(self._trainer.fit_loop._data_fetcher, "batches", ()))

    def on_before_backward(self, trainer, pl_module, loss):
        if self.weighs_losses and len(self._loaders) == 1 and isinstance(self._loaders[0], _loaders.Positioned):
            weight = self._loaders[0].tokens.loss_weight
            if weight != 1:
                loss.mul_(weight)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        for loader in self._loaders:
            if isinstance(loader, _loaders.Positioned):
                loader.trained()
        is_new, self._last_step = trainer.global_step != self._last_step, trainer.global_step
        is_stopping = is_new and self._stop.is_due() and trainer.global_step != trainer.max_steps
        if is_stopping or trainer.global_step % self.every_n_steps == 0:
            self._save(trainer)
        if is_stopping:
            # Lightning would validate first if it were told to stop.
            self._end()
            sys.exit(self._stop.CODE)

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
        if trainer.global_step == 0 or self.last is not None and self.last.step == trainer.global_step:
            return
        if not is_gang():
            return trainer.save_checkpoint(self.path / str(trainer.global_step), weights_only=False)
        # Lightning writes rank 0's state; here each rank passes its own.
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        checkpoint["state_dict"] = with_shared_buffers(checkpoint["state_dict"], trainer.lightning_module)
        checkpoint["callbacks"][self.state_key].pop("random")
        kept = {name: PerRank(checkpoint[name]) for name in ("callbacks", "loops")}
        self._send(checkpoint["global_step"], {**checkpoint, **kept, RANDOM: _random.rng_state()}, trainer.optimizers)

    def _load(self, step):
        if not is_gang():
            with Reader(self.path) as reader:
                checkpoint = reader.load(step, resized=_resized)
                self._loaded = reader.loaded.step
                return self._of_one(checkpoint)
        return self._of_one(self._opened().load(step, resized=_resized))

    def _of_one(self, checkpoint):
        """Converts a checkpoint to Lightning's form, whether one process saved it or several."""
        mine = checkpoint["callbacks"].get(self.state_key, {})
        if RANDOM in checkpoint:
            mine["random"] = checkpoint.pop(RANDOM)
        elif is_gang():
            checkpoint["loops"] = _resized(("loops",), [checkpoint["loops"]])
            if "random" in mine:
                mine["random"] = _random.states_of_rank(mine["random"], self._trainer.global_rank, self._trainer.world_size)
        return checkpoint


def _resized(keys, values):
    """Returns the `callbacks` and `loops` of rank 0, without positions in the data, if another number of
    processes saved them."""
    of_fit = values[0]["fit_loop"]["state_dict"] if keys == ("loops",) else {}
    positions = of_fit.get("combined_loader")
    if positions and all(map(_loaders.is_position, positions)):
        return values[0]
    if of_fit.pop("combined_loader", None) is not None:
        text = f"another number of processes saved the checkpoint ({len(values)}): the data of the epoch begins anew"
        warnings.warn(text, ResumeWarning, stacklevel=2)
    return values[0]


def _resumable_for(callback, trainer, process):
    def resumable_too(loader):
        tokens = _loaders.tokens_of(loader)
        if tokens is not None and (tokens.rank, tokens.world_size) != (trainer.global_rank, trainer.world_size):
            raise Refused(
                f"train on tokens of rank {tokens.rank} of {tokens.world_size} in process {trainer.global_rank} of "
                f"{trainer.world_size}: open them in the module's train_dataloader(), or give them rank and world_size"
            )
        # Lightning's own changes to a loader, such as other samplers, are none for tokens.
        loader = loader if tokens is not None else process(loader)
        if not trainer.training:
            return loader
        loader = _loaders.resumable(loader, callback)
        callback._loaders.append(loader)
        return loader

    return resumable_too


class _StoreIO(CheckpointIO):
    """Reads and writes Lightning's checkpoints: through the store for paths in its folder, otherwise
    through the previous plug-in."""

    def __init__(self, callback, others):
        self.callback, self.others = callback, others

    def save_checkpoint(self, checkpoint: dict[str, Any], path, storage_options=None):
        if pathlib.Path(path).parent != self.callback.path:
            return self.others.save_checkpoint(checkpoint, path, storage_options)
        if is_gang():
            raise Refused(f"save {path}: only the callback itself saves there while several processes train")
        self.callback._send(checkpoint["global_step"], checkpoint, self.callback._trainer.optimizers)

    def load_checkpoint(self, path, *args, **kwargs):
        path = pathlib.Path(path)
        if path.parent != self.callback.path:
            return self.others.load_checkpoint(path, *args, **kwargs)
        if path.name != NEWEST and not path.name.isdecimal():
            raise Refused(f"load {path}: give a step or {NEWEST!r} in the store's folder")
        return self.callback._load(None if path.name == NEWEST else int(path.name))

    def remove_checkpoint(self, path):
        if pathlib.Path(path).parent != self.callback.path:
            self.others.remove_checkpoint(path)

    def teardown(self):
        self.others.teardown()
