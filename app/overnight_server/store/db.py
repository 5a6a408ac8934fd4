"""Connections to Postgres with a role and timeouts; transactions that are retried as a whole."""

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.pool import ConnectionPoolEntry

from overnight.errors import Unauthenticated
from overnight_server.domain.ids import UserId
from overnight_server.store import uuids
from overnight_server.store.after_commit import AfterCommit, WakeUps, collect
from overnight_server.store.batched_statements import (
    PackedBatch,
    ResultRow,
    StatementCall,
    pack_batch,
    prepend_call,
    prepend_sql,
    send_batch,
)
from overnight_server.store.connection_watchdog import WATCHDOG
from overnight_server.store.database_clock import DATABASE_CLOCK
from overnight_server.store.lazy_begin_connection import LazyBeginConnection
from overnight_server.store.sqlstates import find_passing
from overnight_server.store.statements import PLANS, prepare_named

# The migration's SQL files define what each role may do.
APP = "overnight_app"
READER = "overnight_reader"
ADMIN = "overnight_admin"
DISPATCHER = "overnight_dispatcher"
GATE = "overnight_gate"

#: Raised by the function `check_key`.
KEY_NOT_VALID = "OV001"
# Statements find rows by key. For a small table or with old statistics the planner would choose
# a scan and keep it in the prepared plan while the table grows. One generic plan serves every call.
PLANNER_OPTIONS = {
    f"enable_{method}": "off" for method in ("seqscan", "bitmapscan", "hashjoin", "mergejoin")
} | {"plan_cache_mode": "force_generic_plan"}
#: The parameter of a database URL that names a pooler before Postgres.
POOLER = "pooler"
MAX_TRIES = 4
# Keys in the `info` of a pooled connection.
LAST_USED = "overnight_last_used"
WATCH = "overnight_watch"
UNUSED = "overnight_unused"

T = TypeVar("T")


class DatabaseUnreachable(Exception):
    """Postgres is unreachable or the connection broke; whether the write happened is not known."""


#: What any use of the database may raise. A long-lived process reports it and tries again later.
DATABASE_ERRORS = (DatabaseUnreachable, SQLAlchemyError)


@dataclass(frozen=True)
class Timeouts:
    """Time limits of a connection, in seconds."""

    connect: int = 2
    statement: float = 10.0
    lock: float = 5.0
    idle: float = 10.0
    # A pooled connection must answer an empty query within `ping` before it is used. If it was used
    # less than `trust` ago, it is only checked whether the server has closed it.
    ping: float = 1.0
    trust: float = 0.25
    # A connection in use for longer is closed: the server no longer responds.
    silence: float = 20.0


@dataclass(frozen=True)
class ActingUser:
    """The user for whom transactions run: row-level security shows only that user's rows.

    `actor` and `key_id` are recorded in events and in the audit log. With `checks_key` every
    transaction raises Unauthenticated unless the key is still valid. `traceparent` is the trace
    context of new tasks.
    """

    user_id: UserId
    actor: str = ""
    key_id: str = ""
    checks_key: bool = False
    traceparent: str = ""


class Db:
    """A pool of connections that all use one database role.

    With the API's role, row-level security applies: a transaction sees the rows of the user that
    `acting_for` names, and no rows at all without one.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        role: str | None = None,
        acting_user: ActingUser | None = None,
        wake_ups: WakeUps | None = None,
    ) -> None:
        self.engine = engine
        self._role = role
        self._acting_user = acting_user
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
        """Create a pool; connections are opened when they are first needed.

        `actor` is recorded in events of transactions that set no other actor. `wake_ups` are sent
        after commits; without them, other processes find the changes when they next poll.
        """
        options = session_options(role=role, timeouts=timeouts or Timeouts(), actor=actor)
        is_pooled = has_pooler(url)
        engine = create_engine(
            driver_url(url),
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_timeout=2,
            # Errors are logged, and parameters hold what users sent.
            hide_parameters=True,
            connect_args={
                "connection_factory": partial(
                    LazyBeginConnection, transaction_options=options if is_pooled else None
                ),
                **connect_args(
                    application_name, timeouts or Timeouts(), {} if is_pooled else options
                ),
            },
        )
        event.listen(engine, "connect", lambda connection, _: uuids.register_uuid_types(connection))
        _check_and_watch(engine, timeouts or Timeouts())
        if not is_pooled:
            prepare_named(engine)
        return cls(engine, role=role, wake_ups=wake_ups)

    def acting_for(self, user: ActingUser) -> Self:
        """Return a new `Db` on the same connections, whose transactions act for one user.

        Row-level security restricts only the API's role; for other roles this only sets the actor.
        """
        return type(self)(self.engine, role=self._role, acting_user=user, wake_ups=self._wake_ups)

    def atomically(
        self,
        work: Callable[[Connection], T],
        *,
        one_instant: bool = False,
        all_users: bool = False,
    ) -> T:
        """Run `work` in one transaction, commit, and return its result.

        After a deadlock, serialization failure or lock timeout the whole transaction is repeated,
        so `work` must have no effects outside the database. With `one_instant` all statements
        share one snapshot (REPEATABLE READ). With `all_users` the API's role may read, but not
        change, the rows of all users; forecasts need that. Raises `DatabaseUnreachable`.
        """
        engine = self.engine
        if one_instant:
            engine = engine.execution_options(isolation_level="REPEATABLE READ")

        def transaction() -> tuple[T, AfterCommit]:
            with engine.begin() as tx:
                pending = collect(tx)
                self._set_acting_user(tx, all_users=all_users)
                return work(tx), pending

        result, pending = _with_retries(transaction)
        pending.send(self._wake_ups)
        return result

    def wake(self) -> None:
        """Wake dispatchers and idle slots now, after a commit that may let a task start."""
        if self._wake_ups is not None:
            self._wake_ups.wake()

    def run_batch(self, *calls: StatementCall) -> Sequence[ResultRow]:
        """Execute statements as one transaction in one round trip; return the rows of the last one.

        It is repeated as in `atomically`.
        """

        def transaction() -> Sequence[ResultRow]:
            with self.engine.connect() as connection:
                batch = pack_batch(connection, *self._acting_user_calls(), *calls)
                return send_batch(connection, batch)

        return _with_retries(transaction)

    @contextmanager
    def reserve_connection(self) -> Iterator["ReservedConnection"]:
        """Take a connection from the pool in advance, so that a later batch starts without delay.

        If no batch is sent, the next user of the connection pings the server first.
        """
        with self.engine.connect() as connection:
            connection.info[UNUSED] = True
            yield ReservedConnection(connection, self._acting_user_calls())

    def _set_acting_user(self, tx: Connection, *, all_users: bool) -> None:
        """Apply row-level security for the acting user until the transaction ends."""
        for call in self._acting_user_calls():
            prepend_call(tx, call)
        if all_users and self._role == APP:
            prepend_sql(tx, b"SET LOCAL ROLE " + READER.encode())

    def _acting_user_calls(self) -> Sequence[StatementCall]:
        if self._acting_user is None:
            return ()
        user_id, actor, key_id, checks_key, traceparent = vars(self._acting_user).values()
        params = {"user_id": str(user_id), "actor": actor, "key_id": key_id}
        calls = [StatementCall("set_acting_user", params)]
        if traceparent:
            calls.append(StatementCall("set_traceparent", {"traceparent": traceparent}))
        if checks_key:
            calls.append(StatementCall("check_key", {"key_id": key_id, "user_id": user_id}))
        return calls

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


@dataclass(frozen=True)
class ReservedConnection:
    """A connection taken from the pool in advance; `first_calls` precede every batch."""

    connection: Connection
    first_calls: Sequence[StatementCall]

    def pack(self, *calls: StatementCall) -> PackedBatch:
        """Fill in the values of a batch that `send` will execute."""
        return pack_batch(self.connection, *self.first_calls, *calls)

    def send(self, batch: PackedBatch) -> Sequence[ResultRow]:
        """Execute a batch as a transaction; return the rows of its last statement."""
        rows = _with_retries(lambda: send_batch(self.connection, batch))
        self.connection.info.pop(UNUSED, None)
        return rows


def _with_retries(transaction: Callable[[], T]) -> T:
    """Run a transaction; repeat it after a deadlock or lock timeout, or with plans made anew."""
    for attempt in range(1, MAX_TRIES + 1):
        try:
            return transaction()
        except DBAPIError as error:
            passing = find_passing(sqlstate(error))
            repeats = passing is not None and passing.repeats
            if (PLANS.renew_after(error.orig) or repeats) and attempt < MAX_TRIES:
                time.sleep(random.uniform(0.005, 0.05) * attempt)  # noqa: S311 - not cryptographic
                continue
            if sqlstate(error) == KEY_NOT_VALID:
                raise Unauthenticated from error
            if is_disconnect(error):
                raise DatabaseUnreachable(str(error.orig)) from error
            raise
        except PsycopgError as error:
            # The connection broke between the ping and the first statement.
            raise DatabaseUnreachable(str(error)) from error
        except PoolExhausted as error:
            raise DatabaseUnreachable("every connection is in use") from error
    raise AssertionError("unreachable: the last attempt returns or raises")


def _check_and_watch(engine: Engine, timeouts: Timeouts) -> None:
    """Check each connection when it is taken from the pool, and limit how long it is in use."""

    def on_checkout(connection: DBAPIConnection, record: ConnectionPoolEntry, *_: object) -> None:
        lazy, descriptor = cast("LazyBeginConnection", connection), connection.fileno()
        if time.monotonic() - record.info.get(LAST_USED, 0.0) > timeouts.trust:
            watch = WATCHDOG.watch(descriptor, timeouts.ping)
            try:
                # After DisconnectionError SQLAlchemy opens a new connection instead.
                sent_at = time.monotonic()
                DATABASE_CLOCK.observe(lazy.ping(), sent_at, time.monotonic())
            except PsycopgError as error:
                WATCHDOG.release(watch)
                raise DisconnectionError from error
        elif lazy.has_unread_data():
            raise DisconnectionError
        record.info[WATCH] = WATCHDOG.watch(descriptor, timeouts.silence)

    def on_checkin(
        connection: DBAPIConnection | None, record: ConnectionPoolEntry, *_: object
    ) -> None:
        # Also for a broken connection: another one may already have the same file descriptor.
        if (watch := record.info.pop(WATCH, None)) is not None:
            WATCHDOG.release(watch)
        is_unused = record.info.pop(UNUSED, False)
        if connection is not None and not connection.closed and not is_unused:
            record.info[LAST_USED] = time.monotonic()

    event.listen(engine, "checkout", on_checkout)
    event.listen(engine, "checkin", on_checkin)
    event.listen(engine, "invalidate", on_checkin)


def driver_url(url: str) -> str:
    """Return a Postgres URL that names psycopg2; SQLAlchemy would otherwise use psycopg 3.

    >>> driver_url("postgres://u:p@h/d?pooler=transaction")
    'postgresql+psycopg2://u:p@h/d'
    """
    parsed = make_url(url.replace("postgres://", "postgresql://", 1))
    driver = parsed.set(drivername="postgresql+psycopg2").difference_update_query([POOLER])
    return driver.render_as_string(hide_password=False)


def has_pooler(url: str) -> bool:
    """Return whether a URL ends in `?pooler=transaction`: a pooler that keeps no sessions.

    Raises ValueError for another value.
    """
    mode = make_url(url).query.get(POOLER)
    if mode not in {None, "transaction"}:
        raise ValueError(f"the address of the database has pooler={mode}; legal: transaction")
    return mode is not None


def session_options(
    *, role: str | None, timeouts: Timeouts | None, actor: str | None = None
) -> dict[str, str]:
    """Return the options of a session: UTC, the role with its planner options, actor, timeouts."""
    options = {"timezone": "UTC"}
    if role is not None:
        options |= {"role": role, **PLANNER_OPTIONS}
    if actor is not None:
        # libpq would take a blank or backslash for the end of the option.
        options["overnight.actor"] = re.sub(r"[\\\s]", "_", actor)
    if timeouts is not None:
        options["statement_timeout"] = _milliseconds(timeouts.statement)
        options["lock_timeout"] = _milliseconds(timeouts.lock)
        options["idle_in_transaction_session_timeout"] = _milliseconds(timeouts.idle)
    return options


def connect_args(
    application_name: str, timeouts: Timeouts | None, options: Mapping[str, str]
) -> Mapping[str, object]:
    """Return libpq's parameters: application name, timeouts, keepalives, and session options."""
    sent = {"options": " ".join(f"-c {name}={value}" for name, value in options.items())}
    return {
        "application_name": application_name,
        "connect_timeout": timeouts.connect if timeouts else 5,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
        **(sent if options else {}),
    }


def sqlstate(error: DBAPIError) -> str | None:
    """Return the five-character SQLSTATE code of an error, or None if Postgres sent none."""
    return getattr(error.orig, "pgcode", None)


def is_transient(error: Exception) -> bool:
    """Whether the same statement may succeed later."""
    if isinstance(error, DBAPIError):
        return is_disconnect(error) or find_passing(sqlstate(error)) is not None
    return isinstance(error, DatabaseUnreachable)


def is_disconnect(error: DBAPIError) -> bool:
    """Whether an error means that Postgres is unreachable or refuses connections."""
    if error.connection_invalidated:
        return True
    state = sqlstate(error)
    if state is not None:
        passing = find_passing(state)
        return passing is not None and passing.breaks
    return isinstance(error, OperationalError | InterfaceError)


def _milliseconds(seconds: float) -> str:
    return str(round(seconds * 1000))
