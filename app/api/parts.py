"""What every request may use: the settings, the database and the bell that wakes dispatchers."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from app.events.feed import Feed
from app.events.wake import Waker
from app.settings import Settings
from app.store.db import Db


@dataclass(frozen=True)
class Parts:
    """The parts one API process is made of."""

    settings: Settings
    db: Db
    waker: Waker | None
    feed: Feed

    def nudge(self) -> None:
        """Wake the dispatchers if there is a bell; never waits, and may fail unnoticed."""
        if self.waker is not None:
            self.waker.nudge()


def parts(request: Request) -> Parts:
    """Return the parts of the process that serves this request."""
    found: Parts = request.app.state.parts
    return found


Use = Annotated[Parts, Depends(parts)]
