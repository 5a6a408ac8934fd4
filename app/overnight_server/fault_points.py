"""Named points at which the deployment can be made to fail, for tests and drills.

A point is one line, `fault("claim.after_commit")`, at a place where dying hurts. Nothing happens
there unless the setting `fault` arms it: `claim.after_commit=kill@/tmp/once` kills the process that
passes the point first, and the file after the @ makes it happen only once, whoever passes later.
"""

import logging
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Final

# Every point there is, and where it stands.
POINTS: Final[Mapping[str, str]] = {
    "intake.before_commit": "a submit has written its rows, or is about to",
    "intake.after_commit": "a submit is committed and not yet answered",
    "spawn.before_commit": "a running task has written a child",
    "spawn.after_commit": "a child is committed and its parent does not know",
    "edges.before_commit": "later edges have been written",
    "edges.after_commit": "later edges are committed and not yet answered",
    "artifact.before_commit": "a run has written an artifact",
    "artifact.after_commit": "an artifact is committed and its run does not know",
    "wait.before_suspend": "a run has asked to wait and nothing is recorded",
    "cancel.before_commit": "a cancel has moved its rows",
    "cancel.after_commit": "a cancel is committed and not yet answered",
    "dead_letter.before_commit": "a dead letter's retry has moved its rows",
    "dead_letter.after_commit": "a dead letter's retry is committed",
    "claim.before_commit": "the gate has taken tasks",
    "claim.after_commit": "claims are committed and not yet published",
    "publish.after": "every claim of a pass is published",
    "execute.on_message": "a worker's child has taken a message",
    "start.before_commit": "a start is about to be asked for",
    "start.after_commit": "a start is committed and its run not yet begun",
    "refill.before_commit": "a worker has claimed and started its next bundle by itself",
    "refill.after_commit": "a worker's next bundle is committed and not yet begun",
    "execute.before_handler": "the lease is kept and the handler not yet called",
    "execute.after_handler": "the handler has returned and nothing is recorded",
    "settle.before_commit": "a run's end has moved its rows",
    "settle.after_commit": "a run's end is committed and nobody knows",
    "heartbeat.before_commit": "a heartbeat has extended its lease",
    "heartbeat.after_commit": "a heartbeat is committed and its answer not yet heard",
    "lease.before_force": "a run is about to be ended by force",
    "lease.after_force": "a run's forced end is recorded and its process still lives",
    "dead_children.before_settle": "a worker is about to settle the claims of a dead child",
    "presence.before_beat": "a worker is about to say that it lives",
    "presence.after_beat": "a worker has said that it lives",
    "presence.before_leave": "a worker is about to say that it leaves",
    "sweep.after_turn": "a sweep has its turn and has done nothing yet",
    "sweep.before_end": "a sweep is done and has not said so",
    "reap.after_look": "the reaper has chosen and not settled",
    "reap.after_commit": "the reaper has settled and not reported",
    "timeouts.before_kill": "overdue runs are settled and still run",
    "promote.before_commit": "due retries are made ready",
    "promote.after_commit": "due retries are committed",
    "bulk.before_commit": "a chunk of a bulk operation has moved its rows",
    "bulk.after_commit": "a chunk of a bulk operation is committed, and the next not begun",
    "reset.before_commit": "billing months are begun",
    "reset.after_commit": "billing months are committed",
    "audit.after_look": "the audit has a suspicion and has repaired nothing",
    "beat.before_tick": "beat is about to send a tick",
    "beat.after_tick": "beat has sent a tick",
    "wake.before_ping": "a wake-up ping is about to be sent",
}
_FORM: Final = re.compile(r"(?P<point>[^=]+)=(?P<mode>[^@]+)(?:@(?P<once>.+))?")
_MODE: Final = re.compile(r"(?P<word>kill|raise|drop)|delay:(?P<seconds>\d+(?:\.\d+)?)")
_log = logging.getLogger(__name__)


class Mode(StrEnum):
    """What an armed point does to whoever passes it."""

    KILL = "kill"
    RAISE = "raise"
    DELAY = "delay"
    DROP = "drop"


class Struck(Exception):
    """The error an armed point raises."""


@dataclass(frozen=True)
class Fault:
    """One armed point: what happens there, and the file that says it has happened already."""

    point: str
    mode: Mode
    seconds: float = 0.0
    once: Path | None = None


_armed: dict[str, Fault] = {}
# What the mode `drop` does: the store adds the function that cuts its database connections.
DROP_ACTIONS: list[Callable[[], None]] = []


def fault(point: str) -> None:
    """Fail here, if this point is armed; otherwise pass at the cost of one look."""
    if _armed:
        _strike(point)


def arm(words: str | None) -> None:
    """Arm the points a setting names; None arms nothing."""
    _armed.clear()
    if words is not None:
        _armed.update({one.point: one for one in read(words)})


def read(words: str) -> list[Fault]:
    """Read a setting: `point=mode`, several separated by commas; a wrong one raises ValueError.

    >>> read("claim.after_commit=kill")
    [Fault(point='claim.after_commit', mode=<Mode.KILL: 'kill'>, seconds=0.0, once=None)]
    """
    return [_read_one(part.strip()) for part in words.split(",")]


def _read_one(words: str) -> Fault:
    found = _FORM.fullmatch(words)
    if found is None:
        raise ValueError(f"{words!r} arms nothing: it must be point=mode or point=mode@file")
    point, once = found["point"], found["once"]
    if point not in POINTS:
        [nearest] = get_close_matches(point, POINTS, n=1, cutoff=0)
        raise ValueError(
            f"{words!r} arms nothing: there is no point {point!r} (nearest: {nearest})"
        )
    mode = _MODE.fullmatch(found["mode"])
    if mode is None:
        raise ValueError(
            f"{words!r} arms nothing: there is no mode {found['mode']!r};"
            " it must be kill, raise, drop or delay:SECONDS, such as delay:0.5"
        )
    seconds = float(mode["seconds"] or 0)
    return Fault(point, Mode(mode["word"] or Mode.DELAY), seconds, Path(once) if once else None)


def _strike(point: str) -> None:
    struck = _armed.get(point)
    if struck is None:
        return
    # Once for this process, and with a file once for everybody.
    del _armed[point]
    if struck.once is not None and not _is_first(struck.once):
        return
    _log.warning("a fault strikes: %s %s", point, struck.mode.value)
    match struck.mode:
        case Mode.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Mode.RAISE:
            raise Struck(point)
        case Mode.DELAY:
            time.sleep(struck.seconds)
        case Mode.DROP:
            for drop in DROP_ACTIONS:
                drop()


def _is_first(once: Path) -> bool:
    try:
        once.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
