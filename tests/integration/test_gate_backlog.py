"""The gate with a huge backlog: another user is served next."""

from overnight.models.enums import PlanTier
from overnight_server.domain.results import Returned
from overnight_server.intake.new_graph import NewTask
from overnight_server.intake.submit import submit_graph
from tests.support.deployment import LOOSE, Deployment

MOUNTAIN = 20_000
BATCH = 5_000


def test_a_huge_backlog_delays_another_user_by_one_slot_turnover(deployment: Deployment) -> None:
    deployment.agent(slots=2)
    whale = deployment.user(PlanTier.ENTERPRISE)
    for _ in range(MOUNTAIN // BATCH):
        submit_graph(
            deployment.app, whale, [NewTask(title="one of many", type="echo")] * BATCH, LOOSE
        )
    first, second = deployment.claim().claims
    newcomer = deployment.user()
    deployment.task(newcomer)

    run = deployment.start(first)
    assert run is not None
    deployment.settle(run, Returned())
    [served] = deployment.claim().claims

    assert first.user_id == second.user_id == whale
    assert served.user_id == newcomer


def test_two_hundred_lanes_blocked_by_money_do_not_delay_the_rest(deployment: Deployment) -> None:
    deployment.agent(slots=1)
    for _ in range(200):
        deployment.task(deployment.user(night_budget_usd=1), max_cost_usd=2.0)
    lucky = deployment.user()
    deployment.task(lucky)
    # The user with a startable task is last: no user was served yet, so ids decide the order.
    deployment.run("UPDATE lanes SET last_served_at = clock() WHERE user_id = :id", id=lucky)

    [claimed] = deployment.claim().claims

    assert claimed.user_id == lucky
