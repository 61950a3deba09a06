"""Plays a guide's sessions: each block whose first line begins with `$`, as a shell would, with what it prints."""

import os
import re
import subprocess
import time

LIMIT_SECONDS = 120
# Commands that change something are given once. The others are given until they print what the guide shows.
CHANGES = ("kill", "gangline submit", "gangline cancel", "gangline resume", "gangline drain")


def files(guide):
    """The files of a guide, by name."""
    return dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", guide, flags=re.S))


def of_block(text):
    """The commands of a session, each with the lines that it prints."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, *printed = part.splitlines()
        yield command, printed


def shows(printed, whole):
    """Reports whether the lines of a session are those of an output: `...` alone stands for any lines, within a line for any text."""
    lines = ["(?:.*\n)*" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + "\n" for line in printed]
    return re.fullmatch("".join(lines), "".join(f"{line.rstrip()}\n" for line in whole.splitlines())) is not None


def play(guide, plane):
    """Plays a guide's sessions on a control plane that runs already: `gangline up` isn't given."""
    environment = {**plane.environment, "GANGLINE_DATA": str(plane.folder / "data")}
    played = 0
    blocks = re.findall(r"```console\n(.*?)```", guide, flags=re.S)
    for command, printed in (each for block in blocks for each in of_block(block)):
        if command.startswith("gangline up"):
            continue
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            ended = subprocess.run(
                command, shell=True, capture_output=True, text=True, env=environment, cwd=plane.folder, timeout=60
            )
            whole = ended.stdout + ended.stderr
            if shows(printed, whole) or (not printed and ended.returncode == 0):
                break
            is_over = command.startswith(CHANGES) or time.monotonic() > deadline
            assert not is_over, f"$ {command}\nshould print\n{os.linesep.join(printed)}\nand printed\n{whole[-3000:]}"
            time.sleep(0.2)
        played += 1
    return played
