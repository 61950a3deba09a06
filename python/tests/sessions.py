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


class Shell:
    """One shell in which sessions are typed: what a command puts into the background is there for the commands after it."""

    def __init__(self, folder, environment, prelude=""):
        self.folder = folder
        self.typed = 0
        # The shell says on its standard error what became of its jobs, which no session shows.
        self.said = open(folder / "shell.log", "wb")
        self.process = subprocess.Popen(
            ["bash"], stdin=subprocess.PIPE, stdout=self.said, stderr=self.said, env=environment, cwd=folder, text=True
        )
        self.process.stdin.write(prelude)

    def type(self, command, until=lambda output: True):
        """Runs a command; its status, and what it has printed once that is what `until` waits for."""
        self.typed += 1
        output, status = (self.folder / f"{name}.{self.typed}" for name in ("output", "status"))
        self.process.stdin.write(f"{{ {command}\n}} > {output} 2>&1; echo $? > {status}.new; mv {status}.new {status}\n")
        self.process.stdin.flush()
        deadline = time.monotonic() + LIMIT_SECONDS
        while not status.exists() or (command.endswith("&") and not until(output.read_text())):
            assert self.process.poll() is None and time.monotonic() < deadline, f"$ {command}\nprinted\n{output.read_text()}"
            time.sleep(0.02)
        return int(status.read_text()), output.read_text()

    def play(self, guide):
        """Types a guide's sessions and compares what they print with what it shows; how many commands there were."""
        sessions = re.findall(r"```console\n(.*?)```", guide, flags=re.S)
        commands = [command for session in sessions for command in of_block(session)]
        for command, printed in commands:
            deadline = time.monotonic() + LIMIT_SECONDS
            while True:
                status, whole = self.type(command, lambda output, printed=printed: shows(printed, output))
                if shows(printed, whole) or (not printed and status == 0):
                    break
                is_over = command.startswith(CHANGES) or time.monotonic() > deadline
                wanted = os.linesep.join(printed)
                assert not is_over, f"$ {command}\nshould print\n{wanted}\nand printed\n{whole[-3000:]}"
                time.sleep(0.2)
        return len(commands)

    def close(self):
        """Ends the shell and what it has in the background."""
        self.process.stdin.write("kill $(jobs -p); wait\n")
        self.process.stdin.close()
        self.process.wait(LIMIT_SECONDS)
        self.said.close()
