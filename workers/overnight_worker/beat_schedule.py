"""When each sweep is due: a table, and nothing that decides."""

from overnight_server.dispatch.celery_settings import MAINTENANCE_QUEUE
from overnight_server.settings import current

EVERY = current()
# A tick is worth little once the next is due. Long enough for clocks that disagree by a while.
STALE_AFTER_SECONDS = 60
OPTIONS = {"queue": MAINTENANCE_QUEUE, "expires": STALE_AFTER_SECONDS}

BEAT_SCHEDULE = {
    "reap lost runs": {
        "task": "upkeep.reap",
        "schedule": EVERY.lease_check_interval,
        "options": OPTIONS,
    },
    "end runs that overran": {
        "task": "upkeep.timeouts",
        "schedule": EVERY.timeout_check_interval,
        "options": OPTIONS,
    },
    "promote due retries": {
        "task": "upkeep.promote",
        "schedule": EVERY.promote_interval,
        "options": OPTIONS,
    },
    "let in graphs set off by others": {
        "task": "upkeep.triggers",
        "schedule": EVERY.trigger_interval,
        "options": OPTIONS,
    },
    "let in what programs left": {
        "task": "upkeep.inbox",
        "schedule": EVERY.inbox_interval,
        "options": OPTIONS,
    },
    "go on with bulk operations": {
        "task": "upkeep.bulk",
        "schedule": EVERY.bulk_interval,
        "options": OPTIONS,
    },
    "begin new billing cycles, turn night windows": {
        "task": "upkeep.reset",
        "schedule": EVERY.cycle_check_interval,
        "options": OPTIONS,
    },
    "end tasks past their deadline": {
        "task": "upkeep.deadlines",
        "schedule": EVERY.deadline_check_interval,
        "options": OPTIONS,
    },
    "move tasks forward whose deadline nears": {
        "task": "upkeep.urgency",
        "schedule": EVERY.urgency_interval,
        "options": OPTIONS,
    },
    "dispatch in case nobody does": {
        "task": "upkeep.dispatch",
        "schedule": EVERY.dispatch_tick_interval,
        "options": OPTIONS,
    },
    "compare lanes with their rows": {
        "task": "upkeep.audit",
        "schedule": EVERY.audit_interval,
        "options": OPTIONS,
    },
}
