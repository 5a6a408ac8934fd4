from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from sqlalchemy import text

from overnight import Context, Fail, Snooze
from overnight.handlers import registry
from overnight_server.domain.claims import Claim, Claimed
from overnight_server.domain.ids import TaskId, UserId
from overnight_server.domain.results import (
    Deferred,
    Interrupted,
    Raised,
    Result,
    Returned,
    StoppedByCancel,
)
from overnight_server.settings import Settings
from overnight_server.store.db import DISPATCHER, READER, Db, Timeouts
from overnight_server.wakeups.wake import Waker
from overnight_worker import resources
from overnight_worker.execute import carry_out
from overnight_worker.record_results import settle_by
from overnight_worker.shutdown import SHUTDOWN_FLAG
from tests.support.deployment import Deployment
from tests.support.rivals import Rival, held_lane
from tests.support.wait import wait_until
from tests.support.worker_in_process import NOWHERE, handler_of_test, worker_resources
from tests.support.workers import worker_settings

Run = Callable[..., TaskId]


@pytest.fixture
def user(deployment: Deployment) -> UserId:
    deployment.agent()
    return deployment.user()


@pytest.fixture
def settings(database_url: str) -> Settings:
    return worker_settings(database_url, NOWHERE, heartbeat_interval=0.1)


@pytest.fixture
def worker(settings: Settings, db: Db) -> Iterator[resources.WorkerResources]:
    """The resources of a worker process, in this process; a run needs no Redis."""
    with worker_resources(settings, db) as worker:
        yield worker


@pytest.fixture
def handler() -> Iterator[Callable[[registry.HandlerFunction], None]]:
    """Register a function for type `test` for the length of a test."""
    with handler_of_test() as register:
        yield register


@pytest.fixture
def draining() -> Iterator[None]:
    SHUTDOWN_FLAG.set()
    yield
    SHUTDOWN_FLAG._byte[0] = 0


def claimed(deployment: Deployment, user: UserId, **fields: object) -> Claimed:
    task_id = deployment.task(user, **{"type": "test", **fields})
    [one] = [it for it in deployment.claim().claims if it.claim.task_id == task_id]
    return one


def carried_out(
    deployment: Deployment, worker: resources.WorkerResources, user: UserId, **fields: object
) -> TaskId:
    claim = claimed(deployment, user, **fields).claim
    carry_out(worker, [claim])
    return claim.task_id


def test_a_result_is_recorded_with_output_cost_and_attempt(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
) -> None:
    def work(ctx: Context) -> object:
        ctx.cost(0.5, input_tokens=7)
        return {"seen": ctx.payload, "prompt": ctx.prompt, "attempt": ctx.attempt}

    handler(work)
    task_id = carried_out(deployment, worker, user, payload={"a": 1}, spec={"prompt": "say hi"})

    row = deployment.row(task_id)
    assert (row["state"], row["attempts"]) == ("completed", 1)
    assert row["output"] == {"seen": {"a": 1}, "prompt": "say hi", "attempt": 1}
    assert (float(row["cost_usd"]), row["tokens_used"]) == (0.5, {"input": 7})


def test_a_failed_run_records_its_reason_and_its_traceback(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
) -> None:
    def work(ctx: Context) -> object:
        raise LookupError("no such page")

    handler(work)
    task_id = carried_out(deployment, worker, user)

    assert deployment.state(task_id) == "retrying"
    attempt = deployment.one("SELECT * FROM attempts WHERE task_id = :id", id=task_id)
    assert (attempt["outcome"], attempt["error"]) == ("failed", "LookupError: no such page")
    assert "LookupError" in attempt["detail"]


@pytest.mark.parametrize(
    ("error", "state", "attempts"),
    [
        (Snooze(30), "retrying", 0),
        (Fail("never"), "dead_lettered", 1),
        (SystemExit(1), "retrying", 1),
    ],
)
def test_a_handler_decides_how_its_task_continues(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
    *,
    error: BaseException,
    state: str,
    attempts: int,
) -> None:
    def work(ctx: Context) -> object:
        raise error

    handler(work)
    row = deployment.row(carried_out(deployment, worker, user))

    assert (row["state"], row["attempts"]) == (state, attempts)


def test_a_type_without_handler_is_tried_again_and_spends_no_attempt(
    deployment: Deployment, worker: resources.WorkerResources, user: UserId
) -> None:
    row = deployment.row(carried_out(deployment, worker, user, type="unheard-of"))

    assert (row["state"], row["failure_reason"]) == ("retrying", "no_handler")
    assert row["attempts"] == 0


def test_a_claim_starts_once_however_often_it_is_delivered(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
) -> None:
    runs: list[int] = []
    handler(lambda ctx: runs.append(ctx.epoch))
    claim = claimed(deployment, user).claim

    for _ in range(3):
        carry_out(worker, [claim])

    assert runs == [1]
    assert deployment.rows("SELECT * FROM stale_results") == []


def test_a_claim_with_another_token_or_epoch_starts_nothing(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
) -> None:
    runs: list[int] = []
    handler(lambda ctx: runs.append(ctx.epoch))
    claim = claimed(deployment, user).claim
    before = deployment.row(claim.task_id)

    carry_out(worker, [Claim(claim.task_id, claim.epoch, claim.task_id)])
    carry_out(worker, [Claim(claim.task_id, claim.epoch + 1, claim.token)])

    assert runs == []
    assert deployment.row(claim.task_id) == before


def test_a_claim_that_expired_before_its_message_arrived_starts_nothing(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
) -> None:
    runs: list[int] = []
    handler(lambda ctx: runs.append(ctx.epoch))
    claim = claimed(deployment, user).claim

    deployment.move_clock(timedelta(minutes=2))
    carry_out(worker, [claim])

    assert runs == []


def test_a_worker_that_shuts_down_gives_a_new_message_back(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
    draining: None,
) -> None:
    runs: list[int] = []
    handler(lambda ctx: runs.append(ctx.epoch))

    row = deployment.row(carried_out(deployment, worker, user))

    assert (runs, row["state"], row["attempts"]) == ([], "ready", 0)


def test_a_cancelled_run_stops_and_ends_as_cancelled(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
) -> None:
    def work(ctx: Context) -> object:
        deployment.run("UPDATE tasks SET cancel_requested_at = clock()")
        while True:
            ctx.check()

    handler(work)
    row = deployment.row(carried_out(deployment, worker, user))

    assert (row["state"], row["failure_reason"]) == ("cancelled", "cancelled")


def test_a_run_past_its_timeout_stops_and_ends_as_timed_out(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
) -> None:
    reasons: list[str | None] = []

    def work(ctx: Context) -> object:
        while not ctx.cancelled:
            pass
        reasons.append(ctx.stop_reason)
        return {"seconds_left": ctx.seconds_left}

    handler(work)
    task_id = carried_out(deployment, worker, user, timeout_seconds=1, max_attempts=1)

    assert reasons == ["timeout"]
    assert deployment.row(task_id)["failure_reason"] == "timeout"


def test_only_runs_that_were_not_stopped_count_for_the_duration_of_their_type(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
) -> None:
    def work(ctx: Context) -> object:
        while ctx.payload["stop"] and not ctx.cancelled:
            deployment.run("UPDATE tasks SET cancel_requested_at = clock()")
        raise LookupError("nothing more to do")

    handler(work)
    carried_out(deployment, worker, user, payload={"stop": True})
    assert deployment.rows("SELECT * FROM type_durations") == []

    carried_out(deployment, worker, user, payload={"stop": False})
    [pace] = deployment.rows("SELECT * FROM type_durations")
    assert (pace["type"], len(pace["recent"])) == ("test", 1)


def test_a_run_that_lost_its_claim_stops_and_writes_nothing(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
) -> None:
    reasons: list[str | None] = []

    def work(ctx: Context) -> object:
        deployment.run("UPDATE tasks SET token = gen_random_uuid()")
        while not ctx.cancelled:
            pass
        reasons.append(ctx.stop_reason)
        ctx.check()
        return None

    handler(work)
    task_id = carried_out(deployment, worker, user)

    assert reasons == ["lost"]
    assert deployment.state(task_id) == "running"
    assert deployment.rows("SELECT * FROM stale_results") == []


def test_a_heartbeat_carries_progress_and_extends_the_lease(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
) -> None:
    seen: list[object] = []

    def work(ctx: Context) -> object:
        before = deployment.one("SELECT expires_at FROM tasks")["expires_at"]
        ctx.progress(0.5, "half way", page=3)
        while not seen:
            row = deployment.one("SELECT progress, expires_at FROM tasks")
            if row["progress"] is not None and row["expires_at"] > before:
                seen.append(row["progress"])
        return None

    handler(work)
    carried_out(deployment, worker, user)

    assert seen == [{"fraction": 0.5, "message": "half way", "page": 3}]


def test_progress_that_cannot_be_stored_raises_in_the_handler(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
) -> None:
    handler(lambda ctx: ctx.progress(0.5, thing=object()))

    task_id = carried_out(deployment, worker, user)

    assert "JSON" in deployment.row(task_id)["error"]


def test_a_result_is_recorded_although_every_connection_broke_meanwhile(
    deployment: Deployment,
    worker: resources.WorkerResources,
    user: UserId,
    handler: Callable[..., None],
    connect: Callable[..., Db],
) -> None:
    login = connect(role=None)

    def work(ctx: Context) -> object:
        with login.engine.begin() as tx:
            broken = tx.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            ).all()
        return len(broken)

    handler(work)
    task_id = carried_out(deployment, worker, user)

    assert deployment.row(task_id)["output"] >= 1


def test_a_result_that_postgres_refuses_is_given_up_at_the_deadline(
    deployment: Deployment, user: UserId, connect: Callable[..., Db]
) -> None:
    run = deployment.running(user)
    powerless = connect(role=READER)

    assert settle_by(powerless, [(run, Returned("lost"))], deadline=0.0) is False
    assert deployment.state(run.claim.task_id) == "running"


@pytest.mark.parametrize(
    ("result", "state"),
    [
        (Raised("class\x00", "boom", retryable=True), "retrying"),
        (Raised("error", "boom", retryable=True, wait_seconds=1e30), "retrying"),
        (Raised("error", "boom", retryable=False, cost_usd=1e30), "dead_lettered"),
        (Returned("output\x00", cost_usd=1e30), "retrying"),
        (Deferred(1e30), "retrying"),
        (StoppedByCancel(tokens={"input\x00": 1}), "cancelled"),
        (Interrupted(ran_seconds=1e300), "ready"),
    ],
)
def test_data_that_postgres_rejects_is_left_out_of_the_result(
    deployment: Deployment, user: UserId, db: Db, result: Result, state: str
) -> None:
    run = deployment.running(user)

    assert settle_by(db, [(run, result)], deadline=0.0) is True
    assert deployment.state(run.claim.task_id) == state


def test_a_result_that_waits_for_a_lock_is_never_given_up(
    deployment: Deployment,
    user: UserId,
    database_url: str,
    connect: Callable[..., Db],
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = deployment.running(user)
    hasty = Db.connect(database_url, role=DISPATCHER, timeouts=Timeouts(lock=0.01))
    late = Rival(lambda _: hasty, "late", settle_by, [(run, Returned("kept"))], deadline=0.0)

    with held_lane(connect, user):
        late.start()
        wait_until(lambda: "results wait to be recorded" in caplog.text, what="a failed try")

    assert late.answer() is True
    hasty.close()
    assert deployment.row(run.claim.task_id)["output"] == "kept"


def test_a_start_without_postgres_drops_the_message(
    deployment: Deployment, user: UserId, settings: Settings
) -> None:
    claim = claimed(deployment, user, type="echo").claim
    nowhere = Db.connect("postgresql://nobody@127.0.0.1:1/nothing", role=None)

    carry_out(resources.WorkerResources(settings, nowhere, Waker(NOWHERE)), [claim])

    assert deployment.state(claim.task_id) == "claimed"
