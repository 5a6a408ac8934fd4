"""Lock keys: how they are normalised, and which of them conflict.

A key is a name such as `repo:myapp` or `project:site`; two tasks of one user with the same key
never run at the same time. A key that starts with `path:` is a file or directory with everything
below it, so `path:src` conflicts with `path:src/a` but not with `path:srcs`.
"""

import hashlib
import posixpath
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal
from urllib.parse import urlsplit

from overnight.errors import InvalidRequest

LockScope = Literal["project", "user", "none"]

PATH = "path:"
EVERYWHERE = "path:."
USER = "user"
MAX_KEYS = 20
MAX_LENGTH = 255
# What the address of a repository may leave out.
DEFAULT_PORTS: Final = {"https": ":443", "http": ":80"}


def normalised(keys: Iterable[str]) -> tuple[str, ...]:
    """Return keys as they are stored: normalised, sorted, none inside another.

    >>> normalised(["repo:site", "path:./src//a/", "path:src", "repo:site"])
    ('path:src', 'repo:site')
    """
    unique = sorted({_normalised(key) for key in keys})
    if len(unique) > MAX_KEYS:
        raise InvalidRequest("locks", f"{len(unique)} keys", legal=f"at most {MAX_KEYS}")
    return tuple(
        key for key in unique if not any(other != key and covers(other, key) for other in unique)
    )


def covers(outer: str, inner: str) -> bool:
    """Whether the key `outer` includes the key `inner`; both normalised.

    >>> covers("path:src", "path:src/a"), covers("path:src", "path:srcs")
    (True, False)
    """
    if outer == inner:
        return True
    if not (outer.startswith(PATH) and inner.startswith(PATH)):
        return False
    return outer == EVERYWHERE or inner.startswith(f"{outer}/")


def are_in_conflict(some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two tasks of one user with these keys must not run at the same time."""
    return any(
        covers(first, second) or covers(second, first) for first in some for second in others
    )


def conflicting_keys(key: str, others: Collection[str]) -> list[str]:
    """Return those of `others` that conflict with `key`.

    >>> conflicting_keys("path:src", ["path:src/a", "repo:site"])
    ['path:src/a']
    >>> conflicting_keys("repo:site", {"user"})
    []
    """
    if not key.startswith(PATH):
        return [key] if key in others else []
    return [other for other in others if are_in_conflict((key,), (other,))]


def is_wide(keys: Sequence[str]) -> bool:
    """Whether keys may conflict with tasks that have another first key: several keys, or a path."""
    return len(keys) > 1 or any(key.startswith(PATH) for key in keys)


def default_key(project_id: str | None, scope: LockScope) -> str | None:
    """Return the lock key of a task by the setting: its project's, the user's, or None."""
    if scope == "user":
        return USER
    if scope == "project" and project_id is not None:
        return f"project:{project_id}"
    return None


def repository_key(repo: str) -> str:
    """Return the lock key of a git repository; a long address is represented by its digest.

    What names the same repository has the same key, as far as that can be told without reading it.

    >>> repository_key("/srv//sites/../site/.git/")
    'repo:/srv/site'
    >>> repository_key("https://Git.Example.com:443/team/site.git")
    'repo:https://git.example.com/team/site'
    """
    name = _url_name(repo) if "://" in repo else _repository_path(repo)
    key = f"repo:{name}"
    return key if len(key) <= MAX_LENGTH else f"repo:{hashlib.sha256(name.encode()).hexdigest()}"


def _url_name(repo: str) -> str:
    url = urlsplit(repo)
    authority = url.netloc.lower().removesuffix(DEFAULT_PORTS.get(url.scheme, ""))
    return f"{url.scheme}://{authority}{_repository_path(url.path)}"


def _repository_path(path: str) -> str:
    """Return a path without its links to itself, and without what git adds to a name."""
    normal = posixpath.normpath(f"/{path.lstrip('/')}")
    return normal.removesuffix("/.git").removesuffix(".git")


def keys_of(
    declared: Sequence[str], project_id: str | None, scope: LockScope
) -> tuple[str, ...] | None:
    """Return the keys that a task locks, or None.

    Declared keys replace the project's key, because the submitter knows what the task changes. They
    do not replace the user's key, which the deployment requires.
    """
    default = default_key(project_id, scope)
    keys = [*declared] if declared and default != USER else [*declared, default or ""]
    return normalised(key for key in keys if key) or None


def _normalised(key: str) -> str:
    if not key or len(key) > MAX_LENGTH:
        raise InvalidRequest(
            "locks", "a key of this length", legal=f"from 1 to {MAX_LENGTH} characters"
        )
    if not key.startswith(PATH):
        return key
    path = key.removeprefix(PATH)
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts or not path:
        raise InvalidRequest("locks", f"{key!r} is no path", legal="path:src/a, without '..'")
    if not parts:
        return EVERYWHERE
    root = "/" if path.startswith("/") else ""
    return f"{PATH}{root}{'/'.join(parts)}"
