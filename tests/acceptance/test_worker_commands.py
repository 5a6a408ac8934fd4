"""A worker runs commands in sandboxes: what they report and how they end.

`test_every_runner.py` has the ends that every runner meets. Commands are found from outside by a
number that is an argument of theirs.
"""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from overnight_server.control.cancel import cancel
from overnight_server.domain.ids import TaskId, show_task
from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from overnight_server.wakeups.wake import Waker
from tests.sandbox.test_hostile_scripts import GUARD
from tests.support.wait import wait_until
from tests.support.workers import (
    Worker,
    WorkerHarness,
    marked_processes,
    processes_with_argument,
    running_worker,
    shared_harness,
)

SOON = 15.0
HEARTBEAT = 1.0
HOSTILE = Path(__file__).parents[1] / "sandbox" / "hostile"
AGENT = Path(__file__).parents[2] / "examples" / "agents" / "scripted_agent.py"
# Waits for its end; ignores SIGTERM, and starts a program that leaves its session.
STUBBORN = "trap '' TERM; setsid sleep {number} & sleep {number} & wait; wait"
POLITE = "trap 'echo bye; exit 0' TERM; sleep {number} & wait"


@pytest.fixture(scope="module")
def harness(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis
) -> Iterator[WorkerHarness]:
    changes = {"lease_seconds": 8, "heartbeat_interval": HEARTBEAT, "cancel_grace": 3}
    with shared_harness(postgres, template, redis, **changes) as harness:
        harness.deployment.run(
            "INSERT INTO agent_profiles (name, profile)"
            " VALUES ('scripted', CAST(:profile AS jsonb))",
            profile=_scripted_profile(),
        )
        yield harness


@pytest.fixture(scope="module")
def worker(harness: WorkerHarness) -> Iterator[Worker]:
    """One worker with one slot for all tests here: each also proves that the last one freed it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET_TEAM_KEY", "of-the-whole-deployment")
        patch.setenv(f"SECRET_MY_KEY__{str(harness.user).replace('-', '_')}", "of-this-user")
        with running_worker(harness.settings) as worker:
            yield worker
            harness.reaches(harness.send("echo"), "completed")
            assert worker.process.poll() is None


@pytest.fixture(scope="module")
def recorded_beats(harness: WorkerHarness) -> None:
    """Keep the instant of every heartbeat: Postgres has the last one of a run only."""
    run = harness.deployment.run
    run("CREATE TABLE beats (id uuid, beat timestamptz)")
    run(
        "CREATE FUNCTION keep_beat() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS"
        " 'BEGIN INSERT INTO beats VALUES (new.id, new.heartbeat_at); RETURN NULL; END'"
    )
    run(
        "CREATE TRIGGER keep_beat AFTER UPDATE OF heartbeat_at ON tasks"
        " FOR EACH ROW WHEN (new.heartbeat_at IS NOT NULL) EXECUTE FUNCTION keep_beat()"
    )


@pytest.fixture
def number() -> Iterator[int]:
    """A number that marks the processes of one test; none is left at its end."""
    with marked_processes() as number:
        yield number


def _scripted_profile() -> str:
    return (
        '{"argv": ["python3", "/agent/scripted_agent.py"], "mounts":'
        f' [{{"source": "{AGENT.parent}", "target": "/agent"}}]}}'
    )


def send(harness: WorkerHarness, execution: Mapping[str, Any], **fields: Any) -> TaskId:
    """Send a task of the runner command."""
    asked = {"agent": None, "argv": None, "env": {}, "network": None, "limits": None, **execution}
    needs = ("runner:command",)
    return harness.send("command", execution=asked, required_capabilities=needs, **fields)


def shell(harness: WorkerHarness, script: str, **fields: Any) -> TaskId:
    """Send a shell script as a command; it fails for good when it fails."""
    execution = {"argv": ["sh", "-c", script], "limits": {"grace_seconds": 2}}
    return send(harness, execution, **{"max_attempts": 1, **fields})


def started(harness: WorkerHarness, script: str, number: int, **fields: Any) -> TaskId:
    """Send a script that sleeps, and wait until it does."""
    task_id = shell(harness, script.format(number=number), **fields)
    wait_until(lambda: processes_with_argument(number), timeout=SOON, what="the command to run")
    return task_id


def attempt_of(harness: WorkerHarness, task_id: TaskId) -> Mapping[str, Any]:
    row = "SELECT * FROM attempts WHERE task_id = :id ORDER BY epoch DESC LIMIT 1"
    return harness.deployment.one(row, id=task_id)


@pytest.mark.usefixtures("worker")
def test_a_command_reads_its_prompt_and_its_output_is_its_text(harness: WorkerHarness) -> None:
    task_id = shell(harness, "cat; echo; echo done", spec={"prompt": "the prompt"})

    row = harness.reaches(task_id, "completed")

    assert row["output"] == {"text": "the prompt\ndone", "summary": "done"}
    assert attempt_of(harness, task_id)["sandbox"].endswith(", memory 2 GB, network off")
    assert str(attempt_of(harness, task_id)["external_id"]).endswith(":1")


@pytest.mark.usefixtures("worker")
def test_a_command_reads_its_payload_and_the_outputs_before_it(harness: WorkerHarness) -> None:
    event = '{"event": "result", "output": {"pages": 3}}'
    first = shell(harness, f"echo '{event}' >&3")
    harness.reaches(first, "completed")
    reference = f"task:{show_task(first)}:output"
    script = (
        'printf \'{"event": "result", "output": [%s, %s]}\''
        ' "$(cat $OVERNIGHT_PAYLOAD_FILE)" "$(cat $OVERNIGHT_INPUTS_FILE)" >&3;'
        " echo >&3; ls -A; touch $OVERNIGHT_PAYLOAD_FILE || true"
    )

    second = shell(harness, script, payload={"city": "Oslo"}, context_refs=(reference,))
    row = harness.reaches(second, "completed")

    assert row["output"] == [{"city": "Oslo"}, {reference: {"pages": 3}}]


@pytest.mark.usefixtures("worker")
def test_a_payload_has_secrets_of_its_user_alone(harness: WorkerHarness) -> None:
    script = 'grep -c of-this-user "$OVERNIGHT_PAYLOAD_FILE"'
    own = shell(harness, script, payload={"key": "secret:MY_KEY"})
    of_all = shell(harness, "true", payload={"key": "secret:TEAM_KEY"})

    assert harness.reaches(own, "completed")["output"]["text"] == "1"
    row = harness.reaches(of_all, "dead_lettered")
    assert row["failure_reason"] == "auth_failure"
    assert "TEAM_KEY of the task's owner" in row["error"]


@pytest.mark.usefixtures("worker")
def test_the_scripted_agent_reports_cost_result_and_files(harness: WorkerHarness) -> None:
    prompt = (
        "Please do this:\n"
        "write app.py 'print(40 + 2)'\n"
        "run python3 app.py\n"
        "cost 0.25\n"
        "write out/report.txt 'all is well'\n"
    )
    task_id = send(harness, {"agent": "scripted"}, spec={"prompt": prompt})

    row = harness.reaches(task_id, "completed")

    assert row["result_summary"] == "Carried out 4 instructions."
    assert row["files_changed"] == ["app.py", "out/report.txt"]
    assert row["cost_usd"] == pytest.approx(0.25)
    stored = harness.deployment.rows(
        "SELECT name, content FROM artifacts WHERE task_id = :id", id=task_id
    )
    assert [(each["name"], bytes(each["content"])) for each in stored] == [
        ("report.txt", b"all is well\n")
    ]


@pytest.mark.usefixtures("worker")
def test_partial_long_and_wrong_events_are_logged_and_not_fatal(harness: WorkerHarness) -> None:
    script = (
        "echo nonsense >&3; echo '[1]' >&3; echo '{\"event\": \"dance\"}' >&3;"
        ' echo \'{"event": "cost", "usd": "much"}\' >&3;'
        " head -c 2000000 /dev/zero | tr '\\0' x >&3; echo >&3;"
        ' echo \'{"event": "result", "output": 7}\' >&3; printf \'{"event": "resu\' >&3'
    )
    row = harness.reaches(shell(harness, script), "completed")

    assert row["output"] == 7


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("script", "error_class"),
    [
        ("echo it broke >&2; exit 3", "error"),
        ("exit 64", "bad_command"),
        ("exit 69", "rate_limit"),
        ("exit 75", "error"),
        ("exit 77", "auth_failure"),
        ("exec /no/such/program", "bad_command"),
        ("kill -SEGV $$", "crash"),
    ],
)
def test_a_failure_has_the_class_of_its_exit_code(
    harness: WorkerHarness, script: str, error_class: str
) -> None:
    row = harness.reaches(shell(harness, script), "dead_lettered")

    assert row["failure_reason"] == error_class
    if "broke" in script:
        assert row["error"] == "the command ended with exit code 3: it broke"


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("/no/such/program", "it does not exist"),
        ("claude-of-nobody", "it is not in /usr/local/bin:/usr/bin:/bin"),
    ],
)
def test_a_program_that_does_not_exist_is_a_bad_command(
    harness: WorkerHarness, program: str, reason: str
) -> None:
    task_id = send(harness, {"argv": [program]}, max_attempts=3)

    row = harness.reaches(task_id, "dead_lettered")

    assert (row["failure_reason"], row["attempts"]) == ("bad_command", 1)
    assert f"cannot run {program}: {reason}; a sandbox sees /usr and" in row["error"]


def test_the_log_of_a_run_says_which_connections_were_refused(
    harness: WorkerHarness, worker: Worker
) -> None:
    fetch = "import urllib.request as u; u.urlopen('http://other.example/')"
    allowed = {"argv": ["python3", "-c", fetch], "network": {"allow": ["agent.example:8443"]}}

    task_id = send(harness, allowed, max_attempts=1)
    harness.reaches(task_id, "dead_lettered")

    sentence = "refused a connection to other.example:80: the task allows only agent.example:8443"
    chunks = harness.deployment.rows("SELECT text FROM log_chunks WHERE task_id = :id", id=task_id)
    assert sentence in "".join(chunk["text"] for chunk in chunks)
    [line] = [one for one in worker.log_text().splitlines() if "sandbox_connection" in one]
    assert f"queue_id={show_task(task_id)} epoch=1" in line
    assert sentence in line


@pytest.mark.usefixtures("worker")
def test_an_agent_that_is_not_installed_is_a_bad_command(harness: WorkerHarness) -> None:
    harness.deployment.run(
        "INSERT INTO agent_profiles (name, profile) VALUES ('absent', CAST(:profile AS jsonb))",
        profile='{"argv": ["true"], "mounts": [{"source": "/no/agent", "target": "/opt/agent"}]}',
    )

    row = harness.reaches(send(harness, {"agent": "absent"}), "dead_lettered")

    assert row["failure_reason"] == "bad_command"
    assert row["error"].startswith("the agent profile absent mounts /no/agent, which this worker's")


@pytest.mark.usefixtures("worker")
def test_a_command_that_uses_too_much_memory_is_ended(harness: WorkerHarness) -> None:
    hog = "import time; block = b'x' * (600 << 20); time.sleep(60)"
    task_id = send(
        harness, {"argv": ["python3", "-c", hog], "limits": {"memory_mb": 128}}, max_attempts=1
    )

    row = harness.reaches(task_id, "dead_lettered", timeout=30)

    assert row["failure_reason"] == "out_of_memory", row["error"]


@pytest.mark.parametrize("script", [STUBBORN, POLITE])
def test_a_cancel_ends_a_command_and_all_its_programs(
    harness: WorkerHarness, worker: Worker, number: int, script: str
) -> None:
    task_id = started(harness, script, number)
    [child] = worker.children()

    cancel(harness.deployment.app, harness.user, task_id, actor="human:test")

    harness.reaches(task_id, "cancelled", timeout=SOON)
    assert processes_with_argument(number) == [], "they are gone when the end is recorded"
    assert worker.children() == [child], "the process of the run was not ended by force"


@pytest.mark.parametrize("reason", ["cancel", "timeout"])
def test_a_command_has_the_grace_of_its_task_though_that_of_the_worker_is_shorter(
    harness: WorkerHarness, worker: Worker, number: int, reason: str
) -> None:
    script = "trap 'sleep 4; echo saved; exit 0' TERM; sleep {number} & wait"
    timeout = {"timeout_seconds": 2} if reason == "timeout" else {}
    execution = {"argv": ["sh", "-c", script.format(number=number)], "limits": {"grace_seconds": 9}}

    task_id = send(harness, execution, max_attempts=1, **timeout)
    wait_until(lambda: processes_with_argument(number), timeout=SOON, what="the command to run")
    [child] = worker.children()
    if reason == "cancel":
        cancel(harness.deployment.app, harness.user, task_id, actor="human:test")
    harness.reaches(
        task_id, {"cancel": "cancelled", "timeout": "dead_lettered"}[reason], timeout=30
    )

    chunks = harness.deployment.rows("SELECT text FROM log_chunks WHERE task_id = :id", id=task_id)
    assert "saved" in "".join(chunk["text"] for chunk in chunks)
    assert worker.children() == [child], "the process of the run was not ended by force"


@pytest.mark.usefixtures("worker", "recorded_beats")
@pytest.mark.parametrize("name", ["fork_bomb", "flood_stdout", "memory_many", "zombies"])
def test_a_hostile_command_delays_no_heartbeat(harness: WorkerHarness, name: str) -> None:
    script = (HOSTILE / name).with_suffix(".py").read_text()
    source = f"{GUARD}{script}\nimport time; time.sleep(3)\n"
    limits = {"memory_mb": 128, "processes": 64, "workspace_mb": 64}
    execution = {"argv": ["python3", "-"], "limits": limits}

    task_id = send(harness, execution, spec={"prompt": source}, max_attempts=1)
    wait_until(
        lambda: harness.deployment.state(task_id) in {"completed", "dead_lettered"},
        timeout=60,
        what="the command to end",
    )

    row = harness.deployment.row(task_id)
    assert row["failure_reason"] in {None, "out_of_memory"}, row["error"]
    rows = harness.deployment.rows("SELECT beat FROM beats WHERE id = :id ORDER BY 1", id=task_id)
    instants = [row["started_at"], *(each["beat"] for each in rows), row["finished_at"]]
    gaps = [later - earlier for earlier, later in itertools.pairwise(instants)]
    assert len(gaps) > 1
    assert max(gaps).total_seconds() <= 2 * HEARTBEAT
    chunks = harness.deployment.rows("SELECT text FROM log_chunks WHERE task_id = :id", id=task_id)
    assert "ESCAPED" not in "".join(chunk["text"] for chunk in chunks)


def test_a_command_gets_its_cancel_before_the_next_heartbeat(
    harness: WorkerHarness, worker: Worker, number: int
) -> None:
    task_id = started(harness, POLITE, number)
    waker = Waker(str(harness.settings.redis_url), harness.settings.redis_key_prefix)
    try:
        cancel(harness.deployment.app, harness.user, task_id, actor="human:test")
        waker.cancel_requested()
        harness.reaches(task_id, "cancelled", timeout=SOON)
    finally:
        waker.close()
    assert worker.process.poll() is None


def test_kill_9_of_the_process_of_the_run_ends_the_command(
    harness: WorkerHarness, worker: Worker, number: int
) -> None:
    task_id = started(harness, STUBBORN, number)
    [guard] = worker.children()
    for process in guard.children():
        process.kill()

    harness.reaches(task_id, "dead_lettered", timeout=SOON)

    assert processes_with_argument(number) == []
    assert harness.outcomes(task_id) == ["crash"]
