"""A run is charged once, however often its end is recorded."""

from contextlib import suppress
from datetime import timedelta

from sqlalchemy.exc import IntegrityError

from overnight_server.domain.results import Interrupted
from tests.support.deployment import Deployment
from tests.support.invariants import describe_violations, violations


def test_a_run_recorded_twice_is_charged_once(deployment: Deployment) -> None:
    deployment.agent()
    run = deployment.running(deployment.user(), timeout_seconds=600)
    held = deployment.row(run.claim.task_id)
    deployment.move_clock(timedelta(minutes=1))
    deployment.settle(run, Interrupted())
    # The claim token lets a run end once, so the test restores the claimed row by SQL.
    deployment.run(
        "UPDATE tasks SET state = 'running', epoch = :epoch, token = :token, pool = :pool,"
        " claimed_by = :claimed_by, claimed_at = :claimed_at, started_at = :started_at,"
        " expires_at = :expires_at, reserved_seconds = :reserved_seconds WHERE id = :id",
        **held,
    )

    with suppress(IntegrityError):
        deployment.settle(run, Interrupted())

    broken = violations(deployment.owner, codes={"charges"})
    assert not broken, describe_violations(broken)
