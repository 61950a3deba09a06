"""gangline.torch.watch: what it reports of a loop that does nothing for it."""

import gc
import os
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import gangline
import gangline.torch
from gangline import _report
from test_report import Supervisor

WAIT = 0.05
# Longer than anything takes here that doesn't wait on purpose, on a busy machine too.
LONG = 1.0


class SlowSet(TensorDataset):
    def __getitem__(self, index):
        time.sleep(WAIT)
        return super().__getitem__(index)


class SlowModel(torch.nn.Linear):
    """Takes `wait` seconds to train, and long to be evaluated."""

    wait = WAIT

    def forward(self, inputs):
        time.sleep(self.wait if torch.is_grad_enabled() else LONG)
        return super().forward(inputs)


@pytest.fixture
def supervisor(tmp_path, monkeypatch):
    found = Supervisor(tmp_path)
    monkeypatch.setattr(_report, "_connection", _report._Connection(found.path))
    yield found
    if _report.watching() is not None:
        _report.watching().close()
    found.listener.close()


def steps_of(supervisor, count):
    """The next messages that have a step."""
    found = []
    while len(found) < count:
        message = supervisor.next()
        if "step" in message:
            found.append(message)
    return found


def train(model, optimizer, loader, told=lambda step: None):
    for step, (batch,) in enumerate(loader, 1):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        told(step)


def loader(count, kind=TensorDataset):
    return DataLoader(kind(torch.ones(count, 4)), batch_size=1)


def test_an_unchanged_loop_is_told_with_its_steps_and_where_their_time_went(supervisor):
    model = SlowModel(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    functions, callbacks = (torch.autograd.backward, dist.all_reduce, torch.save), list(gc.callbacks)
    watch = gangline.torch.watch(model, optimizer)
    supervisor.accept()
    train(model, optimizer, loader(3, SlowSet))
    watch.close()
    assert supervisor.next() == {"phase": "compute"}
    steps = steps_of(supervisor, 3)
    assert [message["step"] for message in steps] == [1, 2, 3]
    for message in steps:
        phases, metrics = message["phase_seconds"], message["metrics"]
        assert phases["data"] >= WAIT and phases["communication"] == 0
        assert metrics["torch.forward_seconds"] >= WAIT
        assert metrics["torch.backward_seconds"] > 0 and metrics["torch.optimizer_seconds"] > 0
    assert _report.watching() is None and gc.callbacks == callbacks and not model._forward_hooks
    assert (torch.autograd.backward, dist.all_reduce, torch.save) == functions


@pytest.mark.parametrize("first", [0, 1])
def test_a_script_that_reports_all_its_steps_gives_their_numbers_and_each_is_told_once(supervisor, first):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    watch = gangline.torch.watch(model, optimizer)
    supervisor.accept()
    train(model, optimizer, loader(3), lambda step: gangline.report(step - 1 + first, loss=0.5, lr=0.1))
    watch.close()
    gangline.report(99)
    steps = steps_of(supervisor, 4)
    assert [message["step"] for message in steps] == [first, first + 1, first + 2, 99]
    assert all(message["loss"] == 0.5 and message["metrics"]["lr"] == 0.1 for message in steps[:3])
    assert all("torch.forward_seconds" in message["metrics"] for message in steps[:3]), steps


def test_a_script_that_reports_some_steps_or_counts_otherwise_makes_no_step_twice_and_none_go_back(supervisor):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    gangline.torch.watch(model, optimizer, first_step=10)
    supervisor.accept()
    # Of the third and sixth step, by numbers that begin at 0 again.
    train(model, optimizer, loader(7), lambda step: step % 3 or gangline.report(step - 1, loss=float(step)))
    _report.watching().close()
    steps = steps_of(supervisor, 7)
    assert [message["step"] for message in steps] == list(range(11, 18))
    assert [message.get("loss") for message in steps] == [None, None, 3.0, None, None, 6.0, None]


def test_a_report_before_the_optimizers_step_leaves_the_counting_to_the_script(supervisor):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    gangline.torch.watch(model, optimizer)
    supervisor.accept()
    for step in range(3):
        gangline.report(step, loss=1.0)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    _report.watching().close()
    gangline.report(77)
    assert [message["step"] for message in steps_of(supervisor, 4)] == [0, 1, 2, 77]


def test_a_restored_optimizer_goes_on_counting_where_it_was(supervisor):
    model = torch.nn.Linear(4, 4)
    before = torch.optim.AdamW(model.parameters())
    train(model, before, loader(5))
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(before.state_dict())
    gangline.torch.watch(model, optimizer)
    supervisor.accept()
    train(model, optimizer, loader(2))
    _report.watching().close()
    assert [message["step"] for message in steps_of(supervisor, 2)] == [6, 7]


def test_evaluations_and_micro_batches_are_no_steps(supervisor):
    model = SlowModel(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    gangline.torch.watch(model, optimizer)
    supervisor.accept()
    for _ in range(2):
        for (batch,) in loader(2, SlowSet):
            model(batch).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model(torch.ones(1, 4))
    _report.watching().close()
    first, second = steps_of(supervisor, 2)
    for message in (first, second):
        assert message["phase_seconds"]["data"] >= 2 * WAIT
        assert 2 * WAIT <= message["metrics"]["torch.forward_seconds"] < LONG


def test_a_closure_garbage_collections_and_saves_are_told_as_what_they_are(supervisor, tmp_path):
    model = SlowModel(4, 4)
    model.wait = LONG
    optimizer = torch.optim.SGD(model.parameters())
    gangline.torch.watch(model, optimizer)
    supervisor.accept()

    def passes():
        loss = model(torch.ones(1, 4)).sum()
        loss.backward()
        return loss

    optimizer.step(passes)
    gc.collect()
    optimizer.step(passes)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    _report.watching().close()
    messages = [supervisor.next() for _ in range(5)]
    assert messages[0] == {"phase": "compute"} and messages[3:] == [{"phase": "checkpoint"}, {"phase": "compute"}]
    one, two = (message["metrics"] for message in messages[1:3])
    assert one["torch.forward_seconds"] >= LONG > one["torch.optimizer_seconds"]
    assert two["python.gc_seconds"] > 0


LATE = """
import sys, time
sys.path.insert(0, sys.argv[1])
import test_watch
test_watch.gang_step(1, sys.argv[2], lambda: time.sleep(test_watch.LONG))
"""


def test_waiting_for_other_ranks_is_communication(supervisor, tmp_path):
    # A second rank, which is late. A fork of this process would inherit torch's threads without what they do.
    late = subprocess.Popen([sys.executable, "-c", LATE, os.path.dirname(__file__), tmp_path])
    gangline.torch.watch(*(made := slow_gang(0, tmp_path)))
    supervisor.accept()
    model, optimizer = made
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    dist.all_reduce(torch.ones(1))
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    _report.watching().close()
    dist.barrier()
    dist.destroy_process_group()
    assert late.wait(60) == 0
    first, second = (message["phase_seconds"]["communication"] for message in steps_of(supervisor, 2))
    assert first >= LONG / 2, "the gradients of the second rank were waited for"
    assert second >= LONG / 2, "the all-reduce that the script calls was waited for"


def slow_gang(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/gang", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    return model, torch.optim.SGD(model.parameters())


def gang_step(rank, folder, wait):
    model, optimizer = slow_gang(rank, folder)
    for collective in (True, False):
        loss = model(torch.ones(1, 4)).sum()
        if collective:
            wait()
        loss.backward()
        optimizer.step()
        if collective:
            wait()
            dist.all_reduce(torch.ones(1))
    dist.barrier()
    dist.destroy_process_group()


BY_HAND = """
import torch, gangline.torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters())
gangline.torch.watch(model, optimizer)
for _ in range(2):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
"""


def test_the_last_step_of_a_script_that_ends_is_told(tmp_path):
    found = Supervisor(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", BY_HAND], env={**os.environ, "GANGLINE_SOCKET": found.path})
    found.accept()
    assert [message["step"] for message in steps_of(found, 2)] == [1, 2]
    assert process.wait(60) == 0
    found.listener.close()


def test_outside_of_a_job_nothing_is_hooked():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(gangline.Refused, match="watch a Linear and NoneType"):
        gangline.torch.watch(model, None)
    backward = torch.autograd.backward
    watch = gangline.torch.watch(model, optimizer)
    assert torch.autograd.backward is backward and not model._forward_hooks
    watch.close()


class RecordedEvents:
    """The clock of a device whose events are passed later, in the order in which they were recorded."""

    def __init__(self):
        self.now, self.past = 0.0, 0.0

    def mark(self):
        return self.now

    def is_past(self, mark):
        return mark <= self.past

    seconds = staticmethod(lambda first, last: last - first)
    stall = staticmethod(lambda waited, idle, busy: waited if idle is None else min(waited, busy - idle))


def test_times_of_a_device_are_told_when_it_has_passed_them_and_a_hidden_wait_costs_nothing(supervisor):
    from gangline._watch import Watch

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    clock = RecordedEvents()
    watch = Watch(None, clock)
    watch.begin(model, optimizer)
    _report.watched_by(watch)
    supervisor.accept()
    batches = iter(loader(3, SlowSet))
    for idle in (0.0, 0.001, 9.0):
        (batch,) = next(batches)
        clock.now += idle
        model(batch).sum().backward()
        optimizer.step()
    watch.tell()
    clock.past = clock.now
    gangline.report(4)
    watch.close()
    steps = steps_of(supervisor, 4)
    assert all("phase_seconds" not in message for message in steps[1:3]), "the device has not passed them"
    data = steps[3]["phase_seconds"]["data"]
    assert 0.001 + WAIT <= data < 9, "the whole wait of one step, a millisecond of another"


class Summing(torch.nn.Module):
    """A language model of one number for each token."""

    wait = WAIT

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Embedding(64, 1)

    def forward(self, input_ids, labels=None):
        time.sleep(self.wait)
        return {"loss": self.weights(input_ids).square().mean()}


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"input_ids": torch.full((5,), index), "labels": torch.full((5,), index)}


def test_transformers_trainer_is_watched_by_a_line(supervisor, tmp_path):
    import transformers

    import gangline.transformers

    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "num_train_epochs": 2, "logging_steps": 2}
    arguments = transformers.TrainingArguments(tmp_path, use_cpu=True, save_strategy="no", report_to=[], **options)
    callbacks = [gangline.transformers.WatchCallback()]
    transformers.Trainer(Summing(), arguments, train_dataset=Numbers(), callbacks=callbacks).train()
    supervisor.accept()
    assert [supervisor.next(), supervisor.next()] == [{"phase": "compute"}, {"total_steps": 4}]
    steps = steps_of(supervisor, 4)
    assert [(message["step"], message["tokens"]) for message in steps] == [(1, 20), (2, 20), (3, 20), (4, 20)]
    assert ["loss" in message for message in steps] == [False, True, False, True]
    assert all(message["metrics"]["torch.forward_seconds"] >= 2 * WAIT for message in steps)
    assert {"learning_rate", "grad_norm", "epoch"} <= set(steps[1]["metrics"])
    assert _report.watching() is None


def test_lightnings_trainer_is_watched_by_a_line(supervisor, tmp_path):
    import pytorch_lightning as lightning

    import gangline.lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Summing()
            self.model.wait = LONG

        def training_step(self, batch, batch_idx):
            self.log("lr", 0.1)
            # Names that `report` has for something else.
            self.log("step", 7.0), self.log("tokens", 3.5)
            return self.model(batch["input_ids"])["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        max_epochs=1, log_every_n_steps=2, default_root_dir=tmp_path, callbacks=[gangline.lightning.WatchCallback()], **options
    )
    trainer.fit(Module(), DataLoader(Numbers(), batch_size=2))
    supervisor.accept()
    assert [supervisor.next(), supervisor.next()] == [{"phase": "compute"}, {"total_steps": 4}]
    steps = steps_of(supervisor, 4)
    assert [(message["step"], message["tokens"]) for message in steps] == [(1, 10), (2, 10), (3, 10), (4, 10)]
    assert ["loss" in message for message in steps] == [False, True, False, True]
    forward, optimizer = ([message["metrics"][f"torch.{part}_seconds"] for message in steps] for part in ("forward", "optimizer"))
    assert min(forward) >= LONG > max(optimizer), steps
