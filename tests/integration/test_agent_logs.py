"""The logs of runs of pull agents: lines over HTTP, bounded, masked, under the claim."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import overnight
from overnight import errors
from overnight.agent.agent import Agent
from overnight.agent.log_lines import MAX_WAITING, LogLines
from overnight.handlers import registry
from overnight.models.agents import MAX_LOG_TEXT
from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId, parse_task
from overnight_server.domain.log_bounds import CHUNK_BYTES, HEAD_BYTES, TAIL_BYTES
from overnight_server.insight.logs import read_log
from overnight_server.maintenance.reap import reap
from overnight_server.outcome.run_logs import append_log
from overnight_server.store.db import Db
from tests.support.api_user import ApiUser, serve_api
from tests.support.command import run as run_command
from tests.support.deployment import Deployment
from tests.support.pull_agent import PullAgent, register_agent
from tests.support.rivals import Rival, meet_at_task

OVER = timedelta(seconds=91)


@pytest.fixture
def api_user(
    deployment: Deployment, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ApiUser]:
    monkeypatch.setattr(registry, "_handlers", {})
    with serve_api(deployment, database_url) as api_user:
        yield api_user


@pytest.fixture
def agent(api_user: ApiUser) -> PullAgent:
    api_user.created(type="echo", max_attempts=3)
    return register_agent(api_user)


def log_of(api_user: ApiUser, task: str) -> list[dict[str, Any]]:
    answer = api_user.request("GET", f"/api/v1/tasks/{task}/logs?limit=100")
    assert answer.status_code == 200
    parts: list[dict[str, Any]] = answer.json()
    return parts


def text_of(api_user: ApiUser, task: str) -> str:
    return "".join(part["text"] for part in log_of(api_user, task))


def held(deployment: Deployment, task_id: TaskId) -> Claim:
    row = deployment.row(task_id)
    return Claim(task_id, row["epoch"], row["token"])


def test_an_agent_adds_lines_that_the_owner_reads(
    agent: PullAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = agent.begin()

    assert agent.report(work, "logs", text="first\nsecond").json() == {"ok": True}
    agent.report(work, "logs", text="wrong\n", stream="stderr")
    agent.report(work, "complete", output={})

    parts = log_of(agent.api_user, work["task_id"])
    assert [(part["stream"], part["text"], part["lines"]) for part in parts] == [
        ("log", "first\nsecond\n", 2),
        ("stderr", "wrong\n", 1),
    ]
    agent.api_user.take_commands(monkeypatch)
    shown = run_command("logs", work["task_id"], "-f")
    assert shown.stdout == "first\nsecond\nwrong\n"


def test_a_run_that_has_not_started_or_has_ended_adds_nothing(agent: PullAgent) -> None:
    work = agent.work()
    assert agent.report(work, "logs", text="early").status_code == 409
    agent.report(work, "start")
    agent.report(work, "complete", output={})

    late = agent.report(work, "logs", text="late")

    assert (late.status_code, late.json()["code"]) == (409, "STALE_ATTEMPT")
    assert log_of(agent.api_user, work["task_id"]) == []


def test_a_run_that_lost_its_task_does_not_write_into_the_log_of_the_next_run(
    agent: PullAgent,
) -> None:
    work = agent.begin()
    agent.report(work, "logs", text="one")
    agent.api_user.deployment.move_clock(OVER)
    reap(agent.api_user.deployment.dispatcher)
    agent.api_user.deployment.run(
        "UPDATE tasks SET state = 'ready', retry_at = NULL WHERE state = 'retrying'"
    )
    again = register_agent(agent.api_user).begin()

    assert agent.report(work, "logs", text="late").status_code == 409
    agent.report(again, "logs", text="two")

    assert [part["id"] for part in log_of(agent.api_user, work["task_id"])] == ["1.4", "2.4"]
    assert text_of(agent.api_user, work["task_id"]) == "one\ntwo\n"


def test_a_worker_writes_the_log_of_its_runs_alone(api_user: ApiUser) -> None:
    deployment = api_user.deployment
    deployment.agent()
    run = deployment.running(api_user.user)

    with pytest.raises(errors.InvalidRequest, match="a worker writes the log"):
        append_log(deployment.dispatcher, run.claim, "log", "a line")


@pytest.mark.parametrize(
    "body",
    [
        {"text": ""},
        {"text": "x" * (MAX_LOG_TEXT + 1)},
        {"text": 3},
        {"text": "x", "stream": "cut"},
        {},
    ],
)
def test_a_text_that_cannot_be_a_part_of_a_log_is_refused(
    agent: PullAgent, body: dict[str, Any]
) -> None:
    assert agent.report(agent.begin(), "logs", **body).status_code == 422


def test_passwords_are_masked_and_what_cannot_be_stored_is_replaced(agent: PullAgent) -> None:
    work = agent.begin()
    agent.report(work, "logs", text="redis://app:hunter2@cache\nAuthorization: Bearer abcdefgh1\n")
    odd = agent.api_user.request(
        "POST",
        f"/api/v1/tasks/{work['task_id']}/logs",
        content=json.dumps({"text": "nul\0 \u2028 \x1b[31m"}),
        headers={
            "Authorization": f"Bearer {work['token']}",
            "Content-Type": "application/json",
        },
    )
    assert odd.status_code == 200

    text = text_of(agent.api_user, work["task_id"])
    assert "hunter2" not in text
    assert "abcdefgh1" not in text
    assert text.splitlines(keepends=False)[2].startswith("nul\ufffd ")


def test_of_a_long_log_the_begin_and_the_end_are_kept(agent: PullAgent) -> None:
    work = agent.begin()
    deployment = agent.api_user.deployment
    task_id = parse_task(work["task_id"])
    claim = held(deployment, task_id)
    line = "x" * 99 + "\n"
    lines = 0
    for _ in range(60):
        append_log(deployment.dispatcher, claim, "stdout", line * 600)
        lines += 600
    append_log(deployment.dispatcher, claim, "stdout", "the end\n")

    rows = deployment.rows("SELECT * FROM log_chunks ORDER BY seq")
    kept = [row for row in rows if row["stream"] != "cut"]
    [cut] = [row for row in rows if row["stream"] == "cut"]
    assert sum(row["bytes"] for row in kept) + cut["bytes"] == lines * 100 + 8
    assert sum(row["lines"] for row in kept) + cut["lines"] == lines + 1
    assert sum(row["bytes"] for row in kept) <= HEAD_BYTES + TAIL_BYTES + CHUNK_BYTES
    head = [row["bytes"] for row in rows[: rows.index(cut)]]
    assert HEAD_BYTES - CHUNK_BYTES < sum(head) <= HEAD_BYTES
    assert rows[-1]["text"] == "the end\n"
    assert f"{cut['bytes']:,} bytes are missing here" in cut["text"]


def test_a_reader_continues_after_what_was_cut(agent: PullAgent) -> None:
    work = agent.begin()
    deployment, task_id = agent.api_user.deployment, parse_task(work["task_id"])
    claim = held(deployment, task_id)
    append_log(deployment.dispatcher, claim, "stdout", "y" * (MAX_LOG_TEXT - 1))
    [*_, last] = read_log(deployment.app, agent.api_user.user, task_id, limit=200).chunks
    for number in range(40):
        append_log(deployment.dispatcher, claim, "stdout", f"{number}" * (MAX_LOG_TEXT // 4))

    after = (last.epoch, last.seq)
    page = read_log(deployment.app, agent.api_user.user, task_id, after=after, limit=500)

    positions = [(chunk.epoch, chunk.seq) for chunk in page.chunks]
    assert positions == sorted(set(positions))
    assert positions[0] > after
    assert sum(chunk.stream == "cut" for chunk in page.chunks) == 1


def test_two_requests_at_once_write_one_after_the_other(
    agent: PullAgent, connect: Callable[..., Db]
) -> None:
    work = agent.begin()
    deployment, task_id = agent.api_user.deployment, parse_task(work["task_id"])
    claim = held(deployment, task_id)
    rivals = [Rival(connect, f"rival {name}", append_log, claim, "log", name * 10) for name in "ab"]

    meet_at_task(connect, task_id, *rivals)

    assert text_of(agent.api_user, work["task_id"]) == "aaaaaaaaaa\nbbbbbbbbbb\n"


def test_the_handler_of_an_agent_logs(api_user: ApiUser) -> None:
    @overnight.handler("talk")
    def talk(ctx: overnight.Context) -> None:
        ctx.log("read a page", page=3)
        ctx.log("done")

    task = api_user.created(type="talk")

    assert Agent("laptop", client=api_user.client()).run_one() is True

    first, second = text_of(api_user, task["id"]).splitlines()
    assert first.endswith(" INFO read a page page=3")
    assert second.endswith(" INFO done")


def test_lines_wait_in_order_and_the_oldest_are_dropped() -> None:
    lines = LogLines()
    assert lines.take() == ""
    lines.add("one", {})
    taken = lines.take()
    lines.add("two", {})
    lines.put_back(taken)
    assert [line.split()[-1] for line in lines.take().splitlines()] == ["one", "two"]

    for number in range(20):
        lines.add(f"{number} " + "x" * (MAX_LOG_TEXT // 2), {})
    for number in range(40):
        lines.add(f"{number} " + "y" * (MAX_LOG_TEXT // 2), {})
    parts = []
    while part := lines.take():
        assert len(part) <= MAX_LOG_TEXT
        parts.append(part)
    assert "lines are missing" in parts[0]
    assert sum(map(len, parts)) <= MAX_WAITING + 100
    assert " 39 y" in parts[-1]
