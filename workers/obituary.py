"""Telling the house of runs whose process is gone, instead of letting their leases run out."""

from collections.abc import Sequence
from datetime import timedelta

from app.domain.claims import Claim
from app.faults import fault
from app.outcome.heartbeat import heartbeat
from app.settings import Settings
from app.store.db import Db
from workers.message import read_claims
from workers.word import say


def report_death(settings: Settings, message: Sequence[object]) -> None:
    """End the leases of dead runs now; the reaper then judges them as it would have later.

    A run that was settled before its process ended holds no claim, so this changes nothing.
    """
    fault("obituary.before_word")
    claims = read_claims(message)
    if claims:
        say(settings, lambda db: _end_leases(db, claims))


def _end_leases(db: Db, claims: Sequence[Claim]) -> None:
    for claim in claims:
        heartbeat(db, claim, lease=timedelta(0))
