"""The beat schedule: how often each sweep runs."""

from overnight_server.dispatch.celery_settings import MAINTENANCE_QUEUE
from overnight_server.settings import current

SETTINGS = current()
# An older tick is dropped, because the next one is due; long enough for clocks that disagree.
STALE_AFTER_SECONDS = 60
OPTIONS = {"queue": MAINTENANCE_QUEUE, "expires": STALE_AFTER_SECONDS}

BEAT_SCHEDULE = {
    "reap lost runs": {
        "task": "upkeep.reap",
        "schedule": SETTINGS.lease_check_interval,
        "options": OPTIONS,
    },
    "end runs that overran": {
        "task": "upkeep.timeouts",
        "schedule": SETTINGS.timeout_check_interval,
        "options": OPTIONS,
    },
    "promote due retries": {
        "task": "upkeep.promote",
        "schedule": SETTINGS.promote_interval,
        "options": OPTIONS,
    },
    "insert graphs whose trigger is due": {
        "task": "upkeep.triggers",
        "schedule": SETTINGS.trigger_interval,
        "options": OPTIONS,
    },
    "insert tasks from the inbox table": {
        "task": "upkeep.inbox",
        "schedule": SETTINGS.inbox_interval,
        "options": OPTIONS,
    },
    "continue bulk operations": {
        "task": "upkeep.bulk",
        "schedule": SETTINGS.bulk_interval,
        "options": OPTIONS,
    },
    "start billing cycles, refresh night windows": {
        "task": "upkeep.reset",
        "schedule": SETTINGS.cycle_check_interval,
        "options": OPTIONS,
    },
    "end tasks past their deadline": {
        "task": "upkeep.deadlines",
        "schedule": SETTINGS.deadline_check_interval,
        "options": OPTIONS,
    },
    "raise the priority of tasks near their deadline": {
        "task": "upkeep.urgency",
        "schedule": SETTINGS.urgency_interval,
        "options": OPTIONS,
    },
    "dispatch if no dispatcher runs": {
        "task": "upkeep.dispatch",
        "schedule": SETTINGS.dispatch_tick_interval,
        "options": OPTIONS,
    },
    "compare lanes with their rows": {
        "task": "upkeep.audit",
        "schedule": SETTINGS.audit_interval,
        "options": OPTIONS,
    },
}
