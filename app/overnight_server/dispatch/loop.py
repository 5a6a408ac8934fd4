"""The dispatcher: wake up, fill the free slots, wait for the next call or poll."""

import os
import signal
import socket
import threading
from types import FrameType

from overnight_server.dispatch.fill import OpenPools, fill
from overnight_server.dispatch.publish import BrokerUnreachable, Publisher
from overnight_server.fault_points import arm
from overnight_server.settings import Settings
from overnight_server.store.db import DISPATCHER, DatabaseUnreachable, Db, Timeouts
from overnight_server.telemetry import Event, configure, emit
from overnight_server.wakeups.wake import WakeUpListener

# A lane may only have been locked by a submit: look again soon.
SOON_SECONDS = 0.05
# A server that is gone is asked again without haste.
PATIENCE_SECONDS = 1.0
# One that stands still in the middle of a pass holds its pool, and all who have work there.
STANDSTILL_SECONDS = 3.0


def run(settings: Settings) -> None:
    """Dispatch until SIGTERM or SIGINT; several dispatchers at once take turns on the pools."""
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
        timeouts=Timeouts(trust=1.0, idle=STANDSTILL_SECONDS),
    )
    publisher = Publisher(settings)
    listener = WakeUpListener(settings.redis_url, settings.redis_key_prefix)
    emit(Event.SERVICE_STARTED, role="dispatcher", pid=os.getpid())
    try:
        dispatch(db, publisher, listener, settings, stop)
    finally:
        listener.close()
        publisher.close()
        db.close()
        emit(Event.SERVICE_STOPPED, role="dispatcher", pid=os.getpid())


def dispatch(
    db: Db,
    publisher: Publisher,
    listener: WakeUpListener,
    settings: Settings,
    stop: threading.Event,
) -> None:
    """Fill and wait, until told to stop; an unreachable server is reported once and waited for."""
    holder = f"{socket.gethostname()}:{os.getpid()}:dispatcher"
    pools = OpenPools(db)
    troubled = called = False
    while not stop.is_set():
        try:
            done = fill(db, publisher, settings, holder=holder, pools=pools, broker_answers=called)
        except BrokerUnreachable as error:
            _report_once(Event.BROKER_UNREACHABLE, error, troubled=troubled)
            troubled = True
            stop.wait(PATIENCE_SECONDS)
            continue
        except DatabaseUnreachable as error:
            _report_once(Event.DATABASE_UNREACHABLE, error, troubled=troubled)
            troubled, called = True, False
            stop.wait(PATIENCE_SECONDS)
            continue
        if troubled:
            emit(Event.BROKER_BACK)
            troubled = False
        called = not done.more and listener.wait(settings.poll_interval, stop)
        if done.more and not done.sent:
            stop.wait(SOON_SECONDS)


def _report_once(event: Event, error: Exception, *, troubled: bool) -> None:
    if not troubled:
        emit(event, error=str(error).strip())


def _stop_on_signals(stop: threading.Event) -> None:
    def ask(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
