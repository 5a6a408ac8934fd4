"""Whatever error Postgres raises, every process reports it, goes on, and works afterwards."""

import threading
from collections.abc import Callable
from functools import partial

import pytest

from overnight_server.domain.ids import parse_task
from tests.support.deployment import Deployment
from tests.support.failing_database import SQLSTATES, refusing
from tests.support.stack import SERVICES, Stack
from tests.support.wait import wait_until

# Every process whose own loop reads Postgres, and how its log names the failure.
REPORTS = {
    "api": ["database_unreachable"],
    "dispatcher": ["database_unreachable"],
    "maintenance": ["sweep_failed"],
    # Its main process, and the heartbeat of the run.
    "worker": ["database_unreachable", "heartbeat_failed"],
}


@pytest.mark.timeout(300)
def test_every_process_survives_every_error_of_postgres(
    build: Callable[..., Stack], deployment: Deployment
) -> None:
    # The lease outlives each error, so that no run is lost by it.
    stack = build(lease_seconds=30, poll_interval=0.2).start(*SERVICES).ready()
    _, client = stack.user()
    heard: set[str] = set()

    def listen() -> None:
        for event in client.stream(after=0):
            if event.state == "completed":
                heard.add(event.task_id)
            if len(heard) == len(SQLSTATES):
                return

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    long_run = client.tasks.create("all the while", type="sleep", payload={"seconds": 600})
    wait_until(lambda: deployment.state(parse_task(long_run.id)) == "running", what="it to run")

    for sqlstate in SQLSTATES:
        with refusing(deployment, sqlstate) as message:
            # The stream's reader looks for events only when ids were given out.
            deployment.run("SELECT nextval('events_id_seq')")
            for name, reports in REPORTS.items():
                for report in reports:
                    wait_until(
                        partial(_has_reported, stack, name, report, message),
                        what=f"{name} to report {message} as {report}",
                    )
        for name in ("api", "dispatcher"):
            wait_until(partial(_has_ended, stack, name), what=f"{name} to end its outage")
        task = client.tasks.create("afterwards")
        assert client.tasks.wait(task.id, timeout=60).status == "completed"
        wait_until(partial(heard.__contains__, task.id), what=f"the stream after {sqlstate}")

    listener.join(20)
    row = deployment.row(parse_task(long_run.id))
    assert (row["state"], row["epoch"]) == ("running", 1)
    assert [name for name, process in stack.processes.items() if process.wait(0) is not None] == []


def _has_reported(stack: Stack, name: str, report: str, message: str) -> bool:
    lines = stack.log_text(name).splitlines()
    return any(f"queue={report} " in line and message in line for line in lines)


def _has_ended(stack: Stack, name: str) -> bool:
    """Whether a process that logs the begin and the end of an outage once has logged its end."""
    log = stack.log_text(name)
    return log.rfind("queue=database_back") > log.rindex("queue=database_unreachable")
