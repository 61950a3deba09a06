"""Lightning's and Hugging Face's trainers save through the store, are killed, and go on as if nothing had happened."""

import json
import pathlib
import signal
import subprocess
import sys

import gangline
import pytest
from loops import EVERY, KILL_AFTER, STEPS

LOOPS = pathlib.Path(__file__).with_name("loops.py")


@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_a_killed_training_has_the_losses_of_the_uninterrupted_one(tmp_path, framework):
    command = [sys.executable, "-W", "ignore", LOOPS, framework, tmp_path]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    (whole_status, whole), (killed_status, killed), (resumed_status, resumed) = json.loads(ended.stdout)
    assert (whole_status, killed_status, resumed_status) == (0, -signal.SIGKILL, 0), ended.stderr
    first = KILL_AFTER // EVERY * EVERY
    assert [int(step) for step, _ in whole] == list(range(1, STEPS + 1))
    assert killed == whole[:KILL_AFTER] and resumed == whole[first:], "to the last digit"
    assert len({loss for _, loss in whole}) > STEPS / 2, "it does train"
    for folder in ("whole", "killed"):
        steps = [listed.step for listed in gangline.Reader(tmp_path / folder / "store").list()]
        assert steps == [STEPS // EVERY * EVERY, STEPS], "the last step is saved too"
