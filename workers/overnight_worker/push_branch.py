"""Brings the branch of a finished run into the repository that it was cloned from.

This is what an agent profile with `push` asks for. Only the branch `overnight/<task>` and its
objects are written, never the files, the index or the current branch of the checkout. Git runs
outside of a sandbox here, as the owner of the repository: so it does what that owner's own git
would do, and what it writes belongs to the owner. A repository of another user is refused by git.
"""

import os
import subprocess
from pathlib import Path
from typing import Final

from overnight_worker.git_workspace import Clone
from overnight_worker.run_context import RunContext
from overnight_worker.source_repository import GIT_ENV, GIT_SECONDS

# The task's row is locked while the branch is written; its objects are there already.
LOCKED_SECONDS: Final = 3.0
OWNER_ONLY: Final = 0o400
# No hook and no maintenance of the repository runs, and nothing but the branch is written.
FETCH: Final = (
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "fetch.fsckObjects=true"),
    *("fetch", "--quiet", "--no-tags", "--no-write-fetch-head"),
    *("--no-auto-maintenance", "--no-recurse-submodules"),
)


def push_branch(clone: Clone, bundle: bytes, workspace: Path, context: RunContext) -> bool:
    """Write the branch of a run into its repository; return whether it was written.

    The run's log says why not: then `overnight apply` brings the branch. A run that lost its claim
    changes nothing, and this raises Stopped.
    """
    if clone.repository.hosts:
        return _not_pushed(context, "the repository is a URL")
    branch = clone.repository.branch
    file = workspace.parent / "push.bundle"
    try:
        push = _Push(Path(clone.repository.source).resolve(), file, bundle)
        push.fetch(f"refs/heads/{branch}", seconds=GIT_SECONDS)
        refs = f"+refs/heads/{branch}:refs/heads/{branch}"
        context.graph.while_held(lambda: push.fetch(refs, seconds=LOCKED_SECONDS))
    except (OSError, subprocess.SubprocessError) as error:
        detail = str(getattr(error, "stderr", None) or error)
        return _not_pushed(context, detail.strip())
    finally:
        file.unlink(missing_ok=True)
    context.log("the branch is in the repository", branch=branch)
    return True


class _Push:
    """Git in one repository, as its owner."""

    def __init__(self, repository: Path, file: Path, bundle: bytes) -> None:
        self._repository = repository
        self._file = file
        status = repository.stat()
        # Git of a root worker would leave files that the owner cannot change.
        self._owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 else None
        file.touch(mode=0o600)
        file.write_bytes(bundle)
        file.chmod(OWNER_ONLY)
        if self._owner is not None:
            os.chown(file, *self._owner)

    def fetch(self, refs: str, *, seconds: float) -> None:
        """Fetch from the bundle; raise SubprocessError if git refuses or takes too long."""
        user, group = self._owner or (None, None)
        subprocess.run(
            ["git", "-C", str(self._repository), *FETCH, str(self._file), refs],
            env={**GIT_ENV, "PATH": os.defpath, "HOME": "/nonexistent"},
            cwd="/",
            check=True,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            user=user,
            group=group,
            extra_groups=None if user is None else [],
        )


def _not_pushed(context: RunContext, reason: str) -> bool:
    context.log("the branch was not pushed; `overnight apply` brings it", reason=reason)
    return False
