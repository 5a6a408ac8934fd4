"""The night of the demo, played by the real engine with a moved clock."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from overnight_server.demo.night import DEMO_NIGHT, MORNING, SIGNED_UP, at_minute
from overnight_server.demo.play import DemoDatabases, Player, play_at_once
from overnight_server.settings import Settings
from overnight_server.store.demo_clock import DemoClock, NotADemo
from tests.support.deployment import Deployment

# How long a visitor waits at most, from the command to the morning.
PROMISED_SECONDS = 120
STORY = {
    "completed": 28,
    "running": 1,
    "ready": 2,
    "pending": 3,
    "dead_lettered": 4,
    "cancelled": 2,
}


@pytest.fixture
def player(deployment: Deployment) -> Player:
    databases = DemoDatabases(deployment.app, deployment.dispatcher)
    clock = DemoClock(deployment.owner, SIGNED_UP)
    return Player(DEMO_NIGHT, databases, clock, Settings())


def test_the_night_has_every_kind_of_end_and_goes_on_in_the_morning(
    deployment: Deployment, player: Player
) -> None:
    play_at_once(player)

    tasks = {row["title"]: row for row in deployment.rows("SELECT * FROM tasks")}
    assert Counter(task["state"] for task in tasks.values()) == STORY
    letters = deployment.rows(
        "SELECT t.title, d.poison_pill FROM dead_letters d JOIN tasks t ON t.id = d.task_id"
    )
    assert {letter["title"]: letter["poison_pill"] for letter in letters} == {
        "Translate chapter 4": False,
        "Translate chapter 5": False,
        "Try the vector index on staging": True,
        "Look into Tarn": False,
    }
    assert tasks["Translate chapter 6"]["awaits_budget"] == "task"
    runs = deployment.rows(
        "SELECT a.outcome, (SELECT sum(l.seconds) FROM usage_ledger l"
        " WHERE l.task_id = a.task_id AND l.epoch = a.epoch) AS billed"
        " FROM attempts a JOIN tasks t ON t.id = a.task_id"
        " WHERE t.title = 'Port the payment webhooks' ORDER BY a.epoch"
    )
    assert [run["outcome"] for run in runs] == ["worker_lost", "deferred", "completed"]
    assert not runs[0]["billed"]
    lane = deployment.lane(player.users["ada"])
    left = 100 * 3600 - lane["used_seconds"] - lane["reserved_seconds"]
    assert 0 <= left < 7200  # two tasks of two hours each do not fit
    [row] = deployment.rows("SELECT clock() AS now")
    assert row["now"] >= at_minute(MORNING)

    # What a visitor adds after the night runs too.
    task_id = deployment.task(player.users["cleo"], title="one more")
    player.go_on()
    assert deployment.state(task_id) == "running"
    player.clock.go_on_from(at_minute(MORNING + 2))
    player.go_on()
    assert deployment.state(task_id) == "completed"


def test_a_database_with_tasks_keeps_its_clock(deployment: Deployment) -> None:
    deployment.task(deployment.user())

    with pytest.raises(NotADemo):
        DemoClock(deployment.owner, SIGNED_UP)


@pytest.mark.timeout(PROMISED_SECONDS + 30)
def test_the_command_plays_in_a_home_of_its_own_in_under_two_minutes(tmp_path: Path) -> None:
    environment = {**os.environ, "OVERNIGHT_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "overnight_server.cli.main", "demo", "--no-stay", "--json"]

    ended = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PROMISED_SECONDS,
    )

    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["tasks"] == STORY
    assert report["home"] == str(tmp_path / "home" / "demo")
    assert not (tmp_path / "home" / "postgres").exists()
