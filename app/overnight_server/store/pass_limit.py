"""How long one pass of a sweep may take."""

import time

# The sweeps of a process wait for each other. A pass that has more to do ends after this many
# seconds, and the next tick goes on where it ended.
PASS_SECONDS = 2.0


class PassLimit:
    """The time limit of one pass, which begins when the object is created."""

    def __init__(self) -> None:
        self._ends_at = time.monotonic() + PASS_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether the pass should begin no further batch."""
        return time.monotonic() >= self._ends_at
