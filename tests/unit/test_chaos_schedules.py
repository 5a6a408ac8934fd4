"""A chaos run compares what became of fire times with the times that it finds by counting."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from tests.chaos.schedules import EVERY, compare_fires

ID = UUID(int=1)
START = datetime(2026, 11, 19, 22, tzinfo=UTC)


def schedule(overlap: str) -> dict[str, Any]:
    """Return a schedule with three fire times."""
    ends_at = START + 2.5 * EVERY
    return {"id": ID, "overlap": overlap, "starts_at": START, "ends_at": ends_at}


def fires(*statuses: str) -> list[dict[str, Any]]:
    """Return the outcomes of fire times, from the first on."""
    return [
        {"schedule_id": ID, "fire_at": START + number * EVERY, "status": status}
        for number, status in enumerate(statuses)
    ]


@pytest.mark.parametrize("overlap", ["skip", "queue"])
def test_a_fire_time_is_submitted_or_skipped_for_its_run_before(overlap: str) -> None:
    outcomes = fires("queued", "skipped_overlap", "queued")

    assert compare_fires([schedule(overlap)], outcomes) == {}


@pytest.mark.parametrize(
    ("overlap", "outcomes", "finding"),
    [
        ("skip", fires("queued", "queued"), "fire times without an outcome"),
        ("skip", fires(*["queued"] * 4), "fires at no fire time"),
        (
            "cancel",
            fires("queued", "skipped_overlap", "queued"),
            "fire times that were not submitted",
        ),
        *(
            ("queue", fires("queued", status, "queued"), "fire times that were not submitted")
            for status in ("skipped_missed", "waiting", "failed")
        ),
    ],
)
def test_any_other_outcome_is_a_finding(
    overlap: str, outcomes: list[dict[str, Any]], finding: str
) -> None:
    assert list(compare_fires([schedule(overlap)], outcomes)) == [finding]
