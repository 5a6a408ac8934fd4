"""The logs of runs: bounded, fenced by the claim, and never in the way of a run."""

import gzip
import logging
import random
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from overnight import Context
from overnight.handlers import registry
from overnight_server.domain.claims import Run
from overnight_server.domain.ids import TaskId, UserId, parse_artifact
from overnight_server.domain.log_bounds import CHUNK_BYTES, HEAD_BYTES, TAIL_BYTES
from overnight_server.domain.results import Interrupted, Raised, Result, Returned, TimedOut
from overnight_server.insight.artifacts import get_artifact, list_artifacts
from overnight_server.maintenance.log_retention import BATCH, FAILURE_TAIL_BYTES, delete_old_logs
from overnight_server.outcome.run_logs import LogWrite, NewLogChunk, write_logs
from overnight_server.outcome.settle import settle
from overnight_server.store.db import Db
from overnight_server.wakeups.wake import Waker
from overnight_worker import run_log, run_output
from overnight_worker.execute import carry_out
from overnight_worker.full_log import FullLog
from overnight_worker.resources import WorkerResources
from overnight_worker.run_log import LogWriter, RunLog
from tests.support.deployment import Deployment
from tests.support.rivals import Rival, meet_at_task
from tests.support.wait import wait_until
from tests.support.worker_in_process import handler_of_test
from tests.support.workers import worker_settings

NOWHERE = "redis://127.0.0.1:1/0"
NOWHERE_DATABASE = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


@pytest.fixture
def run(deployment: Deployment, user: UserId) -> Run:
    return deployment.running(user)


@pytest.fixture
def announced() -> list[set[TaskId]]:
    return []


@pytest.fixture
def writer(db: Db, announced: list[set[TaskId]]) -> Iterator[LogWriter]:
    opened = LogWriter(db, lambda tasks: announced.append(set(tasks)))
    yield opened
    opened.close()


@pytest.fixture
def worker(database_url: str, db: Db) -> Iterator[WorkerResources]:
    """The resources of a worker process, in this process."""
    handlers = logging.getLogger().handlers[:]
    waker = Waker(NOWHERE)
    opened = WorkerResources(worker_settings(database_url, NOWHERE), db, waker)
    yield opened
    opened.log_writer.close()
    waker.close()
    logging.getLogger().handlers[:] = handlers


@pytest.fixture
def handler() -> Iterator[Callable[[registry.HandlerFunction], None]]:
    with handler_of_test() as register:
        yield register


def chunks(deployment: Deployment, task_id: TaskId) -> list[dict[str, object]]:
    return [
        dict(row)
        for row in deployment.rows(
            "SELECT * FROM log_chunks WHERE task_id = :id ORDER BY epoch, seq", id=task_id
        )
    ]


def text_of(deployment: Deployment, task_id: TaskId) -> str:
    return "".join(str(chunk["text"]) for chunk in chunks(deployment, task_id))


def carried_out(
    deployment: Deployment, worker: WorkerResources, user: UserId, **fields: Any
) -> TaskId:
    # Here, because pytest has its own streams for each phase of a test.
    run_output.install()
    task_id = deployment.task(user, type="test", **fields)
    [claimed] = [it for it in deployment.claim().claims if it.claim.task_id == task_id]
    carry_out(worker, [claimed.claim])
    return task_id


def test_what_a_handler_prints_and_logs_is_in_the_log_of_its_run(
    deployment: Deployment, worker: WorkerResources, user: UserId, handler: Callable[..., None]
) -> None:
    def work(ctx: Context) -> object:
        print("to stdout")  # noqa: T201 - that is the point
        print("to stderr", file=sys.stderr)  # noqa: T201 - the same
        sys.stdout.buffer.write(b"bytes \xff\n")
        logging.getLogger("library").warning("about %s", "something")
        ctx.log("by the context", page=3, token="abcdefgh")
        thread = threading.Thread(target=lambda: print("of a thread"))  # noqa: T201 - the same
        thread.start()
        thread.join()
        print("no line end", end="")  # noqa: T201 - the same
        return None

    handler(work)
    task_id = carried_out(deployment, worker, user)

    by_stream: dict[str, str] = {}
    for chunk in chunks(deployment, task_id):
        stream = str(chunk["stream"])
        by_stream[stream] = by_stream.get(stream, "") + str(chunk["text"])
    assert by_stream["stdout"] == "to stdout\nbytes \ufffd\nof a thread\nno line end"
    assert by_stream["stderr"] == "to stderr\n"
    logged = by_stream["log"].splitlines()
    assert [line.partition(" ")[2] for line in logged] == [
        "WARN library: about something",
        "INFO by the context page=3 token=***",
    ]
    assert {(chunk["epoch"], chunk["user_id"]) for chunk in chunks(deployment, task_id)} == {
        (1, user)
    }


def test_a_run_that_writes_nothing_leaves_no_row_and_starts_no_thread(
    deployment: Deployment, worker: WorkerResources, user: UserId, handler: Callable[..., None]
) -> None:
    handler(lambda ctx: ctx.attempt)

    task_id = carried_out(deployment, worker, user)

    assert chunks(deployment, task_id) == []
    assert worker.log_writer._thread is None


def test_a_thread_of_an_earlier_run_does_not_write_into_the_next_ones_log(
    deployment: Deployment, worker: WorkerResources, user: UserId, handler: Callable[..., None]
) -> None:
    turn, printed = threading.Event(), threading.Event()

    def late() -> None:
        turn.wait(20)
        print("of the first run")  # noqa: T201 - that is the point
        printed.set()

    def first(ctx: Context) -> object:
        threading.Thread(target=late, daemon=True).start()
        return None

    def second(ctx: Context) -> object:
        print("of the second run")  # noqa: T201 - the same
        turn.set()
        return printed.wait(20)

    handler(first)
    carried_out(deployment, worker, user)
    handler(second)
    task_id = carried_out(deployment, worker, user)

    assert text_of(deployment, task_id) == "of the second run\n"


def test_lines_are_written_while_the_run_goes_on(
    deployment: Deployment, run: Run, writer: LogWriter, announced: list[set[TaskId]]
) -> None:
    log = RunLog(run.claim, writer)

    log.write("stdout", "one\n")
    wait_until(lambda: bool(chunks(deployment, run.claim.task_id)), what="a chunk")
    log.write("stdout", "two\n")
    log.write("stderr", "three\n")
    writer.flush()

    rows = chunks(deployment, run.claim.task_id)
    assert [(row["seq"], row["stream"], row["text"], row["lines"]) for row in rows] == [
        (1, "stdout", "one\n", 1),
        (2, "stdout", "two\n", 1),
        (3, "stderr", "three\n", 1),
    ]
    assert announced == [{run.claim.task_id}] * 2


def test_alternating_streams_share_chunks(
    deployment: Deployment, run: Run, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_log, "FLUSH_SECONDS", 30.0)
    log = RunLog(run.claim, writer)

    for number in range(200):
        log.write("stdout" if number % 2 else "stderr", f"{number}\n")
    writer.flush()

    rows = chunks(deployment, run.claim.task_id)
    assert len(rows) == run_log.MAX_OPEN_CHUNKS
    assert sum(int(str(row["lines"])) for row in rows) == 200


def test_the_first_and_last_lines_of_a_long_log_are_kept_and_the_gap_is_told(
    deployment: Deployment, run: Run, writer: LogWriter
) -> None:
    log = RunLog(run.claim, writer)
    count, line = 40_000, "{:06d} " + "x" * 92 + "\n"

    for number in range(count):
        log.write("stdout", line.format(number))
        if number % 3_000 == 0:
            writer.flush()
    writer.flush()

    rows = chunks(deployment, run.claim.task_id)
    [marker] = [row for row in rows if row["stream"] == "cut"]
    kept = [row for row in rows if row["stream"] != "cut"]
    text = "".join(str(row["text"]) for row in kept)
    assert len(text) <= HEAD_BYTES + TAIL_BYTES
    assert text.startswith(line.format(0))
    assert text.endswith(line.format(count - 1))
    assert text.count("\n") + int(str(marker["lines"])) == count
    assert len(text) + int(str(marker["bytes"])) == count * len(line.format(0))
    before = [row for row in kept if int(str(row["seq"])) < int(str(marker["seq"]))]
    assert HEAD_BYTES - CHUNK_BYTES < sum(int(str(row["bytes"])) for row in before) <= HEAD_BYTES
    assert f"{marker['lines']:,} lines" in str(marker["text"])


def test_a_very_large_output_takes_a_bounded_part_of_memory_and_of_postgres(
    deployment: Deployment, run: Run, writer: LogWriter
) -> None:
    log = RunLog(run.claim, writer)
    block = (b"y" * 1023 + b"\n") * 64

    for _ in range(2_000):
        log.write("stdout", block)
        with log._lock:
            assert sum(chunk.size for chunk in log._unwritten) <= HEAD_BYTES + TAIL_BYTES
    writer.flush()

    rows = chunks(deployment, run.claim.task_id)
    stored = sum(int(str(row["bytes"])) for row in rows if row["stream"] != "cut")
    [marker] = [row for row in rows if row["stream"] == "cut"]
    assert stored <= 1024 * 1024
    assert stored + int(str(marker["bytes"])) == 2_000 * len(block)


def test_a_run_does_not_wait_for_its_log_while_postgres_is_away(run: Run) -> None:
    nowhere = Db.connect(NOWHERE_DATABASE, role=None)
    writer = LogWriter(nowhere, set)
    log = RunLog(run.claim, writer)

    for _ in range(3_000):
        log.write("stdout", "z" * 999 + "\n")
    writer.flush(0.1)

    assert sum(chunk.size for chunk in log._unwritten) <= HEAD_BYTES + TAIL_BYTES
    writer.close()
    nowhere.close()


def test_what_could_not_be_written_is_written_when_postgres_is_back(
    deployment: Deployment, run: Run, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RunLog(run.claim, writer)
    monkeypatch.setattr(run_log, "FLUSH_SECONDS", 0.05)
    db, nowhere = writer._db, Db.connect(NOWHERE_DATABASE, role=None)
    writer._db = nowhere

    for number in range(20_000):
        log.write("stdout", f"{number:099d}\n")
    wait_until(lambda: writer._outage.is_on, what="a failed write")
    log.write("stdout", "the last line\n")
    writer._db = db
    writer.flush(20)

    nowhere.close()
    rows = chunks(deployment, run.claim.task_id)
    text = "".join(str(row["text"]) for row in rows if row["stream"] != "cut")
    [marker] = [row for row in rows if row["stream"] == "cut"]
    assert text.startswith("0" * 99 + "\n")
    assert text.endswith("the last line\n")
    assert text.count("\n") + int(str(marker["lines"])) == 20_001
    assert len({row["seq"] for row in rows}) == len(rows)


def test_the_same_chunks_written_twice_are_stored_once(
    deployment: Deployment, run: Run, db: Db
) -> None:
    write = LogWrite(run.claim, [NewLogChunk(1, "stdout", 1, 4, "one\n")])

    for _ in range(2):
        assert write_logs(db, [write]) == {(run.claim.task_id, run.claim.epoch)}

    assert text_of(deployment, run.claim.task_id) == "one\n"


def test_a_holder_that_lost_its_claim_can_neither_write_nor_cut(
    deployment: Deployment, run: Run, db: Db
) -> None:
    first = LogWrite(run.claim, [NewLogChunk(n, "stdout", 1, 2, f"{n}\n") for n in (1, 2, 3)])
    write_logs(db, [first])
    assert settle(db, run, Returned(None), agent="test")

    late = LogWrite(run.claim, [NewLogChunk(4, "stdout", 1, 5, "late\n")], cut=(0, 3))

    assert write_logs(db, [late]) == set()
    assert text_of(deployment, run.claim.task_id) == "1\n2\n3\n"


def test_a_write_that_meets_the_end_of_its_claim_loses(
    deployment: Deployment, run: Run, connect: Callable[..., Db]
) -> None:
    winner = Rival(connect, "winner", settle, run, Returned(None), agent="test")
    write = LogWrite(run.claim, [NewLogChunk(1, "stdout", 1, 5, "late\n")])
    late = Rival(connect, "late", write_logs, [write])

    assert meet_at_task(connect, run.claim.task_id, winner, late) == [True, set()]
    assert chunks(deployment, run.claim.task_id) == []


def test_the_end_of_a_claim_waits_for_a_write_that_came_first(
    deployment: Deployment, run: Run, connect: Callable[..., Db]
) -> None:
    write = LogWrite(run.claim, [NewLogChunk(1, "stdout", 1, 8, "in time\n")])
    first = Rival(connect, "first", write_logs, [write])
    second = Rival(connect, "second", settle, run, Returned(None), agent="test")

    held = {(run.claim.task_id, run.claim.epoch)}
    assert meet_at_task(connect, run.claim.task_id, first, second) == [held, True]
    assert text_of(deployment, run.claim.task_id) == "in time\n"


def deleted_logs(db: Db) -> int:
    fortnight, quarter = timedelta(days=14), timedelta(days=90)
    return delete_old_logs(db, retention=fortnight, failures_retention=quarter)


@pytest.mark.parametrize(
    ("result", "is_kept"),
    [
        (Returned(None), False),
        (Raised("error", "boom", retryable=False), True),
        (TimedOut(by_plan=False), True),
        (Interrupted("shutdown"), False),
    ],
)
def test_the_end_of_the_log_of_a_failed_run_is_kept_longer(
    deployment: Deployment, run: Run, db: Db, result: Result, *, is_kept: bool
) -> None:
    size = FAILURE_TAIL_BYTES // 8
    parts = [NewLogChunk(n, "stdout", 1, size, f"{n}\n") for n in range(1, 21)]
    write_logs(db, [LogWrite(run.claim, parts)])
    assert settle(db, run, result, agent="test")
    deployment.move_clock(timedelta(days=15))

    assert deleted_logs(db) == 20
    assert deleted_logs(db) == 0
    kept = "".join(f"{n}\n" for n in range(13, 21)) if is_kept else ""
    assert text_of(deployment, run.claim.task_id) == kept
    deployment.move_clock(timedelta(days=74))
    assert deleted_logs(db) == 0
    deployment.move_clock(timedelta(days=2))
    assert deleted_logs(db) == (8 if is_kept else 0)
    assert text_of(deployment, run.claim.task_id) == ""


def test_the_end_of_a_long_log_is_kept_over_several_batches(
    deployment: Deployment, run: Run, db: Db
) -> None:
    parts = [NewLogChunk(n, "stdout", 1, 100, f"{n}\n") for n in range(1, BATCH * 3)]
    write_logs(db, [LogWrite(run.claim, parts)])
    settle(db, run, Raised("error", "boom", retryable=False), agent="test")
    deployment.move_clock(timedelta(days=15))

    assert deleted_logs(db) == BATCH * 3 - 1

    lines = text_of(deployment, run.claim.task_id).split()
    assert lines == [str(n) for n in range(BATCH * 3 - FAILURE_TAIL_BYTES // 100, BATCH * 3)]


def test_old_logs_are_deleted_in_batches_and_young_ones_are_kept(
    deployment: Deployment, run: Run, db: Db
) -> None:
    old = [NewLogChunk(n, "stdout", 1, 2, "x\n") for n in range(1, BATCH + 11)]
    write_logs(db, [LogWrite(run.claim, old)])
    deployment.run("UPDATE log_chunks SET at = at - interval '15 days'")
    write_logs(db, [LogWrite(run.claim, [NewLogChunk(BATCH + 11, "stdout", 1, 6, "young\n")])])

    assert deleted_logs(db) == BATCH + 10
    assert deleted_logs(db) == 0
    assert text_of(deployment, run.claim.task_id) == "young\n"


def test_the_whole_output_is_kept_as_an_artifact_if_the_task_asks(
    deployment: Deployment,
    worker: WorkerResources,
    user: UserId,
    handler: Callable[..., None],
) -> None:
    def work(ctx: Context) -> object:
        for number in range(30_000):
            print(f"{number:099d}")  # noqa: T201 - that is the point
        print("the end", end="")  # noqa: T201 - the same
        return None

    handler(work)
    task_id = carried_out(deployment, worker, user, spec={"keep_log": True})

    [artifact] = list_artifacts(deployment.app, user, task_id)
    assert artifact.name == "log"
    _, content = get_artifact(deployment.app, user, parse_artifact(artifact.id))
    lines = gzip.decompress(content.value()).decode().splitlines()
    assert (len(lines), lines[0], lines[-1]) == (30_001, "0" * 99, "the end")


def test_a_full_log_stops_at_its_size_and_says_so() -> None:
    log = FullLog(max_bytes=256 * 1024)
    for _ in range(200):
        log.write(random.Random(7).randbytes(8 * 1024).hex() + "\n")

    file = log.finish()
    file.seek(0)
    content = file.read()
    log.close()

    assert len(content) <= 256 * 1024
    assert gzip.decompress(content).decode().splitlines()[-1].startswith("[the rest is missing")
