"""docs/guides/checkpoints.md shows only what is so: each of its programs is written down, and each session run and compared.

A block after `<!-- file: NAME -->` is that file. A `console` block is a session: after `$ COMMAND` follows an excerpt of what it
prints; a line `...` stands for any that are left out, a comment `# crashes` says that it doesn't end well. A session after
`<!-- folder: NAME -->` runs in a folder of its own.
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import sessions

GUIDE = pathlib.Path(__file__).parents[2] / "docs/guides/checkpoints.md"
# What made the environment that this runs in: `cargo xtask python` does these two.
INSTALL = ["$ cargo xtask python --wheel", "$ pip install target/wheels/gangline-*.whl"]
BLOCK = re.compile(r"(?:<!-- (\w+)(?:: (\S+))? -->\n)?```(\w+)\n(.*?)```", re.S)


def run(command, folder):
    programs = pathlib.Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    arguments = command.partition(" #")[0].split()
    return subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


def test_every_program_and_session_of_the_guide(tmp_path):
    ran = 0
    for about, name, language, text in BLOCK.findall(GUIDE.read_text()):
        if about == "install":
            assert text.splitlines() == INSTALL
        elif about == "file":
            (tmp_path / name).write_text(text)
        else:
            assert language == "console", text
            folder = tmp_path / (name or "")
            if name:
                folder.mkdir()
                (folder / "train.py").write_text((tmp_path / "train.py").read_text())
            for command, excerpt in sessions.of_block(text):
                ended = run(command, folder)
                assert sessions.shows(excerpt, ended.stdout), f"{command}\n{ended.stdout}\n{ended.stderr}"
                assert (ended.returncode != 0) == command.endswith("# crashes"), ended.stderr
                ran += 1
    assert ran == 14


@pytest.mark.parametrize("excerpt, holds", [
    (["a", "b"], True), (["a"], False), (["a", "...", "b"], True), (["b"], False), (["b", "a"], False), ([], False),
])  # fmt: skip
def test_an_excerpt_is_compared_line_by_line(excerpt, holds):
    assert sessions.shows(excerpt, "a\nb\n") == holds
    assert sessions.shows(["a", "...", "b"], "a\nx\ny\nb\n") and sessions.shows([], "")
    assert sessions.shows(["a ... b"], "a x b\n") and not sessions.shows(["a ... b"], "a x c\n")
