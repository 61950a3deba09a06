"""The whole first hour as a new user has it: the tutorial's pages are typed into one shell, from the installation on."""

import json
import os
import pathlib
import re
import shutil
import sys

import pytest
import sessions

TUTORIAL = pathlib.Path(__file__).parents[2] / "docs" / "tutorial"
PAGES = ("first-hour.md", "first-ddp-job.md")
# Other control planes of the tests have the usual port. Faults are found sooner than by the usual heartbeats.
PRELUDE = """
gangline() {
  if [ "$1" = up ]; then shift; exec gangline up --listen 127.0.0.1:0 --heartbeat 100 "$@"; fi
  command gangline "$@"
}
"""

pytestmark = pytest.mark.skipif(
    "GANGLINE_TARBALL" not in os.environ, reason="GANGLINE_TARBALL names no tarball of gangline: run cargo xtask python"
)


@pytest.fixture
def shell(tmp_path):
    """A new user's shell, in a folder with the tarball."""
    shutil.copy(os.environ["GANGLINE_TARBALL"], tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GANGLINE", "XDG_"))}
    programs = [tmp_path / ".local" / "bin", pathlib.Path(sys.executable).parent, environment["PATH"]]
    environment.update(HOME=str(tmp_path), PATH=":".join(map(str, programs)))
    shell = sessions.Shell(tmp_path, environment, PRELUDE)
    yield shell
    shell.type("gangline cancel --all; while gangline ps | grep -q job-; do sleep 0.1; done")
    shell.close()


def shown(shell, job):
    return json.loads(shell.type(f"gangline show {job} --json")[1])


def test_the_first_hour_is_as_the_tutorial_shows_it(shell):
    pages = [(TUTORIAL / page).read_text() for page in PAGES]
    for name, text in (file for page in pages for file in sessions.files(page).items()):
        (shell.folder / name).write_text(text)
    assert sum(map(shell.play, pages)) >= 45
    # What the DDP job had saved counts: each of its attempts, and the resumed job, began where the one before had saved.
    (job, resumed) = shown(shell, "job-12"), shown(shell, "job-13")
    assert (job["state"], job["faults"], resumed["state"]) == ("cancelled", 1, "cancelled")
    texts = [shell.type(f"gangline logs {log}")[1] for log in ("job-12 --attempt 2", "job-12 --attempt 3", "job-13")]
    starts = [int(step) for text in texts for step in re.findall(r"rank 0 goes on after step (\d+)", text)]
    assert len(starts) == 3 and starts[0] in (20, 40) and starts[0] < starts[1] < starts[2], starts
    assert starts[2] == job["checkpoints"]["last_step"]
