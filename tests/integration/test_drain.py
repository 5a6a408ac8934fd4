"""Draining a worker: its runs finish, its slots are given to nobody, the others go on."""

from datetime import timedelta

import pytest

from overnight_server.control.drain import drain, undrain
from overnight_server.domain.errors import WorkerNotFound
from overnight_server.domain.results import Returned
from overnight_server.insight.workers import list_workers
from overnight_server.maintenance.reap import retire_agents
from overnight_server.outcome.presence import AgentCard
from overnight_worker.presence import show_up
from tests.support.house import POOL, House

LIVENESS = timedelta(seconds=15)
OLD, NEW = "host-a:1:aaaa", "host-b:2:bbbb"


def card(agent_id: str) -> AgentCard:
    return AgentCard(agent_id, POOL, (), 2)


def test_a_draining_worker_finishes_and_is_given_nothing_new(house: House) -> None:
    house.agent(slots=2, agent_id=OLD)
    user = house.user()
    first, _second = (house.running(user) for _ in range(2))
    house.task(user)

    drain(house.dispatcher, OLD)

    assert list(house.claim().claims) == []
    assert house.settle(first, Returned(), agent=OLD) is True
    assert list(house.claim().claims) == []


def test_what_it_still_runs_takes_no_slot_from_the_others(house: House) -> None:
    house.agent(slots=2, agent_id=OLD)
    user = house.user()
    for claimed in (house.task(user), house.task(user)) and house.claim().claims:
        house.start(claimed, agent=OLD)
    drain(house.dispatcher, OLD)
    house.agent(slots=2, agent_id=NEW)
    for _ in range(3):
        house.task(user)

    assert len(house.claim().claims) == 2
    assert len(house.claim(slots_max=4).claims) == 0


def test_what_it_alone_could_not_do_holds_its_pool_back_no_more(house: House) -> None:
    house.agent(agent_id=NEW, capabilities=["gpu"])
    house.agent(agent_id=OLD, capabilities=[])
    house.task(house.user(), required_capabilities=["gpu"])
    assert list(house.claim().claims) == []

    drain(house.dispatcher, OLD)

    assert len(house.claim().claims) == 1


def test_its_own_signs_of_life_do_not_undo_it(house: House) -> None:
    before = show_up(house.dispatcher, card(OLD), liveness=LIVENESS)
    drain(house.dispatcher, OLD)

    beating = show_up(house.dispatcher, card(OLD), liveness=LIVENESS)
    house.move_clock(LIVENESS * 2)
    after_silence = show_up(house.dispatcher, card(OLD), liveness=LIVENESS)
    house.move_clock(LIVENESS * 10)
    retire_agents(house.dispatcher, silence=LIVENESS)
    written_off = house.one("SELECT status FROM agents")["status"]
    after_all = show_up(house.dispatcher, card(OLD), liveness=LIVENESS)

    assert (before, beating, after_silence) == ("active", "draining", "draining")
    assert (written_off, after_all) == ("offline", "draining")


def test_a_drain_can_be_taken_back(house: House) -> None:
    house.agent(slots=2, agent_id=OLD)
    house.task(house.user())
    drain(house.dispatcher, OLD)
    assert list(house.claim().claims) == []

    undrain(house.dispatcher, OLD)

    assert show_up(house.dispatcher, card(OLD), liveness=LIVENESS) == "active"
    assert len(house.claim().claims) == 1


@pytest.mark.parametrize("name", [OLD, "host-a", "aaaa"])
def test_a_worker_is_known_by_either_end_of_its_name(house: House, name: str) -> None:
    house.agent(agent_id=OLD)
    house.agent(agent_id=NEW)

    assert drain(house.dispatcher, name) == OLD
    assert {one.id: one.status for one in list_workers(house.app)} == {
        OLD: "draining",
        NEW: "active",
    }


@pytest.mark.parametrize("name", ["host", "nobody", ""])
def test_a_name_that_is_nobodys_or_anybodys_is_refused(house: House, name: str) -> None:
    house.agent(agent_id=OLD)
    house.agent(agent_id=NEW)

    with pytest.raises(WorkerNotFound) as refused:
        drain(house.dispatcher, name)

    assert (OLD in refused.value.message) == (name != "nobody")


def test_workers_are_listed_with_what_they_do(house: House) -> None:
    house.agent(slots=3, agent_id=OLD)
    house.agent(slots=2, agent_id=NEW, pool="gpu")
    task_id = house.task(house.user())
    [claimed] = house.claim().claims
    house.start(claimed, agent=OLD)

    found = {one.id: one for one in list_workers(house.app)}
    house.move_clock(LIVENESS * 2)
    later = {one.id: one.status for one in list_workers(house.app, liveness=LIVENESS)}
    retire_agents(house.dispatcher, silence=LIVENESS)

    assert house.state(task_id) == "running"
    assert (found[OLD].pool, found[OLD].slots, found[OLD].busy) == (POOL, 3, 1)
    assert (found[NEW].pool, found[NEW].slots, found[NEW].busy) == ("gpu", 2, 0)
    assert set(later.values()) == {"silent"}
    assert list_workers(house.app) == []
    assert {one.status for one in list_workers(house.app, offline=True)} == {"offline"}
