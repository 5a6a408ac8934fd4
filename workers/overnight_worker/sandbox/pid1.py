"""Process 1 of a sandbox: starts one command, watches its limits, and ends everything with it.

When process 1 of a PID namespace ends, the kernel kills every other process of the namespace. So
this program ends when the command has ended, when a limit is passed, and when the worker is gone:
the worker holds the other end of `channel`, and reading end-of-file from it means that the worker
has closed it or has died. An error in this program ends it too.

The worker sends this module and its configuration through a descriptor, and a Python of the system
executes it isolated and without site-packages. So it works on Python 3.9, and it imports only what
starts quickly: every sandbox waits for it. That is why it uses `_signal` and `_ctypes`, of which
`signal` and `ctypes` are made: the imports of those two take as long as the start of Python itself.

Messages, each one packet. To the worker: `ready`; then one of `exit CODE PEAK`,
`signal NUMBER PEAK`, `oom BYTES PEAK`, `workspace_full BYTES PEAK`, `workspace_unreadable 0 PEAK`.
From the worker: `go` once, then `terminate` any number of times.
"""

from __future__ import annotations

import _ctypes
import _thread
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any, NoReturn
else:
    import _signal as signal

# For `dlopen`: the program itself with all libraries that it has loaded, such as the C library.
ALL_LIBRARIES_OF_PYTHON: Any = None
PR_SET_DUMPABLE = 4
RT_SIGACTION = {"x86_64": 13, "aarch64": 134}
# The C library keeps these two for itself and refuses to change them.
C_LIBRARY_SIGNALS = (32, 33)
# The kernel's struct: the default handler is 0; no flags, no function to return by, no mask.
DEFAULT_ACTION = bytes(32)
SIGNAL_SET_BYTES = 8
STDERR = 2
EVENTS = 3
NOT_EXECUTABLE = 126
NOT_FOUND = 127
# The exit codes of this program; the worker only shows them.
WORKER_GONE = 81
LIMIT_PASSED = 82
FAILED = 83
MEMORY_PAUSE = 0.2
WORKSPACE_PAUSE = 1.0
# A walk through the workspace takes at most this share of the time.
WALK_SHARE = 0.25
# So many walks in a row may meet a directory that the command has made unreadable.
UNREADABLE_WALKS = 10
# What a file costs besides its content, so that empty files count too.
FILE_COST = 1024
# A command gets a smaller share of a busy processor than this program and the worker.
COMMAND_NICENESS = 5


class ProcessOne:
    """The command of a sandbox and what is known about it."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.channel: int = config["channel"]
        self.command = 0
        self.peak = 0

    def run(self) -> NoReturn:
        """Tell the worker that the sandbox exists, start the command, and wait for an end."""
        wakeups = prepare_signals()
        self.tell_ready()
        if self.receive() != b"go":
            os._exit(FAILED)
        # From here on no process inside may trace this one, or read its memory and environment.
        if call_c_library("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
            os._exit(FAILED)
        self.command = start_command(self.config)
        if self.config["memory_bytes"]:
            _thread.start_new_thread(fail_closed, (self.watch_memory,))
        _thread.start_new_thread(fail_closed, (self.watch_workspace,))
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        poll.register(wakeups, select.POLLIN)
        while True:
            descriptors = [descriptor for descriptor, _ in poll.poll()]
            if wakeups in descriptors:
                os.read(wakeups, 4096)
                self.reap()
            if self.channel in descriptors and self.receive() == b"terminate":
                terminate_all()

    def tell_ready(self) -> None:
        """Tell the worker that the sandbox exists, and give it the proxy's listener if it has one.

        The worker accepts the connections itself: nothing inside has to pass them on.
        """
        if not self.config["proxy_port"]:
            self.send(b"ready")
            return
        import socket  # noqa: PLC0415 - starts slowly, and most sandboxes have no network

        address = ("127.0.0.1", self.config["proxy_port"])
        listener = socket.create_server(address)
        channel = socket.socket(fileno=os.dup(self.channel))
        socket.send_fds(channel, [b"ready"], [listener.fileno()])
        listener.close()
        channel.close()

    def send(self, message: bytes) -> None:
        """Send a message; end if the worker is gone."""
        try:
            os.write(self.channel, message)
        except OSError:
            os._exit(WORKER_GONE)

    def receive(self) -> bytes:
        """Return the next message; end if the worker is gone."""
        try:
            message = os.read(self.channel, 64)
        except OSError:
            message = b""
        if not message:
            os._exit(WORKER_GONE)
        return message

    def reap(self) -> None:
        """Collect every process that has ended; end with the command."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == self.command:
                code = os.waitstatus_to_exitcode(status)
                kind = "exit" if code >= 0 else "signal"
                self.end(kind, abs(code), exit_code=0)
            if pid == 0:
                return

    def end(self, kind: str, number: int, *, exit_code: int) -> NoReturn:
        """Tell the worker why the sandbox ends, and end it."""
        self.send(f"{kind} {number} {self.peak}".encode())
        os._exit(exit_code)

    def watch_memory(self) -> None:
        """End the sandbox when its processes and its files in memory use more than the limit.

        Used without a cgroup only. It measures several times a second, so a command can use more
        for a moment.
        """
        while True:
            used = memory_in_use(self.config["memory_paths"])
            self.peak = max(self.peak, used)
            if used > self.config["memory_bytes"]:
                self.end("oom", used, exit_code=LIMIT_PASSED)
            time.sleep(MEMORY_PAUSE)

    def watch_workspace(self) -> None:
        """End the sandbox when its workspace is larger than the limit, or cannot be measured."""
        path, limit = self.config["workspace"], self.config["workspace_bytes"]
        # A disk that was nearly full before the run is no reason to end it at once.
        least_free = min(self.config["least_free_bytes"], free_bytes(path) // 2)
        unreadable_walks = 0
        while True:
            began = time.monotonic()
            used, is_whole = directory_size(path, limit)
            if used > limit or free_bytes(path) < least_free:
                self.end("workspace_full", used, exit_code=LIMIT_PASSED)
            unreadable_walks = 0 if is_whole else unreadable_walks + 1
            if unreadable_walks > UNREADABLE_WALKS:
                self.end("workspace_unreadable", 0, exit_code=LIMIT_PASSED)
            time.sleep(max(WORKSPACE_PAUSE, (time.monotonic() - began) / WALK_SHARE))


def fail_closed(watch: Callable[[], None]) -> None:
    """Call a watch that never returns; end the sandbox if it fails."""
    try:
        watch()
    except BaseException:  # noqa: BLE001 - whatever it is, the limit is no longer watched
        sys.excepthook(*sys.exc_info())
        os._exit(FAILED)


def prepare_signals() -> int:
    """Ignore what the command may send; return a descriptor that is readable when a child ended.

    The kernel keeps signals of the namespace from its process 1 unless it has a handler for them.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    return reader


def terminate_all() -> None:
    """Ask every process of the sandbox to end; one that is stopped is continued to hear it."""
    for number in (signal.SIGTERM, signal.SIGCONT):
        try:
            os.kill(-1, number)
        except ProcessLookupError:
            return


def start_command(config: dict[str, Any]) -> int:
    """Start the command with its limits, its environment and four descriptors; return its pid."""
    pid = os.fork()
    if pid:
        for descriptor in config["descriptors"]:
            os.close(descriptor)
        return pid
    try:
        become_command(config)
    except BaseException as error:  # noqa: BLE001 - the command could not be executed
        os.write(STDERR, f"overnight: cannot run {config['argv'][0]}: {error}\n".encode())
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)


def become_command(config: dict[str, Any]) -> NoReturn:
    """Replace this process, a child of process 1, by the command."""
    os.setsid()
    # The events come last: their number may be that of another descriptor before.
    for target, descriptor in enumerate(config["descriptors"]):
        os.dup2(descriptor, target)
    os.closerange(EVENTS + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    restore_signals()
    os.umask(0o022)
    os.nice(COMMAND_NICENESS)
    for name, value in config["rlimits"].items():
        set_limit(getattr(resource, name), value)
    os.chdir(config["workspace"])
    execute(config["argv"], config["env"])


def restore_signals() -> None:
    """Block and ignore no signal: a command inherits both from its worker and from Python."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *C_LIBRARY_SIGNALS}:
        signal.signal(number, signal.SIG_DFL)
    system_call = RT_SIGACTION[os.uname().machine]
    for kept in C_LIBRARY_SIGNALS:
        call_c_library("syscall", system_call, kept, DEFAULT_ACTION, None, SIGNAL_SET_BYTES)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def call_c_library(name: str, *arguments: int | bytes | None) -> int:
    """Call a function of the C library, and return the number that it returns."""
    address = _ctypes.dlsym(_ctypes.dlopen(ALL_LIBRARIES_OF_PYTHON, 0), name)
    result: int = _ctypes.call_function(address, arguments)
    return result


def execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    """Execute a program, found on the PATH of its environment; raise OSError if it cannot be.

    `os.execvpe` would import a module, which is not readable everywhere.
    """
    is_path = "/" in argv[0]
    folders = [""] if is_path else env.get("PATH", "").split(":")
    reason = "does not exist" if is_path else f"is not in {env.get('PATH')}"
    failure: OSError = FileNotFoundError(
        f"it {reason}; a sandbox sees /usr and what the agent profile mounts"
    )
    for folder in folders:
        try:
            os.execve(os.path.join(folder, argv[0]), argv, env)  # noqa: S606 - as above
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failure = error
    raise failure


def set_limit(kind: int, value: int) -> None:
    """Set a limit for good; a lower one that the worker has stays."""
    highest = resource.getrlimit(kind)[1]
    if highest != resource.RLIM_INFINITY and value >= highest:
        resource.setrlimit(kind, (highest, highest))
        return
    # At the first limit of processor time a process gets a signal that tells it, at the second it
    # is killed.
    resource.setrlimit(kind, (value, value + 1 if kind == resource.RLIMIT_CPU else value))


def memory_in_use(paths: list[str]) -> int:
    """Return the bytes of memory that the processes and the file systems in memory use."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            total += process_memory(name)
    for path in paths:
        status = os.statvfs(path)
        total += (status.f_blocks - status.f_bfree) * status.f_frsize
        total += (status.f_files - status.f_ffree) * FILE_COST
    return total + shared_segments()


def process_memory(pid: str) -> int:
    """Return the memory of one process without the files that it has mapped."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            lines = status.read().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    counted = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(counted))


def shared_segments() -> int:
    """Return the memory in segments of System V, which outlive the processes that made them."""
    try:
        with open("/proc/sysvipc/shm", "rb") as segments:
            rows = [line.split() for line in segments]
    except FileNotFoundError:
        return 0
    resident, swapped = rows[0].index(b"rss"), rows[0].index(b"swap")
    return sum(int(row[resident]) + int(row[swapped]) for row in rows[1:])


def directory_size(top: str, limit: int) -> tuple[int, bool]:
    """Return the size of a directory on disk, and whether every directory in it could be read.

    It stops counting above `limit`. A file that has no name any more is not counted. A path that is
    too long for the kernel counts as one that cannot be read.
    """
    total, is_whole, unvisited = 0, True, [top]
    while unvisited and total <= limit:
        try:
            entries = os.scandir(unvisited.pop())
        except FileNotFoundError:
            continue
        except OSError:
            is_whole = False
            continue
        with entries:
            for entry in entries:
                try:
                    total += FILE_COST + entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        unvisited.append(entry.path)
                except FileNotFoundError:
                    continue
                except OSError:
                    is_whole = False
    return total, is_whole


def free_bytes(path: str) -> int:
    """Return how much of a disk an ordinary user may still fill."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def join_group(join_file: int | None) -> None:
    """Put this process into the cgroup that limits the memory of the sandbox.

    `join_file` is a descriptor of a file of the cgroup, which the worker has opened. Without one,
    the worker puts this process into the cgroup, if there is any.
    """
    if join_file is not None:
        os.write(join_file, b"0")  # 0 stands for the process that writes
        os.close(join_file)


def close_others(kept: set[int]) -> None:
    """Close every descriptor but these, such as those that bubblewrap has left open."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # that of the list itself
                continue


def main(config: dict[str, Any]) -> NoReturn:
    """Be process 1 of a sandbox; any error ends it."""
    try:
        # What Python was started with: its own source, and the pipe for errors of the start.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        join_group(config["join_file"])
        close_others({0, 1, STDERR, config["channel"], *config["descriptors"]})
        ProcessOne(config).run()
    except BaseException:  # noqa: BLE001 - whatever it is, nothing may go on without process 1
        sys.excepthook(*sys.exc_info())
        os._exit(FAILED)
