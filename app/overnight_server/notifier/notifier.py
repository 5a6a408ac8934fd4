"""The notifier: a process that sends what is due in the outbox, until it is stopped.

Each message is sent by an asyncio task of its own. A receiver that hangs holds only its own
messages: a channel has a few at once, one whose last message failed has one, and all such channels
together have a share of what each way of sending can do. Mail and services, whose libraries block,
have threads of their own.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Protocol

from overnight_server.domain.delivery_outcomes import (
    Delivered,
    DeliveryRetries,
    NotDelivered,
    Outcome,
    SendInterrupted,
)
from overnight_server.domain.notifications import NotificationKind
from overnight_server.fault_points import arm
from overnight_server.notifier import delivery_rows
from overnight_server.notifier.delivery_rows import DueChannel, Message, Result
from overnight_server.notifier.http_sender import HttpSender
from overnight_server.notifier.mail_sender import MailSender, MailServer
from overnight_server.notifier.report_content import build_morning_report
from overnight_server.notifier.resolver import RESOLVER_THREADS
from overnight_server.notifier.service_sender import MissingSender, open_service_sender
from overnight_server.settings import Settings
from overnight_server.store.db import DISPATCHER, Db, Timeouts
from overnight_server.store.db_threads import RETRY_SECONDS, THREADS, DbThreads
from overnight_server.store.notifications import record_due_reports
from overnight_server.telemetry import LogEvent, configure, emit

# How many messages each way of sending may have in progress.
CAPACITY = {"http": 400, "mail": 16, "service": 8}
WAYS = {"webhook": "http", "slack": "http", "email": "mail", "service": "service"}
# The part of it for channels whose last message failed, which may hang again.
FAILING_PART = 0.25
PER_CHANNEL = 8
CHANNELS_PER_PASS = 50
GIVE_UP_SECONDS = 60.0
REPORTS_AT_ONCE = 500
# A claim outlasts its try by so much, so that no other notifier sends the message meanwhile.
LEASE_MARGIN_SECONDS = 30.0
NO_MAIL = MissingSender("the notifier has no mail server: OVERNIGHT_SMTP_HOST is not set there")


class Sender(Protocol):
    """One way of sending."""

    async def send(self, message: Message) -> Outcome:
        """Send a message, and return what the receiver's answer means."""

    async def close(self) -> None:
        """Close what is open."""


def run(settings: Settings) -> None:
    """Send notifications until SIGTERM or SIGINT."""
    configure(settings.log_format, settings.log_level, "notifier")
    arm(settings.fault)
    if settings.database_url is None:
        raise SystemExit("the notifier needs OVERNIGHT_DATABASE_URL")
    db = Db.connect(
        settings.database_url,
        role=DISPATCHER,
        application_name="overnight-notifier",
        pool_size=THREADS,
        timeouts=Timeouts(trust=1.0),
    )
    emit(LogEvent.SERVICE_STARTED, role="notifier", pid=os.getpid())
    try:
        asyncio.run(_serve(db, settings))
    finally:
        db.close()
        emit(LogEvent.SERVICE_STOPPED, role="notifier", pid=os.getpid())


async def _serve(db: Db, settings: Settings) -> None:
    notifier = Notifier(db, settings)
    loop = asyncio.get_running_loop()
    # Names of hosts are resolved in these threads; some name servers answer slowly.
    loop.set_default_executor(ThreadPoolExecutor(RESOLVER_THREADS))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, notifier.stop)
    await notifier.serve()


def open_senders(settings: Settings) -> dict[str, Sender]:
    """Return the ways of sending that these settings allow."""
    seconds, url = settings.delivery_timeout, settings.url
    server = MailServer.of(settings)
    return {
        "http": HttpSender(seconds=seconds, base_url=url),
        "mail": MailSender(server, seconds=seconds, base_url=url) if server else NO_MAIL,
        "service": open_service_sender(url),
    }


class Notifier:
    """Claims messages, sends them, and records what became of them."""

    def __init__(self, db: Db, settings: Settings) -> None:
        self._threads = DbThreads(db)
        self._settings = settings
        self._policy = DeliveryRetries(
            settings.delivery_max_attempts,
            settings.delivery_retry_delay,
            settings.delivery_retry_max_delay,
        )
        self._lease = 2 * settings.delivery_timeout + LEASE_MARGIN_SECONDS
        self._senders: Mapping[str, Sender] = {}
        self._sending: dict[asyncio.Task[None], tuple[str, bool]] = {}
        self._results: list[Result] = []
        self._stopped = asyncio.Event()
        self._has_news = asyncio.Event()

    def stop(self) -> None:
        """End the notifier soon; what is not answered by then is sent again by the next one."""
        self._stopped.set()
        self._has_news.set()

    async def serve(self) -> None:
        """Send what is due until `stop` is called."""
        self._senders = open_senders(self._settings)
        rare_steps = (
            (self._give_up_old, GIVE_UP_SECONDS),
            (self._record_due_reports, self._settings.notifier_poll_interval),
        )
        rare = [
            asyncio.create_task(self._repeat(step, seconds, self._stopped))
            for step, seconds in rare_steps
        ]
        await self._repeat(self.send_due, self._settings.notifier_poll_interval, self._has_news)
        await asyncio.gather(*rare)
        await self._end()

    async def send_due(self) -> None:
        """Record the results so far, then claim and begin to send what is due."""
        self._has_news.clear()
        await self._record_results()
        channels = await self._threads.call(
            delivery_rows.find_channels,
            self._threads.db,
            kinds=self._free_kinds(is_failing=False),
            failing_kinds=self._free_kinds(is_failing=True),
            per_channel=PER_CHANNEL,
            limit=CHANNELS_PER_PASS,
        )
        for channel in channels:
            if not self._stopped.is_set():
                await self._send_to(channel)
        # Something was sent to these, or there was no place left for it: then they are not found
        # again before a message has ended.
        if len(channels) == CHANNELS_PER_PASS:
            self._has_news.set()

    async def _send_to(self, channel: DueChannel) -> None:
        way = WAYS[channel.kind]
        free = self._free(way, is_failing=channel.is_failing)
        if not free:
            return
        messages = await self._threads.call(
            delivery_rows.claim_messages,
            self._threads.db,
            channel.id,
            limit=free,
            per_channel=PER_CHANNEL,
            lease=self._lease,
        )
        for message in messages:
            task = asyncio.get_running_loop().create_task(self._deliver(way, message))
            self._sending[task] = way, channel.is_failing
            task.add_done_callback(self._sending.pop)

    def _free_kinds(self, *, is_failing: bool) -> list[str]:
        """Return the kinds of channels to which a further message may be sent now."""
        return [kind for kind, way in WAYS.items() if self._free(way, is_failing=is_failing)]

    def _free(self, way: str, *, is_failing: bool) -> int:
        """Return how many further messages may be in progress."""
        used = Counter(self._sending.values())
        free = CAPACITY[way] - used[way, True] - used[way, False]
        if is_failing:
            free = min(free, int(CAPACITY[way] * FAILING_PART) - used[way, True])
        return max(0, free)

    async def _deliver(self, way: str, message: Message) -> None:
        outcome: Outcome = SendInterrupted()
        try:
            built = await self._build(message)
            outcome = await self._senders[way].send(built)
        except Exception as error:  # noqa: BLE001 - the other messages must still be sent
            outcome = NotDelivered(f"it could not be sent: {type(error).__name__}")
            emit(LogEvent.NOTIFIER_STEP_FAILED, error=error)
        finally:
            # Also after a cancel: the next notifier need not wait for the end of the claim.
            self._results.append(Result(message, outcome))
            self._has_news.set()

    async def _build(self, message: Message) -> Message:
        """Return a message; the content of a morning report is built now."""
        if message.kind != NotificationKind.MORNING_REPORT:
            return message
        content = await self._threads.call(
            build_morning_report,
            self._threads.db,
            message.channel.user_id,
            liveness=timedelta(seconds=self._settings.worker_liveness),
            base_url=self._settings.url,
        )
        events = [
            replace(event, detail={**event.detail, **vars(content)}) for event in message.events
        ]
        return replace(message, events=events)

    async def _record_results(self) -> None:
        results, self._results = self._results, []
        ended = await self._threads.call(
            delivery_rows.record_results, self._threads.db, results, self._policy
        )
        for result, end in zip(results, ended, strict=True):
            _log(result, is_final=bool(end.dead))
            if end.is_disabled:
                emit(
                    LogEvent.CHANNEL_DISABLED,
                    channel=result.message.channel.id,
                    error=_error(result.outcome),
                )

    async def _give_up_old(self) -> None:
        await self._threads.call(delivery_rows.give_up_old, self._threads.db)

    async def _record_due_reports(self) -> None:
        db = self._threads.db
        recorded = await self._threads.call(
            db.atomically, partial(record_due_reports, limit=REPORTS_AT_ONCE)
        )
        if recorded:
            self._has_news.set()

    async def _repeat(
        self, step: Callable[[], Awaitable[None]], seconds: float, until: asyncio.Event
    ) -> None:
        """Repeat a step, at once after `until` is set, until the notifier is stopped."""
        while not self._stopped.is_set():
            pause = seconds
            try:
                await step()
            except Exception as error:  # noqa: BLE001 - the next pass may succeed
                emit(LogEvent.NOTIFIER_STEP_FAILED, error=error)
                pause = RETRY_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await until.wait()

    async def _end(self) -> None:
        """Wait for answers a little, and record the results."""
        sending = list(self._sending)
        if sending:
            await asyncio.wait(sending, timeout=self._settings.shutdown_grace)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.shutdown_grace):
                await self._record_results()
        for sender in self._senders.values():
            await sender.close()
        self._threads.close()


def _log(result: Result, *, is_final: bool) -> None:
    message = result.message
    fields = {"channel": message.channel.id, "kind": message.kind, "message": message.id}
    match result.outcome:
        case Delivered(status):
            count = len(message.deliveries)
            emit(LogEvent.NOTIFICATION_SENT, **fields, count=count, status=status)
        case NotDelivered() as failure:
            emit(
                LogEvent.NOTIFICATION_NOT_SENT,
                **fields,
                status=failure.status,
                error=failure.error,
                attempt=message.deliveries[0].attempts + 1,
                final=is_final,
            )
        case SendInterrupted():
            pass


def _error(outcome: Outcome) -> str | None:
    return outcome.error if isinstance(outcome, NotDelivered) else None
