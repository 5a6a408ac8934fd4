"""Starts this process anew under the same process id, after it has shut down in order."""

import os
import signal
import sys
from typing import Final


class Restart:
    """Whether the process starts anew when it has shut down."""

    def __init__(self) -> None:
        self.is_requested = False

    def request(self) -> None:
        """Begin the orderly shutdown that the new start follows."""
        self.is_requested = True
        os.kill(os.getpid(), signal.SIGTERM)

    def execute(self) -> None:
        """Replace this process by a new one with the same arguments, if that was requested."""
        if self.is_requested:
            # The alarm that limits the shutdown would kill the new process.
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.stdout.flush()
            os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - our own program


RESTART: Final = Restart()
