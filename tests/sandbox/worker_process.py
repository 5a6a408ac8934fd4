"""A process that starts sandboxes as a worker does: one JSON request per line, one answer each.

Tests run it as root and as an ordinary user. It imports everything before it becomes that user,
who may not be able to read the Python that it runs on. Its own environment, keyring and sockets
hold values that no command may ever see.
"""

import base64
import ctypes
import dataclasses
import encodings.idna  # noqa: F401 - names of hosts are encoded with it, when it can be read no more
import json
import os
import resource
import selectors
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from overnight_server.process_tree import become_subreaper, descendants, is_living
from overnight_worker.sandbox import (
    FileCollector,
    NetworkPolicy,
    NoSandbox,
    ReadOnlyMount,
    Sandbox,
    SandboxKind,
    SandboxLimits,
    SandboxSpec,
    create_workspace,
    probe_all_kinds,
    remove_workspace,
    start_sandbox,
)
from overnight_worker.sandbox.pid1 import RT_SIGACTION, SIGNAL_SET_BYTES
from overnight_worker.sandbox.proxy import Connect

ADD_KEY = {"x86_64": 248, "aarch64": 217}
SESSION_KEYRING = -3
CANARY = "canary-3141592653"
KEPT_BYTES = 256 * 1024
ABSTRACT_SOCKET = "\0overnight-canary"
TICK_SECONDS = 0.05


class Heartbeat:
    """Beats in a thread of the worker, and knows the longest time between two beats."""

    def __init__(self) -> None:
        self.longest = 0.0
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(TICK_SECONDS)
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last), now


def add_canary_key() -> None:
    """Put a key into the session keyring, which all namespaces of a session share."""
    libc = ctypes.CDLL(None)
    libc.syscall(ADD_KEY[os.uname().machine], b"user", CANARY.encode(), b"x", 1, SESSION_KEYRING)


def ignore_signal_32() -> None:
    """Ignore the signal that the C library keeps for itself, as the parent of a worker may."""
    action = signal.SIG_IGN.to_bytes(8, sys.byteorder) + bytes(24)
    libc = ctypes.CDLL(None)
    libc.syscall(RT_SIGACTION[os.uname().machine], 32, action, None, SIGNAL_SET_BYTES)


def open_canary_sockets(folder: Path) -> tuple[list[socket.socket], dict[str, str]]:
    """Listen where a command could try to connect; return sockets and their addresses."""
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"{ABSTRACT_SOCKET}-{os.getpid()}")
    named = socket.socket(socket.AF_UNIX)
    path = folder / "worker.sock"
    named.bind(str(path))
    path.chmod(0o777)
    loopback = socket.create_server(("127.0.0.1", 0))
    for listener in (abstract, named):
        listener.listen()
    addresses = {
        "ABSTRACT": abstract.getsockname().decode().removeprefix("\0"),
        "PATHNAME": str(path),
        "PORT": str(loopback.getsockname()[1]),
    }
    return [abstract, named, loopback], addresses


def drain(sandbox: Sandbox, *, until: float, request: dict[str, Any]) -> dict[str, Any]:
    """Read everything that the command writes, ask it to end when the request says so, wait."""
    kept = {"stdout": bytearray(), "stderr": bytearray(), "events": bytearray()}
    totals = dict.fromkeys(kept, 0)
    with selectors.DefaultSelector() as selector:
        for name in kept:
            selector.register(getattr(sandbox, name), selectors.EVENT_READ, name)
        while selector.get_map() and time.monotonic() < until:
            for key, _ in selector.select(0.1):
                chunk = os.read(key.fd, 1 << 20)
                totals[key.data] += len(chunk)
                room = KEPT_BYTES - len(kept[key.data])
                kept[key.data] += chunk[:room]
                if not chunk:
                    selector.unregister(key.fd)
            word = request.get("terminate_on")
            if word is not None and word.encode() in kept["stdout"]:
                sandbox.terminate()
                if sandbox.wait(request.get("grace", 0.5)) is None:
                    sandbox.kill()
    end = sandbox.wait(max(0.0, until - time.monotonic()))
    timed_out = end is None
    if end is None:
        sandbox.kill()
        end = sandbox.wait()
    answer = {name: value.decode(errors="replace") for name, value in kept.items()}
    return {**answer, "totals": totals, "timed_out": timed_out, **dataclasses.asdict(end)}


def open_pid_namespace(pid: int) -> int | None:
    """Return a descriptor of a process's namespace.

    Return None if only root may open it, and if the process has ended already. While it is open,
    the kernel gives the number of the namespace to no other one.
    """
    try:
        return os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def processes_in(namespace: int) -> list[str]:
    """Return the processes of an open PID namespace, seen from the host."""
    number = os.fstat(namespace).st_ino
    processes = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            # A process may end meanwhile.
            with suppress(OSError):
                if (process / "ns/pid").stat().st_ino == number:
                    processes.append(process.name)
    return processes


def count_descriptors() -> int:
    """Return how many descriptors this process has."""
    return len([*Path("/proc/self/fd").iterdir()])


def keys_of_sandbox(workspace: Path) -> set[str]:
    """Return the keys that this process can see, and how many the user of a sandbox has.

    Keys and keyrings that processes of other tests make at the same time are left out.
    """
    others = (CANARY, " _ses", " _uid")
    lines = Path("/proc/keys").read_text().splitlines()
    seen = {line.split()[0] for line in lines if not any(word in line for word in others)}
    user = workspace.stat().st_uid
    if user != os.getuid():
        counts = [line.split() for line in Path("/proc/key-users").read_text().splitlines()]
        seen |= {f"{number} of {user}" for own, number, *_ in counts if own == f"{user}:"}
    return seen - {f"0 of {user}"}


def run(request: dict[str, Any], parent: Path, heartbeat: Heartbeat) -> dict[str, Any]:
    """Run one command; say how it ended, what it left, and what it cost this process."""
    workspace = create_workspace(parent)
    for name, text in request.get("files", {}).items():
        (workspace / name).write_text(text)
    spec = SandboxSpec(
        argv=tuple(request["argv"]),
        workspace=workspace,
        env=request.get("env", {}),
        limits=SandboxLimits(**request.get("limits", {})),
        network=NetworkPolicy(tuple(request.get("allow", ()))),
        stdin=request.get("stdin", "").encode(),
        read_only_mounts=tuple(
            ReadOnlyMount(Path(source), target) for source, target in request.get("mounts", ())
        ),
    )
    heartbeat.longest = 0.0
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    descriptors_before, keys_before = count_descriptors(), keys_of_sandbox(workspace)
    reports: list[str] = []
    namespace: int | None = None
    try:
        with start_sandbox(
            spec,
            SandboxKind(request["sandbox_kind"]),
            report=reports.append,
            connect=way_out(request),
        ) as sandbox:
            namespace = open_pid_namespace(sandbox.pid)
            until = time.monotonic() + request.get("timeout", 60)
            answer = drain(sandbox, until=until, request=request)
        answer["namespace_processes"] = [] if namespace is None else processes_in(namespace)
        answer["keys_left"] = sorted(keys_of_sandbox(workspace) - keys_before)
        collector = FileCollector(workspace, request.get("collect", "out"), max_bytes=1 << 20)
        collected = {
            file.name: base64.b64encode(b"".join(file.chunks)).decode() for file in collector
        }
        answer |= {"collected": collected, "skipped": collector.skipped}
        answer["again"] = [run_again(spec, request, argv) for argv in request.get("again", ())]
    finally:
        if namespace is not None:
            os.close(namespace)
        remove_workspace(workspace)
    # The thread of a proxy closes its listener when it notices.
    for _ in range(100):
        if count_descriptors() <= descriptors_before:
            break
        time.sleep(0.02)
    # This process adopts whatever outlives its parent.
    answer["processes_left"] = [pid for pid in descendants(os.getpid()) if is_living(pid)]
    answer["descriptors_left"] = count_descriptors() - descriptors_before
    answer["files_left"] = [path.name for path in parent.iterdir() if path.name != "worker.sock"]
    answer["longest_beat"] = heartbeat.longest
    answer["memory_growth"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before
    answer["reports"] = reports
    return answer


def way_out(request: dict[str, Any]) -> Connect | None:
    """Return a connection to a server of the test for every host, None for the proxy's own way."""
    port = request.get("connect_to")
    return port and (lambda _host, _port: socket.create_connection(("127.0.0.1", port), 10))


def run_again(spec: SandboxSpec, request: dict[str, Any], argv: list[str]) -> dict[str, Any]:
    """Run another command in a workspace that the first one has left."""
    second = dataclasses.replace(spec, argv=tuple(argv), stdin=b"")
    with start_sandbox(second, SandboxKind(request["sandbox_kind"])) as sandbox:
        return drain(sandbox, until=time.monotonic() + 60, request={})


def become(user: int) -> None:
    """Become an ordinary user for good."""
    if user != os.getuid():
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def main() -> None:
    """Serve requests until stdin ends."""
    parent, user = Path(sys.argv[1]), int(sys.argv[2])
    become_subreaper()
    become(user)
    # A pool process of a worker ignores what a command must not ignore.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ignore_signal_32()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
    os.umask(0o077)
    os.environ["OVERNIGHT_CANARY"] = CANARY
    add_canary_key()
    listeners, addresses = open_canary_sockets(parent)
    heartbeat = Heartbeat()
    for line in sys.stdin:
        request = json.loads(line)
        if "probe" in request:
            answer: Any = [dataclasses.asdict(probe) for probe in probe_all_kinds()]
        else:
            request["env"] = {**addresses, "CANARY": CANARY, **request.get("env", {})}
            try:
                answer = run(request, parent, heartbeat)
            except NoSandbox as error:
                answer = {"no_sandbox": str(error), "remedy": error.remedy}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    for listener in listeners:
        listener.close()


if __name__ == "__main__":
    main()
