"""The guard of one pool process: no program that a handler started outlives its run.

Celery starts a pool process; `pool_guard` splits it in two. The process that Celery knows goes
on as the guard, which is this program, and its fork, the run process, runs the handlers. The guard
is the subreaper of everything below it, so a program cannot leave the guard's tree: not in a
session of its own, not as an orphan, not when it is stopped.

- The run process asks over the channel: the guard kills all programs and answers.
- The run process names a sandbox over the channel: its processes have a memory limit of their own
  from then on, and do not count as memory of the run.
- The run process ends, for any reason: the guard kills all programs, then ends in the same way. For
  Celery and for `dead_pool_processes` the pool process ends only then, so that nobody else gets the
  task before its programs are gone.
- The main process ends, for any reason, and so closes its end of a pipe: the guard kills the run
  process and all programs.
- The run process and its programs use too much memory: the guard notes that in the registry of
  claims and kills them.

If the guard itself is killed, Linux kills the run process, the main process adopts the programs,
ends them, and replaces the pool process. This program uses the standard library only, so that it
starts fast and stays small.
"""

import contextlib
import os
import resource
import select
import signal
import struct
import sys
import time
from pathlib import Path

from overnight_server.process_tree import descendants, is_living, kill_living, reap_children

# How long to wait for processes that were killed: one that waits for a disk dies when that answers,
# and runs no more code until then.
END_SECONDS = 10.0
PAUSE_SECONDS = 0.005
# One message of the run process: the pid of process 1 of a sandbox, or END_PROGRAMS.
MESSAGE = struct.Struct("=i")
END_PROGRAMS = 0
# How often the memory of a run is measured.
MEMORY_CHECK_SECONDS = 0.5
# A process that is born during one look at the tree is found by the next.
EMPTY_LOOKS = 2
IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


def main(arguments: list[str]) -> None:
    """Guard one run process until it ends; this process then ends in the same way.

    The arguments are numbers: the pid of the run process; the descriptors of the channel, of the
    main process's pipe and of the registry; the offset in the registry at which to note a memory
    excess; and the limit in KB, 0 for none.
    """
    run_process, channel, main_pipe, registry, offset, limit = map(int, arguments)
    guard = Guard(run_process, channel, main_pipe)
    guard.watch_memory(limit, registry, offset)
    guard.run()


class Guard:
    """Watches one run process and everything below it."""

    def __init__(self, run_process: int, channel: int, main_pipe: int) -> None:
        self._run_process = run_process
        self._channel = channel
        self._main_pipe = main_pipe
        self._limit_kb = self._registry = self._offset = 0
        self._status: int | None = None
        self._sandboxes: set[int] = set()
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self._signals = _open_signal_pipe()

    def watch_memory(self, limit_kb: int, registry: int, offset: int) -> None:
        """Let the run and its programs use at most this much memory; 0 for any amount."""
        self._limit_kb, self._registry, self._offset = limit_kb, registry, offset

    def run(self) -> None:
        """Guard until the run process has ended, then end everything below and this process."""
        sources = [self._signals, self._channel, self._main_pipe]
        pause = MEMORY_CHECK_SECONDS if self._limit_kb else None
        self._reap()
        while self._status is None:
            ready, _, _ = select.select(sources, [], [], pause)
            if self._signals in ready:
                os.read(self._signals, 4096)
            self._reap()
            if self._main_pipe in ready:
                break  # nobody writes to this pipe: the main process has ended
            if self._channel in ready and not self._answer():
                sources.remove(self._channel)
            if self._limit_kb and memory_kb(self._counted_processes(), self._limit_kb):
                with contextlib.suppress(OSError):  # a process without a record
                    os.pwrite(self._registry, b"\x01", self._offset)
                break
        self._end_everything()
        end_like(self._status or 0)

    def _answer(self) -> bool:
        """Do what the run process asks over the channel; False if it closed the channel."""
        message = _read(self._channel)
        if len(message) < MESSAGE.size:
            return False
        (sandbox,) = MESSAGE.unpack(message)
        if sandbox != END_PROGRAMS:
            self._sandboxes.add(sandbox)
            return True
        self._end_programs()
        with contextlib.suppress(OSError):
            os.write(self._channel, b"\x00")
        return True

    def _counted_processes(self) -> list[int]:
        """Return the processes whose memory counts as that of the run: all but sandboxes.

        No process leaves a sandbox: process 1 adopts its orphans, and ends after all of them.
        """
        self._sandboxes = {pid for pid in self._sandboxes if is_living(pid)}
        own_limit = {*self._sandboxes}
        for sandbox in self._sandboxes:
            own_limit.update(descendants(sandbox))
        return [pid for pid in descendants(os.getpid()) if pid not in own_limit]

    def _end_programs(self) -> None:
        """Kill everything below the guard but the run process, and wait until it has ended."""
        deadline, empty_looks = time.monotonic() + END_SECONDS, 0
        while empty_looks < EMPTY_LOOKS and time.monotonic() < deadline:
            pids = [pid for pid in descendants(os.getpid()) if pid != self._run_process]
            empty_looks = 0 if kill_living(pids) else empty_looks + 1
            self._reap()
            if not empty_looks:
                time.sleep(PAUSE_SECONDS)

    def _end_everything(self) -> None:
        """Kill everything below the guard, and wait until no child process is left."""
        deadline = time.monotonic() + END_SECONDS
        kill_living([self._run_process])
        while self._reap() and time.monotonic() < deadline:
            kill_living(descendants(os.getpid()))
            time.sleep(PAUSE_SECONDS)

    def _reap(self) -> bool:
        """Collect ended child processes, adopted ones too; return False when none is left."""
        statuses, any_left = reap_children()
        self._status = statuses.get(self._run_process, self._status)
        return any_left


def memory_kb(pids: list[int], limit_kb: int) -> int:
    """Return how much memory these processes use, 0 if that is not more than the limit.

    Pages that they share with others count in part (PSS). That takes long to compute, so it is
    left out while even the sum of whole pages (RSS) is within the limit.
    """
    if sum(_rss_kb(pid) for pid in pids) <= limit_kb:
        return 0
    used = sum(_pss_kb(pid) for pid in pids)
    return used if used > limit_kb else 0


def end_like(status: int) -> None:
    """End this process as another one ended: with its exit code, or by the same signal."""
    if os.WIFSIGNALED(status):
        # The other process has written its core file, if any.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def _open_signal_pipe() -> int:
    """Let the end of a child process write a byte to a pipe, and return the pipe's read end."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    return reader


def _read(channel: int) -> bytes:
    try:
        return os.read(channel, MESSAGE.size)
    except OSError:
        return b""


def _rss_kb(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_KB
    except OSError:
        return 0


def _pss_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


PAGE_KB = resource.getpagesize() // 1024

if __name__ == "__main__":
    main(sys.argv[1:])
