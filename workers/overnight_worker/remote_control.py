"""What a worker does for whoever can publish to Celery's control channel.

Flower can, because it asks the workers for what it shows. So a worker answers questions and
switches events on, and knows none of Celery's commands that change it: no shutdown, no other pool
size, no other queue, no limit. One command ends a run; whoever sends it must know the token of the
run's claim, which only the service does.
"""

import os
import signal
from typing import Final

from celery.worker.control import Panel

from overnight_worker.claim_registry import CLAIM_REGISTRY
from overnight_worker.message import read_claims

# What Flower, the health check of a container and `celery inspect` ask for.
KEPT_COMMANDS: Final = frozenset(
    {
        *("active", "active_queues", "conf", "ping", "registered", "reserved", "revoked"),
        *("scheduled", "stats", "enable_events", "heartbeat"),
    }
)


def restrict_commands() -> None:
    """Make the worker forget every other command of Celery, and learn `end_run`."""
    for name in Panel.data.keys() - KEPT_COMMANDS:
        del Panel.data[name]
    Panel.data["end_run"] = end_run


def end_run(_state: object, task_id: object, epoch: object, token: object) -> None:
    """Kill the pool process that runs a claim; the sender has ended the claim already."""
    for claim in read_claims([[task_id, epoch, token]]):
        process = CLAIM_REGISTRY.process_of(claim)
        if process is not None:
            os.kill(process, signal.SIGKILL)
