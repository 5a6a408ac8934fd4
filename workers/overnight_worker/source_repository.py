"""Repositories that a task may work on: what an operator allows, and reading one of this machine.

Git runs outside of a sandbox here. It runs as the owner of the repository if the worker is root, so
that no link leads it to what the owner may not read, and it executes nothing that the repository
configures: it finds out where the repository is and copies commits.
"""

import contextlib
import difflib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from overnight.handlers.control_exceptions import Fail
from overnight_worker.run_context import RunContext
from overnight_worker.sandbox.workspace import remove_workspace

# The branch that has the commits, in what is read of a repository.
BASE: Final = "refs/heads/overnight-base"
GIT_SECONDS: Final = 600.0
# How many branches and tags a message names.
MAX_NAMES: Final = 5
ALTERNATE: Final = "alternate: "
OWNER_ONLY: Final = 0o700
GIT_ENV: Final = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": "Overnight",
    "GIT_AUTHOR_EMAIL": "overnight@localhost",
    "GIT_COMMITTER_NAME": "Overnight",
    "GIT_COMMITTER_EMAIL": "overnight@localhost",
}


def check_allowed(source: str, allowed: tuple[str, ...]) -> None:
    """Raise Fail unless an operator allows the repository, or a path above it, on this worker."""
    wanted = source.rstrip("/")
    is_url = "://" in wanted
    if not is_url:
        wanted = str(Path(wanted).resolve())
    if not (is_url and _leads_up(wanted)) and _is_below(wanted, allowed):
        return
    raise _invalid(f"repo: this worker may not read {source}: {_remedy(allowed)}")


def write_bundle(
    source: Path, ref: str, target: Path, *, allowed: tuple[str, ...], context: RunContext
) -> None:
    """Write the commits of a repository of this machine up to a ref into a file.

    Raise Fail if the repository or the ref cannot be read, or if `allowed` does not include all
    directories in which git finds the repository. A request to stop the run ends this with Stopped.
    """
    if not source.is_dir():
        raise _invalid(f"repo: {source} is no directory of the worker's machine")
    with host_git(source, target.with_name("source"), context) as git:
        bare = str(git.directory / "source.git")
        try:
            repository = allowed_directory(source, git, allowed)
            commit = _commit_of(source, ref, git)
            git.run("init", "--quiet", "--bare", bare)
            wanted = f"{commit}:{BASE}"
            git.run("-C", bare, "fetch", "--quiet", "--no-tags", str(repository), wanted)
            # Opened here: nobody else chooses the file.
            target.touch(mode=0o600)
            with target.open("wb") as file:
                git.run("-C", bare, "bundle", "create", "--quiet", "-", BASE, output=file.fileno())
        except (OSError, subprocess.SubprocessError) as error:
            raise _unreadable(source, error) from error


def allowed_directory(source: Path, git: "HostGit", allowed: tuple[str, ...]) -> Path:
    """Return the directory of the repository that git finds in `source`.

    In an allowed directory `.git` may be a file or a link that names a repository elsewhere, and a
    repository may take objects from another one. Raise Fail unless all of them are allowed.
    """
    own = _git_directory(source, git, "--absolute-git-dir")
    common = _git_directory(source, git, "--git-common-dir")
    for place in (own, common, *_object_places(source, common, git)):
        if not _is_below(str(place), allowed):
            raise _invalid(
                f"repo: {source} takes its commits from a repository that this worker may not"
                f" read: {_remedy(allowed)}"
            )
    return common


@contextlib.contextmanager
def host_git(source: Path, directory: Path, context: RunContext) -> Iterator["HostGit"]:
    """Make git with a new directory for it, which is removed at the end of the block."""
    directory.mkdir(mode=OWNER_ONLY)
    try:
        yield HostGit(source, directory, context)
    finally:
        remove_workspace(directory)


class HostGit:
    """Git on the worker's machine, for one repository, until its run is requested to stop.

    It may write to `directory` only, which has its configuration.
    """

    def __init__(self, source: Path, directory: Path, context: RunContext) -> None:
        self.directory = directory
        self._context = context
        self._owner = _owner_of(source)
        config = directory / "gitconfig"
        # The operator trusts the owner of the repository with being read.
        config.write_text("[safe]\n\tdirectory = *\n")
        # The directory last: from then on its owner chooses what is in it.
        for path in (config, directory):
            if self._owner is not None:
                os.chown(path, *self._owner)
        self._env = {
            **GIT_ENV,
            "GIT_CONFIG_GLOBAL": str(config),
            # A repository above an allowed directory is not allowed.
            "GIT_CEILING_DIRECTORIES": str(source.parent),
            # Objects that a partial clone lacks would be fetched by a program that its owner chose.
            "GIT_NO_LAZY_FETCH": "1",
            "LC_ALL": "C",
            "PATH": os.defpath,
            "HOME": "/nonexistent",
        }

    def run(self, *words: str, output: int = subprocess.PIPE) -> str:
        """Run git and return its output, which a descriptor may get instead.

        Raise SubprocessError if it fails or takes too long, and Stopped if the run must stop.
        """
        user, group = self._owner or (None, None)
        process = subprocess.Popen(
            ["git", *words],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd="/",
            # Other users of the machine may enter the directory.
            umask=0o077,
            user=user,
            group=group,
            extra_groups=None if user is None else [],
            # Git starts further processes of git.
            start_new_session=True,
        )
        self._context.on_stop(lambda _reason: _kill_group(process))
        try:
            if self._context.stop_reason is not None:
                _kill_group(process)
            written, errors = process.communicate(timeout=GIT_SECONDS)
        finally:
            self._context.on_stop(None)
            _kill_group(process)
            process.wait()
        self._context.check()
        if process.returncode != 0:
            raise subprocess.CalledProcessError(process.returncode, "git", written, errors)
        return written or ""


def _is_below(wanted: str, allowed: tuple[str, ...]) -> bool:
    """Return whether a resolved path or a URL is an entry of a list, or below one."""
    prefixes = [entry.rstrip("/") for entry in allowed]
    return any(wanted == prefix or wanted.startswith(f"{prefix}/") for prefix in prefixes)


def _leads_up(url: str) -> bool:
    """Return whether a client or a server may understand the path of a URL as one above it."""
    path = urlsplit(url).path
    while (plain := unquote(path)) != path:
        path = plain
    return not {".", ".."}.isdisjoint(path.replace("\\", "/").split("/"))


def _remedy(allowed: tuple[str, ...]) -> str:
    value = f"is {','.join(allowed)}" if allowed else "is not set"
    return (
        f"OVERNIGHT_ALLOWED_REPOSITORIES {value}."
        " An operator adds the repository, or a directory above it"
    )


def _owner_of(source: Path) -> tuple[int, int] | None:
    """Return user and group of a directory if git must become them: the worker is root."""
    if os.geteuid() != 0:
        return None
    status = source.stat()
    return status.st_uid, status.st_gid


def _kill_group(process: "subprocess.Popen[str]") -> None:
    """Kill a program and what it started in its session; nothing happens if it was waited for."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _git_directory(source: Path, git: HostGit, option: str) -> Path:
    """Return a directory of the repository in `source`, without links; raise Fail without one."""
    try:
        # A relative one is below the source.
        return (source / git.run("-C", str(source), "rev-parse", option)[:-1]).resolve()
    except subprocess.CalledProcessError as error:
        if "not a git repository" not in error.stderr:
            raise
        raise _invalid(
            f"repo: {source} is no git repository; name the directory that has .git in it"
        ) from None


def _object_places(source: Path, common: Path, git: HostGit) -> Iterator[Path]:
    """Yield where a repository takes objects from: directories, and what links in them lead to."""
    counted = git.run("-C", str(source), "count-objects", "--verbose").splitlines()
    # Git quotes a path with odd characters: that is no path which an operator allows.
    alternates = [line.removeprefix(ALTERNATE) for line in counted if line.startswith(ALTERNATE)]
    for place in (common / "objects", *map(Path, alternates)):
        yield place.resolve()
        for folder, directories, files in os.walk(place.resolve()):
            paths = (Path(folder, name) for name in (*directories, *files))
            # Not `resolve`, which raises for a link that leads to itself.
            yield from (Path(os.path.realpath(path)) for path in paths if path.is_symlink())


def _commit_of(source: Path, ref: str, git: HostGit) -> str:
    """Return the commit that a ref names, or the current one; raise Fail if there is none."""
    try:
        wanted = f"{ref or 'HEAD'}^{{commit}}"
        return git.run("-C", str(source), "rev-parse", "--quiet", "--verify", wanted).strip()
    except subprocess.CalledProcessError:
        raise _no_commit(source, ref, git) from None


def _no_commit(source: Path, ref: str, git: HostGit) -> Fail:
    """Return the error for a ref that names no commit; it says which branches and tags exist."""
    if not ref:
        return _invalid(f"repo: {source} has no commit yet; make the first one")
    words = ("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags")
    names = git.run("-C", str(source), *words).split()
    similar_names = difflib.get_close_matches(ref, names, MAX_NAMES) or names[:MAX_NAMES]
    return _invalid(
        f"ref: {source} has no branch, tag or commit {ref!r}; it has {', '.join(similar_names)}"
    )


def _unreadable(source: Path, error: Exception) -> Fail:
    detail = str(getattr(error, "stderr", None) or error)
    return _invalid(f"repo: {source} cannot be read: {detail.strip()}")


def _invalid(message: str) -> Fail:
    return Fail(message, error_class="invalid_input")
