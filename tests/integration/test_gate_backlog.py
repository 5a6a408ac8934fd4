"""The gate beside a mountain of work: whoever comes next is served next."""

from overnight_server.domain.plans import PlanTier
from overnight_server.domain.results import Returned
from overnight_server.intake.submit import NewTask, submit_graph
from tests.support.house import LOOSE, House

MOUNTAIN = 20_000
BATCH = 5_000


def test_a_huge_backlog_delays_another_user_by_one_slot_turnover(house: House) -> None:
    house.agent(slots=2)
    whale = house.user(PlanTier.ENTERPRISE)
    for _ in range(MOUNTAIN // BATCH):
        submit_graph(house.app, whale, [NewTask(title="one of many", type="echo")] * BATCH, LOOSE)
    first, second = house.claim().claims
    newcomer = house.user()
    house.task(newcomer)

    run = house.start(first)
    assert run is not None
    house.settle(run, Returned())
    [served] = house.claim().claims

    assert first.user_id == second.user_id == whale
    assert served.user_id == newcomer


def test_two_hundred_lanes_blocked_by_money_do_not_hold_up_the_rest(house: House) -> None:
    house.agent(slots=1)
    for _ in range(200):
        house.task(house.user(night_budget_usd=1), max_cost_usd=2.0)
    lucky = house.user()
    house.task(lucky)
    # The lucky one is the last in line: nobody was served yet, and ids decide.
    house.run("UPDATE lanes SET last_served_at = clock() WHERE user_id = :id", id=lucky)

    [claimed] = house.claim().claims

    assert claimed.user_id == lucky
