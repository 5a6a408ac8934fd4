"""Who a server process runs as: Postgres refuses root, so root hands it to `nobody`.

The plain hand-over is enough when `nobody` can walk to the programs and the data. Below a closed
directory (a project in /root) it cannot; then the process also keeps the one capability that
ignores file permissions. That lets it touch any file, which is why it is the second choice.
"""

import ctypes
import os
import pwd
import stat
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from overnight_server.local.errors import CannotDropRoot

UNPRIVILEGED_USER = "nobody"

# Numbers from the Linux headers (prctl.h, securebits.h, capability.h), which have no Python names.
PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_SET_SECUREBITS = 28
PR_SET_CHILD_SUBREAPER = 36
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
SECBIT_NO_SETUID_FIXUP = 1 << 2
SECBIT_KEEP_CAPS = 1 << 4
CAP_DAC_OVERRIDE = 1
CAP_SETPCAP = 8
CAPABILITY_VERSION_3 = 0x20080522


class Identity(StrEnum):
    """The three ways a server process may be started."""

    OURSELVES = "ourselves"
    NOBODY = "nobody"
    NOBODY_WITH_ACCESS = "nobody_with_access"


def choose(paths: Iterable[Path]) -> Identity:
    """Pick the least powerful identity that Postgres accepts and that reaches all `paths`."""
    if os.geteuid() != 0:
        return Identity.OURSELVES
    user = unprivileged_user()
    closed = [path for path in paths if not reachable(path, user.pw_uid, user.pw_gid)]
    if not closed:
        return Identity.NOBODY
    if _holds(CAP_DAC_OVERRIDE) and _holds(CAP_SETPCAP):
        return Identity.NOBODY_WITH_ACCESS
    raise CannotDropRoot(
        f"Postgres does not run as root, and {UNPRIVILEGED_USER} cannot reach {closed[0]}. "
        "Run as an ordinary user, move the project out of the closed directory, "
        "or name a server in OVERNIGHT_DATABASE_URL."
    )


def unprivileged_user() -> pwd.struct_passwd:
    """Look up the user that Postgres runs as when we are root."""
    try:
        return pwd.getpwnam(UNPRIVILEGED_USER)
    except KeyError as missing:
        raise CannotDropRoot(
            f"Postgres does not run as root, and there is no user {UNPRIVILEGED_USER} here. "
            "Run as an ordinary user or name a server in OVERNIGHT_DATABASE_URL."
        ) from missing


def reachable(path: Path, uid: int, gid: int) -> bool:
    """Say whether every directory on the way to `path` lets this user pass."""
    return all(_may_pass(parent.stat(), uid, gid) for parent in path.resolve().parents)


def _may_pass(status: os.stat_result, uid: int, gid: int) -> bool:
    if status.st_uid == uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def _holds(capability: int) -> bool:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    effective = next((line for line in lines if line.startswith("CapEff:")), "CapEff: 0")
    return bool(int(effective.split()[1], 16) & (1 << capability))


def assume(identity: Identity) -> None:
    """Become `identity` for good. Call it in a forked child, just before exec."""
    if identity is Identity.OURSELVES:
        return
    user = unprivileged_user()
    keep_access = identity is Identity.NOBODY_WITH_ACCESS
    if keep_access:
        prctl(PR_SET_KEEPCAPS, 1)
        # initdb asks access(2), which judges a plain user without capabilities unless this is set.
        prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP | SECBIT_KEEP_CAPS)
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    if keep_access:
        _keep_only(CAP_DAC_OVERRIDE)
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE)


def die_with_parent(signal_number: int) -> None:
    """Ask Linux to send us this signal when our parent ends; elsewhere there is no such wish."""
    if hasattr(ctypes.CDLL(None), "prctl"):
        prctl(PR_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> bool:
    """Become the parent of every orphan below us, so that none escapes; False where impossible."""
    if not hasattr(ctypes.CDLL(None), "prctl"):
        return False
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    return True


def prctl(option: int, *arguments: int) -> None:
    """Call Linux's prctl, which Python does not offer."""
    libc = ctypes.CDLL(None, use_errno=True)
    padded = [*arguments, 0, 0, 0, 0][:4]
    if libc.prctl(option, *(ctypes.c_ulong(number) for number in padded)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


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
    # Two words, because capabilities are 64 bits wide; ours lies in the lower one.
    words = (_Sets * 2)(_Sets(mask, mask, mask), _Sets(0, 0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(ctypes.byref(header), words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")
