"""A person at a terminal who runs the command `overnight` in one home directory."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

from overnight_server.local.home import Home, LocalConnection
from tests.support.workers import ROOT


class Terminal:
    """Runs commands in one home directory."""

    def __init__(self, path: Path) -> None:
        self.home = Home(path)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("OVERNIGHT_")}
        self.env["OVERNIGHT_HOME"] = str(path)

    def command(self, *arguments: str) -> list[str]:
        """Return the program and its arguments."""
        return [sys.executable, "-m", "overnight_server.cli.main", *arguments]

    def type(self, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.command(*arguments),
            cwd=cwd,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def connection(self) -> LocalConnection:
        """Return the addresses of the running stack."""
        connection = self.home.connection()
        assert connection
        return connection

    def processes(self) -> list[psutil.Process]:
        """Return the supervisor and all its descendants."""
        supervisor = psutil.Process(self.connection().pid)
        return [supervisor, *supervisor.children(recursive=True)]
