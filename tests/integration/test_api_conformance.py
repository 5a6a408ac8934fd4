"""The API sent whatever its description allows and forbids, by a tool that knows nothing else."""

import pytest

from tests.support.conformance import Found, conform
from tests.support.deployment import Deployment
from tests.support.seeded_data import furnish
from tests.support.serving import serve

SHOWN = 10


def _told(found: Found) -> str:
    first = "\n".join(found.faults[:SHOWN])
    return f"{len(found.faults)} answers that are not as described:\n{first}"


def test_every_answer_is_as_described(deployment: Deployment, database_url: str) -> None:
    with serve(deployment, database_url) as served:
        seeded_data = furnish(served, is_admin=True)
        found = conform(served, seeded_data, phases=("examples", "fuzzing"), examples=2)

    assert not found.faults, _told(found)
    assert len(found.statuses) > 90
    # What one listens to is named in the query, and few of so few names are of something.
    assert set(found.never_served) <= {"GET /api/v1/events"}


@pytest.mark.proof
@pytest.mark.parametrize("is_admin", [True, False], ids=["admin", "user"])
def test_every_answer_to_much_more_is_as_described(
    deployment: Deployment, database_url: str, *, is_admin: bool
) -> None:
    phases = ("examples", "coverage", "fuzzing", "stateful")
    with serve(deployment, database_url) as served:
        seeded_data = furnish(served, is_admin=is_admin)
        found = conform(served, seeded_data, phases=phases, examples=30)

    assert not found.faults, _told(found)
    assert found.calls > 5_000
