"""The user a server process runs as. Postgres refuses root, so root starts Postgres as `nobody`.

Switching to `nobody` is enough when that user can reach the programs and the data. Below a closed
directory (a project in /root) it cannot. Then the process also keeps the capability that ignores
file permissions. With it the process can read and write any file, so it is the second choice.
"""

import ctypes
import os
import pwd
import stat
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from overnight_server.local.errors import CannotDropRoot
from overnight_server.process_tree import prctl

UNPRIVILEGED_USER = "nobody"

# Numbers from the Linux headers (prctl.h, securebits.h, capability.h), which have no Python names.
PR_SET_KEEPCAPS = 8
PR_SET_SECUREBITS = 28
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
SECBIT_NO_SETUID_FIXUP = 1 << 2
SECBIT_KEEP_CAPS = 1 << 4
CAP_DAC_OVERRIDE = 1
CAP_SETPCAP = 8
CAPABILITY_VERSION_3 = 0x20080522


class Identity(StrEnum):
    """The three identities with which a server process can be started."""

    CURRENT_USER = "current_user"
    NOBODY = "nobody"
    NOBODY_WITH_ACCESS = "nobody_with_access"


def choose_identity(paths: Iterable[Path]) -> Identity:
    """Return the least powerful identity that Postgres accepts and that can reach all `paths`.

    Raise CannotDropRoot if there is none.
    """
    if os.geteuid() != 0:
        return Identity.CURRENT_USER
    user = unprivileged_user()
    unreachable = [path for path in paths if not can_reach(path, user.pw_uid, user.pw_gid)]
    if not unreachable:
        return Identity.NOBODY
    if _has_capability(CAP_DAC_OVERRIDE) and _has_capability(CAP_SETPCAP):
        return Identity.NOBODY_WITH_ACCESS
    raise CannotDropRoot(
        f"Postgres does not run as root, and {UNPRIVILEGED_USER} cannot reach {unreachable[0]}. "
        "Run as an ordinary user, move the project out of the closed directory, "
        "or set OVERNIGHT_DATABASE_URL to a running server."
    )


def unprivileged_user() -> pwd.struct_passwd:
    """Return the user that Postgres runs as when this process is root."""
    try:
        return pwd.getpwnam(UNPRIVILEGED_USER)
    except KeyError as missing:
        raise CannotDropRoot(
            f"Postgres does not run as root, and there is no user {UNPRIVILEGED_USER} here. "
            "Run as an ordinary user, or set OVERNIGHT_DATABASE_URL to a running server."
        ) from missing


def can_reach(path: Path, uid: int, gid: int) -> bool:
    """Return whether this user may traverse every directory above `path`."""
    return all(_may_traverse(parent.stat(), uid, gid) for parent in path.resolve().parents)


def _may_traverse(status: os.stat_result, uid: int, gid: int) -> bool:
    if status.st_uid == uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def _has_capability(capability: int) -> bool:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    effective = next((line for line in lines if line.startswith("CapEff:")), "CapEff: 0")
    return bool(int(effective.split()[1], 16) & (1 << capability))


def switch_to(identity: Identity) -> None:
    """Switch this process to `identity` for good. Call it in a forked child, just before exec."""
    if identity is Identity.CURRENT_USER:
        return
    user = unprivileged_user()
    keep_access = identity is Identity.NOBODY_WITH_ACCESS
    if keep_access:
        prctl(PR_SET_KEEPCAPS, 1)
        # initdb calls access(2), which ignores capabilities of a plain user unless this is set.
        prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP | SECBIT_KEEP_CAPS)
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    if keep_access:
        _keep_only(CAP_DAC_OVERRIDE)
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def _keep_only(capability: int) -> None:
    mask = 1 << capability
    header = _Header(CAPABILITY_VERSION_3, 0)
    # Two elements, because capabilities have 64 bits; this one is among the lower 32.
    sets = (_Sets * 2)(_Sets(mask, mask, mask), _Sets(0, 0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(ctypes.byref(header), sets) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")
