"""Telling the house what died with a process, instead of letting leases run out."""

from collections.abc import Sequence
from datetime import timedelta

from app.domain.claims import Claim
from app.faults import fault
from app.maintenance.reap import end_runs_of_the_dead
from app.outcome.heartbeat import heartbeat
from app.settings import Settings
from app.store.db import Db
from workers.holding import HOLDING
from workers.message import read_claims
from workers.word import say


def report_death(settings: Settings, message: Sequence[object]) -> None:
    """Settle what a dead process had in hand, and let the reaper have the rest of its message.

    A run that was settled before its process ended holds no claim, so this changes nothing.
    """
    fault("obituary.before_word")
    claims = read_claims(message)

    def word(db: Db) -> None:
        settle_estates(db)
        _end_leases(db, claims)

    say(settings, word)


def settle_estates(db: Db) -> None:
    """Settle what processes left that are gone, as far as that has not been said yet."""
    for estate in HOLDING.left_by_the_dead():
        end_runs_of_the_dead(db, estate.claims, handling=estate.handling)


def _end_leases(db: Db, claims: Sequence[Claim]) -> None:
    for claim in claims:
        heartbeat(db, claim, lease=timedelta(0))
