"""The route of plans: what a batch would come to, before it is queued."""

from collections.abc import Iterator

from fastapi import APIRouter

from overnight.errors import FieldError, InvalidGraph
from overnight.models.tasks import Plan, PlanRequest
from overnight_server.api.http.authentication import Reader
from overnight_server.api.http.dependencies import Use
from overnight_server.forecast.plan import plan
from overnight_server.forecast.snapshot import Workers
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import Edge
from overnight_server.intake.translate_request import new_task

router = APIRouter(prefix="/api/v1/plan", tags=["plan"])


@router.post("")
def simulate_batch(body: PlanRequest, parts: Use, caller: Reader) -> Plan:
    """Rehearse a batch behind what waits already; nothing is queued."""
    if wrong := list(_leading_nowhere(body)):
        raise InvalidGraph(wrong)
    return plan(
        parts.db,
        caller.user_id,
        [new_task(task, parts.settings, task.idempotency_key) for task in body.tasks],
        Caps.of(parts.settings),
        Workers.of(parts.settings),
        edges=[Edge(edge.parent, edge.child) for edge in body.edges],
        by_at=body.by_at,
    )


def _leading_nowhere(body: PlanRequest) -> Iterator[FieldError]:
    """Name the ends of edges that no task of the batch stands at."""
    last = len(body.tasks) - 1
    for place, edge in enumerate(body.edges):
        for end in ("parent", "child"):
            if getattr(edge, end) > last:
                yield FieldError(
                    f"edges.{place}.{end}",
                    "names no task of the batch",
                    f"a whole number from 0 to {last}",
                )
