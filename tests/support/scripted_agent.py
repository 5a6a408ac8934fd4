"""An HTTP agent that misbehaves as a test tells it: the test's side.

The script is a JSON file: for each kind of request (health, post, get, delete) a list of actions,
used one after the other; the last one stays. The agent writes what it does into a journal.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from overnight_server.local.ports import free_port
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]
SECRET = "a secret of the scripted agent"
NORMAL = "normal"
# Does nothing and never answers.
HANG = "hang"
# Does what was asked and never answers.
DO_AND_HANG = "do and hang"
# Does what was asked and answers 500.
DO_AND_FAIL = "do and fail"
REDIRECT = "redirect"
GARBAGE = "garbage"
LARGE = "large"
# Starts a task each time it is sent, also under a known key.
FORGETFUL = "forgetful"


@dataclass
class ScriptedAgent:
    """The test's side: it starts, scripts, ends and reads the agent."""

    folder: Path
    slots: int = 1
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None
    version: int = 0
    max_age_seconds: int = 60

    @property
    def url(self) -> str:
        """The address of the agent."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> "ScriptedAgent":
        """Start the process, or a new one after the last has ended; wait until it listens."""
        self.folder.mkdir(exist_ok=True)
        if not self.version:
            self.script()
        command = [sys.executable, "-m", "tests.support.scripted_agent_process"]
        self.process = subprocess.Popen(
            [*command, str(self.folder), *map(str, (self.port, self.slots, self.max_age_seconds))],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        wait_until(self._listens, what="the agent to listen")
        return self

    def script(self, **actions: object) -> None:
        """Write a new script; requests that hang are dropped."""
        self.version += 1
        written = {
            kind: action if isinstance(action, list) else [action]
            for kind, action in actions.items()
        }
        path = self.folder / "script.new"
        path.write_text(json.dumps({"version": self.version, **written}))
        path.rename(self.folder / "script.json")

    def kill(self) -> None:
        """End the process as kill -9 does."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """Stop the process without ending it; the kernel still accepts connections for it."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process continue."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def journal(self, event: str) -> list[str]:
        """Return the keys of the events of one kind, in order."""
        path = self.folder / "journal"
        lines = path.read_text().splitlines() if path.exists() else []
        split = (line.split(" ", 1) for line in lines)
        return [key for name, key in split if name == event]

    def starts(self) -> list[str]:
        """Return the keys of the tasks that were started, in order."""
        return self.journal("start")

    def saw(self, event: str, count: int = 1) -> None:
        """Wait until an event has happened so often."""
        wait_until(
            lambda: len(self.journal(event)) >= count, what=f"event {event!r} number {count}"
        )

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
