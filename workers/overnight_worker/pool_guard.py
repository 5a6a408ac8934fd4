"""Puts every pool process under a guard, so that programs of handlers end with their run.

`pool_guard_process` says what the guard does. Three processes use this module: the main process
prepares the guards and ends what a killed guard left; a pool process splits into guard and run
process; the run process asks its guard to end the programs of a run. Other systems than Linux have
no guards: there programs end with a forced end of their run only.
"""

import contextlib
import os
import resource
import signal
import socket
import stat
import sys
import time
from pathlib import Path
from typing import Final, NoReturn

import psutil
from billiard.process import active_children

import overnight_server
import overnight_worker
from overnight_server.process_tree import (
    become_subreaper,
    children,
    descendants,
    kill_living,
    signal_on_parent_death,
)
from overnight_worker.claim_registry import CLAIM_REGISTRY
from overnight_worker.pool_guard_process import END_PROGRAMS, MESSAGE

# How long a run waits for its guard; a guard that does not answer is stopped or overloaded, and
# the programs end with the pool process then.
ANSWER_SECONDS: Final = 12.0
# The main loop is blocked while the programs of a killed guard end.
ADOPTED_SECONDS: Final = 2.0
PAUSE_SECONDS: Final = 0.005
EXEC_FAILED: Final = 127
STDERR: Final = 2
# The guard needs the standard library and two packages only. So Python starts isolated (-I) and
# without site-packages (-S), and the directories of the packages come last on the path.
_RUN_GUARD: Final = (
    "import sys; sys.path += sys.argv[1:3]; "
    "from overnight_worker.pool_guard_process import main; main(sys.argv[3:])"
)


class PoolGuard:
    """The guard of this process's pool process; without a guard until `split` has returned."""

    def __init__(self) -> None:
        self._main_pid: int | None = None
        self._own_children: set[int] = set()
        self._main_pipe = (-1, -1)
        self._channel: socket.socket | None = None
        self._reaped: tuple[float, ...] = ()

    def prepare(self) -> None:
        """Prepare the main process, before it starts pool processes.

        It adopts the programs of a pool process that is killed with its guard. Children that it
        has now (a handler's module may start some) are left alone.
        """
        if sys.platform != "linux":
            return
        become_subreaper()
        self._main_pid = os.getpid()
        self._own_children = set(children(self._main_pid))
        self._main_pipe = os.pipe()

    def split(self, *, memory_limit_mb: int) -> None:
        """Split a new pool process into guard and run process; return in the run process.

        A run and its programs may use `memory_limit_mb` together, 0 for any amount; sandboxes that
        `leave_out` names are not counted. Do nothing in a process that is not of a prepared pool.
        Raise SystemExit if Linux cannot start another process, so that the pool tries again.
        """
        if self._main_pid in {None, os.getpid()}:
            return
        main_reader, main_writer = self._main_pipe
        # Only the main process keeps this end: it is closed when that process ends.
        os.close(main_writer)
        run_end, guard_end = socket.socketpair()
        guard_pid = os.getpid()
        try:
            run_process = os.fork()
        except OSError as error:
            raise SystemExit(f"cannot start a guard: {error}") from error
        if run_process:
            run_end.close()
            limit_kb = memory_limit_mb * 1024
            registry, offset = CLAIM_REGISTRY.memory_excess_place()
            numbers = (run_process, guard_end.fileno(), main_reader, registry, offset, limit_kb)
            _become_guard(numbers, keep={guard_end.fileno(), main_reader, registry})
        signal_on_parent_death(signal.SIGKILL)
        if os.getppid() != guard_pid:
            os._exit(EXEC_FAILED)
        guard_end.close()
        os.close(main_reader)
        run_end.settimeout(ANSWER_SECONDS)
        self._channel = run_end
        self._reaped = _reaped_children()

    def end_programs_of_run(self) -> None:
        """End the programs that the handler started, however they try to stay.

        For a run that started none this takes two system calls.
        """
        if self._channel is None or not (_has_child() or _reaped_children() != self._reaped):
            return
        self.end_programs()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        self._reaped = _reaped_children()

    def leave_out(self, sandbox: int) -> None:
        """Let the processes of a sandbox not count as memory of the run: it has its own limit.

        `sandbox` is the pid of its process 1.
        """
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.send(MESSAGE.pack(sandbox))

    def end_programs(self) -> None:
        """Kill every program below this process and its guard, and wait until they have ended."""
        if self._channel is None:
            _kill_children()
            return
        with contextlib.suppress(OSError):
            self._channel.send(MESSAGE.pack(END_PROGRAMS))
            self._channel.recv(1)

    def end_adopted(self) -> None:
        """End what this main process adopted after a guard was killed.

        Called when a pool process has ended and before its claims are settled. A guard that ended
        by itself has left nothing.
        """
        if self._main_pid is None:
            return
        deadline = time.monotonic() + ADOPTED_SECONDS
        while (adopted := self._adopted()) and time.monotonic() < deadline:
            for pid in adopted:
                kill_living([pid, *descendants(pid)])
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(PAUSE_SECONDS)

    def _adopted(self) -> list[int]:
        pool = {process.pid for process in active_children()}
        return [pid for pid in children(os.getpid()) if pid not in pool | self._own_children]


def _become_guard(numbers: tuple[int, ...], *, keep: set[int]) -> NoReturn:
    """Replace this process by the guard, which inherits no connection, log, variable or secret.

    The guard keeps the pipes of the pool process: Celery takes a pool process whose pipes are
    closed for one that has ended.
    """
    become_subreaper()
    # Celery lets Linux kill a pool process when the main process ends, but the guard has work to do
    # then: it is resumed, in case it was stopped.
    signal_on_parent_death(signal.SIGCONT)
    # A signal to the worker's process group must not end the guard.
    os.setsid()
    error_log = os.dup(STDERR)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(STDERR + 1):
        os.dup2(null, descriptor)
    for descriptor in {int(entry.name) for entry in Path("/proc/self/fd").iterdir()} - {
        0,
        1,
        STDERR,
    }:
        with contextlib.suppress(OSError):  # the descriptor of the list itself is closed by now
            is_kept = descriptor in keep or _is_own_pipe(descriptor)
            os.set_inheritable(descriptor, is_kept and descriptor != error_log)
    packages = (overnight_server, overnight_worker)
    roots = [str(Path(str(package.__file__)).parents[1]) for package in packages]
    command = [sys.executable, "-IS", "-c", _RUN_GUARD, *roots, *map(str, numbers)]
    try:
        os.execve(sys.executable, command, {})  # noqa: S606 - it becomes the guard
    except OSError as error:
        os.write(error_log, f"cannot run the guard with {sys.executable}: {error}\n".encode())
    os._exit(EXEC_FAILED)


def _is_own_pipe(descriptor: int) -> bool:
    """Return whether this worker made the pipe: what it was given at its start is inheritable."""
    is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    return is_pipe and not os.get_inheritable(descriptor)


def _has_child() -> bool:
    """Return whether this process has a child, without taking its exit status from its owner."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _reaped_children() -> tuple[float, ...]:
    """Return a measure that changes whenever this process has waited for a child's end."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (usage.ru_minflt, usage.ru_majflt, usage.ru_utime, usage.ru_stime)


def _kill_children() -> None:
    """Kill the programs below this process, where there is no guard."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


POOL_GUARD: Final = PoolGuard()
