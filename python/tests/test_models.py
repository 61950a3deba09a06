"""A model that a job trained is registered, verified, promoted, exported and loaded by transformers, and its lineage leads back
to the bytes that it was trained on."""

import json
import pathlib
import shutil
import sys

import numpy
import pytest
import torch
from mlflow import MlflowClient
from test_jobs import BINARY, Plane
from transformers import GPT2LMHeadModel

pytestmark = pytest.mark.skipif(not BINARY, reason="GANGLINE_BINARY names no gangline binary: run cargo xtask python")
TRAINER = pathlib.Path(__file__).with_name("registered_trainer.py")
STEPS = 6


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    plane = Plane(tmp_path_factory.mktemp("plane"), ["a=cpu:2"], "--price", "3.60")
    yield plane
    plane.close()


@pytest.fixture(scope="module")
def trained(plane):
    """A job that has trained on a dataset with checksums, saving after each step and keeping two checkpoints."""
    tmp_path = plane.folder
    numpy.save(tmp_path / "text.npy", numpy.arange(4_000, dtype=numpy.uint16) % 64)
    plane.ask("data", "convert", str(tmp_path / "text.npy"), str(plane.folder / "tokens"))
    command = f"exec {sys.executable} -u {TRAINER} {tmp_path / 'tokens'} {STEPS}"
    job = plane.submit("tiny-gpt2", f"envs: {{CONFIG: {tmp_path}}}\nrun: {json.dumps(command)}\n")
    assert plane.ended(job)["state"] == "succeeded", plane.printed(job)
    return job


def lineage(plane, version):
    return plane.ask("models", "lineage", version)


def test_a_trained_model_is_promoted_exported_and_loaded_by_transformers(plane, trained, tmp_path):
    registered = plane.ask("models", "register", "tiny", trained, "--description", "says numbers in a row")
    assert registered["is_new"] and registered["version"]["number"] == 1
    assert not plane.ask("models", "register", "tiny", f"{trained}@{STEPS}")["is_new"], "it is this checkpoint"

    found = lineage(plane, "tiny/1")
    assert found["checkpoint"]["step"] == STEPS and found["checkpoint"]["metadata"]["loss"]
    (job,) = found["jobs"]
    assert job["job"] == trained and list(job["attempts"][0]["nodes"]) == ["a"]
    assert job["cost_nano_dollars"] > 0 and not job["is_estimated"]
    (data,) = found["data"]
    assert data["source"] == str(plane.folder / "tokens") and data["digest"].endswith("(of every byte)")
    assert data["samples"].startswith(f"{STEPS} batches of the training part, global_batch 4")
    assert found["environment"]["torch"] == torch.__version__
    assert found["runs"][0]["job"] == trained

    # Not verified yet, it can't be promoted by MLflow's client either.
    url = f"http://127.0.0.1:{port_of(plane)}"
    client = MlflowClient(tracking_uri=url, registry_uri=url)
    with pytest.raises(Exception, match="wasn't verified yet: gangline models verify tiny/1"):
        client.set_registered_model_alias("tiny", "production", 1)
    assert plane.run("models", "promote", "tiny").stdout == "production of tiny is version 1\n"
    assert client.get_model_version_by_alias("tiny", "production").version == "1"

    out = tmp_path / "exported"
    told = plane.run("models", "export", "tiny@production", str(out), "--prefix", "model.", "--add", str(plane.folder / "config.json"))
    assert told.returncode == 0, told.stderr
    model = GPT2LMHeadModel.from_pretrained(out)
    expected = torch.load(plane.folder / "expected.pt")
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    card = (out / "README.md").read_text()
    assert "# tiny, version 1" in card and data["digest"] in card and "says numbers in a row" in card
    history = [event["action"] for event in plane.ask("models", "show", "tiny/1")["history"]]
    assert history == ["registered", "verified", "promoted", "exported"]


def test_retention_and_a_cleared_folder_leave_a_registered_model_alone(plane, trained):
    version = plane.ask("models", "register", "it's kept", f"{trained}@{STEPS - 1}")["version"]
    shutil.rmtree(pathlib.Path(version["source"].rsplit("@", 1)[0]) / f"step-{STEPS - 1:010}")
    assert plane.run("models", "verify", "it's kept/1").stdout == "version 1 of it's kept: every byte is as it was saved\n"
    pinned = pathlib.Path(version["pin"])
    shard = next(pinned.glob("step-*/shard-*"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    damaged = plane.run("models", "promote", "it's kept/1")
    assert damaged.returncode == 4 or damaged.returncode == 1, damaged
    assert "version 1 of it's kept is damaged" in damaged.stderr
    assert plane.ask("models", "show", "it's kept")["aliases"] == {}

    assert plane.run("models", "delete", "it's kept/1").returncode == 0
    plane.until(lambda: not pinned.exists(), "the pin is removed")


def test_the_runs_of_jobs_are_seen_by_mlflow_with_their_state_and_every_step_once(plane, trained):
    client = MlflowClient(tracking_uri=f"http://127.0.0.1:{port_of(plane)}")
    experiment = client.get_experiment_by_name("jobs")

    def ended():
        (run,) = client.search_runs([experiment.experiment_id])
        return run if run.info.status == "FINISHED" else None

    run = plane.until(ended, "the run has ended with its job")
    assert run.info.run_name == "tiny-gpt2" and run.data.tags["gangline.job"] == trained
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [point.step for point in history] == list(range(1, STEPS + 1))
    shown = plane.run("runs", "list", "--experiment", "jobs").stdout
    assert trained in shown and "finished" in shown


def test_a_run_is_done_again_from_its_beginning(plane, trained):
    (run,) = [run for run in plane.ask("runs", "list", "--experiment", "jobs")["runs"] if run["info"]["run_name"] == "tiny-gpt2"]
    told = plane.run("runs", "rerun", run["info"]["run_id"][:12])
    assert told.returncode == 0 and "may differ: the code" in told.stderr, told
    again = told.stdout.strip()
    assert plane.ended(again)["state"] == "succeeded", plane.printed(again)
    folders = [plane.ask("show", job)["checkpoint_path"] for job in (trained, again)]
    assert folders[0] != folders[1]
    hashes = [plane.ask("checkpoint", "list", folder)[-1]["content_hash"] for folder in folders]
    assert hashes[0] == hashes[1], "the trainer fixes its seed and its order, so all of it is the same"
    runs = [run["info"]["run_id"] for run in plane.ask("runs", "list", "--experiment", "jobs")["runs"]]
    compared = plane.run("runs", "compare", *runs[:2]).stdout
    assert trained in compared and again in compared and "loss" in compared, compared


def test_what_cannot_be_registered_is_refused_with_what_to_do(plane, tmp_path):
    for arguments, code, words in [
        (("register", "none", "job-99"), 3, "there is no job"),
        (("register", "none", str(tmp_path / "nowhere")), 3, "finds no folder"),
        (("register", "a/b", str(tmp_path)), 1, "name"),
        (("register", "none", str(tmp_path)), 3, "no complete checkpoint"),
        (("register", "none", f"{tmp_path}@7"), 3, "no checkpoint of step 7"),
        (("show", "none"), 3, "none"),
        (("promote", "none@best"), 3, "none"),
    ]:
        refused = plane.run("models", *arguments)
        assert refused.returncode == code and words in refused.stderr, (arguments, refused)
    assert "none" not in [model["name"] for model in plane.ask("models")["models"]]


def port_of(plane):
    return (plane.folder / "data" / "endpoint").read_text().split(":")[2].split("\n")[0].strip("/")


@pytest.fixture(autouse=True)
def token(monkeypatch, request):
    """MLflow's client in this process speaks to the plane of the test with its token."""
    plane = request.getfixturevalue("plane")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", (plane.folder / "data" / "token").read_text().strip())
