"""Lightning's and Hugging Face's trainers save through the store, are killed, and go on as if nothing had happened."""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import types

import gangline
import gangline.lightning
import gangline.transformers
import pytest
import torch
import transformers
from loops import EVERY, KILL_AFTER, STEPS, model
from pytorch_lightning import LightningModule, Trainer

LOOPS = pathlib.Path(__file__).with_name("loops.py")


def run(loop, folder, *how):
    ended = subprocess.run([sys.executable, "-W", "ignore", LOOPS, loop, folder, *how], capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout), ended


@pytest.mark.parametrize("loop", ["lightning", "standard", "workers", "generator", "drawn", "limit", "transformers", "endless_tokens"])
def test_a_killed_training_has_the_losses_of_the_uninterrupted_one(tmp_path, loop):
    ((whole_status, whole), (killed_status, killed), (resumed_status, resumed)), ended = run(loop, tmp_path)
    assert (whole_status, killed_status, resumed_status) == (0, -signal.SIGKILL, 0), ended.stderr
    first = KILL_AFTER // EVERY * EVERY
    assert [int(step) for step, _ in whole] == list(range(1, STEPS + 1))
    assert killed == whole[:KILL_AFTER] and resumed == whole[first:], "to the last digit"
    assert len({loss for _, loss in whole}) > STEPS / 2, "it does train"
    for folder in ("whole", "killed"):
        steps = [listed.step for listed in gangline.Reader(tmp_path / folder / "store").list()]
        assert steps == [STEPS // EVERY * EVERY, STEPS], "the last step is saved too"


@pytest.mark.parametrize("loop", ["ddp", "transformers_ddp", "tokens_ddp", "transformers_tokens_ddp"])
def test_two_processes_that_are_killed_go_on_as_if_nothing_had_happened(tmp_path, loop):
    (whole, killed, resumed), ended = run(loop, tmp_path)
    assert [[status for status, _ in ranks] for ranks in (whole, resumed)] == [[0, 0]] * 2, ended.stderr
    assert all(status for status, _ in killed)
    first = KILL_AFTER // EVERY * EVERY
    for rank in range(2):
        losses = whole[rank][1]
        assert resumed[rank][1] == losses[first:] and len(losses) - first > 20, "to the last digit"
    if loop == "ddp":
        assert whole[0][1] != whole[1][1], "each has its own data and its own numbers"
    listed = gangline.Reader(tmp_path / "killed" / "store").list()
    assert [one.step for one in listed] == [STEPS // EVERY * EVERY, STEPS] and listed[-1].info.world_size == 2


@pytest.mark.parametrize("loop", ["standard", "transformers_ddp"])
def test_a_training_that_is_asked_to_stop_saves_at_once_and_goes_on_as_if_nothing_had_happened(tmp_path, loop):
    (whole, asked, resumed), ended = run(loop, tmp_path, "asked")
    ranks = 2 if loop.endswith("ddp") else 1
    whole, asked, resumed = ([played] if ranks == 1 else played for played in (whole, asked, resumed))
    assert [[status for status, _ in played] for played in (whole, asked, resumed)] == [[0] * ranks, [94] * ranks, [0] * ranks], ended.stderr
    for rank in range(ranks):
        losses, before, after = (played[rank][1] for played in (whole, asked, resumed))
        assert KILL_AFTER <= len(before) == len(asked[0][1]) < STEPS, "all stop after the same step, soon after they were asked"
        assert before + after == losses, "to the last digit, and no step twice"


class Loop:
    """The Trainer's loop, as a callback sees it."""

    def __init__(self, callback):
        self.callback, self.net = callback, model()
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)

    def step(self, step):
        state = transformers.TrainerState(global_step=step, max_steps=100)
        held = {"model": self.net, "optimizer": self.optimizer, "lr_scheduler": self.scheduler}
        self.callback.on_step_end(types.SimpleNamespace(world_size=1), state, None, **held)


def test_a_save_that_fails_in_the_background_stops_the_training_at_the_next(tmp_path):
    loop = Loop(gangline.transformers.CheckpointCallback(tmp_path / "store", every_n_steps=2))
    loop.step(1)
    assert loop.callback.last is None
    loop.step(2)
    loop.callback.last.durable()
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").write_text("")
    loop.step(4)
    while not loop.callback.last.done():
        pass
    with pytest.raises(gangline.IoFailed, match="store"):
        loop.step(6)
    loop.callback.on_train_end(None, None, None)


@pytest.mark.parametrize("module", [gangline.lightning, gangline.transformers])
def test_callbacks_refuse_what_makes_no_sense(tmp_path, module):
    with pytest.raises(gangline.Refused, match="at least 1"):
        module.CheckpointCallback(tmp_path, every_n_steps=0)
    callback = module.CheckpointCallback(tmp_path / "store", every_n_steps=1)
    assert callback.newest() is None
    gang = types.SimpleNamespace(world_size=2, strategy="not DDP", fsdp="full_shard")
    with pytest.raises(gangline.Refused, match="2 processes train|shares the model out"):
        callback.setup(gang, None, "fit") if module is gangline.lightning else callback.on_train_begin(gang, None, None)
    with gangline.Store(tmp_path / "store") as store:
        assert callback.newest() is None, "there is a folder and no checkpoint"
        store.save(3, {"model": {}}).durable()
    if module is gangline.transformers:
        with pytest.raises(gangline.Refused, match="no 'optimizer', so this callback didn't save it"):
            callback.newest()


def test_lightning_is_told_what_has_no_safe_encoding_and_keeps_its_other_files(tmp_path):
    class Module(LightningModule):
        def __init__(self, rate, function=None):
            super().__init__()
            self.save_hyperparameters()
            self.net = model()

        def training_step(self, batch, index):
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=self.hparams.rate)

    def fit(module, steps, **options):
        callback = gangline.lightning.CheckpointCallback(tmp_path / "store", every_n_steps=1)
        quiet = {"logger": False, "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
        trainer = Trainer(max_steps=steps, callbacks=[callback], default_root_dir=tmp_path, **quiet)
        trainer.fit(module, torch.utils.data.DataLoader(torch.ones(16, 5), batch_size=2), **options)
        return trainer

    with pytest.raises(gangline.Refused, match=r"\['hyper_parameters'\]\['function'\]"):
        fit(Module(0.1, print), 1)
    trainer = fit(Module(0.1), 2)
    trainer.save_checkpoint(tmp_path / "elsewhere.ckpt")
    assert (tmp_path / "elsewhere.ckpt").is_file()
    assert fit(Module(0.1), 3, ckpt_path=tmp_path / "elsewhere.ckpt").global_step == 3
    assert fit(Module(0.1), 4, ckpt_path=tmp_path / "store" / "3").global_step == 4
    assert [listed.step for listed in gangline.Reader(tmp_path / "store").list()] == [3, 4]
    with pytest.raises(gangline.Refused, match="give a step or 'newest'"):
        fit(Module(0.1), 4, ckpt_path=tmp_path / "store" / "best")
