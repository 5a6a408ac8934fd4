"""The operator's look at anybody's tasks, and at users: names, limits, tonight's money."""

import json
from datetime import timedelta

import pytest

from overnight_server.cli.terminal.failures import Code
from overnight_server.domain.errors import InvalidRequest
from overnight_server.domain.ids import show_task
from overnight_server.domain.results import Returned
from overnight_server.insight.fairness import fairness
from tests.support.command import run
from tests.support.house import LIVENESS, House

pytestmark = pytest.mark.usefixtures("operators_place")


def test_an_operator_looks_at_anybodys_task(house: House) -> None:
    user = house.user(name="ada")
    task = show_task(house.task(user, title="say hello"))

    shown = run("get", task[-8:], "--house")
    explained = run("explain", task, "--house", "--json")
    foretold = run("forecast", task, "--house")
    listed = run("list", "--user", "ada", "--status", "pending")

    assert "say hello" in shown.stdout, shown.stderr
    assert json.loads(explained.stdout)["reasons"][0]["code"] == "no_worker"
    assert "no worker is alive" in foretold.stderr
    assert task in listed.stdout


def test_an_operators_look_takes_no_server_and_no_stranger(house: House) -> None:
    house.user(name="ada")

    assert run("list", "--user", "ada", "--url", "http://x").exit_code == Code.USAGE
    assert run("list", "--user", "bob").exit_code == Code.FAILED
    assert run("forecast", "--house").exit_code == Code.USAGE
    assert run("list", "--user", "ada", "--status", "odd").exit_code == Code.USAGE
    assert run("get", "task_01J8K0000000000000000000AA", "--house").exit_code == Code.FAILED


@pytest.mark.parametrize("name", ["ada lovelace", "", "a/b", "a" * 101, "a;b"])
def test_a_name_that_commands_could_not_carry_is_refused(name: str) -> None:
    refused = run("user", "add", name)

    assert refused.exit_code == Code.USAGE
    assert "letters, digits and . _ - @ +" in refused.stderr


def test_a_user_is_renamed_unless_the_name_is_taken(house: House) -> None:
    house.user(name="ada")
    house.user(name="bob")

    renamed = run("user", "rename", "ada", "ada@lovelace.org")
    taken = run("user", "rename", "bob", "ada@lovelace.org")

    assert renamed.stdout == "ada is ada@lovelace.org now.\n", renamed.stderr
    assert taken.exit_code == Code.FAILED
    assert "already" in taken.stderr


def test_a_users_limits_tell_of_tonights_money_and_of_exceptions(house: House) -> None:
    house.agent()
    user = house.user(name="ada", night_budget_usd=4)
    house.settle(house.running(user, max_cost_usd=2.0), Returned(cost_usd=1.5))
    house.running(user, max_cost_usd=1.0)
    run("user", "limits", "ada", "--hours", "7")

    shown = run("user", "limits", "ada").stdout
    listed = run("user", "list")

    assert "$1.50 tonight" in shown
    assert "$1.50, promises to runs taken off" in shown
    assert "4.00, to what runs" in shown
    assert "$4.00" in listed.stdout
    assert "ada has exceptions to the plan: 7 hours" in listed.stderr


@pytest.mark.parametrize("hours", ["-1", "1.5", "many"])
def test_a_wrong_number_is_told_what_would_do(house: House, hours: str) -> None:
    house.user(name="ada")

    refused = run("user", "limits", "ada", f"--hours={hours}")

    assert refused.exit_code == Code.USAGE
    assert "a whole number from 0 or 'unlimited'" in refused.stderr


def test_slots_that_nobody_offers_any_more_are_told_as_such(house: House) -> None:
    house.agent()
    house.running(house.user(name="ada"))
    house.run("UPDATE agents SET status = 'draining'")

    shown = run("queue-status", "--house").stdout

    assert "1 in use, 0 offered" in shown
    assert "by user  ada 1" in shown


def test_a_deadline_that_has_passed_is_refused(house: House) -> None:
    now = house.one("SELECT clock() AS now")["now"]

    with pytest.raises(InvalidRequest, match=r"deadline_at: .* has passed; legal: after"):
        house.task(house.user(), deadline_at=now - timedelta(minutes=1))


def test_a_young_house_has_receipts_and_a_long_queue_is_counted_whole(house: House) -> None:
    house.agent()
    user = house.user(max_concurrent_agents=1)
    run_ = house.running(user)
    house.move_clock(timedelta(seconds=20))
    house.settle(run_, Returned())
    for _ in range(5):
        house.task(user)

    found = fairness(house.dispatcher, liveness=LIVENESS)

    assert found.users[0].waiting == 5
    assert found.users[0].service is not None
    assert found.jain is not None
    assert found.until_at - found.since_at < timedelta(minutes=5)
    assert not found.is_shortened
