"""A real OpenTelemetry collector (rotel) takes what ranks measure, and the lives of jobs that have ended as traces."""

import importlib.util
import pathlib
import re
import socket
import subprocess

import pytest
from test_jobs import Plane, pytestmark  # noqa: F401

COLLECTOR = pathlib.Path(importlib.util.find_spec("rotel").submodule_search_locations[0]) / "rotel-agent"
RUN = "python -c \"import gangline, time; [(gangline.report(step=s, loss=1 / s), time.sleep(0.05)) for s in range(1, 20)]\""


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture
def collector(tmp_path):
    """The collector's port, and what it says that it was sent; it isn't started yet."""
    ports, log = (free_port(), free_port()), tmp_path / "collector.log"
    command = [COLLECTOR, "start", "--otlp-http-endpoint", f"127.0.0.1:{ports[0]}", "--otlp-grpc-endpoint", f"127.0.0.1:{ports[1]}"]
    command += ["--exporter", "blackhole", "--debug-log", "traces", "--debug-log", "metrics", "--debug-log-verbosity", "detailed"]
    started = []

    def start():
        with open(log, "ab") as out:
            started.append(subprocess.Popen(command, stdout=out, stderr=out, cwd=tmp_path))

    yield ports[0], start, lambda: re.sub(r"\x1b\[[0-9;]*m", "", log.read_text())
    for process in started:
        process.terminate()
        process.wait(30)


def test_a_collector_gets_metrics_and_lives_of_jobs_also_when_it_comes_later(collector, tmp_path):
    port, start, said = collector
    (tmp_path / "config.toml").write_text(f'[otlp]\nurl = "http://127.0.0.1:{port}"\nlabels = {{ "deployment.environment" = "test" }}\n')
    plane = Plane(tmp_path, ["a=cpu:2"], "--config", tmp_path / "config.toml")
    try:
        job = plane.submit("told", f'resources: {{accelerators: "cpu:1"}}\nrun: {RUN}\n')
        assert plane.ended(job)["state"] == "succeeded", plane.printed(job)
        failed = plane.submit("fails", 'resources: {accelerators: "cpu:1"}\nrecovery: {max_faults: 0}\nrun: kill -9 $$\n')
        assert plane.ended(failed)["state"] == "failed"
        # What was to be sent waits for it.
        start()
        wanted = ["gangline_rank_loss", job, failed, "queue", "attempt", "start", "train", "release", "deployment.environment"]
        wanted += ["gangline.user", "killed by signal 9"]
        plane.until(lambda: all(name in said() for name in wanted), "the collector has it all")
        text = said()
        assert text.count("gangline.job_id") == 2, "each life once"
    finally:
        plane.close()
