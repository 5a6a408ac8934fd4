"""The user commands against a fake server that responds as the contract says."""

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from overnight_server.cli.main import app
from overnight_server.cli.terminal import task_output
from overnight_server.cli.terminal.failures import Code
from tests.support.published_home import published_home
from tests.support.stub_service import (
    ALPHA,
    BETA,
    KEY,
    Answer,
    Service,
    problem,
    stub_service,
    task,
)


@pytest.fixture
def service() -> Iterator[Service]:
    with stub_service() as served:
        yield served


@pytest.fixture(autouse=True)
def connected(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that points to this server only."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OVERNIGHT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OVERNIGHT_URL", service.url)
    monkeypatch.setenv("OVERNIGHT_API_KEY", KEY)


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=stdin, prog_name="overnight")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--priority", "1", "--priority-score", "7"), "cannot be used together"),
        (("--deadline", "2020-01-31T07:00Z"), "in the past"),
        (("--deadline", "soon"), "is not an instant"),
        (("--timeout", "9999d"), "too long; the longest duration is 3650d"),
        (("--timeout", "0s"), "too short; the shortest duration is 1s"),
    ],
)
def test_add_refuses_invalid_options(arguments: tuple[str, ...], expected: str) -> None:
    refused = run("add", "say hello", *arguments)

    assert refused.exit_code == Code.USAGE
    assert expected in " ".join(refused.stderr.split())


def test_get_shows_the_timeout_in_force_the_deadline_and_the_estimate(service: Service) -> None:
    more = {
        "timeout_seconds": 7200,
        "effective_timeout_seconds": 1800,
        "deadline_at": "2030-01-31T07:00:00Z",
        "estimated_cost_usd": 0.5,
        "progress": {"fraction": 0.4, "message": "page 4"},
    }
    service.on(f"GET /api/v1/tasks/{ALPHA}", (200, task() | more))

    shown = run("get", ALPHA).stdout

    assert "1800 s, the limit of your plan (7200 s were requested)" in shown
    assert "2030-01-31 07:00:00Z" in shown
    assert "$0.5000 per run" in shown
    assert "40 %, page 4" in shown


def test_get_shows_no_progress_of_a_task_that_has_ended(service: Service) -> None:
    ended = task(state="completed", progress={"fraction": 0.5})
    service.on(f"GET /api/v1/tasks/{ALPHA}", (200, ended))

    shown = run("get", ALPHA).stdout
    document = json.loads(run("get", ALPHA, "--json").stdout)

    assert "progress" not in shown
    assert document["progress"] == {"fraction": 0.5}


def test_add_prints_the_id_alone_on_stdout(service: Service) -> None:
    service.on("POST /api/v1/tasks", (201, task()))

    added = run("add", "say hello")

    assert added.exit_code == 0
    assert added.stdout == f"{ALPHA}\n"
    assert f"overnight wait {ALPHA}" in added.stderr
    assert service.keys == {KEY}


def test_add_sends_exactly_the_given_options(service: Service) -> None:
    service.on("POST /api/v1/tasks", (201, task()))

    added = run(
        *("add", "say hello", "--type", "echo", "--payload", '{"hello":"world"}'),
        *("--description", "more", "--prompt", "do it", "--project", "p1"),
        *("--priority-score", "7", "--timeout", "30m", "--max-attempts", "5"),
        *("--retry", "fixed", "--retry-delay", "45s", "--capability", "gpu"),
        *("--capability", "web", "--lock", "k", "--tag", "a", "--tag", "b"),
        *("--idempotency-key", "once", "--deadline", "2030-01-31T07:00Z"),
        *("--max-cost", "2", "--estimated-cost", "0.5"),
    )

    assert added.exit_code == 0, added.stderr
    [(_, _, sent)] = service.asked
    assert datetime.fromisoformat(sent.pop("deadline_at")) == datetime(2030, 1, 31, 7, tzinfo=UTC)
    assert sent == {
        "max_cost_usd": 2.0,
        "estimated_cost_usd": 0.5,
        "title": "say hello",
        "type": "echo",
        "payload": {"hello": "world"},
        "description": "more",
        "prompt": "do it",
        "project_id": "p1",
        "priority_score": 7,
        "timeout_seconds": 1800,
        "max_attempts": 5,
        "retry": {"strategy": "fixed", "initial_delay_sec": 45.0},
        "required_capabilities": ["gpu", "web"],
        "locks": ["k"],
        "tags": ["a", "b"],
        "idempotency_key": "once",
        "source": "cli",
    }


def test_a_refusal_as_json_contains_its_code(service: Service) -> None:
    refusal = problem(429, "TOO_MANY_PENDING", "the limit is 50")
    service.on("POST /api/v1/tasks", refusal)

    refused = run("add", "say hello", "--json")

    assert refused.exit_code == Code.LIMITED
    assert json.loads(refused.stderr)["error"]["code"] == "TOO_MANY_PENDING"


def test_add_without_options_sends_no_defaults(service: Service) -> None:
    service.on("POST /api/v1/tasks", (201, task()))

    run("add", "say hello")

    [(_, _, sent)] = service.asked
    assert set(sent) == {"title", "source", "idempotency_key"}


def test_a_prompt_without_title_is_titled_by_its_beginning(service: Service) -> None:
    service.on("POST /api/v1/tasks", (201, task()))

    queued = run("queue", "fix\n the bug " + "x" * 200, "--model", "sonnet", "--timeout", "30m")

    assert queued.stdout == f"{ALPHA}\n"
    [(_, _, sent)] = service.asked
    assert sent["title"] == ("fix the bug " + "x" * 200)[:100]
    assert sent["prompt"].startswith("fix\n the bug xxx")
    assert sent["spec"] == {"model": "sonnet"}
    assert sent["timeout_seconds"] == 1800


def test_a_payload_may_come_from_stdin(service: Service) -> None:
    service.on("POST /api/v1/tasks", (201, task()))

    added = run("add", "say hello", "--payload", "-", stdin='{"from": "stdin"}')

    assert added.exit_code == 0, added.stderr
    assert service.asked[0][2]["payload"] == {"from": "stdin"}


def test_add_wait_json_prints_exactly_one_document(service: Service) -> None:
    service.on("POST /api/v1/tasks", (201, task()))
    service.on(
        f"GET /api/v1/tasks/{ALPHA}",
        (200, task(state="ready")),
        (200, task(state="running")),
        (200, task(state="completed", output={"hello": "world"})),
    )

    added = run("add", "say hello", "--wait", "--json")

    assert added.exit_code == 0
    assert json.loads(added.stdout)["state"] == "completed"
    assert json.loads(added.stdout)["output"] == {"hello": "world"}


@pytest.mark.parametrize("state", ["dead_lettered", "cancelled"])
def test_a_wait_for_a_failed_task_exits_5(service: Service, state: str) -> None:
    service.on(f"GET /api/v1/tasks/{ALPHA}", (200, task(state=state, error="boom\nat line 1")))

    waited = run("wait", ALPHA, "--json")

    assert waited.exit_code == Code.NOT_COMPLETED
    assert json.loads(waited.stdout)["state"] == state
    error = json.loads(waited.stderr)["error"]
    assert error["code"] == "NOT_COMPLETED"
    assert error["message"] == f"{ALPHA} did not complete, it is {state}: boom at line 1"
    line = run("wait", ALPHA).stderr.splitlines()[0]
    assert line == f"Error: {ALPHA} did not complete, it is {state}: boom at line 1"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"state": "cancelled"}, None),
        (
            {"state": "dead_lettered", "failure_reason": "error"},
            (
                f"`overnight get {ALPHA}` shows every run with its error; `overnight retry {ALPHA}`"
                " runs the task again."
            ),
        ),
        (
            {"state": "dead_lettered", "failure_reason": "no_handler", "type": "nosuch"},
            (
                "No worker had a handler for type 'nosuch'. Set OVERNIGHT_HANDLERS and restart"
                f" the workers; then run the task again with `overnight retry {ALPHA}`."
            ),
        ),
    ],
)
def test_a_wait_for_a_failed_task_prints_what_to_do(
    service: Service, fields: dict[str, str], expected: str | None
) -> None:
    service.on(f"GET /api/v1/tasks/{ALPHA}", (200, task(**fields)))

    error = json.loads(run("wait", ALPHA, "--json").stderr)["error"]

    assert error["hint"] == expected


def test_a_wait_that_times_out_exits_3_and_prints_the_state(service: Service) -> None:
    service.on(f"GET /api/v1/tasks/{ALPHA}", (200, task(state="running")))

    waited = run("wait", ALPHA, "--timeout", "1s", "--json")

    assert waited.exit_code == Code.WAIT_TIMED_OUT
    assert json.loads(waited.stdout)["state"] == "running"
    assert f"overnight wait {ALPHA}" in waited.stderr
    assert f"overnight explain {ALPHA}" in waited.stderr


def test_a_wait_survives_a_short_outage_of_the_database(service: Service) -> None:
    service.on(
        f"GET /api/v1/tasks/{ALPHA}",
        (200, task(state="running")),
        problem(503, "DATABASE_UNAVAILABLE", "try again soon"),
        (200, task(state="completed")),
    )

    assert run("wait", ALPHA).exit_code == 0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            problem(503, "QUEUE_FULL", "queue is at capacity (50 tasks)", limit=50),
            "queue is at capacity (50 tasks)",
        ),
        (problem(400, "TOO_MANY_PENDING", "the limit is 50"), "the limit is 50"),
        (problem(403, "MONTHLY_LIMIT_REACHED", "10.00 of 10 hours are used"), "of 10 hours"),
    ],
)
def test_a_submit_refused_by_a_limit_exits_6(
    service: Service, answer: Answer, message: str
) -> None:
    service.on("POST /api/v1/tasks", answer)

    refused = run("add", "say hello")

    assert refused.exit_code == Code.LIMITED
    assert refused.stdout == ""
    assert refused.stderr.startswith("Error: ")
    assert message in refused.stderr.splitlines()[0]
    assert len(service.asked) == 1, "a person waits: a full queue is told at once"


def test_a_full_queue_is_reported_with_the_message_of_the_design(service: Service) -> None:
    service.on("POST /api/v1/tasks", problem(503, "QUEUE_FULL", "queue is at capacity (50 tasks)"))

    refused = run("add", "say hello")

    assert refused.stderr.splitlines()[0] == "Error: queue is at capacity (50 tasks)"


def test_an_invalid_key_exits_4(service: Service) -> None:
    service.on("GET /api/v1/tasks", problem(401, "UNAUTHENTICATED", "show a valid API key"))

    refused = run("list")

    assert refused.exit_code == Code.NOT_AUTHENTICATED
    assert refused.stderr.startswith(
        "Error: The API key was not accepted.\nThe key came from OVERNIGHT_API_KEY or"
    )
    assert KEY not in refused.output


def test_an_invalid_key_of_a_file_is_reported_with_the_file(
    service: Service, tmp_path: Path
) -> None:
    service.on("GET /api/v1/tasks", problem(401, "UNAUTHENTICATED", "show a valid API key"))
    (tmp_path / "old.key").write_text(KEY, encoding="utf-8")

    refused = run("list", "--api-key-file", "old.key")

    assert "The key came from old.key." in refused.stderr
    assert KEY not in refused.output


def test_an_invalid_request_exits_2_and_prints_legal_values(service: Service) -> None:
    service.on(
        "GET /api/v1/tasks",
        problem(
            400,
            "INVALID_REQUEST",
            "status: unknown; legal: pending, running",
            errors=[{"field": "status", "message": "unknown", "legal": "pending, running"}],
        ),
    )

    refused = run("list", "--status", "sleepy")

    assert refused.exit_code == Code.USAGE
    assert refused.stderr.count("pending, running") == 1


@pytest.mark.parametrize("command", [["list"], ["wait", ALPHA], ["add", "x", "--wait"]])
def test_an_unreachable_server_exits_1_with_advice(command: list[str]) -> None:
    refused = run(*command, "--url", "http://127.0.0.1:9")

    assert refused.exit_code == Code.FAILED
    assert "overnight up" in refused.stderr
    assert "Traceback" not in refused.output


def test_another_service_at_the_address_is_reported(service: Service) -> None:
    service.on("GET /api/v1/tasks", (200, b"<html>welcome</html>"))

    refused = run("list")

    assert refused.exit_code == Code.FAILED
    assert "is not one of an Overnight server" in refused.stderr


@pytest.mark.parametrize(
    "answer",
    [
        problem(404, "NOT_FOUND", "Not Found"),
        (404, {"detail": "Not Found"}),
        (404, b"<html>"),
        (308, b""),
    ],
)
@pytest.mark.parametrize("path", ["", "/api/v1"])
def test_an_address_without_an_api_is_reported(service: Service, answer: Answer, path: str) -> None:
    service.on(f"GET {path}/api/v1/tasks", answer)

    refused = run("list", "--url", service.url + path)

    assert refused.exit_code == Code.FAILED
    assert f"There is no Overnight API at {service.url}{path}" in refused.stderr
    assert "without a path" in refused.stderr
    assert not path or f"such as {service.url}." in refused.stderr


def test_an_unknown_task_is_not_reported_as_a_wrong_address(service: Service) -> None:
    service.on(f"GET /api/v1/tasks/{ALPHA}", problem(404, "TASK_NOT_FOUND", "no such task"))

    shown = run("get", ALPHA).stderr
    assert shown == "Error: no such task\n`overnight list` shows your tasks.\n"


def test_a_list_is_plain_columns_when_piped(service: Service) -> None:
    dead = task(
        BETA,
        "dead_lettered",
        title="x\x1b[2Jy",
        started_at="2026-11-16T03:00:05Z",
        completed_at="2026-11-16T03:01:09Z",
        cost_usd=0.25,
        error="no page",
    )
    service.on("GET /api/v1/tasks", (200, [task(), dead]))

    listed = run("list")

    header, first, second = listed.stdout.splitlines()
    assert header.split() == list(task_output.HEADERS)
    assert first.split() == [
        *(ALPHA, "ready", "echo", "2026-11-16", "03:00:00Z", "-", "-", "-", "say", "hello", "-")
    ]
    assert second.split()[5:8] == ["2026-11-16", "03:01:09Z", "1m04s"]
    assert second.endswith(r"$0.2500  x\x1b[2Jy  no page")


def test_a_list_shows_no_duration_of_a_task_that_waited_until_its_end(service: Service) -> None:
    times = {"started_at": "2026-11-16T03:00:05Z", "completed_at": "2026-11-16T09:00:00Z"}
    service.on("GET /api/v1/tasks", (200, [task(state="cancelled", **times)]))

    assert "5h59m" not in run("list").stdout


def test_a_list_sends_its_status_and_limit(service: Service) -> None:
    service.on("GET /api/v1/tasks", (200, []))

    listed = run("list", "--status", "failed", "--limit", "7")

    assert listed.stdout == ""
    assert "status=failed" in service.asked[0][1]
    assert "limit=7" in service.asked[0][1]


def test_json_is_one_document_and_jsonl_one_per_line(service: Service) -> None:
    service.on("GET /api/v1/tasks", (200, [task(), task(BETA)]))

    whole, lines = run("list", "--json"), run("list", "--jsonl")

    assert [item["id"] for item in json.loads(whole.stdout)] == [ALPHA, BETA]
    assert [json.loads(line)["id"] for line in lines.stdout.splitlines()] == [ALPHA, BETA]


def test_a_unique_short_id_finds_its_task(service: Service) -> None:
    service.on("GET /api/v1/tasks", (200, [task(), task(BETA)]))
    service.on(f"GET /api/v1/tasks/{BETA}", (200, task(BETA, "completed", output=[1, {"a": 2}])))

    shown = run("get", "bb")

    assert shown.exit_code == 0, shown.stderr
    assert BETA in shown.stdout
    assert "completed" in shown.stdout


def test_a_short_id_of_two_tasks_lists_both(service: Service) -> None:
    service.on("GET /api/v1/tasks", (200, [task(), task(BETA)]))

    refused = run("cancel", "01J8K")

    assert refused.exit_code == Code.USAGE
    assert ALPHA in refused.stderr
    assert BETA in refused.stderr
    assert all(method != "DELETE" for method, _, _ in service.asked)


def test_a_full_id_is_used_without_a_lookup(service: Service) -> None:
    service.on(f"GET /api/v1/tasks/{ALPHA}", (200, task()))

    run("explain", ALPHA.lower())

    assert [path for _, path, _ in service.asked] == [f"/api/v1/tasks/{ALPHA}/explain"]


def test_an_unknown_task_exits_1() -> None:
    refused = run("get", ALPHA)

    assert refused.exit_code == Code.FAILED
    assert refused.stderr == "Error: no such task\n`overnight list` shows your tasks.\n"


@pytest.mark.parametrize("command", ["cancel", "queue-cancel"])
@pytest.mark.parametrize(
    ("state", "expected"), [("cancelled", "cancelled"), ("running", "requested to stop.")]
)
def test_cancel_prints_the_resulting_state(
    service: Service, command: str, state: str, expected: str
) -> None:
    service.on(f"DELETE /api/v1/tasks/{ALPHA}", (200, {"cancelled": True, "state": state}))

    cancelled = run(command, ALPHA)

    assert cancelled.exit_code == 0
    assert expected in cancelled.stdout


def test_limits_and_queue_status_show_the_usage(service: Service) -> None:
    limits = {
        "plan": "pro",
        "max_concurrent_agents": 3,
        "max_task_duration_minutes": 120,
        "monthly_agent_hours_limit": 100,
        "monthly_agent_hours_used": 12.5,
        "billing_cycle_resets_at": "2026-12-01T00:00:00Z",
        "monthly_agent_hours_promised": 1.5,
        "on_exhausted": "hold",
        "pending": 5,
        "pending_limit": 50,
        "night_budget_usd": 4.0,
        "night_spent_usd": 1.25,
        "night_left_usd": 2.0,
        "next_night_at": "2026-11-17T00:00:00Z",
        "window": "22:00-06:00 Europe/Berlin (stop)",
        "artifact_max_mb": 25.0,
        "artifact_task_mb": 100.0,
        "artifact_storage_mb": 1000.0,
        "artifact_stored_mb": 12.5,
    }
    status = {
        "running": 2,
        "pending": 5,
        "max_concurrent": 3,
        "can_start_more": True,
        "monthly_hours_used": 12.5,
        "monthly_hours_limit": None,
        "held_by": [{"code": "paused", "message": "everything is paused"}],
    }
    service.on("GET /api/v1/users/me/limits", (200, limits))
    service.on("GET /api/v1/tasks/queue-status", (200, status))

    shown = run("limits").stdout
    for expected in (
        "12.50 of 100",
        "1.50 by running tasks",
        "new tasks wait",
        "5 of 50",
        "(stop)",
        "up to 25 MB each",
    ):
        assert expected in shown
    for expected in ("$4.00", "$1.25", "$2.00 after reservations", "2026-11-17 00:00:00Z"):
        assert expected in shown
    assert "2 of 3" in run("queue-status").stdout
    assert "no limit" in run("queue-status").stdout
    assert "everything is paused" in run("queue-status").stdout
    assert json.loads(run("limits", "--json").stdout) == limits
    assert json.loads(run("queue-status", "--json").stdout) == status


def test_queue_status_of_one_task_shows_that_task(service: Service) -> None:
    service.on(f"GET /api/v1/tasks/{ALPHA}", (200, task()))

    assert ALPHA in run("queue-status", ALPHA).stdout


def test_the_local_stack_is_found_from_a_subdirectory(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OVERNIGHT_URL")
    monkeypatch.delenv("OVERNIGHT_API_KEY")
    (tmp_path / "deep" / "down").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "down")
    service.on("GET /api/v1/tasks", (200, []))

    with published_home(tmp_path / ".overnight", api_url=service.url, api_key="the-local-key"):
        listed = run("list")

    assert listed.exit_code == 0, listed.stderr
    assert service.keys == {"the-local-key"}


def test_the_local_key_is_never_sent_to_another_server(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OVERNIGHT_API_KEY")

    with published_home(
        tmp_path / ".overnight", api_url="http://127.0.0.1:9", api_key="the-local-key"
    ):
        refused = run("list", "--url", service.url)

    assert refused.exit_code == Code.NOT_AUTHENTICATED
    assert service.asked == []


def test_a_key_file_overrides_the_environment(service: Service, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from-a-file\n")
    service.on("GET /api/v1/tasks", (200, []))

    run("list", "--api-key-file", str(tmp_path / "key"))

    assert service.keys == {"from-a-file"}


@pytest.mark.parametrize("content", [None, ""])
def test_a_key_file_without_a_key_exits_2(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "key").write_text(content)

    refused = run("list", "--api-key-file", str(tmp_path / "key"))

    assert refused.exit_code == Code.USAGE


def test_add_prints_the_warnings_of_the_service_on_stderr(service: Service) -> None:
    service.on("POST /api/v1/tasks", (201, task(warnings=["no worker has a handler"])))

    added = run("add", "write")

    assert added.stdout.strip() == ALPHA
    assert "Warning: no worker has a handler" in added.stderr
