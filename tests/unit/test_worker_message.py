from uuid import UUID

import pytest

from overnight_server.domain.claims import Claim
from overnight_server.domain.ids import TaskId, show_task
from overnight_worker.message import read_claims

TASK = UUID("0199b9b0-0000-7000-8000-000000000001")
TOKEN = UUID("6f1b2c3d-0000-4000-8000-000000000002")


def test_a_claim_is_read_from_a_message() -> None:
    claims = read_claims([[show_task(TASK), 3, str(TOKEN)], [show_task(TASK), 4, str(TOKEN)]])

    assert claims == [Claim(TaskId(TASK), 3, TOKEN), Claim(TaskId(TASK), 4, TOKEN)]


def test_a_malformed_claim_does_not_affect_the_others() -> None:
    claims = read_claims([None, [show_task(TASK), 3, str(TOKEN)], "task"])

    assert claims == [Claim(TaskId(TASK), 3, TOKEN)]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [show_task(TASK), 3],
        [show_task(TASK), 3, str(TOKEN), "more"],
        [str(TASK), 3, str(TOKEN)],
        [show_task(TASK), "3", str(TOKEN)],
        [show_task(TASK), 3.0, str(TOKEN)],
        [show_task(TASK), True, str(TOKEN)],
        [show_task(TASK), 3, "no uuid"],
        [show_task(TASK), 3, None],
        [None, None, None],
        [{"task": 1}, [], {}],
    ],
)
def test_other_arguments_are_dropped(arguments: list[object]) -> None:
    assert read_claims([arguments]) == []
    assert read_claims(arguments) == []
