"""Unchanged PyTorch scripts run under the real binary, are killed, and end as if nothing had happened."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

BINARY = os.environ.get("GANGLINE_BINARY")
TRAIN = pathlib.Path(__file__).parents[2] / "examples" / "torch" / "train.py"
LIMIT_SECONDS = 240
STEPS = 40

pytestmark = pytest.mark.skipif(not BINARY, reason="GANGLINE_BINARY names no gangline binary: run cargo xtask python")


class Plane:
    """A control plane of its own, with slots for processors."""

    def __init__(self, folder, nodes, *options):
        self.folder = folder
        self.environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        self.environment["PATH"] = f"{pathlib.Path(sys.executable).parent}:{self.environment['PATH']}"
        command = [BINARY, "--data", folder / "data", "up", "--listen", "127.0.0.1:0", "--heartbeat", "100", *options]
        for node in nodes:
            command += ["--node", node]
        self.log = open(folder / "up.log", "wb")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=self.environment, cwd=folder)
        self.until(lambda: self.ask("nodes", may_fail=True), "the control plane answers")

    def close(self):
        for job in self.ask("ps")["jobs"]:
            self.run("cancel", job["id"])
        self.until(lambda: all(self.is_over(job) for job in self.ask("ps", "--all")["jobs"]), "all jobs are over")
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.log.close()

    def run(self, *arguments):
        command = [BINARY, "--data", self.folder / "data", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=self.environment, cwd=self.folder, timeout=60)

    def ask(self, *arguments, may_fail=False):
        ended = self.run("--json", *arguments)
        assert may_fail or ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout) if ended.returncode == 0 else None

    def submit(self, name, text):
        (self.folder / f"{name}.yaml").write_text(f"name: {name}\n{text}")
        return self.ask("submit", f"{name}.yaml")["job"]

    def until(self, is_so, what):
        deadline = time.monotonic() + LIMIT_SECONDS
        while not (answer := is_so()):
            assert time.monotonic() < deadline, f"{what}\n{(self.folder / 'up.log').read_text()[-4_000:]}"
            time.sleep(0.05)
        return answer

    @staticmethod
    def is_over(job):
        return job["state"] not in ("waiting", "starting", "running", "stopping")

    def ended(self, job):
        return self.until(lambda: (shown := self.ask("show", job)) and self.is_over(shown) and shown, f"{job} is over")

    def printed(self, job):
        return self.run("logs", job).stdout

    def reach(self, job, step):
        self.until(lambda: f"step {step} " in self.printed(job), f"{job} reaches step {step}")


@pytest.fixture
def plane(tmp_path):
    plane = Plane(tmp_path, ["a=cpu:2", "b=cpu:2"])
    yield plane
    plane.close()


def script(arguments):
    return f"{TRAIN} --steps {STEPS} --step-time 0.1 {arguments}"


def losses(text):
    """The loss of each step as it was printed last."""
    return dict(re.findall(r"step (\d+) loss (\S+)", text))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The losses that torchrun has with nobody in its way; DDP and FSDP over one model have the same."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", TRAIN]
    command += ["--steps", str(STEPS), "--checkpoint", tmp_path_factory.mktemp("alone") / "alone.pt"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT_SECONDS)
    assert ended.returncode == 0, ended.stderr
    return losses(ended.stdout)


def after(step, all_losses):
    return {number: loss for number, loss in all_losses.items() if int(number) > step}


def resumed(text):
    """The step of the checkpoint that the last attempt went on from: that of step 10, or a later one if the kill came late."""
    step = int(re.findall(r"rank 0 resumed from step (\d+)", text)[-1])
    assert step in (10, 20, 30), text
    return step


def kill_rank(plane, job, number):
    """SIGKILL for one rank's process, as the OOM killer would."""
    shares = plane.ask("show", job)["attempts"][-1]["shares"]
    pids = {rank["rank"]: rank["pid"] for share in shares for rank in share["ranks"]}
    os.kill(pids[number], signal.SIGKILL)


@pytest.mark.parametrize("arguments", ["", "--fsdp"])
def test_a_rank_for_each_slot_is_killed_and_the_losses_are_those_of_torchrun(plane, undisturbed, arguments):
    run = f"python {script('--checkpoint own.pt ' + arguments)}"
    job = plane.submit("ranks", f'resources: {{accelerators: "cpu:2"}}\nrun: {run}\n')
    plane.reach(job, 15)
    kill_rank(plane, job, 1)
    shown = plane.ended(job)
    assert (shown["state"], shown["faults"], len(shown["attempts"])) == ("succeeded", 1, 2), json.dumps(shown, indent=1)
    assert "restarts in place" in shown["attempts"][1]["placed_because"]
    text = plane.printed(job)
    assert losses(text) == after(resumed(text), undisturbed)


def test_torchrun_itself_is_a_job_with_one_process_a_node(plane, undisturbed):
    run = f"torchrun --standalone --nproc-per-node 2 {script('--checkpoint own.pt')}"
    job = plane.submit("agent", f'resources: {{accelerators: "cpu:2"}}\nlaunch: node\nrun: {run}\n')
    plane.reach(job, 15)
    kill_rank(plane, job, 0)
    shown = plane.ended(job)
    assert (shown["state"], shown["faults"]) == ("succeeded", 1), json.dumps(shown, indent=1)
    text = plane.printed(job)
    assert losses(text) == after(resumed(text), undisturbed)


def test_torchrun_on_two_nodes_meets_where_gangline_says(plane, undisturbed, tmp_path):
    meeting = "--nnodes 2 --node-rank $GROUP_RANK --master-addr $MASTER_ADDR --master-port $MASTER_PORT"
    run = f"torchrun {meeting} --nproc-per-node 1 {script('--checkpoint ' + str(tmp_path / 'own.pt'))}"
    job = plane.submit("two", f'num_nodes: 2\nresources: {{accelerators: "cpu:2"}}\nlaunch: node\nrun: {run}\n')
    assert plane.ended(job)["state"] == "succeeded", plane.printed(job)
    assert losses(plane.printed(job)) == undisturbed


def test_an_error_of_the_program_is_told_and_not_tried_again(plane):
    (plane.folder / "wrong.py").write_text("import torch\nimport no_such_module\n")
    job = plane.submit("wrong", 'resources: {accelerators: "cpu:2"}\nrun: python wrong.py\n')
    shown = plane.ended(job)
    assert (shown["state"], len(shown["attempts"])) == ("failed", 1), json.dumps(shown, indent=1)
    diagnosis = shown["attempts"][0]["fault"]["diagnosis"]
    assert (diagnosis["category"], diagnosis["subcategory"]) == ("user_code", "import_error")
    assert "would end in the same way" in shown["attempts"][0]["ended_because"]
