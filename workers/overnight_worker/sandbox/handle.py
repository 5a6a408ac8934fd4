"""A started sandbox: ask its command to end, end it, wait for it."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from types import TracebackType
from typing import Final, Self

from overnight_worker.sandbox.memory_group import MemoryGroup
from overnight_worker.sandbox.proxy import Proxy
from overnight_worker.sandbox.spec import MEGABYTE, SandboxEnd, SandboxKind

MESSAGE_BYTES: Final = 256
ERROR_BYTES: Final = 4096


class Sandbox:
    """A command that runs in a sandbox; leaving its context ends it.

    `stdout`, `stderr` and `events` are descriptors to read from until end-of-file. The reader must
    be as fast as the command wants to be: a full pipe stops the command. `pid` is process 1 of the
    sandbox as the worker sees it. `terminate`, `kill` and `wait` may be called from any thread.
    """

    def __init__(
        self,
        *,
        kind: SandboxKind,
        pid: int,
        pidfd: int,
        process: subprocess.Popen[bytes],
        channel: socket.socket,
        stdout: int,
        stderr: int,
        events: int,
        errors: int,
        group: MemoryGroup | None,
        proxy: Proxy | None,
    ) -> None:
        self.kind = kind
        self.pid = pid
        self.stdout, self.stderr, self.events = stdout, stderr, events
        self._errors = errors
        self._pidfd = pidfd
        self._process = process
        self._channel = channel
        self._group = group
        self._proxy = proxy
        self._lock = threading.Lock()
        self._is_stopped = False
        self._end: SandboxEnd | None = None
        self._is_closed = False

    @property
    def is_memory_enforced(self) -> bool:
        """Whether the kernel holds the memory limit; otherwise process 1 measures."""
        return self._group is not None

    def terminate(self) -> None:
        """Send SIGTERM to every process of the sandbox; nothing happens if it has ended."""
        with self._lock:
            if self._end is None:
                self._is_stopped = True
                with contextlib.suppress(OSError):
                    self._channel.send(b"terminate", socket.MSG_DONTWAIT)

    def kill(self) -> None:
        """End the sandbox: the kernel kills all of its processes; nothing happens if it has ended.

        Closing the channel alone ends it too. The signal does not depend on process 1.
        """
        with self._lock:
            if self._end is None:
                self._is_stopped = True
                with contextlib.suppress(OSError):
                    self._channel.shutdown(socket.SHUT_WR)
                # Without a namespace only the program itself can end the others.
                if self.kind is not SandboxKind.NONE:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> SandboxEnd | None:
        """Wait until no process of the sandbox is left; return how it ended, None on a timeout."""
        if self._end is None:
            # Readable when process 1 has ended, and it ends after all others of its namespace.
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                return None
            with self._lock:
                if self._end is None:
                    self._end = self._read_end()
        return self._end

    def close(self) -> None:
        """End the sandbox if it has not ended, and close its descriptors.

        No other thread may use the sandbox any more.
        """
        self.kill()
        self.wait()
        if not self._is_closed:
            self._is_closed = True
            for descriptor in (self.stdout, self.stderr, self.events, self._errors, self._pidfd):
                os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read_end(self) -> SandboxEnd:
        """Collect what is left of the sandbox, and return how it ended."""
        self._process.wait()
        end = self._end_from_message(self._last_message())
        self._channel.close()
        if self._proxy is not None:
            self._proxy.close()
        if self._group is not None:
            self._group.remove()
        return end

    def _last_message(self) -> list[str]:
        with contextlib.suppress(OSError):
            return self._channel.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT).decode().split()
        return []

    def _end_from_message(self, words: list[str]) -> SandboxEnd:
        """Return how the sandbox ended, from the last message of process 1 if it sent one.

        The kernel may have killed some process of a command that went on and ended by itself: that
        is no end by lack of memory.
        """
        kind, number, peak = (words[0], int(words[1]), int(words[2])) if words else ("", 0, 0)
        code = number if kind == "exit" else None
        signal_number = number if kind == "signal" else None
        peak_memory = self._group.peak if self._group is not None else peak or None
        if kind == "oom" or (
            self._is_out_of_memory() and (not kind or signal_number == signal.SIGKILL)
        ):
            detail = "the processes of the command used more memory than the task may use"
            return SandboxEnd("oom", code, signal_number, peak_memory, detail)
        if kind in {"workspace_full", "workspace_unreadable"}:
            return SandboxEnd("workspace_full", None, None, peak_memory, _workspace(kind, number))
        if self._is_stopped:
            return SandboxEnd("stopped", code, signal_number, peak_memory)
        if kind == "exit":
            return SandboxEnd("exit", code, None, peak_memory)
        if kind == "signal":
            return SandboxEnd("signal", None, signal_number, peak_memory)
        return SandboxEnd("failed", None, None, peak_memory, self._failure())

    def _is_out_of_memory(self) -> bool:
        return self._group is not None and self._group.has_killed

    def _failure(self) -> str:
        text = ""
        if select.select([self._errors], [], [], 0)[0]:
            text = os.read(self._errors, ERROR_BYTES).decode(errors="replace").strip()
        return text or f"process 1 of the sandbox was killed (exit code {self._process.returncode})"


def _workspace(kind: str, used: int) -> str:
    if kind == "workspace_full":
        return f"the workspace ({used // MEGABYTE} MB) or its disk has no room left"
    return "the workspace has directories that cannot be measured: no access, or paths too long"
