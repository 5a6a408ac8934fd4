"""Makes a sandbox by system calls alone, where bubblewrap is not installed.

The worker sends this module through a descriptor, with `pid1`, and starts its own Python with it,
isolated and without site-packages. Every module is imported before the first step, so that the
Python need not be readable inside.

The steps, in this order: drop to an unprivileged user if the worker is root, new namespaces, a root
in memory with read-only mounts, loopback up, no capabilities, the seccomp filter. The process that
has done them becomes process 1 of the sandbox. A step that fails ends the program, with the step
and the kernel's reason on stderr.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

# Numbers from the Linux headers (sched.h, mount.h, prctl.h, capability.h, sockios.h, if.h).
NEW_NAMESPACES = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "host name": 0x04000000,
    "IPC": 0x08000000,
    "user": 0x10000000,
    "PID": 0x20000000,
    "network": 0x40000000,
}
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
# Neither set-user-id programs nor devices.
NO_PRIVILEGES = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 4, 22
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x20080522
LAST_CAPABILITY = 63
AF_INET, SOCK_DGRAM = 2, 2
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
SIGKILL = 9
MOUNT_SETATTR = 442
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
# Any directory can hold the new root before it becomes the root: others do not see the mount.
STAGE = "/tmp"  # noqa: S108 - as above
# Where the host's root is until everything is mounted.
HOST = "/.host"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
FAILED = 1

libc = ctypes.CDLL(None, use_errno=True)


def main(config: dict[str, Any], pid1: dict[str, Callable[..., Any]]) -> NoReturn:
    """Make the sandbox and become its process 1; the calling process waits for its end."""
    try:
        if config["proxy_port"]:
            import socket  # noqa: F401, PLC0415 - for process 1, which can import nothing
        # As root, the workspace may be below a directory that the unprivileged user cannot enter.
        os.chdir(config["host_workspace"])
        drop_user(config["user"])
        unshare()
        pid = os.fork()
        if pid:
            wait_for(pid)
        check(libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "end with the parent")
        check(libc.sethostname(b"sandbox", 7), "set the host name")
        make_root(config)
        bring_loopback_up()
        drop_capabilities()
        apply_filter(config["seccomp"])
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"{place}{error.strerror or error}\n")
        sys.stderr.flush()
        os._exit(FAILED)
    pid1["main"](config)
    os._exit(FAILED)


def check(result: int, step: str) -> None:
    """Raise OSError with the name of the step if a system call has failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{step}: {os.strerror(number)}")


def drop_user(user: int | None) -> None:
    """Become an unprivileged user, for good; root without one is refused."""
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        # Whoever changes its user loses its own files in /proc, which are written next.
        check(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "own /proc/self")
    if 0 in os.getresuid():
        raise PermissionError("drop user: kernel user 0 may not enter a sandbox")


def unshare() -> None:
    """Enter new namespaces, in which this user is the only one."""
    user, group = os.getuid(), os.getgid()
    check(libc.unshare(sum(NEW_NAMESPACES.values())), "unshare")
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"65534 {user} 1")
    write("/proc/self/gid_map", f"65534 {group} 1")


def write(path: str, text: str) -> None:
    """Write a file in one piece; the error names the path."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o444)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"write {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)


def wait_for(pid: int) -> NoReturn:
    """Wait for process 1 outside of its namespace; keep none of its descriptors open."""
    check(libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "end with the parent")
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    _, status = os.waitpid(pid, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def make_root(config: dict[str, Any]) -> None:
    """Make a new root in memory, mount everything that the sandbox sees, and let go of the host.

    The working directory stays the workspace until it is mounted.
    """
    # What is mounted on the host from now on does not appear here.
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", STAGE, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=4096,mode=755")
    os.mkdir(STAGE + HOST)
    number = PIVOT_ROOT[os.uname().machine]
    check(libc.syscall(number, STAGE.encode(), (STAGE + HOST).encode()), "pivot_root")
    for source, target in config["binds"]:
        bind(HOST + source, target)
        limit_mount(target, NO_PRIVILEGES | MOUNT_ATTR_RDONLY)
    for destination, target in config["links"]:
        os.symlink(destination, target)
    for path, text in config["files"].items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write(path, text)
    make_devices()
    for target, size in config["memories"]:
        os.makedirs(target, exist_ok=True)
        options = f"size={size},nr_inodes={max(1024, size // 4096)},mode=1777"
        mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, options)
    os.mkdir("/proc")
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    bind(".", config["workspace"])
    limit_mount(config["workspace"], NO_PRIVILEGES)
    check(libc.umount2(HOST.encode(), MNT_DETACH), "detach the host's root")
    os.rmdir(HOST)
    os.chdir(config["workspace"])
    for target, flag in (("/proc", MS_NODEV | MS_NOEXEC), ("/dev", MS_NOEXEC), ("/", MS_NODEV)):
        mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | flag)


def make_devices() -> None:
    """Make /dev with the devices that do no harm, and terminals of its own."""
    os.mkdir("/dev")
    mount("tmpfs", "/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=64k,nr_inodes=64,mode=755")
    for name in DEVICES:
        if os.path.exists(f"{HOST}/dev/{name}"):
            bind(f"{HOST}/dev/{name}", f"/dev/{name}")
    for name, destination in DEVICE_LINKS.items():
        os.symlink(destination, f"/dev/{name}")
    os.mkdir("/dev/pts")
    options = "newinstance,ptmxmode=0666,mode=620"
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, options)


def mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    """Call mount; raise OSError with the target if it fails."""
    words = [word.encode() if word is not None else None for word in (source, target, kind)]
    data = options.encode() if options is not None else None
    check(libc.mount(*words, ctypes.c_ulong(flags), data), f"mount {target}")


def bind(source: str, target: str) -> None:
    """Show a file or directory at another place too."""
    is_directory = os.path.isdir(source)
    os.makedirs(target if is_directory else os.path.dirname(target), exist_ok=True)
    if not is_directory:
        write(target, "")
    mount(source, target, None, MS_BIND | MS_REC)


def limit_mount(target: str, attributes: int) -> None:
    """Set attributes of a mount and of every mount below it."""
    structure = struct.pack("QQQQ", attributes, 0, 0, 0)
    arguments = (AT_FDCWD, target.encode(), AT_RECURSIVE, structure, len(structure))
    check(libc.syscall(MOUNT_SETATTR, *arguments), f"set attributes of {target}")


def bring_loopback_up() -> None:
    """Let the sandbox reach servers of its own on 127.0.0.1."""
    descriptor = libc.socket(AF_INET, SOCK_DGRAM, 0)
    check(descriptor, "open a socket")
    request = struct.pack("16sh22x", b"lo", IFF_UP)
    fcntl.ioctl(descriptor, SIOCSIFFLAGS, request)
    os.close(descriptor)


def drop_capabilities() -> None:
    """Give up every capability, and the ways to get one back."""
    for capability in range(LAST_CAPABILITY + 1):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # EINVAL for numbers without a meaning
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
    check(libc.capset(header, bytes(24)), "drop capabilities")


class FilterProgram(ctypes.Structure):
    """The kernel's `struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def apply_filter(instructions: bytes) -> None:
    """Apply the seccomp filter to this process and everything that it starts."""
    program = FilterProgram(len(instructions) // 8, instructions)
    address = ctypes.byref(program)
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, address, 0, 0), "seccomp filter")
