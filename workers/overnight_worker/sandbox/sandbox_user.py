"""The kernel user of a sandbox: never root.

With kernel user 0 a process can change files of /proc/sys and more that belong to user 0 of the
host, whatever its user namespace says. So a worker that is root drops to an unprivileged user
before it makes a namespace, and refuses to make a sandbox without one.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from overnight_worker.sandbox.spec import NoSandbox

# Numbers that no distribution and no service manager gives away. Each worker process takes its own,
# because the kernel counts some things (inotify instances) per user.
FIRST_USER: Final = 60_600
USERS: Final = 500
NOBODY: Final = 65_534
REMEDY: Final = (
    "run the worker as an ordinary user, or give its container more than one user"
    f" (a uid map that includes {FIRST_USER} to {FIRST_USER + USERS - 1}, or {NOBODY})"
)


def user_for(workspace: Path) -> int | None:
    """Return the user that a sandbox with this workspace has, None to keep the worker's own.

    For a root worker this is the owner of the workspace. A workspace that belongs to root is given
    to an unprivileged user first, so that later sandboxes in it get the same one. Raise NoSandbox
    if there is no such user.
    """
    if os.geteuid() != 0:
        return None
    owner = workspace.stat().st_uid
    if owner != 0:
        return owner
    user = unprivileged_user()
    try:
        for path in (workspace, *_contents(workspace)):
            os.chown(path, user, user, follow_symlinks=False)
    except PermissionError as error:
        raise NoSandbox(f"root may not give the workspace away: {error}", REMEDY) from error
    return user


def unprivileged_user(uid_map: str | None = None) -> int:
    """Return a user to whom a root worker can drop; raise NoSandbox if its namespace has none."""
    text = Path("/proc/self/uid_map").read_text() if uid_map is None else uid_map
    rows = [[int(word) for word in line.split()] for line in text.splitlines()]
    own = FIRST_USER + os.getpid() % USERS
    for user in (own, NOBODY):
        if any(first <= user < first + count for first, _, count in rows):
            return user
    raise NoSandbox("the worker is root and has no other user to run commands as", REMEDY)


def _contents(directory: Path) -> Iterator[Path]:
    for folder, directories, files in os.walk(directory):
        yield from (Path(folder, name) for name in (*directories, *files))
