"""Webhooks of the model registry are told of every change in its order, signed as MLflow's server signs, through refusals of the
receiver and kills of the control plane."""

import http.server
import json
import os
import subprocess
import sys
import threading
import time

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.webhooks.delivery import _generate_hmac_signature
from test_jobs import BINARY
from test_mlflow import QUIET, Ours, until

pytestmark = pytest.mark.skipif(not BINARY, reason="GANGLINE_BINARY names no gangline binary: run cargo xtask python")


class Receiver(http.server.ThreadingHTTPServer):
    """Keeps what it is told, unless it is to refuse."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.told, self.refusals, self.status = [], 0, 503
        self.url = f"http://127.0.0.1:{self.server_port}/hook"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        if self.server.refusals > 0:
            self.server.refusals -= 1
            self.send_response(self.server.status)
        else:
            self.server.told.append((dict(self.headers.items()), body))
            self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.shutdown()


@pytest.fixture
def ours(tmp_path, monkeypatch):
    ours = Ours(tmp_path)
    for name in (*QUIET, "MLFLOW_TRACKING_TOKEN"):
        monkeypatch.setenv(name, ours.environment[name])
    yield ours
    ours.close()


EVENTS = ["registered_model.created", "model_version.created", "model_version_tag.set", "model_version_tag.deleted",
          "model_version_alias.created", "model_version_alias.deleted"]  # fmt: skip


def told(receiver):
    bodies = [json.loads(body) for _, body in receiver.told]
    return [(f"{body['entity']}.{body['action']}", body["data"]) for body in bodies]


def test_every_change_is_told_in_its_order_and_signed(ours, receiver):
    client = MlflowClient(ours.uri)
    client.create_webhook("all", receiver.url, EVENTS, secret="hush")
    client.create_webhook("off", receiver.url, EVENTS, status="DISABLED")
    receiver.refusals = 2
    client.create_registered_model("net", tags={"a": "b"}, description="d")
    client.create_model_version("net", "s3://bucket/1", tags={"n": "1"})
    client.set_model_version_tag("net", "1", "k", "v")
    client.delete_model_version_tag("net", "1", "k")
    client.set_registered_model_alias("net", "champion", "1")
    client.delete_registered_model_alias("net", "champion")
    until(lambda: len(receiver.told) >= 6, "all of it is told, though the receiver refused twice")
    assert told(receiver) == [
        ("registered_model.created", {"name": "net", "tags": {"a": "b"}, "description": "d"}),
        ("model_version.created", {"name": "net", "version": "1", "source": "s3://bucket/1", "run_id": None, "tags": {"n": "1"}, "description": None}),
        ("model_version_tag.set", {"name": "net", "version": "1", "key": "k", "value": "v"}),
        ("model_version_tag.deleted", {"name": "net", "version": "1", "key": "k"}),
        ("model_version_alias.created", {"name": "net", "alias": "champion", "version": "1"}),
        ("model_version_alias.deleted", {"name": "net", "alias": "champion"}),
    ]
    for headers, body in receiver.told:
        headers = {name.lower(): value for name, value in headers.items()}
        signed = _generate_hmac_signature("hush", headers["x-mlflow-delivery-id"], headers["x-mlflow-timestamp"], body)
        assert headers["x-mlflow-signature"] == signed
        assert abs(int(headers["x-mlflow-timestamp"]) - time.time()) < 120
    assert len({headers["x-mlflow-delivery-id"] for headers, _ in receiver.told}) == 6


def test_a_refused_message_is_given_up_and_a_test_says_what_came_of_it(ours, receiver):
    client = MlflowClient(ours.uri)
    hook = client.create_webhook("all", receiver.url, EVENTS)
    result = client.test_webhook(hook.webhook_id)
    assert (result.success, result.response_status, result.response_body) == (True, 200, "ok")
    receiver.refusals, receiver.status = 2, 410
    result = client.test_webhook(hook.webhook_id)
    assert (result.success, result.response_status) == (False, 410)
    client.create_registered_model("gone")
    client.create_registered_model("net")
    until(lambda: len(receiver.told) >= 2, "the next one is told")
    assert [data["name"] for _, data in told(receiver)[1:]] == ["net"]
    client.update_webhook(hook.webhook_id, url="http://127.0.0.1:9/nobody")
    result = client.test_webhook(hook.webhook_id)
    assert not result.success and "Failed to test webhook" in result.error_message


def test_kills_of_the_control_plane_lose_no_message(ours, receiver):
    client = MlflowClient(ours.uri)
    client.create_webhook("all", receiver.url, ["registered_model.created"])
    made = []
    for number in range(30):
        if number % 10 == 5:
            ours.kill()
            ours.start()
        try:
            client.create_registered_model(f"net-{number}")
            made.append(f"net-{number}")
        except (MlflowException, OSError):
            pass
    until(lambda: {data["name"] for _, data in told(receiver)} >= set(made), "all that was acknowledged is told")
    names = [data["name"] for _, data in told(receiver)]
    assert sorted(set(names), key=names.index) == sorted(set(names), key=lambda name: int(name.split("-")[1]))


def test_a_jobs_token_makes_no_webhooks(ours, receiver, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import os\nfrom mlflow import MlflowClient\n"
        "try:\n    MlflowClient().create_webhook('mine', os.environ['URL'], ['model_version.created'])\n"
        "except Exception as error:\n    print('refused:', error.error_code)\n"
    )
    (tmp_path / "job.yaml").write_text(f"envs: {{URL: \"{receiver.url}\"}}\nrun: exec {sys.executable} {script}\n")
    command = [BINARY, "--data", ours.folder / "data", "submit", tmp_path / "job.yaml", "--wait"]
    subprocess.run(command, check=True, timeout=240, env={**os.environ}, capture_output=True)
    log = subprocess.run([BINARY, "--data", ours.folder / "data", "logs", "job-1"], capture_output=True, text=True).stdout
    assert "refused: PERMISSION_DENIED" in log, log
