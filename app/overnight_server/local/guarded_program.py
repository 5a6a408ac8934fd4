"""Start a program under a guard process, so that the program cannot outlive this process."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

import overnight_server
from overnight_server.local.errors import DidNotStart
from overnight_server.local.guard_process import ORDERLY_STOP, LaunchRequest
from overnight_server.local.privileges import Identity
from overnight_server.settings.process_secrets import own_environment


@dataclass(frozen=True)
class Program:
    """A command, and how to stop it.

    `env` is the whole environment, not an addition to this process's. The stop signal goes to the
    main process only. After `grace` seconds the program and its children are killed.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    stop_signal: signal.Signals = signal.SIGTERM
    grace: float = 10.0
    identity: Identity = Identity.CURRENT_USER
    cwd: Path = Path("/")


class GuardedProgram:
    """A running program and its guard.

    The program ends when it is stopped, and also when this process ends for any reason.
    The descriptors in `held` stay open until the program and all its children have ended.
    """

    def __init__(
        self, program: Program, *, output: IO[bytes] | int | None = None, held: Sequence[int] = ()
    ) -> None:
        self._channel, guard_end = socket.socketpair()
        with guard_end:
            self._guard = subprocess.Popen(
                _guard_command(guard_end.fileno(), held),
                cwd="/",
                # The guard needs no secret; the program's environment is sent to it.
                env=own_environment("guard", os.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                pass_fds=(guard_end.fileno(), *held),
                start_new_session=True,
            )
        self._channel.sendall(_launch_request(program))
        self.pid = self._read_pid()

    @property
    def output(self) -> IO[bytes] | None:
        """The program's output, when `output` was `subprocess.PIPE`."""
        return self._guard.stdout

    @property
    def guard_pid(self) -> int:
        """The guard's own process id."""
        return self._guard.pid

    def exit_code(self) -> int | None:
        """Return the exit code (128 + n for signal n); None while any process of it runs."""
        return self._checked(self._guard.poll())

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the program and its children have ended; return None on a timeout."""
        try:
            return self._checked(self._guard.wait(timeout))
        except subprocess.TimeoutExpired:
            return None

    def _checked(self, code: int | None) -> int | None:
        if code is not None and code < 0:
            # The guard itself was killed. The kernel has sent the stop signal to the service, but
            # not to the service's children, which would keep the port from a new service.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        return code

    def request_stop(self) -> None:
        """Request an orderly stop, and return without waiting for it."""
        self._send(ORDERLY_STOP)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the main process; SIGKILL goes to all of its children as well."""
        self._send(number)

    def stop(self) -> int:
        """Stop the program in order and wait until all its processes have ended."""
        self.request_stop()
        code = self._guard.wait()
        self.close()
        return code

    def close(self) -> None:
        """Close the channel; the guard stops a program that still runs."""
        self._channel.close()
        if self._guard.stdout:
            self._guard.stdout.close()

    def _send(self, byte: int) -> None:
        # The guard may have ended already.
        with contextlib.suppress(OSError):
            self._channel.send(bytes([byte]), socket.MSG_DONTWAIT | _NO_SIGPIPE)

    def _read_pid(self) -> int:
        with self._channel.makefile("rb") as messages:
            line = messages.readline()
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


def _launch_request(program: Program) -> bytes:
    # Sent through the channel, because an environment has passwords and arguments are public.
    request = LaunchRequest(
        argv=list(program.argv),
        env=dict(program.env),
        cwd=str(program.cwd),
        stop_signal=int(program.stop_signal),
        grace=program.grace,
        identity=program.identity.value,
    )
    return json.dumps(asdict(request)).encode() + b"\n"
