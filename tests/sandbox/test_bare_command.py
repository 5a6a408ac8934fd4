"""A command that runs without a sandbox, where the operator permits it, ends with its children."""

from tests.sandbox.conftest import SandboxWorker

LEAVE_CHILDREN = "(setsid sleep 301 &) ; (trap '' TERM; sleep 301) & echo ready; "


def test_it_runs_as_an_unprivileged_user_in_its_workspace(worker: SandboxWorker) -> None:
    script = "cat; id -u; basename $PWD; echo event >&3; exit 3"

    answer = worker.request(sandbox_kind="none", argv=["sh", "-c", script], stdin="prompt ")

    user, workspace = answer["stdout"].removeprefix("prompt ").split()
    assert user != "0"
    assert workspace.startswith("workspace-")
    assert (answer["cause"], answer["exit_code"]) == ("exit", 3)
    assert answer["events"] == "event\n"
    assert answer["files_left"] == []


def test_what_it_started_ends_with_it(worker: SandboxWorker) -> None:
    answer = worker.request(sandbox_kind="none", argv=["sh", "-c", f"{LEAVE_CHILDREN} exit 0"])

    assert answer["exit_code"] == 0
    assert answer["processes_left"] == []


def test_it_is_ended_with_what_it_started(worker: SandboxWorker) -> None:
    script = f"trap '' TERM; {LEAVE_CHILDREN} sleep 301"

    answer = worker.request(sandbox_kind="none", argv=["sh", "-c", script], terminate_on="ready")

    assert answer["cause"] == "stopped"
    assert answer["processes_left"] == []
    assert not answer["timed_out"]


def test_the_worker_s_variables_are_not_passed_on(worker: SandboxWorker) -> None:
    answer = worker.request(sandbox_kind="none", argv=["env"])

    assert "OVERNIGHT_CANARY" not in answer["stdout"]
