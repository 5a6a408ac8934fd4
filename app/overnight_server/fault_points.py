"""Named points in the code at which a process can be made to fail, for tests and drills.

A point is one line, `fault("claim.after_commit")`, at a critical place. Nothing happens there
unless the setting `fault` arms it: `claim.after_commit=kill@/tmp/once` kills the first process that
passes the point. The file after the @ is then created, and no process fails there again.
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

# Every fault point, and the state of the process there.
POINTS: Final[Mapping[str, str]] = {
    "intake.before_commit": "a submit has written its rows, or is about to",
    "intake.after_commit": "a submit is committed and its response not yet sent",
    "spawn.before_commit": "a running task has written a child",
    "spawn.after_commit": "a child is committed and its parent has no response yet",
    "edges.before_commit": "later edges have been written",
    "edges.after_commit": "later edges are committed and their response not yet sent",
    "artifact.before_commit": "a run has written an artifact",
    "artifact.after_commit": "an artifact is committed and its run has no response yet",
    "wait.before_suspend": "a handler has ended to wait for children and nothing is recorded",
    "cancel.before_commit": "a cancel has moved its rows",
    "cancel.after_commit": "a cancel is committed and its response not yet sent",
    "dead_letter.before_commit": "a dead letter's retry has moved its rows",
    "dead_letter.after_commit": "a dead letter's retry is committed",
    "claim.before_commit": "the gate has claimed tasks",
    "claim.after_commit": "claims are committed and not yet published",
    "publish.after": "every claim of a pass is published",
    "execute.on_message": "a pool process of a worker has received a message",
    "start.before_commit": "a start is about to be committed",
    "start.after_commit": "a start is committed and its handler not yet called",
    "refill.before_commit": "a slot has claimed and started its next bundle itself",
    "refill.after_commit": "a slot's next bundle is committed and no handler called yet",
    "execute.before_handler": "heartbeats are sent and the handler is not yet called",
    "sandbox.before_spawn": "a command's run is recorded and its sandbox not yet made",
    "sandbox.after_spawn": "a command's sandbox runs and nobody watches it yet",
    "execute.after_handler": "the handler has returned and nothing is recorded",
    "settle.before_commit": "the rows of a run's result are written",
    "settle.after_commit": "a run's result is committed and nobody is woken yet",
    "heartbeat.before_commit": "a heartbeat has extended its lease",
    "heartbeat.after_commit": "a heartbeat is committed and its answer not yet read",
    "lease.before_force": "a run is about to be ended by force",
    "lease.after_force": "a run's forced end is recorded and its process still runs",
    "dead_pool_processes.before_settle": "a worker is about to settle claims of a dead process",
    "presence.before_heartbeat": "a worker is about to send its own heartbeat",
    "presence.after_heartbeat": "a worker has sent its own heartbeat",
    "presence.before_leave": "a worker is about to withdraw its slots",
    "sweep.after_lock": "a sweep holds its row and has done nothing yet",
    "sweep.before_end": "a sweep is done and has not recorded it",
    "reap.after_search": "the reaper has found expired claims and settled none",
    "reap.after_commit": "the reaper has settled claims and logged nothing",
    "timeouts.before_kill": "overdue runs are settled and their processes still run",
    "promote.before_commit": "due retries are ready and not committed",
    "promote.after_commit": "due retries are committed",
    "bulk.before_commit": "a chunk of a bulk operation has moved its rows",
    "bulk.after_commit": "a chunk of a bulk operation is committed and the next not started",
    "schedules.after_search": "due schedules are found and none has fired",
    "schedules.before_commit": "a fire time is submitted and not committed",
    "schedules.after_commit": "a fire time is committed and the next schedule not looked at",
    "reset.before_commit": "new billing cycles are written",
    "reset.after_commit": "new billing cycles are committed",
    "audit.after_search": "the audit has found a difference and repaired nothing",
    "beat.before_tick": "beat is about to send a tick",
    "beat.after_tick": "beat has sent a tick",
    "wake.before_publish": "a wake-up is about to be published",
}
_SYNTAX: Final = re.compile(r"(?P<point>[^=]+)=(?P<mode>[^@]+)(?:@(?P<once>.+))?")
_MODE_SYNTAX: Final = re.compile(r"(?P<name>kill|raise|drop)|delay:(?P<seconds>\d+(?:\.\d+)?)")
_log = logging.getLogger(__name__)


class Mode(StrEnum):
    """What an armed point does to the process that passes it."""

    KILL = "kill"
    RAISE = "raise"
    DELAY = "delay"
    DROP = "drop"


class FaultRaised(Exception):
    """The error that a point armed with `raise` raises."""


@dataclass(frozen=True)
class Fault:
    """A fault to inject: the point in the code, and what happens there.

    The fault happens once in each process. With `once` it happens once in all processes: it creates
    that file, and does not happen if the file exists.
    """

    point: str
    mode: Mode
    seconds: float = 0.0
    once: Path | None = None


_armed: dict[str, Fault] = {}
# What the mode `drop` does: the store adds the function that cuts its database connections.
DROP_ACTIONS: list[Callable[[], None]] = []


def fault(point: str) -> None:
    """Fail here if this point is armed."""
    if _armed:
        _apply(point)


def arm(setting: str | None) -> None:
    """Arm exactly the points that the setting names; None arms nothing."""
    _armed.clear()
    if setting is not None:
        _armed.update({armed.point: armed for armed in parse(setting)})


def parse(setting: str) -> list[Fault]:
    """Parse the setting, `point=mode` separated by commas; raise ValueError if it is malformed.

    >>> parse("claim.after_commit=kill")
    [Fault(point='claim.after_commit', mode=<Mode.KILL: 'kill'>, seconds=0.0, once=None)]
    """
    return [_parse_one(part.strip()) for part in setting.split(",")]


def _parse_one(text: str) -> Fault:
    match = _SYNTAX.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a fault: write point=mode or point=mode@file")
    point, once = match["point"], match["once"]
    if point not in POINTS:
        [nearest] = get_close_matches(point, POINTS, n=1, cutoff=0)
        raise ValueError(
            f"{text!r} is not a fault: there is no point {point!r} (nearest: {nearest})"
        )
    mode = _MODE_SYNTAX.fullmatch(match["mode"])
    if mode is None:
        raise ValueError(
            f"{text!r} is not a fault: there is no mode {match['mode']!r};"
            " use kill, raise, drop or delay:SECONDS, such as delay:0.5"
        )
    seconds = float(mode["seconds"] or 0)
    return Fault(point, Mode(mode["name"] or Mode.DELAY), seconds, Path(once) if once else None)


def _apply(point: str) -> None:
    armed = _armed.get(point)
    if armed is None:
        return
    # A point fails once in each process; with a file, once in all processes together.
    del _armed[point]
    if armed.once is not None and not _is_first(armed.once):
        return
    _log.warning("injected fault: %s %s", point, armed.mode.value)
    match armed.mode:
        case Mode.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Mode.RAISE:
            raise FaultRaised(point)
        case Mode.DELAY:
            time.sleep(armed.seconds)
        case Mode.DROP:
            for drop in DROP_ACTIONS:
                drop()


def _is_first(once: Path) -> bool:
    try:
        once.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
