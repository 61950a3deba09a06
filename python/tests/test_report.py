"""Reports over a real socket: what arrives, what is refused, and that nothing waits."""

import json
import math
import os
import socket
import subprocess
import sys
import time
import weakref

import numpy
import pytest
import torch.distributed as dist

import gangline
from gangline import _report


class Supervisor:
    """Listens as a supervisor does."""

    def __init__(self, folder):
        self.path = str(folder / "rank.sock")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.connection = None
        self.said_at = 0.0

    def accept(self):
        self.listener.settimeout(30)
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(30)
        self.lines = self.connection.makefile("rb")

    def next(self):
        """Returns the next message, without the time at which it was said."""
        message = json.loads(self.lines.readline())
        before, self.said_at = self.said_at, message.pop("at")
        assert before <= self.said_at <= time.monotonic()
        return message


@pytest.fixture
def supervisor(tmp_path, monkeypatch):
    found = Supervisor(tmp_path)
    monkeypatch.setattr(_report, "_connection", _report._Connection(found.path))
    yield found
    found.listener.close()


def test_time_until_remote_tokens_are_here_is_told_as_data_of_a_rank_that_reports(supervisor, tmp_path):
    (tmp_path / "set").mkdir()
    # Of more than two ranges of 8 MiB, none is fetched before it is read.
    (tmp_path / "set" / "a.bin").write_bytes(bytes(17 << 20))
    options = {"sequence_length": 1 << 18, "global_batch": 1, "shuffle": "none", "source_dtype": "uint16", "rank": 0, "world_size": 1}
    tokens = gangline.Tokens(f"file://{tmp_path}/set", cache=tmp_path / "silent", **options)
    tokens.next_batch()
    assert supervisor.connection is None, "a rank that says nothing else says nothing of this"
    tokens = gangline.Tokens(f"file://{tmp_path}/set", cache=tmp_path / "cache", **options)
    _report.report(1)
    supervisor.accept()
    for step in (2, 3):
        tokens.next_batch()
        _report.report(step)
    heard = [supervisor.next() for _ in range(5)]
    assert heard == [{"step": 1}, {"phase": "data"}, {"phase": "compute"}, {"step": 2}, {"step": 3}]
    # What it holds in the cache may make room as soon as nobody refers to it.
    left = weakref.ref(tokens)
    del tokens
    assert left() is None


@pytest.mark.parametrize("kind", [gangline.Store, gangline.DistributedStore])
def test_a_rank_that_reports_enters_the_checkpoint_phase_and_reports_each_durable_save_once(supervisor, tmp_path, monkeypatch, kind):
    folder = tmp_path / "checkpoints"
    monkeypatch.setenv("GANGLINE_CHECKPOINT_DIR", str(folder))
    state = {"weights": numpy.arange(1000.0)}
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/gang", rank=0, world_size=1)
    with kind(folder) as store, gangline.Store(tmp_path / "best") as best:
        store.save(1, state).durable()
        assert supervisor.connection is None, "a rank that says nothing else says nothing of this"
        _report.report(1)
        supervisor.accept()
        saved = store.save(2, state).durable()
        best.save(2, state).durable()
        pending = store.save(3, state)
        while not pending.done():
            time.sleep(0.01)
        _report.report(3)
        store.save(4, state)
    heard = []
    while len([message for message in heard if "checkpoint" in message]) < 4:
        heard.append(supervisor.next())
    _report.report(5)
    assert supervisor.next() == {"step": 5}, "each save is told of once, and those of another folder never"
    told = [message["checkpoint"] for message in heard if "checkpoint" in message]
    assert [one["step"] for one in told] == [1, 2, 3, 4] and told[1]["bytes"] == saved.bytes
    dist.destroy_process_group()
    phases = [message["phase"] for message in heard if "phase" in message]
    assert phases == ["checkpoint", "compute"] * 4, "the time of each save is booked, also of one to another folder"


def test_a_rank_that_reports_nothing_keeps_only_its_newest_saves(supervisor, tmp_path, monkeypatch):
    monkeypatch.setenv("GANGLINE_CHECKPOINT_DIR", str(tmp_path))
    with gangline.Store(tmp_path) as store:
        for step in range(1, 11):
            store.save(step, {"weights": numpy.arange(10.0)}).durable()
            assert len(_report._connection.saves) == min(step, _report._SAVES_MAX)
    _report.report(11)
    supervisor.accept()
    heard = [supervisor.next() for _ in range(5)]
    assert heard == [{"step": 11}, *({"checkpoint": {"step": step, "bytes": heard[1]["checkpoint"]["bytes"]}} for step in range(7, 11))]


def test_a_refused_save_is_not_reported(supervisor, tmp_path, monkeypatch):
    monkeypatch.setenv("GANGLINE_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    _report.report(1)
    supervisor.accept()
    store = gangline.Store(tmp_path / "checkpoints")
    with pytest.raises(gangline.Refused):
        store.save(1, {"schedule": lambda step: 0.1})
    store.close()
    _report.report(2)
    heard = [supervisor.next() for _ in range(4)]
    assert heard == [{"step": 1}, {"phase": "checkpoint"}, {"phase": "compute"}, {"step": 2}]


def test_steps_metrics_and_phases_arrive(supervisor):
    _report.phase("data")
    supervisor.accept()
    _report.report(7, loss=2.5, tokens=512, total_steps=100, lr=3e-11, **{"eval/f1": 1})
    _report.report(8, loss=float("nan"), up=math.inf, absent=None)
    with _report.phase("checkpoint"):
        _report.report(accuracy=0.5)
    heard = [supervisor.next() for _ in range(6)]
    assert heard[0] == {"phase": "data"}
    assert heard[1] == {
        "step": 7,
        "tokens": 512,
        "total_steps": 100,
        "loss": 2.5,
        "metrics": {"lr": 3e-11, "eval/f1": 1.0},
    }
    assert math.isnan(heard[2]["loss"]) and heard[2]["metrics"] == {"up": math.inf}
    assert heard[3:] == [{"phase": "checkpoint"}, {"metrics": {"accuracy": 0.5}}, {"phase": "data"}]


def test_an_order_to_stop_is_heard(supervisor):
    _report.report(1)
    supervisor.accept()
    assert _report.stop_requested() is None
    supervisor.connection.sendall(b'{"order":"later_release"}\nnonsense\n{"order":"save_and_stop","grace_ms":60')
    supervisor.connection.sendall(b'000,"reason":"node drained"}\n')
    begun = time.monotonic()
    while (stop := _report.stop_requested()) is None and time.monotonic() - begun < 30:
        pass
    assert (stop.reason, stop.grace_seconds) == ("node drained", 60.0)


def test_a_supervisor_that_does_not_read_costs_messages_and_no_time(supervisor):
    _report.report(1)
    supervisor.accept()
    begun = time.monotonic()
    for step in range(20_000):
        _report.report(step, **{f"metric-{number}": 0.1 for number in range(10)})
    assert time.monotonic() - begun < 30
    assert _report._connection.dropped > 0
    heard = [supervisor.next() for _ in range(100)]
    assert [message["step"] for message in heard] == [1, *range(99)], "whole messages, in order"


def test_a_supervisor_that_is_gone_is_found_again(supervisor, tmp_path, monkeypatch):
    monkeypatch.setattr(_report, "_RETRY_SECONDS", 0.0)
    _report.report(1)
    supervisor.accept()
    supervisor.lines.close()
    supervisor.connection.close()
    for step in range(2, 6):
        _report.report(step)
    supervisor.accept()
    _report.report(6)
    heard = [supervisor.next()]
    while heard[-1]["step"] != 6:
        heard.append(supervisor.next())
    steps = [message["step"] for message in heard]
    assert steps == sorted(steps) and len(steps) >= 2


@pytest.mark.parametrize(
    ("call", "error", "word"),
    [
        (lambda: _report.report("7"), TypeError, "step"),
        (lambda: _report.report(1.5), TypeError, "step"),
        (lambda: _report.report(-1), ValueError, "step"),
        (lambda: _report.report(1, tokens=1 << 60), ValueError, "tokens"),
        (lambda: _report.report(1, loss="2.5"), TypeError, "loss"),
        (lambda: _report.report(1, grads=[1, 2]), TypeError, "grads"),
        (lambda: _report.report(1, **{"": 1}), ValueError, "name"),
        (lambda: _report.report(1, **{"x" * 201: 1}), ValueError, "name"),
        (lambda: _report.report(1, **{"gangline.step_seconds": 1}), ValueError, "gangline."),
        (lambda: _report.report(1, **{f"m{number}": 1 for number in range(65)}), ValueError, "64"),
        (lambda: _report.phase("napping"), ValueError, "napping"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_named(call, error, word):
    with pytest.raises(error, match=word):
        call()


def test_outside_of_a_job_and_in_a_forked_worker_nothing_is_said(supervisor, monkeypatch):
    _report.report(1)
    supervisor.accept()
    if (worker := os.fork()) == 0:
        _report.report(2)
        os._exit(0)
    os.waitpid(worker, 0)
    _report.report(3)
    assert [supervisor.next()["step"] for _ in range(2)] == [1, 3]

    script = "import gangline; gangline.report(1, loss=2.5); gangline.phase('data'); print(gangline.stop_requested())"
    environment = {name: value for name, value in os.environ.items() if name != "GANGLINE_SOCKET"}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "None\n"


def test_saves_note_the_last_loss_and_bad_ones_displace_no_good_checkpoint(tmp_path, monkeypatch):
    state = {"weights": numpy.arange(10.0)}
    with gangline.Store(tmp_path) as store:
        for step in range(1, 7):
            gangline.report(step, loss=0.5 if step <= 2 else math.nan)
            store.save(step, state).durable()
        assert [listed.step for listed in store.list()] == [1, 2, 5, 6]
        assert store.latest().metadata == {}, "what the store notes for itself isn't the caller's"
    monkeypatch.setenv("GANGLINE_RESTORE_BELOW", "3")
    with gangline.Store(tmp_path) as store:
        assert store.latest().step == 2
    monkeypatch.setenv("GANGLINE_RESTORE_BELOW", "1")
    with gangline.Store(tmp_path) as store, pytest.raises(gangline.NotFound, match="before step 1, near which the loss went bad"):
        store.load()


def test_a_save_of_the_scripts_own_is_reported_with_its_size(supervisor, tmp_path):
    (tmp_path / "newest.pt").write_bytes(b"x" * 1_000)
    (tmp_path / "shards" / "0").mkdir(parents=True)
    (tmp_path / "shards" / "0" / "a").write_bytes(b"x" * 20)
    (tmp_path / "shards" / "b").write_bytes(b"x" * 3)
    gangline.saved(40, tmp_path / "newest.pt")
    supervisor.accept()
    gangline.saved(60, tmp_path / "shards")
    heard = [supervisor.next() for _ in range(2)]
    assert heard == [{"checkpoint": {"step": 40, "bytes": 1_000}}, {"checkpoint": {"step": 60, "bytes": 23}}]
    with pytest.raises(FileNotFoundError):
        gangline.saved(80, tmp_path / "nothing")
    with pytest.raises(TypeError, match="step is a float"):
        gangline.saved(1.5, tmp_path / "newest.pt")
