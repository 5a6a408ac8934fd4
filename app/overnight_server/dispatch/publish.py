"""Publishes claims to Celery's queues; no other module of the service does."""

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
from overnight_server.gate.dispatch_log import (
    log_dispatch,
    log_dispatch_failed,
    log_dispatch_success,
)
from overnight_server.settings import Settings
from overnight_server.telemetry import LogEvent, emit
from overnight_server.wakeups.idle_slot_listener import dismiss_idle_listeners, needs_idle_listener
from overnight_server.wakeups.redis_client import TIMEOUT_SECONDS, fail_fast_client

# Shown as the sender of a message by Celery's tools.
ORIGIN: Final = f"overnight-dispatch@{socket.gethostname()}"


class BrokerUnreachable(Exception):
    """Redis did not answer in time."""


class Publisher:
    """Publishes claims with short timeouts: claims that cannot be sent are released instead."""

    def __init__(self, settings: Settings) -> None:
        configuration = celery_settings(settings, socket_timeout=TIMEOUT_SECONDS)
        self._celery = Celery("overnight-dispatch", set_as_current=False)
        self._celery.conf.update(configuration)
        # Kombu would retry for seconds while the claims wait to be released.
        self._celery.conf.broker_transport_options["max_retries"] = 0
        self._redis = fail_fast_client(str(configuration["broker_url"]))
        self._prefix = settings.redis_key_prefix

    def check(self) -> None:
        """Raise BrokerUnreachable unless Redis answers; called before anything is claimed."""
        try:
            self._redis.ping()
        except redis.RedisError as error:
            raise BrokerUnreachable(str(error)) from error

    def send(self, pool: str, claims: Sequence[Claimed]) -> list[Claimed]:
        """Publish claims in one pipeline, one message per bundle; return those that were not sent.

        An unsent message may have arrived all the same. Releasing its claim is still safe: the
        next claim has another epoch, and the old message will match no row.
        """
        if not claims:
            return []
        tasks = [claimed.claim.task_id for claimed in claims]
        log_dispatch(tasks, pool)
        queue = agent_queue(pool)
        with self._redis.pipeline(transaction=False) as pipeline:
            messages = [_message(bundle, queue) for bundle in group_by_message(claims)]
            pipeline.lpush(self._prefix + queue, *messages)
            dismiss_idle_listeners(pipeline, self._prefix, pool)
            try:
                pipeline.execute()
            except redis.RedisError as error:
                _report_failure(claims, error)
                return list(claims)
        log_dispatch_success(tasks)
        return []

    def request_idle_listener(self, pool: str) -> None:
        """Request that a free slot of the pool becomes an idle listener, unless the pool has one.

        The request is a Celery message without claims; a lost one is sent again by a later pass.
        """
        queue = agent_queue(pool)
        with suppress(redis.RedisError):
            # Most pools have an idle listener, so this usually writes nothing.
            if needs_idle_listener(self._redis, self._prefix, pool, queue):
                self._redis.lpush(self._prefix + queue, _idle_listener_request(queue))

    def terminate(self, claim: Claim) -> None:
        """Have the worker of a run kill its process; best effort.

        The task's new state is already committed, so the run can no longer record a result.
        """
        task_id, epoch, token = _arguments(claim)
        arguments = {"task_id": task_id, "epoch": epoch, "token": token}
        try:
            self._celery.control.broadcast("end_run", arguments=arguments)
        except (OperationalError, redis.RedisError, OSError) as error:
            emit(LogEvent.BROKER_UNREACHABLE, error=str(error))

    def close(self) -> None:
        """Close every connection."""
        self._celery.close()
        self._redis.close()


def group_by_message(claims: Sequence[Claimed]) -> list[list[Claimed]]:
    """Group claims by message: the claims of a bundle together, every other claim alone."""
    messages: dict[UUID, list[Claimed]] = {}
    for claimed in claims:
        messages.setdefault(claimed.bundle or claimed.claim.token, []).append(claimed)
    return list(messages.values())


def message_id(claim: Claim, bundle: UUID | None = None) -> str:
    """Return the Celery id of a claim's message: the task and its epoch, or its bundle."""
    return f"bundle_{bundle}" if bundle else f"{show_task(claim.task_id)}:{claim.epoch}"


def _message(bundle: Sequence[Claimed], queue: str) -> str:
    first = bundle[0]
    return celery_message.message(
        EXECUTE,
        [_arguments(claimed.claim) for claimed in bundle],
        message_id=message_id(first.claim, first.bundle),
        queue=queue,
        display=_display(bundle),
        origin=ORIGIN,
    )


def _idle_listener_request(queue: str) -> str:
    return celery_message.message(
        EXECUTE,
        [],
        message_id=f"idle_{uuid4()}",
        queue=queue,
        display="idle listener",
        origin=ORIGIN,
    )


def _arguments(claim: Claim) -> list[object]:
    return [show_task(claim.task_id), claim.epoch, str(claim.token)]


def _display(bundle: Sequence[Claimed]) -> str:
    """Return what Flower shows of a message: types, ids and users, never payloads or tokens."""
    return ", ".join(
        f"{claimed.type} {show_task(claimed.claim.task_id)} user={claimed.user_id}"
        for claimed in bundle
    )


def _report_failure(claims: Sequence[Claimed], error: Exception) -> None:
    for claimed in claims:
        log_dispatch_failed(
            claimed.claim.task_id,
            str(error),
            attempt=claimed.attempt,
            max_attempts=claimed.max_attempts,
        )
