"""What a worker does for whoever can publish to Celery's control channel.

Flower can, because it requests what it shows from the workers. So a worker accepts read commands
and switches events on, and knows none of Celery's commands that change it: no shutdown, no other
pool size, no other queue, no limit. One command ends a run; its sender must know the token of the
run's claim. The arguments of messages contain these tokens, so no command returns arguments.
"""

import os
import signal
from collections.abc import Iterable, Mapping
from typing import Final

from celery.worker.control import Panel
from celery.worker.request import Request
from celery.worker.state import active_requests, reserved_requests

from overnight_worker.claim_registry import CLAIM_REGISTRY
from overnight_worker.message import read_claims

# What Flower, the health check of a container and `celery inspect` ask for.
KEPT_COMMANDS: Final = frozenset(
    {
        *("active_queues", "conf", "ping", "registered", "revoked", "stats"),
        *("enable_events", "heartbeat"),
    }
)


def restrict_commands() -> None:
    """Remove every other command of Celery from the worker, and add those of this module."""
    for name in Panel.data.keys() - KEPT_COMMANDS:
        del Panel.data[name]
    for command in (active, reserved, scheduled, end_run):
        Panel.data[command.__name__] = command


def active(_state: object, **_options: object) -> list[Mapping[str, object]]:
    """Return the messages that pool processes carry out, without their arguments."""
    return _descriptions(active_requests)


def reserved(_state: object, **_options: object) -> list[Mapping[str, object]]:
    """Return the messages that wait for a pool process, without their arguments."""
    return _descriptions(set(reserved_requests) - set(active_requests))


def scheduled(_state: object, **_options: object) -> list[Mapping[str, object]]:
    """Return no message: a worker drops those with a later start."""
    return []


def _descriptions(requests: Iterable[Request]) -> list[Mapping[str, object]]:
    return [request.info(safe=True) for request in requests]


def end_run(_state: object, task_id: object, epoch: object, token: object) -> None:
    """Kill the pool process that runs a claim; the sender has ended the claim already."""
    for claim in read_claims([[task_id, epoch, token]]):
        process = CLAIM_REGISTRY.process_of(claim)
        if process is not None:
            os.kill(process, signal.SIGKILL)
