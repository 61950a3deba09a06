"""Saves checkpoints of Hugging Face's Trainer in the background, and resumes training exactly.

    checkpoints = gangline.transformers.CheckpointCallback("checkpoints", every_n_steps=100)
    trainer = transformers.Trainer(model, TrainingArguments(..., save_strategy="no"), callbacks=[checkpoints])
    trainer.train(resume_from_checkpoint=checkpoints.newest())

A checkpoint holds what the Trainer itself saves (model, optimizer, scheduler, scaler, random number
generators, its own state), by one process or by several under DistributedDataParallel (torchrun), each of
which has its own generators. The Trainer resumes within the data as always: it skips the batches that were
trained on.

`WatchCallback` reports every step and where its time went (gangline.torch.watch), with what the Trainer logs.

`gangline.transformers.Trainer` is transformers' own that also takes gangline.Tokens as its `train_dataset`: their
batches are the steps', each process having its own rows, and a checkpoint keeps their position.
"""

import dataclasses
import json
import os
import pathlib
import sys
import tempfile

import torch
import transformers
from torch.utils.data import DataLoader
from transformers import TrainerCallback
from transformers.trainer import OPTIMIZER_NAME, SCALER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.utils import WEIGHTS_NAME

from . import _loaders, _random
from ._loops import Saving, is_gang, report_logged, with_shared_buffers
from ._per_rank import PerRank
from ._order import Ordered
from ._report import report
from .errors import Refused
from .torch import watch

RANDOM_NAME = "rng_state.pth"
# In an unpacked checkpoint: the position of the tokens.
TOKENS_NAME = "gangline_tokens.json"


class Trainer(transformers.Trainer):
    """transformers' Trainer, whose `train_dataset` may be gangline.Tokens (with labels="same", as models expect).

    Each batch of the tokens is one of the Trainer's, whatever `per_device_train_batch_size` says; with gradient
    accumulation, several are a step. Where processes have uneven rows, their losses are weighed, so that the mean
    over the processes is the global batch's. A checkpoint of CheckpointCallback has the tokens' position, from which
    `train` goes on at once, at any number of processes. Raises Refused for tokens of another rank or number of
    ranks than this process's.
    """

    def get_train_dataloader(self):
        tokens = self.train_dataset
        if not isinstance(tokens, Ordered):
            return super().get_train_dataloader()
        if (tokens.rank, tokens.world_size) != (self.args.process_index, self.args.world_size):
            raise Refused(
                f"train on tokens of rank {tokens.rank} of {tokens.world_size} in process {self.args.process_index} of "
                f"{self.args.world_size}: give them rank and world_size"
            )
        # Without a generator of its own, each iteration would draw from the model's.
        return DataLoader(tokens, batch_size=None, generator=torch.Generator())

    def train(self, resume_from_checkpoint=None, *args, **kwargs):
        tokens = self.train_dataset
        if isinstance(tokens, Ordered) and isinstance(resume_from_checkpoint, (str, os.PathLike)):
            position = pathlib.Path(resume_from_checkpoint) / TOKENS_NAME
            if position.exists():
                tokens.load_state_dict(json.loads(position.read_text()))
                # They are there already: skipping would go past batches that nobody trained on.
                self.args.ignore_data_skip = True
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        computed = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        # A number of items is that of all processes, by which each one's loss was divided.
        if not (isinstance(self.train_dataset, Ordered) and model.training) or num_items_in_batch is not None:
            return computed
        weight = self.train_dataset.loss_weight
        return (computed[0] * weight, computed[1]) if return_outputs else computed * weight


class WatchCallback(TrainerCallback):
    """Reports every step to Gangline, where its time went (see gangline.torch.watch), and what the Trainer logs: loss, learning
    rate, norm of the gradients, evaluations. Outside of a Gangline job it does nothing."""

    _watch = None

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
        self._watch = watch(model, optimizer, first_step=state.global_step)
        if state.max_steps > 0:
            report(total_steps=state.max_steps)

    def on_log(self, args, state, control, logs=None, **kwargs):
        report_logged(state.global_step, logs or {})

    def on_train_end(self, args, state, control, **kwargs):
        self._watch.close()


class CheckpointCallback(Saving, TrainerCallback):
    """Saves every `every_n_steps` steps and after the last, without making the trainer wait for the disk.

    path: the store's folder, created if missing.
    every_n_steps: optimizer steps between two saves, 1 or more.
    keep: how many good checkpoints stay; None keeps all.
    archive: where the newest is also pushed in the background, as for Store.
    overlap: True copies parameters and optimizer state while the training goes on, until the optimizer's next
        step, as `stable_until` of Store.save does. A save fails if something else than the optimizer changes
        them meanwhile, such as clamping weights after each batch.

    A save that fails in the background stops the training at the next save, or at its end. Raises Refused,
    also for several processes that shard the model (FSDP, DeepSpeed).

    If another number of processes resumes, each gets new generators that are derived from the old ones.

    Where Gangline asks the job to save and stop, all processes save after the same step, the training ends, and they exit with
    94 in `train`, by which Gangline knows that the job is to go on elsewhere.
    """

    _unpacked = None
    _is_stopping = False

    def newest(self, folder: str | os.PathLike[str] | None = None) -> str | None:
        """Returns the `resume_from_checkpoint` for `train` to resume from the newest good checkpoint; None if
        there is none yet.

        The Trainer reads files, so the checkpoint is unpacked in `folder` (by default the folder of temporary
        files) until its first step has been trained; each process makes this call and unpacks its own. Raises
        NotFound if no checkpoint is good, Refused if another program saved it.
        """
        reader = self._reader()
        if reader is None:
            return None
        rank, world_size = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
        with reader:
            # Each of several processes reads a part of its own, so all take the step whose every byte is
            # good.
            good = None if world_size == 1 else reader.latest()
            reader._place = rank, world_size
            state = reader.load(None if good is None else good.step, resized=lambda keys, values: values[0])
            self._loaded = reader.loaded.step
        self._unpacked = tempfile.TemporaryDirectory(prefix="gangline-resume-", dir=folder)
        there = pathlib.Path(self._unpacked.name)
        files = {"model": WEIGHTS_NAME, "optimizer": OPTIMIZER_NAME, "scheduler": SCHEDULER_NAME, "random": RANDOM_NAME}
        files |= {"scaler": SCALER_NAME} if "scaler" in state else {}
        missing = [key for key in (*files, "trainer") if key not in state]
        if missing:
            raise Refused(f"resume from {self.path}: its checkpoint has no {missing[0]!r}, so this callback didn't save it")
        if world_size > 1:
            files["random"] = f"rng_state_{rank}.pth"
            if good.world_size == 1:
                state["random"] = _random.states_of_rank(state["random"], rank, world_size)
        if "tokens" in state:
            (there / TOKENS_NAME).write_text(json.dumps(state.pop("tokens")))
        for key, name in files.items():
            torch.save(state.pop(key), there / name)
        (there / TRAINER_STATE_NAME).write_text(state["trainer"])
        return str(there)

    def on_train_begin(self, args, state, control, **kwargs):
        shares = [name for name in ("fsdp", "deepspeed") if getattr(args, name, None)]
        if args.world_size > 1 and shares:
            raise Refused(f"save to {self.path}: {shares[0]} shares the model out among processes; use gangline.DistributedStore")

    def on_step_end(self, args, state, control, **kwargs):
        self._clean_up()
        is_over = state.global_step >= state.max_steps
        self._is_stopping = self._stop.is_due() and not is_over
        if self._is_stopping or is_over or state.global_step % self.every_n_steps == 0:
            self._save(state, **kwargs)
        if self._is_stopping:
            control.should_training_stop = True

    def on_train_end(self, args, state, control, **kwargs):
        self._clean_up()
        self._end()
        if self._is_stopping:
            sys.exit(self._stop.CODE)

    def _save(self, state, model, optimizer, lr_scheduler, **kwargs):
        saved = {
            "model": with_shared_buffers(model.state_dict(), model) if is_gang() else model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": lr_scheduler.state_dict(),
            "random": _random.rng_state() if is_gang() else _for_trainer(_random.states()),
            "trainer": json.dumps(dataclasses.asdict(state)),
        }
        if is_gang():
            # Differs by process.
            saved["trainer"] = PerRank(saved["trainer"])
        tokens = _loaders.tokens_of(kwargs.get("train_dataloader"))
        if tokens is not None:
            saved["tokens"] = tokens.state_dict()
        scaler = getattr(optimizer, "scaler", None)
        if scaler is not None:
            saved["scaler"] = scaler.state_dict()
        self._send(state.global_step, saved, optimizer)

    def _clean_up(self):
        """Removes the unpacked files: the Trainer has read everything when its first step has ended."""
        if self._unpacked is not None:
            self._unpacked.cleanup()
            self._unpacked = None


def _for_trainer(states):
    """Outside of a gang, the Trainer keeps only the current CUDA device's."""
    return states | {"cuda": torch.cuda.get_rng_state()} if "cuda" in states else states
