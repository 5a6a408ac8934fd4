"""What can be paused: one user, one pool, or everything."""

from enum import StrEnum


class Scope(StrEnum):
    """How far a pause reaches."""

    USER = "user"
    POOL = "pool"
    ALL = "all"
