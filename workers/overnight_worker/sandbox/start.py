"""Starts a sandbox: makes its descriptors, its configuration and its program, and runs it."""

import array
import contextlib
import fcntl
import marshal
import os
import resource
import select
import socket
import subprocess
from contextlib import ExitStack
from functools import cache
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any, Final

from overnight_worker.sandbox import bare_command, pid1, system_call_sandbox
from overnight_worker.sandbox.bubblewrap import PROGRAM, bubblewrap_arguments
from overnight_worker.sandbox.handle import Sandbox
from overnight_worker.sandbox.interpreter import ISOLATED, inside_interpreter, outside_interpreter
from overnight_worker.sandbox.memory_group import MemoryGroup, create_memory_group
from overnight_worker.sandbox.proxy import PROXY_PORT, Connect, Proxy, Report, proxy_environment
from overnight_worker.sandbox.remedies import UNKNOWN, remedy_for
from overnight_worker.sandbox.root_layout import root_layout
from overnight_worker.sandbox.sandbox_user import user_for
from overnight_worker.sandbox.seccomp import UnknownArchitecture, build_filter
from overnight_worker.sandbox.spec import (
    DEFAULT_ENV,
    EVENTS_FD,
    EVENTS_VARIABLE,
    MEGABYTE,
    WORKSPACE,
    NoSandbox,
    SandboxKind,
    SandboxLimits,
    SandboxSpec,
)

# How long it may take until process 1 answers; on an idle machine it takes 0.04 s.
START_SECONDS: Final = 30.0
ERROR_BYTES: Final = 4096
F_ADD_SEALS: Final = 1033
# No seal can be added, and nobody can shrink, extend or change the file.
ALL_SEALS: Final = 0b1111
# The kernel ends commands before the worker when memory is short.
OOM_SCORE: Final = 300
# A sandbox ends when its disk has less than this left, whatever has filled it.
LEAST_FREE_BYTES: Final = 256 * MEGABYTE
# A process gets this much data memory at least: some runtimes reserve much and use little.
LEAST_DATA_MB: Final = 2048
CREDENTIALS_BYTES: Final = 12
# Read now: a process may change its user later.
SOURCES: Final = {
    "pid1": Path(pid1.__file__).read_text(),
    "system_call_sandbox": Path(system_call_sandbox.__file__).read_text(),
    "bare_command": Path(bare_command.__file__).read_text(),
}
# Reads modules and their configuration from stdin, and calls `main` of the last module, with the
# configuration and the names of the modules before it. A module comes compiled, which saves a third
# of the time to start, and as source for a Python of another version.
LOADER: Final = f"""
import marshal, _frozen_importlib_external
with open(0, "rb", closefd=False) as program:
    modules, config = marshal.loads(program.read())
is_compiled = _frozen_importlib_external.MAGIC_NUMBER == {MAGIC_NUMBER!a}
loaded = []
for name, code, source in modules:
    loaded.append({{"__name__": name}})
    exec(marshal.loads(code) if is_compiled else compile(source, name, "exec"), loaded[-1])
loaded[-1]["main"](config, *loaded[:-1])
"""
# Every Python that can run the loader reads data in this format.
DATA_FORMAT: Final = 2


def start_sandbox(
    spec: SandboxSpec,
    kind: SandboxKind,
    *,
    report: Report = lambda _sentence: None,
    connect: Connect | None = None,
) -> Sandbox:
    """Start the command of a specification, and return its sandbox.

    `report` is called with a sentence for every connection that the proxy allows or refuses;
    `connect` replaces the proxy's way out. Call this from a thread that outlives the sandbox: the
    kernel ends a sandbox with the thread that started it. Raise NoSandbox if the sandbox cannot be
    made; nothing is left then.
    """
    with ExitStack() as undo:
        user = user_for(spec.workspace)
        group = create_memory_group(spec.limits.memory_mb)
        if group is not None:
            undo.callback(group.remove)
        start = _Start(spec, user, group)
        undo.callback(start.close_outside)
        try:
            process = start.run(kind)
        finally:
            start.close_inside()
        undo.callback(_end, process)
        pid, listener = start.wait_until_ready(process)
        proxy = None
        if listener is not None:
            proxy = Proxy(listener, spec.network, report, connect)
            undo.callback(proxy.close)
        try:
            pidfd = os.pidfd_open(pid)
            undo.callback(os.close, pidfd)
            if group is not None and start.join_file is None:
                group.add(pid)
            _prefer_for_oom(pid)
            start.channel.send(b"go")
        except OSError as error:
            raise NoSandbox(f"the sandbox ended while it was made: {error}", UNKNOWN) from error
        undo.pop_all()
    return Sandbox(
        kind=kind,
        pid=pid,
        pidfd=pidfd,
        process=process,
        channel=start.channel,
        stdout=start.stdout[0],
        stderr=start.stderr[0],
        events=start.events[0],
        errors=start.errors[0],
        group=group,
        proxy=proxy,
    )


class _Start:
    """The descriptors of one start: one end of each for the worker, the other for the sandbox."""

    def __init__(self, spec: SandboxSpec, user: int | None, group: MemoryGroup | None) -> None:
        self._spec = spec
        self._user = user
        self._is_enforced = group is not None
        self.join_file = None if group is None else group.open_join_file()
        self._has_proxy = False
        self._memory_files: list[int] = []
        self.channel, self._inner_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The kernel then says who sends: the pid of process 1 outside of its namespace.
        self.channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.stdout, self.stderr, self.events, self.errors = (os.pipe() for _ in range(4))
        self._stdin = self._memory_file("stdin", spec.stdin)

    def run(self, kind: SandboxKind) -> subprocess.Popen[bytes]:
        """Start the process that makes the sandbox."""
        self._has_proxy = kind is not SandboxKind.NONE and not self._spec.network.is_off
        match kind:
            case SandboxKind.BUBBLEWRAP:
                return self._run_bubblewrap()
            case SandboxKind.OWN:
                return self._run_by_system_calls()
            case SandboxKind.NONE:
                return self._run_bare()

    def _run_bubblewrap(self) -> subprocess.Popen[bytes]:
        interpreter = inside_interpreter()
        layout = root_layout(self._spec, interpreter.prefix)
        files = {
            path: self._memory_file("file", text.encode()) for path, text in layout.files.items()
        }
        arguments = bubblewrap_arguments(
            layout,
            workspace=str(self._spec.workspace.resolve()),
            seccomp=self._memory_file("seccomp", self._filter()),
            files=files,
        )
        words = b"".join(os.fsencode(word) + b"\0" for word in arguments)
        options = str(self._memory_file("arguments", words))
        command = [PROGRAM, "--args", options, "--", *_python(interpreter.path)]
        return self._popen(command, _program(self._config(), "pid1"), user=self._user)

    def _run_by_system_calls(self) -> subprocess.Popen[bytes]:
        """Start the program that makes the sandbox itself, by system calls."""
        layout = root_layout(self._spec)
        config = {
            **self._config(),
            "host_workspace": str(self._spec.workspace),
            "user": self._user,
            "seccomp": self._filter(),
            "binds": [tuple(bind) for bind in layout.binds],
            "links": [tuple(link) for link in layout.links],
            "memories": [tuple(memory) for memory in layout.memories],
            "files": layout.files,
        }
        program = _program(config, "pid1", "system_call_sandbox")
        # It drops to the unprivileged user itself, when it has read what only root may read.
        return self._popen(_python(outside_interpreter()), program, user=None)

    def _run_bare(self) -> subprocess.Popen[bytes]:
        config = self._config()
        # The kernel would count every process of the user.
        del config["rlimits"]["RLIMIT_NPROC"]
        config |= {"workspace": str(self._spec.workspace.resolve())}
        command = _python(inside_interpreter().path)
        return self._popen(command, _program(config, "pid1", "bare_command"), user=self._user)

    def _popen(
        self, command: list[str], program: bytes, *, user: int | None
    ) -> subprocess.Popen[bytes]:
        """Run a command that gets the program on stdin, no variable and no other descriptor."""
        passed_descriptors = [*self._memory_files, *self._inside()]
        try:
            return subprocess.Popen(
                command,
                stdin=self._memory_file("program", program),
                stdout=subprocess.DEVNULL,
                stderr=self.errors[1],
                env={},
                cwd="/",
                pass_fds=passed_descriptors,
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise NoSandbox(f"{command[0]}: {error}", remedy_for(str(error))) from error

    def _filter(self) -> bytes:
        try:
            return build_filter(allow_memory_files=self._is_enforced)
        except UnknownArchitecture as error:
            raise NoSandbox(str(error), "run the worker on x86_64 or aarch64") from error

    def _config(self) -> dict[str, Any]:
        """Return what process 1 must know, as values that `marshal` can write."""
        spec, limits = self._spec, self._spec.limits
        network = proxy_environment() if self._has_proxy else {}
        own = {EVENTS_VARIABLE: str(EVENTS_FD)}
        return {
            "channel": self._inner_channel.fileno(),
            "join_file": self.join_file,
            "descriptors": [self._stdin, self.stdout[1], self.stderr[1], self.events[1]],
            "argv": list(spec.argv),
            "env": {**DEFAULT_ENV, **network, **spec.env, **own},
            "rlimits": _resource_limits(limits, is_enforced=self._is_enforced),
            "memory_bytes": 0 if self._is_enforced else limits.memory_mb * MEGABYTE,
            "memory_paths": [memory.target for memory in root_layout(spec).memories],
            "workspace": WORKSPACE,
            "workspace_bytes": limits.workspace_mb * MEGABYTE,
            "least_free_bytes": LEAST_FREE_BYTES,
            "proxy_port": PROXY_PORT if self._has_proxy else 0,
        }

    def _memory_file(self, name: str, content: bytes) -> int:
        """Return the descriptor of a file in memory that nobody can change."""
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._memory_files.append(descriptor)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        fcntl.fcntl(descriptor, F_ADD_SEALS, ALL_SEALS)
        return descriptor

    def _inside(self) -> list[int]:
        pipes = (self.stdout, self.stderr, self.events)
        join_file = [] if self.join_file is None else [self.join_file]
        return [self._inner_channel.fileno(), *join_file, *(writer for _, writer in pipes)]

    def close_inside(self) -> None:
        """Close what the sandbox has; it ends when nobody else holds the worker's ends."""
        self._inner_channel.close()
        for _, writer in (self.stdout, self.stderr, self.events, self.errors):
            os.close(writer)
        for descriptor in self._memory_files:
            os.close(descriptor)
        if self.join_file is not None:
            os.close(self.join_file)

    def close_outside(self) -> None:
        """Close what the worker has."""
        self.channel.close()
        for reader, _ in (self.stdout, self.stderr, self.events, self.errors):
            os.close(reader)

    def wait_until_ready(
        self, process: subprocess.Popen[bytes]
    ) -> tuple[int, socket.socket | None]:
        """Return the pid of process 1 and the listener of its proxy; raise NoSandbox without."""
        self.channel.settimeout(START_SECONDS)
        space = socket.CMSG_SPACE(CREDENTIALS_BYTES) + socket.CMSG_SPACE(array.array("i").itemsize)
        try:
            # No program that is started meanwhile inherits the listener.
            flags = socket.MSG_CMSG_CLOEXEC
            message, ancillary, _, _ = self.channel.recvmsg(64, space, flags)
        except TimeoutError:
            reason = f"the sandbox was not ready after {START_SECONDS:g} s"
            raise NoSandbox(reason, "see whether the machine is overloaded") from None
        except OSError:
            message, ancillary = b"", []
        if message != b"ready":
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
            reason = read_errors(self.errors[0]) or f"it ended with {process.returncode}"
            raise NoSandbox(reason, remedy_for(reason))
        self.channel.settimeout(None)
        pid, listener = 0, None
        for _, kind, data in ancillary:
            if kind == socket.SCM_CREDENTIALS:
                pid = int.from_bytes(data[:4], "little", signed=True)
            elif kind == socket.SCM_RIGHTS:
                listener = socket.socket(fileno=array.array("i", data)[0])
        return pid, listener


def read_errors(descriptor: int) -> str:
    """Return what was written while the sandbox was made, as one line; empty if nothing was."""
    if not select.select([descriptor], [], [], 0)[0]:
        return ""
    text = os.read(descriptor, ERROR_BYTES).decode(errors="replace")
    return "; ".join(line.strip().removeprefix("bwrap: ") for line in text.splitlines()[-3:])


def _resource_limits(limits: SandboxLimits, *, is_enforced: bool) -> dict[str, int]:
    """Return the limits of each process of the command; `processes` counts the whole sandbox."""
    limits_by_name = {
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_FSIZE": limits.file_mb * MEGABYTE,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }
    if not is_enforced:
        limits_by_name["RLIMIT_DATA"] = max(LEAST_DATA_MB, limits.memory_mb) * MEGABYTE
    if limits.cpu_seconds is not None:
        limits_by_name["RLIMIT_CPU"] = limits.cpu_seconds
    return {name: value for name, value in limits_by_name.items() if hasattr(resource, name)}


def _python(path: str) -> list[str]:
    return [path, *ISOLATED, "-c", LOADER]


def _program(config: dict[str, Any], *modules: str) -> bytes:
    """Return what the loader reads: modules, of which it calls the last, and a configuration."""
    return marshal.dumps(([_compiled(name) for name in modules], config), DATA_FORMAT)


@cache
def _compiled(name: str) -> tuple[str, bytes, str]:
    """Return name, code and source of a module."""
    source = SOURCES[name]
    return name, marshal.dumps(compile(source, name, "exec")), source


def _prefer_for_oom(pid: int) -> None:
    """Let the kernel end process 1 and what it starts before the worker, where it permits that."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(OOM_SCORE))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the program that makes a sandbox, and wait for it.

    Process 1, if there is one already, ends when it finds its channel closed.
    """
    process.kill()
    process.wait()
