"""The way to Postgres: connections with a role and time limits, and whole transactions."""

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self, TypeVar, cast

from psycopg2 import Error as PsycopgError
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import (
    DBAPIError,
    DisconnectionError,
    InterfaceError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.pool import ConnectionPoolEntry

from overnight_server.domain.ids import UserId
from overnight_server.store import uuids
from overnight_server.store.after_commit import AfterCommit, WakeUps, collect
from overnight_server.store.batched_statements import Answer, Call, Trip, bring, make, pack
from overnight_server.store.connection_watchdog import WATCHDOG
from overnight_server.store.lazy_begin_connection import Link
from overnight_server.store.statements import prepare_named

# What each role may do stands in the migration's roles.sql and grants.sql.
APP = "overnight_app"
READER = "overnight_reader"
ADMIN = "overnight_admin"
DISPATCHER = "overnight_dispatcher"
GATE = "overnight_gate"

DEADLOCK = "40P01"
SERIALIZATION = "40001"
LOCK_TIMEOUT = "55P03"
# Our statements find rows by key. While a table is small or its statistics are old the planner
# would rather scan it, and go on doing so as it grows. And one plan serves every call.
STEADY_PLANS = {
    f"enable_{way}": "off" for way in ("seqscan", "bitmapscan", "hashjoin", "mergejoin")
} | {"plan_cache_mode": "force_generic_plan"}
WORTH_RETRYING = frozenset({DEADLOCK, SERIALIZATION, LOCK_TIMEOUT})
TRIES = 4
# What a connection's entry in the pool remembers.
LAST_USED = "overnight_last_used"
WATCHED = "overnight_watched"
UNANSWERED = "overnight_unanswered"

T = TypeVar("T")


class DatabaseUnreachable(Exception):
    """Postgres could not be reached, or the connection broke; nothing is known to be written."""


@dataclass(frozen=True)
class Timeouts:
    """How long one connection may make others wait, in seconds."""

    connect: int = 2
    statement: float = 10.0
    lock: float = 5.0
    idle: float = 10.0
    # A connection must answer within this before it is trusted with work, unless it was used
    # within `trust`; then it is enough that the server has not hung up since.
    ping: float = 1.0
    trust: float = 0.25
    # No transaction of ours takes longer; beyond it the server counts as gone.
    silence: float = 20.0


@dataclass(frozen=True)
class Served:
    """Whom transactions serve, and in whose name: the wall lets through that user's rows only."""

    user_id: UserId
    actor: str = ""
    key_id: str = ""


class Db:
    """A pool of connections that all work with one role's rights.

    With the role of the API every transaction stands behind a wall: it finds the rows of the user
    it serves (`acting_for`), and without one, nothing.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        role: str | None = None,
        served: Served | None = None,
        wake_ups: WakeUps | None = None,
    ) -> None:
        self.engine = engine
        self._role = role
        self._served = served
        self._wake_ups = wake_ups

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        role: str | None = APP,
        application_name: str = "overnight",
        pool_size: int = 5,
        timeouts: Timeouts | None = None,
        actor: str | None = None,
        wake_ups: WakeUps | None = None,
    ) -> Self:
        """Prepare a pool; the first connection is opened when it is first needed.

        `actor` is who is recorded for acts that name nobody else. `wake_ups` are sent after
        commits; without them, other processes find the changes when they next poll.
        """
        engine = create_engine(
            driver_url(url),
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_timeout=2,
            # Errors are logged, and parameters are what people sent.
            hide_parameters=True,
            connect_args={
                "connection_factory": Link,
                **connect_args(
                    role=role,
                    application_name=application_name,
                    timeouts=timeouts or Timeouts(),
                    actor=actor,
                ),
            },
        )
        event.listen(engine, "connect", lambda link, _: uuids.teach(link))
        _keep_watch(engine, timeouts or Timeouts())
        prepare_named(engine)
        return cls(engine, role=role, wake_ups=wake_ups)

    def acting_for(self, served: Served) -> Self:
        """Return the same pool, serving one user.

        Other roles than the API's know no walls; for them it only names who is acting.
        """
        return type(self)(self.engine, role=self._role, served=served, wake_ups=self._wake_ups)

    def atomically(
        self,
        work: Callable[[Connection], T],
        *,
        one_instant: bool = False,
        all_users: bool = False,
    ) -> T:
        """Run `work` in one transaction and commit; deadlocks and lost races are tried again.

        `work` may run several times, so it must have no effect but on the database. With
        `one_instant` all its statements see the rows as they were when it began; that is for
        several readings that must agree. `all_users` looks over the walls between users, and may
        change nothing: for forecasts, which depend on everybody's work.
        """
        engine = self.engine
        if one_instant:
            engine = engine.execution_options(isolation_level="REPEATABLE READ")

        def once() -> tuple[T, AfterCommit]:
            with engine.begin() as tx:
                pending = collect(tx)
                self._take_place(tx, all_users=all_users)
                return work(tx), pending

        result, pending = _tried(once)
        pending.send(self._wake_ups)
        return result

    def wake(self) -> None:
        """Wake dispatchers and idle slots now, after a commit that may let a task start."""
        if self._wake_ups is not None:
            self._wake_ups.wake()

    def at_once(self, *calls: Call) -> Sequence[Answer]:
        """Execute named statements as a transaction of one trip; return the rows of the last.

        For what needs no judgement in between. It is tried again as `atomically` does.
        """

        def once() -> Sequence[Answer]:
            with self.engine.connect() as connection:
                return make(connection, pack(connection, *self._place(), *calls))

        return _tried(once)

    @contextmanager
    def standing_by(self) -> Iterator["Standby"]:
        """Hold a connection for a short while, to make trips without losing time.

        If it made none, whoever takes it next asks first whether the server is still there.
        """
        with self.engine.connect() as connection:
            connection.info[UNANSWERED] = True
            yield Standby(connection, self._place())

    def _take_place(self, tx: Connection, *, all_users: bool) -> None:
        """Stand behind the wall of the user who is served, until the transaction ends."""
        if all_users and self._role == APP:
            tx.exec_driver_sql(f"SET LOCAL ROLE {READER}")
        else:
            for call in self._place():
                bring(tx, call)

    def _place(self) -> Sequence[Call]:
        if self._served is None:
            return ()
        named = {name: str(value) for name, value in vars(self._served).items()}
        return (Call("act_for", named),)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


@dataclass(frozen=True)
class Standby:
    """A connection that is held, and what trips on it begin with."""

    connection: Connection
    place: Sequence[Call]

    def pack(self, *calls: Call) -> Trip:
        """Prepare a trip, as `Db.at_once` would make it."""
        return pack(self.connection, *self.place, *calls)

    def make(self, trip: Trip) -> Sequence[Answer]:
        """Make it, and return the rows of its last statement."""
        answer = _tried(lambda: make(self.connection, trip))
        self.connection.info.pop(UNANSWERED, None)
        return answer


def _tried(once: Callable[[], T]) -> T:
    """Run a transaction; deadlocks and lost races are tried again."""
    for attempt in range(1, TRIES + 1):
        try:
            return once()
        except DBAPIError as error:
            if sqlstate(error) in WORTH_RETRYING and attempt < TRIES:
                time.sleep(random.uniform(0.005, 0.05) * attempt)  # noqa: S311 - spreads rivals
                continue
            if is_disconnect(error):
                raise DatabaseUnreachable(str(error.orig)) from error
            raise
        except PsycopgError as error:
            # Lost between the question for life and the first statement.
            raise DatabaseUnreachable(str(error)) from error
        except PoolExhausted as error:
            raise DatabaseUnreachable("every connection is in use") from error
    raise AssertionError("the last try returns or raises")


def _keep_watch(engine: Engine, timeouts: Timeouts) -> None:
    """Check every connection when it is taken from the pool, and bound how long it is used."""

    def take(connection: DBAPIConnection, record: ConnectionPoolEntry, *_: object) -> None:
        link, descriptor = cast("Link", connection), connection.fileno()
        if time.monotonic() - record.info.get(LAST_USED, 0.0) > timeouts.trust:
            ticket = WATCHDOG.watch(descriptor, timeouts.ping)
            try:
                # One that a restarted server dropped is replaced before it is used.
                link.ping()
            except PsycopgError as error:
                WATCHDOG.release(ticket)
                raise DisconnectionError from error
        elif link.has_news():
            raise DisconnectionError
        record.info[WATCHED] = WATCHDOG.watch(descriptor, timeouts.silence)

    def give_back(
        connection: DBAPIConnection | None, record: ConnectionPoolEntry, *_: object
    ) -> None:
        # Also of one that broke: another connection may have its descriptor by now.
        if (ticket := record.info.pop(WATCHED, None)) is not None:
            WATCHDOG.release(ticket)
        is_unanswered = record.info.pop(UNANSWERED, False)
        if connection is not None and not connection.closed and not is_unanswered:
            record.info[LAST_USED] = time.monotonic()

    event.listen(engine, "checkout", take)
    event.listen(engine, "checkin", give_back)
    event.listen(engine, "invalidate", give_back)


def driver_url(url: str) -> str:
    """Name psycopg2 in a Postgres URL, since SQLAlchemy would otherwise look for psycopg 3.

    >>> driver_url("postgres://u:p@h/d")
    'postgresql+psycopg2://u:p@h/d'
    """
    parsed = make_url(url.replace("postgres://", "postgresql://", 1))
    return parsed.set(drivername="postgresql+psycopg2").render_as_string(hide_password=False)


def connect_args(
    *,
    role: str | None,
    application_name: str,
    timeouts: Timeouts | None,
    actor: str | None = None,
) -> Mapping[str, object]:
    """Return what libpq needs so that no connection hangs or works with too many rights."""
    options = {"timezone": "UTC"}
    if role is not None:
        options |= {"role": role, **STEADY_PLANS}
    if actor is not None:
        # What libpq takes for the end of an option is no part of a name.
        options["overnight.actor"] = re.sub(r"[\\\s]", "_", actor)
    if timeouts is not None:
        options["statement_timeout"] = _milliseconds(timeouts.statement)
        options["lock_timeout"] = _milliseconds(timeouts.lock)
        options["idle_in_transaction_session_timeout"] = _milliseconds(timeouts.idle)
    return {
        "application_name": application_name,
        "connect_timeout": timeouts.connect if timeouts else 5,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
        "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
    }


def sqlstate(error: DBAPIError) -> str | None:
    """Return the five-letter code Postgres gave for an error, if it gave one."""
    return getattr(error.orig, "pgcode", None)


def is_disconnect(error: DBAPIError) -> bool:
    """Whether an error means that the server could not be asked at all."""
    if error.connection_invalidated:
        return True
    state = sqlstate(error)
    if state is not None:
        # 08: connection exceptions; 57P0x: the server is going down or starting; 53300: full.
        return state.startswith("08") or state in {"57P01", "57P02", "57P03", "53300"}
    return isinstance(error, OperationalError | InterfaceError)


def _milliseconds(seconds: float) -> str:
    return str(round(seconds * 1000))
