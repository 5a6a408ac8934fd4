"""The same drain with one message per task (OVERNIGHT_BUNDLE_MAX=1), against raw Celery."""

from dataclasses import replace

from benchmarks.arena import Arena
from benchmarks.asked import Asked
from benchmarks.drain import contest
from benchmarks.ours import known
from benchmarks.outcome import Outcome
from benchmarks.rivals import CELERY, present


def measure(asked: Asked, place: Arena) -> Outcome:
    """Drain with bundles switched off."""
    single = replace(asked, settings={**asked.settings, **known(bundle_max=1)})
    return contest(single, place, ours_weight=1, against=present(asked, [CELERY]))
