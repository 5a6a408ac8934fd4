"""The owner's side of a guard: start one program so that it cannot outlive us."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import overnight_server
from overnight_server.local.errors import DidNotStart
from overnight_server.local.guard_process import ORDERLY_STOP
from overnight_server.local.privileges import Identity


@dataclass(frozen=True)
class Program:
    """One command, and how it wishes to be ended.

    `env` is the whole environment, not an addition to ours. The stop signal goes to the main
    process only; whatever still runs after `grace` seconds is killed, children included.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    stop_signal: signal.Signals = signal.SIGTERM
    grace: float = 10.0
    identity: Identity = Identity.OURSELVES
    cwd: Path = Path("/")


class Guarded:
    """A running program under its guard.

    It ends when stopped, and also when this process ends in any way whatever.
    `held` are open files that stay open until the program and all its children are gone.
    """

    def __init__(
        self, program: Program, *, output: IO[bytes] | int | None = None, held: Sequence[int] = ()
    ) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._guard = subprocess.Popen(
                _guard_command(theirs.fileno(), held),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                pass_fds=(theirs.fileno(), *held),
                start_new_session=True,
            )
        self._channel.sendall(_order(program))
        self.pid = self._service_pid()

    @property
    def output(self) -> IO[bytes] | None:
        """What the program prints, when `output` was `subprocess.PIPE`."""
        return self._guard.stdout

    @property
    def guard_pid(self) -> int:
        """The guard's own process id."""
        return self._guard.pid

    def exit_code(self) -> int | None:
        """Tell how the program ended (128 + n for signal n), or None while anything of it runs."""
        return self._noted(self._guard.poll())

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end of the program and all its children; None if time runs out first."""
        try:
            return self._noted(self._guard.wait(timeout))
        except subprocess.TimeoutExpired:
            return None

    def _noted(self, code: int | None) -> int | None:
        if code is not None and code < 0:
            # The guard itself was killed. Its service has had the stop signal from the kernel, but
            # the service's children have not, and a successor could not take their port.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        return code

    def ask_to_stop(self) -> None:
        """Begin the agreed ending without waiting for it."""
        self._send(ORDERLY_STOP)

    def send_signal(self, number: signal.Signals) -> None:
        """Pass a signal to the main process; SIGKILL goes to all of its children as well."""
        self._send(number)

    def stop(self) -> int:
        """End the program in the agreed way and wait until nothing of it is left."""
        self.ask_to_stop()
        code = self._guard.wait()
        self.close()
        return code

    def close(self) -> None:
        """Let go of the channel; a program that still runs is ended by its guard."""
        self._channel.close()
        if self._guard.stdout:
            self._guard.stdout.close()

    def _send(self, byte: int) -> None:
        # A guard that has gone needs no telling.
        with contextlib.suppress(OSError):
            self._channel.send(bytes([byte]), socket.MSG_DONTWAIT | _NO_SIGPIPE)

    def _service_pid(self) -> int:
        with self._channel.makefile("rb") as answers:
            line = answers.readline()
        if not line:
            raise DidNotStart(f"the guard ended at once with exit code {self._guard.wait()}")
        return int(json.loads(line)["pid"])


_NO_SIGPIPE = getattr(socket, "MSG_NOSIGNAL", 0)


# The guard needs the standard library and this package only. So Python starts isolated (-I) and
# without site-packages (-S), and the package's directory comes last on the path.
_RUN_GUARD = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from overnight_server.local.guard_process import main; sys.exit(main(sys.argv[2:]))"
)


def _guard_command(channel: int, held: Sequence[int]) -> list[str]:
    package_root = str(Path(overnight_server.__file__).parents[1])
    numbers = [str(number) for number in (os.getpid(), channel, *held)]
    return [sys.executable, "-IS", "-c", _RUN_GUARD, package_root, *numbers]


def _order(program: Program) -> bytes:
    # Through the channel, because an environment holds passwords and arguments are public.
    order = {
        "argv": list(program.argv),
        "env": dict(program.env),
        "cwd": str(program.cwd),
        "stop_signal": int(program.stop_signal),
        "grace": program.grace,
        "identity": program.identity.value,
    }
    return json.dumps(order).encode() + b"\n"
