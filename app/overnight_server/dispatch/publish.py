"""Sending claims to Celery: the only place in the service that publishes."""

import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID, uuid4

import redis
from celery import Celery
from kombu.exceptions import OperationalError

from overnight_server.dispatch import celery_message
from overnight_server.dispatch.celery_settings import EXECUTE, agent_queue, celery_settings
from overnight_server.domain.claims import Claim, Claimed
from overnight_server.domain.ids import show_task
from overnight_server.settings import Settings
from overnight_server.telemetry import Event, emit
from overnight_server.wakeups.idle_slot_listener import dismiss_idle_listeners, needs_idle_listener
from overnight_server.wakeups.redis_client import TIMEOUT_SECONDS, fail_fast_client

# Who sent a message, for those who look at it.
ORIGIN: Final = f"overnight-dispatch@{socket.gethostname()}"


class BrokerUnreachable(Exception):
    """Redis did not answer in time."""


class Publisher:
    """A producer with short patience: claims it cannot send are better given back."""

    def __init__(self, settings: Settings) -> None:
        configuration = celery_settings(settings, patience=TIMEOUT_SECONDS)
        self._celery = Celery("overnight-dispatch", set_as_current=False)
        self._celery.conf.update(configuration)
        # Kombu would try to connect for seconds more, while the claims wait to be given back.
        self._celery.conf.broker_transport_options["max_retries"] = 0
        self._redis = fail_fast_client(str(configuration["broker_url"]))
        self._prefix = settings.redis_key_prefix

    def check(self) -> None:
        """Raise BrokerUnreachable unless Redis answers; asked before anything is claimed."""
        try:
            self._redis.ping()
        except redis.RedisError as error:
            raise BrokerUnreachable(str(error)) from error

    def send(self, pool: str, claims: Sequence[Claimed]) -> list[Claimed]:
        """Publish claims, a bundle to a message, all at once; return those that were not sent.

        They may still have arrived. Giving them back is safe all the same: the next claim has
        another epoch, and the old message will match no row.
        """
        if not claims:
            return []
        for claimed in claims:
            emit(Event.DISPATCH, queue_id=show_task(claimed.claim.task_id), agent=pool)
        queue = agent_queue(pool)
        with self._redis.pipeline(transaction=False) as trip:
            trip.lpush(self._prefix + queue, *(_written(one, queue) for one in bundled(claims)))
            dismiss_idle_listeners(trip, self._prefix, pool)
            try:
                trip.execute()
            except redis.RedisError as error:
                _report_failure(claims, error)
                return list(claims)
        for claimed in claims:
            shown = show_task(claimed.claim.task_id)
            emit(Event.DISPATCH_SUCCESS, queue_id=shown, task_id=shown)
        return []

    def invite(self, pool: str) -> None:
        """Have a free slot of a pool listen, unless one does; a lost word only lets it come later.

        To Celery it is a message like others, but one without claims.
        """
        queue = agent_queue(pool)
        with suppress(redis.RedisError):
            # Mostly somebody listens, and nothing has to be written.
            if needs_idle_listener(self._redis, self._prefix, pool, queue):
                self._redis.lpush(self._prefix + queue, _invitation(queue))

    def terminate(self, claim: Claim, bundle: UUID | None = None) -> None:
        """Have a run's process killed wherever it is; best effort, the row has moved already."""
        try:
            self._celery.control.revoke(message_id(claim, bundle), terminate=True, signal="SIGKILL")
        except (OperationalError, redis.RedisError, OSError) as error:
            emit(Event.BROKER_UNREACHABLE, error=str(error))

    def close(self) -> None:
        """Let go of every connection."""
        self._celery.close()
        self._redis.close()


def bundled(claims: Sequence[Claimed]) -> list[list[Claimed]]:
    """Sort claims into messages: the members of a bundle together, everyone else alone."""
    messages: dict[UUID, list[Claimed]] = {}
    for claimed in claims:
        messages.setdefault(claimed.bundle or claimed.claim.token, []).append(claimed)
    return list(messages.values())


def message_id(claim: Claim, bundle: UUID | None = None) -> str:
    """Return the Celery id of a claim's message: the task and its epoch, or its bundle."""
    return f"bundle_{bundle}" if bundle else f"{show_task(claim.task_id)}:{claim.epoch}"


def _written(bundle: Sequence[Claimed], queue: str) -> str:
    first = bundle[0]
    return celery_message.message(
        EXECUTE,
        [_triple(claimed.claim) for claimed in bundle],
        message_id=message_id(first.claim, first.bundle),
        queue=queue,
        shown=_shown(bundle),
        origin=ORIGIN,
    )


def _invitation(queue: str) -> str:
    return celery_message.message(
        EXECUTE,
        [],
        message_id=f"linger_{uuid4()}",
        queue=queue,
        shown="listens for quick work",
        origin=ORIGIN,
    )


def _triple(claim: Claim) -> list[object]:
    return [show_task(claim.task_id), claim.epoch, str(claim.token)]


def _shown(bundle: Sequence[Claimed]) -> str:
    """Say for Flower whose tasks of which type travel here; never their payload or token."""
    return ", ".join(
        f"{one.type} {show_task(one.claim.task_id)} user={one.user_id}" for one in bundle
    )


def _report_failure(claims: Sequence[Claimed], error: Exception) -> None:
    for claimed in claims:
        emit(
            Event.DISPATCH_FAILED,
            queue_id=show_task(claimed.claim.task_id),
            error=str(error),
            attempt=f"{claimed.attempt}/{claimed.max_attempts}",
        )
