"""Telling the house of runs whose process is gone, instead of letting their leases run out."""

from collections.abc import Sequence
from datetime import timedelta

from app.outcome.heartbeat import heartbeat
from app.settings import Settings
from workers.message import read_claim
from workers.word import say


def report_death(settings: Settings, message: Sequence[object]) -> None:
    """End the lease of a dead run now; the reaper then judges it as it would have later.

    A run that was settled before its process ended holds no claim, so this changes nothing.
    """
    claim = read_claim(message)
    if claim is not None:
        say(settings, lambda db: heartbeat(db, claim, lease=timedelta(0)))
