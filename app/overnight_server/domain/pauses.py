"""What can be paused: one user, one pool, or everything."""

from enum import StrEnum


class PauseScope(StrEnum):
    """What a pause stops."""

    USER = "user"
    POOL = "pool"
    ALL = "all"
