"""Schemathesis checks the API against its OpenAPI document."""

import pytest

from tests.support.conformance import ConformanceReport, conform
from tests.support.deployment import Deployment
from tests.support.live_api import serve
from tests.support.seeded_data import seed

SHOWN = 10
# Hypothesis warns of a long example, which is neither long for the API nor printed here.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")


def _describe(report: ConformanceReport) -> str:
    first = "\n".join(report.faults[:SHOWN])
    return f"{len(report.faults)} responses violate the OpenAPI document:\n{first}"


@pytest.fixture(autouse=True)
def short_log_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """End the stream of a log soon: most tasks here never run, and have nothing to send."""
    monkeypatch.setattr("overnight_server.api.routes.logs.MAX_STREAM_SECONDS", 0.1)


def test_every_response_matches_the_openapi_document(
    deployment: Deployment, database_url: str
) -> None:
    with serve(deployment, database_url) as served:
        seeded_data = seed(served, is_admin=True)
        report = conform(served, seeded_data, phases=("examples", "fuzzing"), examples=2)

    assert not report.faults, _describe(report)
    assert len(report.statuses) > 90
    # What one listens to is named in the query, and few of so few names are of something.
    # Inbox rows come from other programs' transactions; test_inbox.py resolves some. A correct
    # deployment has no findings; test_cli_audit.py accepts one.
    assert set(report.never_served) <= {
        "GET /api/v1/events",
        "POST /api/v1/admin/audit/findings/{finding_id}/accept",
        "POST /api/v1/admin/inbox/{row_id}/drop",
        "POST /api/v1/admin/inbox/{row_id}/retry",
    }


@pytest.mark.proof
@pytest.mark.parametrize("is_admin", [True, False], ids=["admin", "user"])
def test_many_more_responses_match_the_openapi_document(
    deployment: Deployment, database_url: str, *, is_admin: bool
) -> None:
    phases = ("examples", "coverage", "fuzzing", "stateful")
    with serve(deployment, database_url) as served:
        seeded_data = seed(served, is_admin=is_admin)
        report = conform(served, seeded_data, phases=phases, examples=30)

    assert not report.faults, _describe(report)
    assert report.calls > 5_000
