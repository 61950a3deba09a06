"""Branches of a folder's saves, and the lease of its writer, as Python's users meet them."""

import datetime
import subprocess
import sys
import warnings

import numpy
import pytest

import gangline

HOLDER = """
import sys, numpy, gangline
store = gangline.Store(sys.argv[1])
store.save(1, {"x": numpy.zeros(3)}).durable()
print("ready", flush=True)
sys.stdin.read()
"""


def fill(path, *steps, **options):
    with gangline.Store(path, **options) as store:
        for step in steps:
            saved = store.save(step, {"x": numpy.full(3, step)}).durable()
    return saved


def steps(store):
    return [listed.step for listed in store.list()]


def test_what_was_just_saved_is_never_removed(tmp_path):
    fill(tmp_path, 1000, 2000)
    with pytest.warns(gangline.BranchWarning, match="step 10 begins a new branch.*step 2000"):
        saved = fill(tmp_path, 10)
    assert saved.removed == ()
    assert saved.began == {"anew": {"beside": 2000}}
    reader = gangline.Reader(tmp_path)
    assert reader.latest().step == 10
    assert reader.load()["x"][0] == 10
    assert steps(reader) == [10, 1000, 2000]


def test_a_rollback_is_gone_on_from(tmp_path):
    fill(tmp_path, 500, 600, 700, keep=None)
    with warnings.catch_warnings(), gangline.Store(tmp_path) as store:
        warnings.simplefilter("error")
        store.load(500)
        saved = store.save(520, {"x": numpy.zeros(3)}).durable()
    assert saved.began == {"fork": {"from": 500, "beside": 700}}
    reader = gangline.Reader(tmp_path)
    assert reader.latest().step == 520
    assert reader.latest().parent == 500
    old, new = reader.branches()
    assert (old.steps, old.abandoned, old.is_current) == ((500, 600, 700), (600, 700), False)
    assert (new.steps, new.forked_from, new.is_current) == ((520,), 500, True)
    assert new.branch == saved.branch
    assert reader.prune(abandoned=old.branch, dry_run=True).removed == (600, 700)
    assert reader.prune(abandoned=True).removed == (600, 700)
    assert reader.prune(abandoned=True).removed == ()
    with pytest.raises(gangline.Refused, match="find an abandoned branch"):
        reader.prune(abandoned=old.branch)


def test_the_newest_can_be_loaded_and_gone_on_from_without_a_branch(tmp_path):
    fill(tmp_path, 500, 600)
    with gangline.Store(tmp_path) as store:
        store.load()
        assert store.save(700, {"x": numpy.zeros(3)}).durable().began is None
    assert len(gangline.Reader(tmp_path).branches()) == 1


def test_what_is_above_a_step_and_single_steps_are_removed_when_asked(tmp_path):
    fill(tmp_path, 1, 2, 3, 4, keep=None)
    reader = gangline.Reader(tmp_path)
    assert reader.prune(above=2).removed == (3, 4)
    reader.delete(1)
    assert steps(reader) == [2]
    with pytest.raises(gangline.Refused, match="no other good checkpoint"):
        reader.delete(2)
    with pytest.raises(gangline.NotFound):
        reader.delete(1)
    with pytest.raises(gangline.Refused, match="no other good checkpoint"):
        reader.prune(above=1)
    for wrong in ({}, {"keep": 1, "above": 2}):
        with pytest.raises(gangline.Refused, match="say one of keep, above and abandoned"):
            reader.prune(**wrong)


def test_rules_keep_more_than_the_newest(tmp_path):
    keep = gangline.Keep(last=1, every_steps=100, lowest={"loss": 1}, steps=[130])
    with gangline.Store(tmp_path, keep=keep) as store:
        for step, loss in ((50, 3.0), (70, 4.0), (110, 2.0), (130, 9.0), (140, 1.0), (220, 2.5), (230, 2.6)):
            store.save(step, {"x": numpy.zeros(3)}, {"loss": str(loss)}).durable()
    assert steps(gangline.Reader(tmp_path)) == [50, 110, 130, 140, 220, 230]
    for wrong in (gangline.Keep(last=0), gangline.Keep(every_steps=0), gangline.Keep(lowest={"loss": "many"}), 0, 1.5):
        with pytest.raises(gangline.Refused, match="keep"):
            gangline.Store(tmp_path, keep=wrong)


def test_who_saved_a_checkpoint_and_when_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("GANGLINE_JOB_ID", "job-7")
    before = datetime.datetime.now(datetime.timezone.utc)
    fill(tmp_path, 1)
    info = gangline.Reader(tmp_path).latest()
    assert before <= info.saved_at + datetime.timedelta(milliseconds=1)
    assert info.saved_at <= datetime.datetime.now(datetime.timezone.utc)
    assert (info.run, info.parent) == ("job-7", None)


def test_a_second_run_is_refused_by_name_and_may_look(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "ready\n"
        with pytest.raises(gangline.Held, match=f"process {holder.pid} on .*gangline.Reader"):
            gangline.Store(tmp_path)
        assert gangline.Reader(tmp_path).load()["x"][0] == 0
        holder.kill()
    fill(tmp_path, 2)


def test_torchs_planners_go_on_from_what_they_loaded(tmp_path):
    torch = pytest.importorskip("torch")
    import torch.distributed.checkpoint as dcp

    from gangline.torch import StorageReader, StorageWriter

    state = {"x": torch.zeros(3)}
    for step in (500, 600, 700):
        dcp.save(state, storage_writer=StorageWriter(tmp_path, step=step, keep=None), no_dist=True)
    dcp.load(state, storage_reader=StorageReader(tmp_path, step=500), no_dist=True)
    dcp.save(state, storage_writer=StorageWriter(tmp_path, step=800, keep=None), no_dist=True)
    old, new = gangline.Reader(tmp_path).branches()
    assert (old.abandoned, new.steps, new.forked_from) == ((600, 700), (800,), 500)


def test_metadata_keeps_its_types(tmp_path):
    noted = {"loss": numpy.float32(0.5), "epoch": 3, "good": True, "why": "3", "bad": float("nan"), "huge": 10**30, "tiny": -1e-300}
    with gangline.Store(tmp_path) as store:
        store.save(1, {"x": numpy.zeros(3)}, noted)
        for wrong in ({"a": None}, {"a": [1]}, {1: "a"}):
            with pytest.raises(gangline.Refused, match="save the metadata"):
                store.save(2, {"x": numpy.zeros(3)}, wrong)
    found = dict(gangline.Reader(tmp_path).latest().metadata)
    assert repr(found.pop("bad")) == "nan"
    assert found == {"loss": 0.5, "epoch": 3, "good": True, "why": "3", "huge": 10**30, "tiny": -1e-300}
    assert [type(found[name]) for name in ("loss", "epoch", "good", "why")] == [float, int, bool, str]
