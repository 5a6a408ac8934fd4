"""Sequences that once broke the deployment, found by the state machine, each kept as a test."""

from datetime import timedelta
from uuid import UUID

from overnight_server.dispatch.publish import group_by_message
from overnight_server.domain.claims import Claim
from overnight_server.gate.claim import BundleLimits, ClaimSettings, claim
from overnight_server.maintenance.reap import end_overdue, reap
from overnight_server.outcome.presence import leave
from tests.support.deployment import CLAIM_TTL, POOL, Deployment

LIVENESS = timedelta(seconds=15)
GRACE = timedelta(seconds=10)


def test_a_run_lost_long_ago_is_reaped_and_not_ended_as_overdue(deployment: Deployment) -> None:
    user = deployment.user()
    deployment.agent()
    run = deployment.running(user, timeout_seconds=600)
    killed: list[Claim] = []
    deployment.move_clock(timedelta(hours=8))

    ended = end_overdue(deployment.dispatcher, grace=GRACE, kill=killed.append)
    reap(deployment.dispatcher)

    assert (ended, killed) == (0, [])
    assert deployment.state(run.claim.task_id) == "retrying"
    assert deployment.one("SELECT outcome FROM attempts")["outcome"] == "worker_lost"
    assert deployment.lane(user)["used_seconds"] == 0


def test_a_worker_that_left_no_longer_limits_its_pool(deployment: Deployment) -> None:
    deployment.agent(agent_id="able", capabilities=["gpu"])
    deployment.agent(agent_id="unable")
    task_id = deployment.task(deployment.user(), required_capabilities=["gpu"])
    before = deployment.claim().claims

    leave(deployment.dispatcher, "unable")
    [claimed] = deployment.claim().claims

    assert before == []
    assert claimed.claim.task_id == task_id


def test_quick_and_single_tasks_share_no_slot(deployment: Deployment) -> None:
    deployment.run("INSERT INTO type_durations (type, seconds) VALUES ('quick', 0.001)")
    deployment.agent(slots=2)
    for turn, kind in enumerate(("quick", "echo", "quick", "quick", "echo")):
        deployment.task(deployment.user(id=UUID(int=turn)), type=kind)

    taken = claim(
        deployment.dispatcher,
        POOL,
        holder="dispatcher",
        claim_settings=ClaimSettings(CLAIM_TTL, LIVENESS, bundle_limits=BundleLimits()),
    )

    assert sorted(len(message) for message in group_by_message(taken.claims)) == [1, 3]
