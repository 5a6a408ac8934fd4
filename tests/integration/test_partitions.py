"""Partitions of events and logs: added ahead, never needed for an insert, dropped as a whole."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import text

from overnight_server.domain.ids import TaskId, UserId, use_clock
from overnight_server.domain.results import Raised, Returned
from overnight_server.maintenance.audit import audit_all
from overnight_server.maintenance.log_retention import FAILURE_TAIL_BYTES, delete_old_logs
from overnight_server.maintenance.partitions import add_partitions, old_partitions
from overnight_server.outcome.run_logs import LogWrite, NewLogChunk, write_logs
from overnight_server.store.db import Db
from tests.support.deployment import Deployment
from tests.support.wait import wait_until

FORTNIGHT = timedelta(days=14)
QUARTER = timedelta(days=90)
NOON = datetime(2031, 3, 10, 12, tzinfo=UTC)


@pytest.fixture
def at_noon(deployment: Deployment) -> Iterator[Callable[[datetime], None]]:
    """Move the database's clock and that of new ids together, to NOON at first."""

    def move(to: datetime) -> None:
        deployment.set_clock(to)
        use_clock(to.timestamp)

    move(NOON)
    yield move
    use_clock(lambda: datetime.now(UTC).timestamp())


def partitions(deployment: Deployment, table: str = "events") -> list[tuple[datetime, datetime]]:
    """Return the periods of a table's partitions."""
    rows = deployment.rows("SELECT * FROM partitions_of(:table)", table=table)
    return [(row["first_at"], row["end_at"]) for row in rows]


def place_of(deployment: Deployment, table: str, task_id: TaskId) -> set[str]:
    """Return the partitions that hold rows of a task."""
    sql = f"SELECT DISTINCT tableoid::regclass::text AS name FROM {table} WHERE task_id = :id"
    return {row["name"] for row in deployment.rows(sql, id=task_id)}


def test_partitions_are_added_ahead_and_only_once(
    deployment: Deployment, at_noon: Callable[[datetime], None]
) -> None:
    added = add_partitions(deployment.dispatcher, "events", retention=QUARTER)
    again = add_partitions(deployment.dispatcher, "events", retention=QUARTER)
    at_noon(NOON + timedelta(days=7))
    later = add_partitions(deployment.dispatcher, "events", retention=QUARTER)

    days = [datetime(2031, 3, day, tzinfo=UTC) for day in (10, 15, 20, 25, 30)]
    assert (added, again, later) == (2, 0, 2)
    assert partitions(deployment) == [
        (days[0] + timedelta(hours=13), days[1]),
        (days[1], days[2]),
        (days[2], days[3]),
        (days[3], days[4]),
    ]


def test_a_task_has_its_events_in_the_partition_of_its_creation(
    deployment: Deployment, at_noon: Callable[[datetime], None]
) -> None:
    user = deployment.user()
    deployment.agent()
    add_partitions(deployment.dispatcher, "events", retention=QUARTER)
    before = deployment.task(user)
    at_noon(NOON + timedelta(hours=2))
    after = deployment.task(user)
    at_noon(NOON + timedelta(days=6))
    for claimed in deployment.claim().claims:
        run = deployment.start(claimed)
        assert run is not None
        deployment.settle(run, Returned())

    assert place_of(deployment, "events", before) == {"events_default"}
    assert place_of(deployment, "events", after) == {"events_2031031013"}
    assert deployment.one("SELECT count(*) AS n FROM events")["n"] == 8
    assert audit_all(deployment.dispatcher) == 0


def test_a_missing_partition_fails_no_insert_and_is_added_after_its_rows(
    deployment: Deployment, at_noon: Callable[[datetime], None]
) -> None:
    user = deployment.user()
    at_noon(NOON + timedelta(days=2))
    early = deployment.task(user)
    at_noon(NOON)

    added = add_partitions(deployment.dispatcher, "events", retention=timedelta(days=320))

    # Rows of the first period are there already; its tasks stay in the default partition.
    assert added == 1
    assert partitions(deployment)[0][0] == datetime(2031, 3, 30, tzinfo=UTC)
    assert place_of(deployment, "events", early) == {"events_default"}


def test_a_reader_of_the_table_delays_a_partition_and_the_pass_goes_on(
    deployment: Deployment, at_noon: Callable[[datetime], None], connect: Callable[..., Db]
) -> None:
    with connect().engine.begin() as report:
        report.execute(text("SELECT count(*) FROM events"))

        assert add_partitions(deployment.dispatcher, "events", retention=QUARTER) == 0

    assert add_partitions(deployment.dispatcher, "events", retention=QUARTER) == 2


def test_events_of_tasks_that_are_left_stay_when_their_partition_is_dropped(
    deployment: Deployment, at_noon: Callable[[datetime], None]
) -> None:
    user = deployment.user()
    add_partitions(deployment.dispatcher, "events", retention=QUARTER)
    at_noon(NOON + timedelta(hours=2))
    gone, left = deployment.task(user), deployment.task(user)
    [event] = deployment.rows("SELECT * FROM events WHERE task_id = :id", id=left)
    deployment.run("DELETE FROM tasks WHERE id = :id", id=gone)
    at_noon(NOON + timedelta(days=10))
    [partition] = old_partitions(deployment.dispatcher, "events", age=timedelta(days=5))
    drop = "SELECT drop_events_partition(:name, :max_kept) AS result"

    in_use = deployment.one(drop, name=partition, max_kept=0)["result"]
    dropped = deployment.one(drop, name=partition, max_kept=1)["result"]
    again = deployment.one(drop, name=partition, max_kept=1)["result"]

    assert (in_use, dropped, again) == ("in use", "dropped", "gone")
    assert deployment.rows("SELECT * FROM events") == [event]
    assert place_of(deployment, "events", left) == {"events_default"}


def test_events_of_gone_tasks_are_deleted_from_a_partition_in_use(
    deployment: Deployment, at_noon: Callable[[datetime], None]
) -> None:
    user = deployment.user()
    add_partitions(deployment.dispatcher, "events", retention=QUARTER)
    at_noon(NOON + timedelta(hours=2))
    tasks = [deployment.task(user) for _ in range(5)]
    deployment.run("DELETE FROM tasks WHERE id = ANY (:ids)", ids=tasks[:3])
    delete = "SELECT * FROM delete_events_of_gone_tasks('events_2031031013', :after, 2)"

    deleted, after = 0, UUID(int=0)
    while after is not None:
        row = deployment.one(delete, after=after)
        deleted, after = deleted + row["deleted"], row["last_id"]

    assert deleted == 3
    assert {row["task_id"] for row in deployment.rows("SELECT task_id FROM events")} == {*tasks[3:]}


def failed_run(deployment: Deployment, user: UserId, *, fails: bool) -> TaskId:
    """Run a task that writes a log of twice the size that is kept of failures."""
    run = deployment.running(user, max_attempts=1)
    lines = [NewLogChunk(n, "stdout", 1, 1024, f"{n}\n") for n in range(1, 129)]
    write_logs(deployment.dispatcher, [LogWrite(run.claim, lines)])
    deployment.settle(run, Raised("error", "no") if fails else Returned())
    return run.claim.task_id


def test_a_partition_of_logs_is_dropped_and_the_ends_of_failures_stay(
    deployment: Deployment, at_noon: Callable[[datetime], None]
) -> None:
    user = deployment.user()
    deployment.agent()
    add_partitions(deployment.dispatcher, "log_chunks", retention=FORTNIGHT)
    at_noon(NOON + timedelta(hours=2))
    failed_run(deployment, user, fails=False)
    failed = failed_run(deployment, user, fails=True)
    at_noon(NOON + timedelta(days=14, hours=11))
    not_yet = delete_old_logs(
        deployment.dispatcher, retention=FORTNIGHT, failures_retention=QUARTER
    )
    at_noon(NOON + timedelta(days=14, hours=13))

    dropped = delete_old_logs(
        deployment.dispatcher, retention=FORTNIGHT, failures_retention=QUARTER
    )

    kept = deployment.rows("SELECT task_id, seq, is_tail FROM log_chunks ORDER BY seq")
    assert (not_yet, dropped) == (0, 1)
    assert [row["seq"] for row in kept] == list(range(129 - FAILURE_TAIL_BYTES // 1024, 129))
    assert {(row["task_id"], row["is_tail"]) for row in kept} == {(failed, True)}
    assert place_of(deployment, "log_chunks", failed) == {"log_chunks_default"}

    at_noon(NOON + timedelta(days=91))
    delete_old_logs(deployment.dispatcher, retention=FORTNIGHT, failures_retention=QUARTER)
    assert deployment.rows("SELECT seq FROM log_chunks") == []


def test_a_partition_of_which_too_much_is_kept_loses_its_old_chunks_one_by_one(
    deployment: Deployment, at_noon: Callable[[datetime], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overnight_server.maintenance.log_retention.MAX_MOVED_BYTES", 1000)
    user = deployment.user()
    deployment.agent()
    add_partitions(deployment.dispatcher, "log_chunks", retention=FORTNIGHT)
    at_noon(NOON + timedelta(hours=2))
    failed = failed_run(deployment, user, fails=True)
    at_noon(NOON + timedelta(days=15))

    delete_old_logs(deployment.dispatcher, retention=FORTNIGHT, failures_retention=QUARTER)

    assert len(deployment.rows("SELECT seq FROM log_chunks WHERE is_tail")) == 64
    assert deployment.rows("SELECT seq FROM log_chunks WHERE NOT is_tail") == []
    assert place_of(deployment, "log_chunks", failed) == {"log_chunks_2031031013"}


def test_a_drop_gives_up_when_others_write_and_blocks_nobody_for_long(
    deployment: Deployment, at_noon: Callable[[datetime], None], connect: Callable[..., Db]
) -> None:
    user = deployment.user()
    add_partitions(deployment.dispatcher, "events", retention=QUARTER)
    at_noon(NOON + timedelta(days=10))
    drop = "SELECT drop_events_partition('events_2031031013', 10) AS result"

    with connect().engine.begin() as writer:
        writer.execute(text("SELECT count(*) FROM events"))
        assert deployment.one(drop)["result"] == "busy"

    wait_until(lambda: deployment.task(user) is not None, what="a submit")
    assert deployment.one(drop)["result"] == "dropped"
