"""Runs of a real MLflow server, of its database, of TensorBoard and of W&B are taken over whole, once, and from where an
interrupted import was; an export comes back as it was."""

import json
import math
import os
import subprocess
import sys

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from test_jobs import BINARY
from test_mlflow import Ours, Theirs

pytestmark = pytest.mark.skipif(not BINARY, reason="GANGLINE_BINARY names no gangline binary: run cargo xtask python")
STEPS = 1_500
NAME = "it's \"gpt\""
ODD = [math.nan, math.inf, -math.inf, 1e-300, -0.0]


@pytest.fixture
def ours(tmp_path):
    ours = Ours(tmp_path)
    yield ours
    ours.close()


def gangline(ours, *arguments):
    command = [BINARY, "--data", ours.folder / "data", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ours.folder)


def imported(ours, *arguments):
    ended = gangline(ours, "--json", "runs", "import", *arguments)
    assert ended.returncode == 0, ended
    return json.loads(ended.stdout)


def client_of(server):
    return MlflowClient(tracking_uri=server.uri)


def everything(client):
    """What a client sees of each run, by its name: parameters, tags of its own, metrics with their histories, state."""
    found = {}
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id]):
            history = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
            points = {key: [(p.step, p.timestamp, repr(p.value)) for p in all_points] for key, all_points in history.items()}
            tags = {key: value for key, value in run.data.tags.items() if not key.startswith("gangline.")}
            inputs = [(one.dataset.name, one.dataset.digest, [(t.key, t.value) for t in one.tags]) for one in run.inputs.dataset_inputs]
            info = (run.info.status, run.info.start_time, run.info.end_time, run.info.user_id)
            found[experiment.name, run.info.run_name] = (info, run.data.params, tags, points, inputs)
    return found


def fill(client):
    experiment = client.create_experiment(NAME)
    for number in range(3):
        run = client.create_run(experiment, run_name=f"run {number}", start_time=1_700_000_000_000 + number).info.run_id
        params = [Param(f"p{index}", "x" * index) for index in range(150)]
        client.log_batch(run, params=params[:100], tags=[RunTag("team", "it's ours"), RunTag("empty", "")])
        client.log_batch(run, params=params[100:])
        points = [Metric("loss", 1 / (1 + step), 1_700_000_000_000 + step, step) for step in range(STEPS)]
        client.log_batch(run, metrics=points[:1000])
        client.log_batch(run, metrics=points[1000:])
        client.log_batch(run, metrics=[Metric("odd/a b", value, 7, step) for step, value in enumerate(ODD)])
        client.set_terminated(run, ["FINISHED", "FAILED", "KILLED"][number], end_time=1_700_000_009_000)
    deleted = client.create_run("0", run_name="deleted").info.run_id
    client.delete_run(deleted)


@pytest.fixture
def theirs(tmp_path):
    theirs = Theirs(tmp_path / "mlflow")
    fill(client_of(theirs))
    yield theirs
    theirs.close()


def test_runs_of_mlflow_are_the_same_afterwards_by_server_and_by_database(ours, theirs, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", ours.environment["MLFLOW_TRACKING_TOKEN"])
    expected = everything(client_of(theirs))
    told = imported(ours, "--mlflow", theirs.uri)
    points = 3 * (STEPS + len(ODD))
    assert told == {"imported": 3, "known": 0, "params": 450, "points": points, "problems": []}
    assert everything(client_of(ours)) == expected

    # A run that an import left unfinished is begun anew, and the others are left alone.
    run = client_of(ours).search_runs([client_of(ours).get_experiment_by_name(NAME).experiment_id])[0]
    client_of(ours).delete_tag(run.info.run_id, "gangline.imported_whole")
    told = imported(ours, "--mlflow", f"sqlite:{tmp_path / 'mlflow' / 'mlflow.db'}")
    assert told == {"imported": 1, "known": 2, "params": 150, "points": points // 3, "problems": []}
    assert everything(client_of(ours)) == expected

    exported = tmp_path / "runs.jsonl"
    assert gangline(ours, "runs", "export", "--output", exported).returncode == 0
    assert gangline(ours, "runs", "export", "--output", exported).returncode == 1, "it is there already"
    (tmp_path / "other").mkdir()
    other = Ours(tmp_path / "other")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", other.environment["MLFLOW_TRACKING_TOKEN"])
    try:
        assert imported(other, "--file", exported)["imported"] == 3
        assert everything(client_of(other)) == expected
    finally:
        other.close()
    table = gangline(ours, "runs", "export", "--format", "csv", "--experiment", NAME).stdout.splitlines()
    assert len(table) == 4 and table[0].startswith("run_id,name,experiment,status,start_time,end_time,params.p0,")


def test_event_files_of_tensorboard_are_runs(ours, tmp_path, monkeypatch):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", ours.environment["MLFLOW_TRACKING_TOKEN"])
    for name in ["a", "b/inner"]:
        with tensorboard.SummaryWriter(tmp_path / "logs" / name) as writer:
            for step in range(200):
                writer.add_scalar("train/loss", 1 / (1 + step), step, walltime=1_700_000_000 + step)
                writer.add_scalar("new", step, step, new_style=True, double_precision=True, walltime=1_700_000_000 + step)
            writer.add_text("note", "not a number")
    told = imported(ours, "--tensorboard", tmp_path / "logs")
    assert (told["imported"], told["points"], told["problems"]) == (2, 800, [])
    found = everything(client_of(ours))
    info, params, tags, points, _ = found["logs", "b/inner"]
    assert info[:3] == ("FINISHED", 1_700_000_000_000, info[2]) and params == {}
    assert [value for _, _, value in points["new"]] == [repr(float(step)) for step in range(200)]
    assert points["train/loss"][3] == (3, 1_700_000_003_000, repr(0.25))

    # A writer that died left half a record; a byte that changed is told by its place.
    (events,) = (tmp_path / "logs" / "a").iterdir()
    whole = events.read_bytes()
    events.write_bytes(whole[:-5])
    assert imported(ours, "--tensorboard", tmp_path / "logs", "--experiment", "cut")["imported"] == 2
    events.write_bytes(whole[:300] + bytes([whole[300] ^ 1]) + whole[301:])
    damaged = gangline(ours, "runs", "import", "--tensorboard", tmp_path / "logs", "--experiment", "damaged")
    assert damaged.returncode == 1 and "checksum" in damaged.stderr and str(events) in damaged.stderr


WANDB = """
import math, wandb
run = wandb.init(project="proj", name="first", config={"lr": 0.1, "layers": [1, 2], "opt": "adam"}, tags=["a", "b"], notes="as it was")
for step in range(3000):
    run.log({"loss": 1 / (1 + step), "val/acc": step * 2, "odd": math.nan if step == 3 else float(step)})
run.finish()
"""


def test_offline_runs_of_wandb_are_runs(ours, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", ours.environment["MLFLOW_TRACKING_TOKEN"])
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    subprocess.run([sys.executable, "-c", WANDB], check=True, cwd=tmp_path, env=environment, timeout=240)
    told = imported(ours, "--wandb", tmp_path)
    assert told == {"imported": 1, "known": 0, "params": 3, "points": 9_000, "problems": []}
    assert imported(ours, "--wandb", tmp_path)["known"] == 1
    info, params, tags, points, _ = everything(client_of(ours))["proj", "first"]
    assert info[0] == "FINISHED" and info[1] < info[2]
    assert params == {"lr": "0.1", "layers": "[1,2]", "opt": "adam"}
    assert (tags["mlflow.note.content"], tags["wandb.tags"]) == ("as it was", "a,b")
    assert [step for step, _, _ in points["val/acc"]] == list(range(3000)) and points["odd"][3][2] == "nan"

    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    whole = log.read_bytes()
    log.write_bytes(whole[: len(whole) // 2])
    told = imported(ours, "--wandb", tmp_path, "--experiment", "cut")
    assert told["imported"] == 1 and 0 < told["points"] < 9_000
    log.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
    damaged = gangline(ours, "runs", "import", "--wandb", tmp_path, "--experiment", "damaged")
    assert damaged.returncode == 1 and "checksum" in damaged.stderr and str(log) in damaged.stderr


def test_what_is_no_tracker_is_refused(ours, tmp_path):
    (tmp_path / "no.db").write_text("no database")
    (tmp_path / "no.jsonl").write_text('{"version": 1}\n')
    for source, words in [
        (("--mlflow", f"sqlite:{tmp_path / 'no.db'}"), "can't be read as MLflow's database"),
        (("--mlflow", f"sqlite:{tmp_path / 'nowhere'}"), "there is no file"),
        (("--mlflow", "http://127.0.0.1:9"), "can't be asked"),
        (("--tensorboard", tmp_path), "there is no event file"),
        (("--wandb", tmp_path), "there is no run of W&B"),
        (("--file", tmp_path / "no.jsonl"), "no.jsonl:1: it is no run"),
        ((), "nothing to import from"),
    ]:
        refused = gangline(ours, "runs", "import", *source)
        assert refused.returncode == 1 and words in refused.stderr, (source, refused)
