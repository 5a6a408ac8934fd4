"""The commands for windows, pauses, workers and pools, through the admin API."""

import json

import pytest

from overnight_server.cli.terminal.failures import Code
from overnight_server.control.agents import PullAgentDescription, register
from overnight_server.control.keys import Caller
from tests.support.command import run
from tests.support.deployment import AGENT, Deployment

BERLIN = ("--zone", "Europe/Berlin", "--from", "22:00", "--to", "06:00")


pytestmark = pytest.mark.usefixtures("admin_cli")


def test_a_window_is_set_shown_and_removed() -> None:
    run("user", "add", "ada")

    changed = run("user", "window", "ada", *BERLIN, "--at-closing", "stop")
    shown = run("user", "window", "ada")
    listed = run("user", "list")
    as_json = json.loads(run("user", "list", "--json").stdout)[0]["window"]
    taken = run("user", "window", "ada", "--off", "--json")

    assert changed.exit_code == 0, changed.stderr
    assert changed.stdout == "Tasks of ada start 22:00-06:00 Europe/Berlin; at closing: stop.\n"
    assert "22:00-06:00 Europe/Berlin" in listed.stdout
    assert max(map(len, listed.stdout.splitlines())) < 80
    assert shown.stdout == changed.stdout
    assert (as_json["zone"], as_json["opens"], as_json["at_closing"]) == (
        "Europe/Berlin",
        "22:00",
        "stop",
    )
    assert as_json["turns_at"].endswith("Z")
    assert json.loads(taken.stdout) == {"name": "ada", "window": None}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--zone", "Mars/Phobos", "--from", "22:00", "--to", "06:00"), "IANA"),
        (("--zone", "UTC", "--from", "ten", "--to", "06:00"), "HH:MM"),
        (("--zone", "UTC", "--from", "22:00", "--to", "22:00"), "another time"),
        (("--zone", "UTC"), "--from"),
        (("--at-closing", "stop"), "--off"),
        (("--off", "--zone", "UTC"), "--off"),
        ((*BERLIN, "--at-closing", "panic"), "finish"),
    ],
)
def test_a_wrong_window_is_refused_with_the_allowed_values(
    arguments: tuple[str, ...], expected: str
) -> None:
    run("user", "add", "ada")

    refused = run("user", "window", "ada", *arguments)

    assert refused.exit_code == Code.USAGE
    assert expected in refused.stderr


def test_a_window_for_an_unknown_user_is_refused() -> None:
    refused = run("user", "window", "nobody", *BERLIN)

    assert refused.exit_code == Code.FAILED
    assert "overnight user list" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--user", "ada"), "user ada"),
        (("--pool", "default"), "pool default"),
        (("--all",), "the deployment"),
    ],
)
def test_a_pause_is_listed_until_it_is_resumed(
    deployment: Deployment, arguments: tuple[str, ...], expected: str
) -> None:
    deployment.user(name="ada")
    deployment.agent()

    paused = run("pause", *arguments, "--note", "the disk is full")
    again = run("pause", *arguments)
    listed = json.loads(run("pause", "--json").stdout)
    shown = run("pause").stdout
    resumed = run("resume", *arguments, "--json")
    twice = run("resume", *arguments)

    sentence_start = expected[0].upper() + expected[1:]
    assert paused.stdout == f"Paused {expected}.\n", paused.stderr
    assert (again.exit_code, again.stderr) == (0, f"{sentence_start} was already paused.\n")
    assert [item["note"] for item in listed] == ["the disk is full"]
    assert "the disk is full" in shown
    assert json.loads(resumed.stdout)["changed"] is True
    assert (twice.exit_code, twice.stderr) == (0, f"{sentence_start} was not paused.\n")
    assert "Nothing is paused." in run("pause").stderr


@pytest.mark.parametrize("arguments", [("--user", "ada", "--all"), ("--pool", "x", "--all")])
def test_a_pause_needs_exactly_one_target(
    deployment: Deployment, arguments: tuple[str, ...]
) -> None:
    deployment.user(name="ada")

    assert run("pause", *arguments).exit_code == Code.USAGE
    assert run("resume").exit_code == Code.USAGE


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_the_error_for_an_unknown_pool_names_the_pools(
    deployment: Deployment, command: str
) -> None:
    deployment.agent()

    refused = run(command, "--pool", "nowhere")

    assert refused.exit_code == Code.FAILED
    assert refused.stderr == "Error: there is no pool 'nowhere'\nThe pools are default.\n"


def test_a_worker_is_listed_and_drained(deployment: Deployment) -> None:
    deployment.agent(slots=4)

    before = run("workers").stdout
    drained = run("drain", "boot", "--json")
    after = json.loads(run("workers", "--json").stdout)
    undone = run("drain", AGENT, "--undo")

    header, line = before.splitlines()
    assert header.split()[:3] == ["WORKER", "KIND", "POOL"]
    assert line.split()[:2] == [AGENT, "worker"]
    assert "active" in before
    assert json.loads(drained.stdout) == {"worker": AGENT, "status": "draining"}
    assert [(worker["slots"], worker["busy"], worker["status"]) for worker in after] == [
        (4, 0, "draining")
    ]
    assert undone.stdout == f"{AGENT} is active.\n"


def test_the_pools_are_listed_with_their_slots(deployment: Deployment) -> None:
    none = run("pools").stderr
    deployment.agent(slots=4)
    run("pause", "--pool", "default")

    shown = run("pools").stdout
    [pool] = json.loads(run("pools", "--json").stdout)

    assert "No pools." in none
    assert "default" in shown
    assert "all users" in shown
    assert (pool["workers"], pool["slots"], pool["paused"]) == (1, 4, True)


def test_an_agent_outside_the_deployment_is_listed_as_agent(deployment: Deployment) -> None:
    register(deployment.dispatcher, Caller(deployment.user(), "", ()), PullAgentDescription("mine"))

    _, line = run("workers").stdout.splitlines()

    assert line.split()[1] == "agent"


def test_an_unknown_worker_is_not_drained() -> None:
    refused = run("drain", "nobody")

    assert refused.exit_code == Code.FAILED
    assert "there is no worker 'nobody'" in refused.stderr
    assert "No workers." in run("workers").stderr


def test_a_note_without_a_target_is_refused() -> None:
    refused = run("pause", "--note", "the disk is full")

    assert refused.exit_code == Code.USAGE
    assert "--user" in refused.stderr


def test_a_second_pause_replaces_the_note_and_a_resume_lists_the_other_pauses(
    deployment: Deployment,
) -> None:
    deployment.user(name="ada")
    run("pause", "--user", "ada", "--note", "unpaid")

    again = run("pause", "--user", "ada", "--note", "still unpaid")
    noted = json.loads(run("pause", "--json").stdout)[0]["note"]
    run("pause", "--all")
    resumed = run("resume", "--all")

    assert again.stderr == "User ada was already paused; its note is now 'still unpaid'.\n"
    assert noted == "still unpaid"
    assert (resumed.stdout, resumed.stderr) == (
        "Resumed the deployment.\n",
        "Still paused: user ada.\n",
    )
