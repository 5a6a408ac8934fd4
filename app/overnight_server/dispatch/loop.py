"""The dispatcher: it fills free slots whenever it is woken, and at every poll."""

import os
import signal
import socket
import threading
from types import FrameType

from overnight_server.dispatch.fill import OpenPools, fill
from overnight_server.dispatch.publish import BrokerUnreachable, Publisher
from overnight_server.dispatch.ready_notice import ReadyNotice
from overnight_server.fault_points import arm
from overnight_server.settings import Settings
from overnight_server.store.db import DATABASE_ERRORS, DISPATCHER, Db, Timeouts
from overnight_server.telemetry import LogEvent, Outage, configure, emit
from overnight_server.wakeups.wake import WakeUpListener

# A submit may have locked the lane only for a moment, so the next pass comes soon.
LOCKED_LANE_SECONDS = 0.05
# The pause between two tries while Redis does not answer or Postgres fails.
RETRY_SECONDS = 1.0
# A dispatcher that hangs in the middle of a pass holds the lock of its pool for at most this long.
IDLE_TRANSACTION_SECONDS = 3.0


def run(settings: Settings) -> None:
    """Dispatch until SIGTERM or SIGINT; several dispatchers exclude each other by pool locks."""
    configure(settings.log_format, settings.log_level, "dispatcher")
    arm(settings.fault)
    stop = threading.Event()
    _stop_on_signals(stop)
    if settings.database_url is None or settings.redis_url is None:
        raise SystemExit("the dispatcher needs OVERNIGHT_DATABASE_URL and OVERNIGHT_REDIS_URL")
    db = Db.connect(
        settings.database_url,
        role=DISPATCHER,
        application_name="overnight-dispatcher",
        pool_size=2,
        timeouts=Timeouts(trust=1.0, idle=IDLE_TRANSACTION_SECONDS),
    )
    publisher = Publisher(settings)
    listener = WakeUpListener(settings.redis_url, settings.redis_key_prefix)
    emit(LogEvent.SERVICE_STARTED, role="dispatcher", pid=os.getpid())
    try:
        dispatch(db, publisher, listener, settings, stop)
    finally:
        listener.close()
        publisher.close()
        db.close()
        emit(LogEvent.SERVICE_STOPPED, role="dispatcher", pid=os.getpid())


def dispatch(
    db: Db,
    publisher: Publisher,
    listener: WakeUpListener,
    settings: Settings,
    stop: threading.Event,
) -> None:
    """Fill free slots until `stop` is set; the begin and the end of an outage are logged once."""
    holder = f"{socket.gethostname()}:{os.getpid()}:dispatcher"
    pools = OpenPools(db)
    broker = Outage(LogEvent.BROKER_UNREACHABLE, LogEvent.BROKER_BACK)
    database = Outage(LogEvent.DATABASE_UNREACHABLE, LogEvent.DATABASE_BACK)
    ready_notice = ReadyNotice(db)
    was_woken = False
    while not stop.is_set():
        try:
            filled = fill(
                db, publisher, settings, holder=holder, pools=pools, broker_answers=was_woken
            )
            notice_due_in = ready_notice.send()
        except BrokerUnreachable as error:
            broker.begin(error)
            stop.wait(RETRY_SECONDS)
            continue
        except DATABASE_ERRORS as error:
            # Redis answered before Postgres failed.
            broker.end()
            database.begin(error)
            was_woken = False
            stop.wait(RETRY_SECONDS)
            continue
        broker.end()
        database.end()
        # A notice that this pass could not send yet must not wait for the next poll.
        seconds = min(settings.poll_interval, notice_due_in or settings.poll_interval)
        was_woken = not filled.more and listener.wait(seconds, stop)
        if filled.more and not filled.sent:
            stop.wait(LOCKED_LANE_SECONDS)


def _stop_on_signals(stop: threading.Event) -> None:
    def request_stop(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, request_stop)
    signal.signal(signal.SIGINT, request_stop)
