"""Several pools claim from one lane: each claims its own types and no limit is exceeded."""

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from overnight_server.control.drain import drain
from overnight_server.domain.results import Returned
from overnight_server.explain.explain import explain
from overnight_server.forecast.forecast import forecast_task
from overnight_server.gate.claim import claim, claim_one
from overnight_server.local.doctor import Check, run_checks
from overnight_server.maintenance.reap import retire_agents
from overnight_server.outcome.presence import leave
from overnight_server.outcome.settle import settle
from overnight_server.outcome.start import start
from overnight_server.settings import load
from overnight_server.store.db import Db
from tests.support.deployment import AGENT, CLAIM_SETTINGS, LEASE, POOL, Deployment
from tests.support.invariants import violations

POOLS = ("red", "green", "blue", "white")


def test_claimers_of_four_pools_never_exceed_a_limit_of_three(
    deployment: Deployment, connect: Callable[..., Db]
) -> None:
    user = deployment.user(max_concurrent_agents=3)
    for pool in POOLS:
        deployment.agent(agent_id=f"{AGENT}-{pool}", pool=pool, capabilities=[pool])
    # Each pool wants tasks of its own, so it is not the tasks' rows that keep them apart.
    for number in range(80):
        deployment.task(
            user, timeout_seconds=60, required_capabilities=[POOLS[number % len(POOLS)]]
        )
    done = threading.Event()

    def work(pool: str) -> None:
        db = connect(f"claimer-{pool}", pool_size=1)
        while not done.is_set():
            taken = claim(db, pool, holder=pool, claim_settings=CLAIM_SETTINGS, limit=3)
            for claimed in taken.claims:
                run = start(db, claimed.claim, holder=AGENT, lease=LEASE)
                assert run is not None
                assert settle(db, run, Returned(), agent=AGENT)

    threads = [threading.Thread(target=work, args=(pool,)) for pool in POOLS]
    for thread in threads:
        thread.start()
    while deployment.lane(user)["waiting"] + deployment.lane(user)["active"]:
        done.wait(0.05)
    done.set()
    for thread in threads:
        thread.join()

    assert violations(deployment.owner, drained=True) == {}


def taken(deployment: Deployment, pool: str) -> set[UUID]:
    return {claimed.claim.task_id for claimed in deployment.claim(pool=pool).claims}


def test_a_pool_without_a_handler_leaves_the_type_to_other_pools(deployment: Deployment) -> None:
    deployment.agent(types=["echo"])
    deployment.agent(agent_id="studio", pool="films", types=["echo", "film"])
    user = deployment.user()
    film = deployment.task(user, type="film")

    assert taken(deployment, POOL) == set()
    assert taken(deployment, "films") == {film}


def test_a_type_without_handler_waits_until_a_worker_has_one(deployment: Deployment) -> None:
    deployment.agent(types=["echo"])
    user = deployment.user()
    task = deployment.task(user, type="film")

    assert taken(deployment, POOL) == set()
    [reason] = explain(deployment.app, user, task, CLAIM_SETTINGS).reasons
    assert (reason.code, reason.details["known_by"]) == ("handler", [])
    assert "no worker has a handler for the type 'film'" in reason.message
    assert forecast_task(deployment.app, user, task, CLAIM_SETTINGS).start.p50_at is None

    deployment.agent(types=["echo", "film"])

    assert taken(deployment, POOL) == {task}


def test_workers_that_restart_without_handlers_leave_the_tasks_waiting(
    deployment: Deployment,
) -> None:
    deployment.agent(types=[])
    user = deployment.user()
    task = deployment.task(user)

    assert taken(deployment, POOL) == set()
    assert deployment.state(task) == "ready"
    [reason] = explain(deployment.app, user, task, CLAIM_SETTINGS).reasons
    assert reason.code == "handler"


def test_a_type_that_not_all_workers_of_a_pool_handle_waits(deployment: Deployment) -> None:
    deployment.agent(types=["echo"])
    deployment.agent(agent_id="newer", types=["echo", "film"])
    user = deployment.user()
    film = deployment.task(user, type="film")

    assert taken(deployment, POOL) == set()

    leave(deployment.dispatcher, AGENT)
    assert taken(deployment, POOL) == {film}


def test_a_draining_worker_still_reserves_its_types(deployment: Deployment) -> None:
    deployment.agent(types=["echo"])
    deployment.agent(agent_id="studio", pool="films", types=["film"])
    drain(deployment.dispatcher, "studio")
    user = deployment.user()
    deployment.task(user, type="film")

    assert taken(deployment, POOL) == set()


def test_a_skipped_lane_is_considered_again_when_a_worker_without_the_handler_left(
    deployment: Deployment,
) -> None:
    deployment.agent(types=["echo", "film"])
    deployment.agent(agent_id="plain", types=["echo"])
    user = deployment.user()
    film = deployment.task(user, type="film")
    assert taken(deployment, POOL) == set()
    assert deployment.lane(user)["skipped_by_pools"] == [POOL]

    leave(deployment.dispatcher, "plain")

    assert taken(deployment, POOL) == {film}


def test_a_skipped_lane_is_considered_again_when_a_worker_without_the_handler_is_silent(
    deployment: Deployment,
) -> None:
    deployment.agent(types=["echo", "film"])
    deployment.agent(agent_id="plain", types=["echo"])
    user = deployment.user()
    film = deployment.task(user, type="film")
    assert taken(deployment, POOL) == set()
    deployment.run(
        "UPDATE agents SET last_heartbeat_at = clock() - interval '1 h' WHERE id = 'plain'"
    )

    assert retire_agents(deployment.dispatcher, silence=timedelta(minutes=1)) == 1

    assert taken(deployment, POOL) == {film}


def test_a_caller_that_runs_a_task_itself_needs_no_handler(deployment: Deployment) -> None:
    deployment.agent(agent_id="studio", pool="films", types=["film"])
    user = deployment.user()
    film = deployment.task(user, type="film")

    claimed = claim_one(deployment.dispatcher, holder="me", claim_settings=CLAIM_SETTINGS)

    assert claimed is not None
    assert claimed.claim.task_id == film


def test_workers_that_are_offline_for_long_are_deleted(deployment: Deployment) -> None:
    owner = deployment.user()
    deployment.agent(agent_id="alive")
    deployment.run(
        "INSERT INTO agents (id, pool, slots, status, last_heartbeat_at, budget_remaining_usd,"
        " drain_requested_at, kind, owner_id, name, claim_ttl_seconds, stale_after_seconds)"
        " SELECT id, 'default', 1, 'offline', clock() - make_interval(hours => hours), usd,"
        "        CASE WHEN drains THEN clock() END, kind,"
        "        CASE kind WHEN 'pull' THEN CAST(:owner AS uuid) END,"
        "        CASE kind WHEN 'pull' THEN id END, CASE kind WHEN 'pull' THEN 60 END,"
        "        CASE kind WHEN 'pull' THEN 60 END"
        "   FROM (VALUES ('lately', 23, NULL, false, 'celery'), ('old', 25, NULL, false, 'celery'),"
        "                ('with budget', 25, 1.0, false, 'celery'),"
        "                ('draining', 25, NULL, true, 'celery'),"
        "                ('pull', 25, NULL, false, 'pull'), ('old pull', 721, NULL, false, 'pull'))"
        "     AS a(id, hours, usd, drains, kind)",
        owner=owner,
    )

    assert retire_agents(deployment.dispatcher, silence=timedelta(minutes=1)) == 0

    left = {row["id"] for row in deployment.rows("SELECT id FROM agents")}
    assert left == {"alive", "lately", "with budget", "draining", "pull"}


def test_the_doctor_counts_waiting_types_that_no_worker_handles(
    deployment: Deployment, database_url: str, tmp_path: Path
) -> None:
    deployment.agent(types=["echo"])
    user = deployment.user()
    for kind in ("film", "film", "echo"):
        deployment.task(user, type=kind)
    home = {"OVERNIGHT_HOME": str(tmp_path), "OVERNIGHT_DATABASE_URL": database_url}

    def handlers() -> Check:
        return next(check for check in run_checks(load(home)) if check.name == "handlers")

    assert handlers().detail == "no live worker has a handler for the type 'film' (2 waiting)"
    assert "OVERNIGHT_HANDLERS" in handlers().advice
    deployment.agent(types=["echo", "film"])
    assert handlers().ok
