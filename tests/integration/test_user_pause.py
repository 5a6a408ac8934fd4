"""A user's own pause: begun and ended by command, and never over an operator's."""

import json
import os
from pathlib import Path

import pytest

from overnight_server.control.pauses import PauseSubject, pause
from overnight_server.domain.ids import show_task
from tests.support.command import run
from tests.support.deployment import Deployment
from tests.support.live_api import serve


def test_a_user_pauses_and_resumes_their_own_work(
    deployment: Deployment, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(deployment, database_url) as served:
        monkeypatch.chdir(tmp_path)
        for name in [name for name in os.environ if name.startswith("OVERNIGHT_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("OVERNIGHT_URL", served.url)
        monkeypatch.setenv("OVERNIGHT_API_KEY", served.key)

        paused = run("pause", "--me", "--note", "a holiday")
        again = run("pause", "--me")
        task = deployment.task(served.user)
        explained = run("explain", show_task(task), "--json")
        resumed = json.loads(run("resume", "--me", "--json").stdout)
        twice = run("resume", "--me")
        pause(deployment.app, PauseSubject(user_id=served.user), actor="human:operator")
        refused = run("resume", "--me")
        both = run("pause", "--me", "--all")

    assert (paused.stdout, paused.stderr) == ("Paused your tasks.\n", "")
    assert again.stderr == "Your tasks were already paused.\n"
    assert "overnight resume --me" in json.loads(explained.stdout)["reasons"][0]["message"]
    assert resumed == {"scope": "user", "target": "me", "paused": False, "changed": True}
    assert twice.stderr == "Your tasks were not paused.\n"
    assert "only an admin can resume them" in refused.stderr
    assert deployment.lane(served.user)["paused"]
    assert (both.exit_code, "--me excludes" in both.stderr) == (2, True)
