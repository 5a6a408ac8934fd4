"""A failing claim in the settle transaction does not prevent the result from being recorded."""

import time

import pytest
from sqlalchemy import Connection, text

from overnight_server.domain.results import Returned
from overnight_worker.record_results import settle_by
from tests.support.deployment import Deployment


class Spoiler:
    """A claim that fails in Postgres."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self.tried = 0
        self.confirmed = False

    def claim(self, tx: Connection) -> None:
        self.tried += 1
        tx.execute(text(self._sql))

    def confirm(self) -> None:
        self.confirmed = True


@pytest.mark.parametrize("sql", ["SELECT 1 / 0", "SELECT nonsense", "SELECT 'x'::int"])
def test_a_result_is_recorded_although_the_next_claim_failed(
    deployment: Deployment, sql: str
) -> None:
    deployment.agent()
    run = deployment.running(deployment.user())
    besides = Spoiler(sql)

    counted = settle_by(
        deployment.dispatcher,
        [(run, Returned({"ok": 1}))],
        deadline=time.monotonic() + 5,
        next_claim=besides,
    )

    row = deployment.row(run.claim.task_id)
    assert counted
    assert (row["state"], row["output"]) == ("completed", {"ok": 1})
    assert (besides.tried, besides.confirmed) == (1, False)
