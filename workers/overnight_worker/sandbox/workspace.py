"""The directory on the host in which a sandbox works: make it, and remove it whatever is in it."""

import errno
import os
import secrets
import tempfile
from pathlib import Path
from typing import Final

from overnight_worker.sandbox.sandbox_user import user_for

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OWNER_ONLY: Final = 0o700
READ_ONLY: Final = 0o400


def create_workspace(parent: Path) -> Path:
    """Make an empty workspace below a directory, with the owner that its sandbox needs.

    A root worker's sandbox has another user, who must be able to enter `parent` (chmod o+x).
    """
    workspace = Path(tempfile.mkdtemp(prefix="workspace-", dir=parent))
    user_for(workspace)
    return workspace


def let_sandbox_read(path: Path, workspace: Path) -> None:
    """Let the sandbox of a workspace, and no other user, read a file beside the workspace."""
    path.chmod(READ_ONLY)
    user = user_for(workspace)
    if user is not None:
        os.chown(path, user, user)


def remove_workspace(workspace: Path) -> None:
    """Remove a workspace and everything in it; one that does not exist is none.

    No sandbox may use it any more. A command can leave directories without permissions, and paths
    longer than the kernel accepts. So each directory is moved to the top before it is emptied: no
    path grows, and nothing is done recursively. Links are removed, never followed.
    """
    if not workspace.exists():
        return
    # A command can change the permissions of the workspace, but cannot replace it.
    workspace.chmod(OWNER_ONLY)
    top = os.open(workspace, DIRECTORY)
    try:
        _empty(top)
    finally:
        os.close(top)
    workspace.rmdir()


def _empty(top: int) -> None:
    """Remove everything in an open directory."""
    names = os.listdir(top)
    # A command must not guess the new names: a directory cannot take the place of a full one.
    moved, unknown = 0, secrets.token_hex(8)
    while names:
        name = names.pop()
        if _remove_file(top, name):
            continue
        for inner in _list(top, name):
            moved_name = f".removed-{unknown}-{moved}"
            if _remove_file_or_move_up(top, name, inner, moved_name):
                moved += 1
                names.append(moved_name)
        os.rmdir(name, dir_fd=top)


def _remove_file(directory: int, name: str) -> bool:
    """Remove what is no directory; return False for a directory."""
    try:
        os.unlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno not in {errno.EISDIR, errno.EPERM}:
            raise
        return False
    return True


def _list(top: int, name: str) -> list[str]:
    """Return the names in a directory, which its owner may not have permitted."""
    os.chmod(name, OWNER_ONLY, dir_fd=top)
    descriptor = os.open(name, DIRECTORY, dir_fd=top)
    try:
        return os.listdir(descriptor)  # noqa: PTH208 - it is open
    finally:
        os.close(descriptor)


def _remove_file_or_move_up(top: int, name: str, inner: str, moved_name: str) -> bool:
    """Remove a file of a directory, or move a directory of it to the top and return True."""
    descriptor = os.open(name, DIRECTORY, dir_fd=top)
    try:
        if _remove_file(descriptor, inner):
            return False
        # Its own entry for the directory above changes, so it must be writable itself.
        os.chmod(inner, OWNER_ONLY, dir_fd=descriptor)
        os.rename(inner, moved_name, src_dir_fd=descriptor, dst_dir_fd=top)
    finally:
        os.close(descriptor)
    return True
