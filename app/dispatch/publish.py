"""Sending claims to Celery: the only place in the service that publishes."""

from collections.abc import Sequence
from uuid import UUID

import redis
from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError

from app.dispatch.celery_settings import DIRECT, EXECUTE, agent_queue, celery_settings
from app.domain.claims import Claim, Claimed
from app.domain.ids import show_task
from app.events.lingering import send_off
from app.events.patience import TIMEOUT_SECONDS, impatient
from app.faults import fault
from app.settings import Settings
from app.telemetry import Event, emit


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
        self._redis = impatient(str(configuration["broker_url"]))
        self._prefix = settings.redis_key_prefix

    def check(self) -> None:
        """Raise BrokerUnreachable unless Redis answers; asked before anything is claimed."""
        try:
            self._redis.ping()
        except redis.RedisError as error:
            raise BrokerUnreachable(str(error)) from error

    def send(self, pool: str, claims: Sequence[Claimed]) -> list[Claimed]:
        """Publish claims, a bundle to a message; return those that could not be sent.

        One that failed may still have arrived. Giving its claim back is safe all the same: the
        next claim has another epoch, and the old message will match no row.
        """
        if not claims:
            return []
        messages = bundled(claims)
        for index, message in enumerate(messages):
            try:
                self._send(pool, message)
            except (OperationalError, redis.RedisError, OSError) as error:
                _report_failure(message, error)
                return [claimed for unsent in messages[index:] for claimed in unsent]
            for claimed in message:
                shown = show_task(claimed.claim.task_id)
                emit(Event.DISPATCH_SUCCESS, queue_id=shown, task_id=shown)
            fault("publish.between")
        self._send_off(pool)
        return []

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

    def _send(self, pool: str, message: Sequence[Claimed]) -> None:
        for claimed in message:
            emit(Event.DISPATCH, queue_id=show_task(claimed.claim.task_id), agent=pool)
        first = message[0]
        self._celery.send_task(
            EXECUTE,
            args=[_triple(claimed.claim) for claimed in message],
            task_id=message_id(first.claim, first.bundle),
            queue=self._queue(pool),
            argsrepr=_shown(message),
            kwargsrepr="{}",
        )

    def _send_off(self, pool: str) -> None:
        try:
            send_off(self._redis, self._prefix, pool)
        except redis.RedisError as error:
            emit(Event.WAKE_UP_FAILED, error=str(error))

    def _queue(self, pool: str) -> str:
        """Make a pool's queue known to the producer, which declares only its own at first."""
        name = agent_queue(pool)
        if name not in self._celery.amqp.queues:
            self._celery.amqp.queues.add(Queue(name, exchange=DIRECT, routing_key=name))
        return name


def bundled(claims: Sequence[Claimed]) -> list[list[Claimed]]:
    """Sort claims into messages: the members of a bundle together, everyone else alone."""
    messages: dict[UUID, list[Claimed]] = {}
    for claimed in claims:
        messages.setdefault(claimed.bundle or claimed.claim.token, []).append(claimed)
    return list(messages.values())


def message_id(claim: Claim, bundle: UUID | None = None) -> str:
    """Return the Celery id of a claim's message: the task and its epoch, or its bundle."""
    return f"bundle_{bundle}" if bundle else f"{show_task(claim.task_id)}:{claim.epoch}"


def _triple(claim: Claim) -> list[object]:
    return [show_task(claim.task_id), claim.epoch, str(claim.token)]


def _shown(message: Sequence[Claimed]) -> str:
    """Say for Flower whose tasks of which type travel here; never their payload or token."""
    return ", ".join(
        f"{one.type} {show_task(one.claim.task_id)} user={one.user_id}" for one in message
    )


def _report_failure(message: Sequence[Claimed], error: Exception) -> None:
    for claimed in message:
        emit(
            Event.DISPATCH_FAILED,
            queue_id=show_task(claimed.claim.task_id),
            error=str(error),
            attempt=f"{claimed.attempt}/{claimed.max_attempts}",
        )
