"""Sending claims to Celery: the only place in the service that publishes."""

from collections.abc import Sequence

import redis
from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError

from app.dispatch.celery_settings import DIRECT, EXECUTE, agent_queue, celery_settings
from app.domain.claims import Claim, Claimed
from app.domain.ids import show_task
from app.events.patience import TIMEOUT_SECONDS, impatient
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

    def check(self) -> None:
        """Raise BrokerUnreachable unless Redis answers; asked before anything is claimed."""
        try:
            self._redis.ping()
        except redis.RedisError as error:
            raise BrokerUnreachable(str(error)) from error

    def send(self, pool: str, claims: Sequence[Claimed]) -> list[Claimed]:
        """Publish claims in order; return those that could not be sent.

        One that failed may still have arrived. Giving its claim back is safe all the same: the
        next claim has another epoch, and the old message will match no row.
        """
        for index, claimed in enumerate(claims):
            shown = show_task(claimed.claim.task_id)
            emit(Event.DISPATCH, queue_id=shown, agent=pool)
            try:
                self._send(pool, claimed)
            except (OperationalError, redis.RedisError, OSError) as error:
                emit(
                    Event.DISPATCH_FAILED,
                    queue_id=shown,
                    error=str(error),
                    attempt=f"{claimed.attempt}/{claimed.max_attempts}",
                )
                return list(claims[index:])
            emit(Event.DISPATCH_SUCCESS, queue_id=shown, task_id=shown)
        return []

    def terminate(self, claim: Claim) -> None:
        """Have a run's process killed wherever it is; best effort, the row has moved already."""
        try:
            self._celery.control.revoke(message_id(claim), terminate=True, signal="SIGKILL")
        except (OperationalError, redis.RedisError, OSError) as error:
            emit(Event.BROKER_UNREACHABLE, error=str(error))

    def close(self) -> None:
        """Let go of every connection."""
        self._celery.close()
        self._redis.close()

    def _send(self, pool: str, claimed: Claimed) -> None:
        claim = claimed.claim
        shown = show_task(claim.task_id)
        self._celery.send_task(
            EXECUTE,
            args=[shown, claim.epoch, str(claim.token)],
            task_id=message_id(claim),
            queue=self._queue(pool),
            # What Flower shows: whose task of which type, never its payload or token.
            argsrepr=f"{claimed.type} {shown} user={claimed.user_id}",
            kwargsrepr="{}",
        )

    def _queue(self, pool: str) -> str:
        """Make a pool's queue known to the producer, which declares only its own at first."""
        name = agent_queue(pool)
        if name not in self._celery.amqp.queues:
            self._celery.amqp.queues.add(Queue(name, exchange=DIRECT, routing_key=name))
        return name


def message_id(claim: Claim) -> str:
    """Return the Celery id of a claim's message; it names the task and the epoch."""
    return f"{show_task(claim.task_id)}:{claim.epoch}"
