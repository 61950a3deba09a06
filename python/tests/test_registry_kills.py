"""A control plane that is killed at any point of registrations, promotions and deletions loses nothing that was acknowledged,
shows nothing half made, and leaves no bytes that no version refers to."""

import json
import os
import random
import signal
import subprocess
import threading
import time

import gangline
import numpy
import pytest
from test_jobs import BINARY
from test_mlflow import Ours, until

pytestmark = pytest.mark.skipif(not BINARY, reason="GANGLINE_BINARY names no gangline binary: run cargo xtask python")
KILLS = 8


class Client(threading.Thread):
    """Registers, promotes and deletes until it is told to stop, and remembers what was acknowledged."""

    def __init__(self, ours, folder, steps):
        super().__init__()
        self.ours, self.folder, self.steps, self.is_over = ours, folder, steps, False
        self.versions, self.deleted, self.promoted, self.random = {}, set(), None, random.Random(7)

    def ask(self, *arguments):
        command = [BINARY, "--data", self.ours.folder / "data", "--json", "models", *map(str, arguments)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return json.loads(ended.stdout) if ended.returncode == 0 else None

    def run(self):
        while not self.is_over:
            step = self.random.choice(self.steps)
            answer = self.ask("register", "m", f"{self.folder}@{step}")
            if answer is not None:
                self.versions[answer["version"]["number"]] = step
            if self.versions and self.random.random() < 0.5:
                number = self.random.choice([n for n in self.versions if n not in self.deleted])
                if self.ask("promote", f"m/{number}") is not None:
                    self.promoted = number
            others = [n for n in self.versions if n not in self.deleted and n != self.promoted]
            if len(others) > 1 and self.random.random() < 0.5:
                number = self.random.choice(others)
                # Whether one that isn't acknowledged was deleted isn't known.
                self.deleted.add(number)
                self.ask("delete", f"m/{number}")


@pytest.fixture
def ours(tmp_path):
    ours = Ours(tmp_path)
    yield ours
    ours.close()


def test_kills_lose_no_version_and_leave_no_bytes(ours, tmp_path):
    folder, steps = tmp_path / "checkpoints", list(range(1, 13))
    with gangline.Store(folder, keep=100) as store:
        for step in steps:
            store.save(step, {"x": numpy.full(10_000, step, numpy.float32)}).durable()
    client = Client(ours, folder, steps)
    client.start()
    for number in range(KILLS):
        time.sleep(0.4 + 0.13 * number)
        ours.process.send_signal(signal.SIGKILL)
        ours.process.wait(60)
        ours.start()
    client.is_over = True
    client.join(120)

    shown = {version["number"]: version for version in client.ask("show", "m")["versions"]}
    for number, step in client.versions.items():
        if number in client.deleted:
            continue
        version = client.ask("show", f"m/{number}")
        assert version["lineage"]["checkpoint"]["step"] == step and version["history"][0]["action"] == "registered"
        assert client.ask("verify", f"m/{number}")["problems"] == []
    (alias,) = client.ask("show", "m")["aliases"].values()
    assert alias in shown and any(event["action"] == "verified" for event in shown[alias]["history"])
    needed = {os.path.basename(version["pin"]) for version in shown.values()}
    pinned = folder / ".gangline" / "pinned"
    until(lambda: set(os.listdir(pinned)) == needed, f"only {len(needed)} pins are left, of {os.listdir(pinned)}")
    assert len(client.versions) > 3, "it registered meanwhile"
