"""Operators list the findings of the audit, and accept those that cannot be repaired."""

import json
from uuid import UUID

import pytest
from sqlalchemy import text

from overnight.errors import FindingNotFound
from overnight_server.control.audit_findings import accept_finding
from overnight_server.domain.ids import show_task
from overnight_server.maintenance.audit import audit_all
from tests.support.api_user import ApiUser
from tests.support.command import run

ROUTE = "/api/v1/admin/audit/findings"


def test_an_open_finding_is_listed_with_what_to_do(admin_cli: ApiUser) -> None:
    task_id = _lose_an_event(admin_cli)

    shown = run("audit", "findings")
    [finding] = json.loads(run("audit", "findings", "--json").stdout)

    assert shown.exit_code == 0, shown.output
    assert show_task(task_id)[-8:] in shown.stdout
    assert "events: Nothing can be repaired" in shown.output
    assert (finding["rule"], finding["status"]) == ("events", "open")
    assert finding["subject"] == show_task(task_id)
    assert finding["user"] == "root"
    assert "history of a task has a gap" in finding["problem"]


def test_an_accepted_finding_is_listed_only_among_all_and_never_reported_again(
    admin_cli: ApiUser,
) -> None:
    _lose_an_event(admin_cli)
    [number] = [row["id"] for row in admin_cli.deployment.rows("SELECT id FROM audit_findings")]

    accepted = run("audit", "accept", str(number), "--note", "deleted by hand")

    assert accepted.stdout == f"Finding {number} was accepted.\n"
    assert run("audit", "findings").output == "The audit has no open finding.\n"
    [finding] = json.loads(run("audit", "findings", "--all", "--json").stdout)
    assert (finding["status"], finding["note"]) == ("accepted", "deleted by hand")
    assert finding["accepted_by"] == f"user:{admin_cli.user}"
    assert audit_all(admin_cli.deployment.dispatcher) == 0
    assert "finding.accepted" in run("audit", "list").stdout


def test_only_an_open_finding_can_be_accepted(admin_cli: ApiUser) -> None:
    with pytest.raises(FindingNotFound):
        accept_finding(admin_cli.deployment.app, 7, actor="human:test")

    response = admin_cli.request("POST", f"{ROUTE}/seven/accept", json={})

    assert (response.status_code, response.json()["code"]) == (404, "FINDING_NOT_FOUND")
    assert "the audit has no open finding 7" in run("audit", "accept", "7").output


def _lose_an_event(admin: ApiUser) -> UUID:
    """Delete the last event of a task, let the audit notice, and return the task's id."""
    task_id = admin.deployment.task(admin.user)
    with admin.deployment.owner.engine.begin() as tx:
        tx.execute(text("DELETE FROM events WHERE task_id = :id"), {"id": task_id})
    assert audit_all(admin.deployment.dispatcher) == 1
    return task_id
