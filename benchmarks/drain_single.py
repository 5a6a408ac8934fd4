"""The same drain with tasks one at a time (OVERNIGHT_BUNDLE_MAX=1), against raw Celery.

Twice: with slots that go on by themselves, as they do by default, and with every task in a message
of its own (OVERNIGHT_REFILL_SECONDS=0).
"""

from dataclasses import replace

from benchmarks.arena import Arena
from benchmarks.asked import Asked
from benchmarks.drain import US, contest, drain_ours
from benchmarks.ours import known
from benchmarks.outcome import Outcome
from benchmarks.rivals import CELERY, present

BY_MESSAGE = "overnight, a message each"
BY_MESSAGE_JOBS = 1000


def measure(asked: Asked, place: Arena) -> Outcome:
    """Drain with bundles switched off."""
    single = replace(asked, settings={**asked.settings, **known(bundle_max=1)})
    outcome = contest(single, place, ours_weight=1, against=present(asked, [CELERY]))
    if asked.wants(US):
        jobs = asked.choose(100, BY_MESSAGE_JOBS)
        rate = drain_ours(place, jobs, {**single.settings, **known(refill_seconds=0)})
        outcome.figure(BY_MESSAGE, "drain", "jobs/s", [rate])
    return outcome
