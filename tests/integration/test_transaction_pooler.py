"""Behind a pooler in transaction mode: no transaction needs anything of an earlier session."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from overnight_server.control.cancel import cancel
from overnight_server.control.keys import issue, key_id_of, revoke
from overnight_server.domain.results import Returned
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.maintenance.sweeps import SWEEPS
from overnight_server.outcome.heartbeat import heartbeat
from overnight_server.settings import load
from overnight_server.store import migrate
from overnight_server.store.db import ADMIN, APP, DISPATCHER, ActingUser, Db, has_pooler
from tests.support import logins
from tests.support.api_user import TASKS, serve_api
from tests.support.deployment import LEASE, Deployment
from tests.support.transaction_pooler import TransactionPooler, transaction_pooler


@pytest.fixture
def pooler(database_url: str) -> Iterator[TransactionPooler]:
    with transaction_pooler(database_url) as pooler:
        yield pooler


@pytest.fixture
def pooled(deployment: Deployment, pooler: TransactionPooler) -> Iterator[Deployment]:
    """A deployment whose processes connect through the pooler."""
    dispatcher = Db.connect(pooler.url, role=DISPATCHER)
    app = Db.connect(pooler.url, role=ADMIN)
    yield Deployment(deployment.owner, dispatcher, app)
    dispatcher.close()
    app.close()


def test_a_task_passes_through_its_whole_life(pooled: Deployment) -> None:
    user = pooled.user()
    pooled.agent()
    for number in range(4):
        task_id = pooled.task(user, idempotency_key=f"key-{number}")
        assert pooled.task(user, idempotency_key=f"key-{number}") == task_id
        [claimed] = pooled.claim().claims
        run = pooled.start(claimed)
        assert run is not None
        assert heartbeat(pooled.dispatcher, run.claim, lease=LEASE)
        assert pooled.settle(run, Returned({"n": number}))
        assert pooled.row(task_id)["output"] == {"n": number}

    waiting = pooled.task(user)
    cancel(pooled.app, user, waiting, actor="test")
    assert pooled.state(waiting) == "cancelled"


def test_every_sweep_runs(pooled: Deployment, redis: EmbeddedRedis) -> None:
    pooled.task(pooled.user())
    for sweep in SWEEPS.values():
        sweep.run(
            pooled.dispatcher,
            load({"OVERNIGHT_REDIS_URL": redis.url}, dotenv=Path("no-such-file")),
        )


def test_each_transaction_sets_its_role_its_limits_and_its_user(
    pooler: TransactionPooler, deployment: Deployment
) -> None:
    users = [deployment.user() for _ in range(2)]
    for user in users:
        deployment.task(user)
    db = Db.connect(pooler.url, role=APP)
    seen = text(
        "SELECT current_user AS role, current_setting('enable_seqscan') AS seqscan,"
        " current_setting('lock_timeout') AS lock_timeout, count(*) AS n FROM tasks"
    )

    for user in [*users, *users]:
        row = db.acting_for(ActingUser(user)).atomically(lambda tx: tx.execute(seen).one())
        assert tuple(row) == (APP, "off", "5s", 1)
    assert db.atomically(lambda tx: tx.execute(seen).one()).n == 0
    db.close()
    # The pooler would refuse the options of a session, or apply them to whoever comes next.
    assert "options" not in pooler.startup_parameters


def test_the_api_serves_requests_and_refuses_revoked_keys(
    deployment: Deployment, database_url: str
) -> None:
    with (
        transaction_pooler(logins.for_api(database_url)) as pooler,
        serve_api(deployment, pooler.url) as api_user,
    ):
        task = api_user.created()
        other = api_user.new_user()
        for path in ("", f"/{task['id']}", "/queue-status", "/forecast", f"/{task['id']}/explain"):
            assert api_user.request("GET", f"{TASKS}{path}").status_code == 200, path
        assert other.request("GET", f"{TASKS}/{task['id']}").status_code == 404
        assert other.request("GET", TASKS).json() == []
        short = issue(deployment.app, api_user.user, name="short", expires_in=timedelta(hours=1))
        revoke(deployment.app, key_id_of(api_user.key))
        assert api_user.request("GET", TASKS).status_code == 401
        headers = {"Authorization": f"Bearer {short}"}
        assert api_user.http.get(TASKS, headers=headers).status_code == 200


def test_the_schema_is_checked_through_a_pooler_and_changed_only_directly(
    pooler: TransactionPooler,
) -> None:
    migrate.check(pooler.url)

    with pytest.raises(migrate.NeedsDirectConnection, match="direct connection"):
        migrate.upgrade(pooler.url)


def test_only_the_transaction_mode_is_known() -> None:
    with pytest.raises(ValueError, match="pooler=session; legal: transaction"):
        has_pooler("postgresql://host/db?pooler=session")
