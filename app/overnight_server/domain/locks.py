"""Lock keys: how they are written, and which of them are in each other's way.

A key is a name such as `repo:myapp` or `project:site`; two tasks of one user that hold the same
key never run at once. A key that begins `path:` stands for a file or directory and for all that
lies below it, so `path:src` is in the way of `path:src/a` but not of `path:srcs`.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from overnight.errors import InvalidRequest

LockScope = Literal["project", "user", "none"]

PATH = "path:"
EVERYWHERE = "path:."
USER = "user"
MAX_KEYS = 20
MAX_LENGTH = 255


def normalised(keys: Iterable[str]) -> tuple[str, ...]:
    """Return keys as they are stored: spelt one way, sorted, none inside another.

    >>> normalised(["repo:site", "path:./src//a/", "path:src", "repo:site"])
    ('path:src', 'repo:site')
    """
    spelt = sorted({_spelt(key) for key in keys})
    if len(spelt) > MAX_KEYS:
        raise InvalidRequest("locks", f"{len(spelt)} keys", legal=f"at most {MAX_KEYS}")
    return tuple(
        key for key in spelt if not any(other != key and covers(other, key) for other in spelt)
    )


def covers(outer: str, inner: str) -> bool:
    """Whether whoever holds `outer` holds `inner` too; both as stored.

    >>> covers("path:src", "path:src/a"), covers("path:src", "path:srcs")
    (True, False)
    """
    if outer == inner:
        return True
    if not (outer.startswith(PATH) and inner.startswith(PATH)):
        return False
    return outer == EVERYWHERE or inner.startswith(f"{outer}/")


def collide(some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two sets of keys cannot be held at once by two tasks of one user."""
    return any(covers(one, two) or covers(two, one) for one in some for two in others)


def in_the_way(key: str, others: Collection[str]) -> list[str]:
    """Return those of some keys that cannot be held beside this one; only paths are searched for.

    >>> in_the_way("path:src", ["path:src/a", "repo:site"]), in_the_way("repo:site", {"user"})
    (['path:src/a'], [])
    """
    if not key.startswith(PATH):
        return [key] if key in others else []
    return [other for other in others if collide((key,), (other,))]


def is_wide(keys: Sequence[str]) -> bool:
    """Whether keys may be in the way of others that do not begin alike: several, or a path."""
    return len(keys) > 1 or any(key.startswith(PATH) for key in keys)


def implied(project_id: str | None, scope: LockScope) -> str | None:
    """Return the lock key that the settings give a task: its project's, or the user's."""
    if scope == "user":
        return USER
    if scope == "project" and project_id is not None:
        return f"project:{project_id}"
    return None


def keys_of(
    declared: Sequence[str], project_id: str | None, scope: LockScope
) -> tuple[str, ...] | None:
    """Return what a task will lock, or None for nothing at all.

    What it declares takes the place of its project's key: it knows better what it touches. It
    cannot take the place of the user's key, which the deployment insists on.
    """
    default = implied(project_id, scope)
    wanted = [*declared] if declared and default != USER else [*declared, default or ""]
    return normalised(key for key in wanted if key) or None


def _spelt(key: str) -> str:
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
