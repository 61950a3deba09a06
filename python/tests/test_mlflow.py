"""MLflow's unmodified client has the same answers from the control plane as from a real `mlflow server`, and what was
acknowledged outlives a kill."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest
from mlflow_differences import DIFFERENCES
from test_jobs import BINARY, Plane

pytestmark = pytest.mark.skipif(not BINARY, reason="GANGLINE_BINARY names no gangline binary: run cargo xtask python")
SESSION = pathlib.Path(__file__).with_name("mlflow_session.py")
MLFLOW = pathlib.Path(sys.executable).parent / "mlflow"
QUIET = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false", "GIT_PYTHON_REFRESH": "quiet"}
LIMIT_SECONDS = 240


def until(is_so, what):
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (answer := is_so()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return answer


def answers(uri):
    try:
        return urllib.request.urlopen(f"{uri}/health", timeout=5).status == 200
    except OSError:
        return False


class Ours:
    """A control plane, which keeps its port when it is started again."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        command = [BINARY, "--data", self.folder / "data", "up", "--listen", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder)
        until(lambda: answers(self.uri), "the control plane answers")
        token = (self.folder / "data" / "token").read_text().strip()
        self.environment = {**os.environ, **QUIET, "MLFLOW_TRACKING_TOKEN": token, "MLFLOW_TRACKING_URI": self.uri}

    def kill(self):
        self.process.kill()
        self.process.wait(60)

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


class Theirs:
    """MLflow's own server, with SQLite and one worker."""

    def __init__(self, folder):
        folder.mkdir()
        port = free_port()
        # As with ours, webhooks may call this machine.
        private = {"MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true", "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "https,http"}
        self.uri, self.environment = f"http://127.0.0.1:{port}", {**os.environ, **QUIET, **private}
        command = [MLFLOW, "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", folder / "artifacts"]
        self.log = open(folder / "log", "wb")
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=self.log, env=self.environment, cwd=folder, start_new_session=True
        )
        until(lambda: answers(self.uri), "mlflow server answers")

    def close(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)
        self.log.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def ours(tmp_path):
    ours = Ours(tmp_path)
    yield ours
    ours.close()


@pytest.fixture
def theirs(tmp_path):
    theirs = Theirs(tmp_path / "mlflow")
    yield theirs
    theirs.close()


def session(server, output):
    command = [sys.executable, "-W", "ignore", SESSION, server.uri, output]
    return subprocess.Popen(command, env=server.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def told(running, output):
    text, _ = running.communicate(timeout=LIMIT_SECONDS)
    assert running.returncode == 0, text[-6_000:]
    return json.loads(output.read_text())


def is_same(one, other):
    """Two errors are the same if their codes are: the messages of parsers differ."""
    return one["error"] == other.get("error") if "error" in one else one == other


def test_the_same_session_has_the_same_answers(ours, theirs, tmp_path):
    outputs = [tmp_path / "ours.json", tmp_path / "theirs.json"]
    running = [session(server, output) for server, output in zip((ours, theirs), outputs, strict=True)]
    (own, real) = [told(one, output) for one, output in zip(running, outputs, strict=True)]
    assert [step["step"] for step in own] == [step["step"] for step in real]
    assert len(own) > 350
    differing = {one["step"]: (one, other) for one, other in zip(own, real, strict=True) if not is_same(one, other)}
    unexplained = {step: pair for step, pair in differing.items() if step not in DIFFERENCES}
    assert not unexplained, json.dumps(unexplained, indent=1, ensure_ascii=False)[:8_000]
    assert set(differing) == set(DIFFERENCES), "a difference that is gone leaves the list"


def test_the_callbacks_of_trainers_log_the_same(ours, theirs, tmp_path):
    script = SESSION.with_name("mlflow_callbacks.py")

    def train(server, name):
        command = [sys.executable, "-W", "ignore", script, server.uri, tmp_path / name]
        environment = {**server.environment, "MLFLOW_TRACKING_URI": server.uri}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def logged(training):
        text, errors = training.communicate(timeout=LIMIT_SECONDS)
        assert training.returncode == 0, errors[-6_000:]
        return json.loads(text.splitlines()[-1])

    own, real = [logged(training) for training in [train(ours, "own"), train(theirs, "real")]]
    assert own == real
    assert own["hugging-face"]["steps"]["loss"] == [2, 4, 6] and len(own["hugging-face"]["params"]) > 100
    assert len(own["lightning"]["steps"]["train_loss"]) == 6 and own["lightning"]["status"] == "FINISHED"


def test_what_was_acknowledged_outlives_a_kill(ours):
    os.environ.update({name: ours.environment[name] for name in (*QUIET, "MLFLOW_TRACKING_TOKEN")})
    from mlflow import MlflowClient
    from mlflow.entities import Metric
    from mlflow.exceptions import MlflowException

    client = MlflowClient(ours.uri)
    run = client.create_run("0").info.run_id
    acknowledged, is_over = [], threading.Event()

    def log():
        step = 0
        while not is_over.is_set():
            batch = [Metric("loss", float(at), 1_760_000_000_000 + at, at) for at in range(step, step + 20)]
            step += 20
            try:
                client.log_batch(run, metrics=batch)
            except (MlflowException, OSError):
                time.sleep(0.05)
            else:
                acknowledged.extend(at for at in range(step - 20, step))

    logger = threading.Thread(target=log)
    logger.start()
    for _ in range(3):
        before = len(acknowledged)
        until(lambda before=before: len(acknowledged) > before + 200, "batches are acknowledged")
        ours.kill()
        ours.start()
    until(lambda: len(acknowledged) > 1_000, "batches are acknowledged")
    is_over.set()
    logger.join(60)
    kept = {metric.step for metric in client.get_metric_history(run, "loss")}
    lost = set(acknowledged) - kept
    assert not lost, sorted(lost)[:20]
    # A batch is there whole or not at all.
    assert all(len(kept & set(range(first, first + 20))) in (0, 20) for first in range(0, max(kept) + 1, 20))


def test_an_upload_that_is_cut_off_is_never_listed(ours):
    path = "0/run/artifacts/half.bin"
    token = ours.environment["MLFLOW_TRACKING_TOKEN"]
    head = (
        f"PUT /api/2.0/mlflow-artifacts/artifacts/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: 1000000\r\n\r\n"
    )
    incoming = ours.folder / "data" / "tracking" / "artifacts" / "incoming"

    def cut_off():
        sending = socket.create_connection(("127.0.0.1", ours.port))
        sending.sendall(head.encode() + b"x" * 300_000)
        until(lambda: list(incoming.iterdir()), "the upload has begun")
        return sending

    def listed():
        url = f"{ours.uri}/api/2.0/mlflow-artifacts/artifacts?path=0/run/artifacts"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        return json.load(urllib.request.urlopen(request, timeout=30)).get("files", [])

    cut_off().close()
    until(lambda: not list(incoming.iterdir()), "what was cut off is removed")
    assert listed() == []
    cut_off()
    ours.kill()
    ours.start()
    assert listed() == [] and not list(incoming.iterdir())


def test_a_run_that_a_job_starts_belongs_to_it(tmp_path):
    plane = Plane(tmp_path, ["a=cpu:2"])
    try:
        (tmp_path / "train.py").write_text(
            "import os, mlflow\n"
            "mlflow.set_experiment('of-jobs')\n"
            "with mlflow.start_run(tags={'gangline.job': 'job-99'}) as run:\n"
            "    mlflow.log_metric('loss', 0.25, step=3)\n"
            "    mlflow.log_text('words', 'notes/n.txt')\n"
            "    print('run', run.info.run_id)\n"
        )
        job = plane.submit("tracked", f'resources: {{accelerators: "cpu:1"}}\nrun: {sys.executable} -W ignore train.py\nworkdir: .\nrecovery: {{max_faults: 0}}\n')
        assert plane.ended(job)["state"] == "succeeded", plane.printed(job)
        url = (tmp_path / "data" / "endpoint").read_text().strip()
        token = (tmp_path / "data" / "token").read_text().strip()
        body = json.dumps({"experiment_ids": ["1"], "filter": f"tags.gangline.job = '{job}' AND tags.gangline.attempt = '1'"})
        request = urllib.request.Request(
            f"{url}/api/2.0/mlflow/runs/search", body.encode(), {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        )
        (run,) = json.load(urllib.request.urlopen(request, timeout=30))["runs"]
        assert run["data"]["metrics"][0] | {"timestamp": 0} == {"key": "loss", "value": 0.25, "step": 3, "timestamp": 0}
        assert run["info"]["status"] == "FINISHED"
        id = run["info"]["run_id"]
        listed = plane.ask("runs", "list", "--experiment", "of-jobs", "--filter", "metrics.loss < 0.5")
        assert [one["info"]["run_id"] for one in listed["runs"]] == [id]
        shown = plane.run("runs", "show", id[:10])
        assert f"job         {job} " in shown.stdout and "0.250000" in shown.stdout, shown.stderr
        for arguments, reason in [
            (("show", "c0ffee"), 'there is no run "c0ffee"'),
            (("list", "--experiment", "x"), 'there is no experiment "x"'),
            (("list", "--filter", "loss < 1"), "Invalid attribute key 'loss'"),
        ]:
            refused = plane.run("runs", *arguments)
            assert refused.returncode != 0 and reason in refused.stderr and "G0332" in refused.stderr
        # The rank's token tracks and does nothing else.
        elsewhere = plane.submit(
            "elsewhere",
            'resources: {accelerators: "cpu:1"}\nenvs: {MLFLOW_TRACKING_URI: "http://127.0.0.1:9"}\n'
            'run: "echo token=$MLFLOW_TRACKING_TOKEN."\n',
        )
        shown = plane.submit("shown", 'resources: {accelerators: "cpu:1"}\nrun: "echo token=$MLFLOW_TRACKING_TOKEN."\n')
        assert plane.ended(elsewhere) and "token=." in plane.printed(elsewhere), "another server isn't sent the token"
        plane.ended(shown)
        of_rank = plane.printed(shown).split("token=")[1].split(".\n")[0]
        assert of_rank.startswith("rank.")
        for path, status in [("api/v1/jobs", 401), ("metrics", 401), ("api/2.0/mlflow/experiments/search", 200)]:
            request = urllib.request.Request(f"{url}/{path}", headers={"Authorization": f"Bearer {of_rank}"})
            try:
                got = urllib.request.urlopen(request, timeout=30).status
            except urllib.error.HTTPError as error:
                got = error.code
            assert got == status, path
    finally:
        plane.close()
