"""The same drain with tasks one at a time (OVERNIGHT_BUNDLE_MAX=1), against raw Celery.

Twice: with slots that go on by themselves, as they do by default, and with every task in a message
of its own (OVERNIGHT_REFILL_SECONDS=0).
"""

from benchmarks.arena import Arena
from benchmarks.asked import Asked
from benchmarks.drain import US, Entry, contest
from benchmarks.ours import known
from benchmarks.outcome import Outcome
from benchmarks.rivals import CELERY, present

BY_MESSAGE = f"{US}, a message each"


def measure(asked: Asked, place: Arena) -> Outcome:
    """Drain with bundles switched off, then without slots that go on, then Celery, in turns."""
    single = known(bundle_max=1)
    ours = [Entry(US, 1, single), Entry(BY_MESSAGE, 1 / 3, single | known(refill_seconds=0))]
    return contest(asked, place, ours, present(asked, [CELERY]))
