"""The beat schedule: Celery's table of all sweeps and their intervals."""

from overnight_server.dispatch.celery_settings import MAINTENANCE_QUEUE
from overnight_server.maintenance.sweeps import SWEEPS
from overnight_server.settings import current

# An older tick is dropped, because the next one is due; long enough for clocks that disagree.
STALE_AFTER_SECONDS = 60

BEAT_SCHEDULE = {
    sweep.purpose: {
        "task": f"sweep.{name}",
        "schedule": sweep.interval(current()),
        "options": {"queue": MAINTENANCE_QUEUE, "expires": STALE_AFTER_SECONDS},
    }
    for name, sweep in SWEEPS.items()
}
